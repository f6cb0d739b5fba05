"""P-EAGLE over EAGLE-3 cell by cell beside the published ratios, where a workload imposes a published data set's acceptance."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from specstudy.analysis import Cell, best_k, step_times
from specstudy.catalog.published import published_acceptance, published_ratios
from specstudy.figures.parallel import contenders
from specstudy.figures.tables import DASH, Table, ratio_text
from specstudy.figures.text import NO_RECORDS, Text

NOT_BESIDE = Text("*No workload here imposes the acceptance of a published comparison of P-EAGLE with EAGLE-3, so there is nothing to put beside it.*")
WITHIN = 0.10  # what counts as the same ratio


def beside_published_table(cells: Sequence[Cell]) -> Table | Text:
    """Each published ratio with ours at the same concurrency and data set, both best K against best K, and the times of our steps."""
    datasets = {row.id: row.dataset for row in published_acceptance()}
    theirs = {(one.benchmark, one.concurrency): one.ratio for one in published_ratios()}
    steps = {id(one.cell): one.step_ms for one in step_times(cells)}
    pair = contenders(cells)
    rows = []
    for one in best_k(cells, *pair) if pair else []:
        source = (one.cell.records[0].acceptance_source or "").split(",")[0]
        published = theirs.get((datasets.get(source, ""), one.cell.load.concurrency or 0))
        if published is None:
            continue
        off = one.ratio.estimate / published - 1
        row: dict[str, object] = {"data set": datasets[source], "concurrency": one.cell.load.concurrency}
        row |= {"published": f"{published:.2f}", "here": ratio_text(one.ratio), "off": f"{off:+.0%}", "within 10 %": "yes" if abs(off) <= WITHIN else "no"}
        for name, cell in (("P-EAGLE", one.cell), ("EAGLE-3", one.baseline)):
            step = steps.get(id(cell))
            row[f"{name} K, step ms"] = f"{cell.variant.num_speculative_tokens}, {DASH if step is None else f'{step.estimate:.2f}'}"
        rows.append(row)
    if not rows:
        return NOT_BESIDE if cells else NO_RECORDS
    note = (
        "Published: one B200, real weights, best K against best K. Here: random weights with the published acceptance lengths imposed, on the GPU named above. "
        "So a difference is one of step times: of drafting K tokens, and of checking them. A step is TPOT times acceptance length."
    )
    return Table(pd.DataFrame(rows), cells[0].records[0].evidence, note)
