"""P-EAGLE over EAGLE-3 cell by cell beside the published ratios, where a workload imposes a published data set's acceptance."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from specstudy.analysis import Cell, best_k, inflection
from specstudy.analysis.beside import WITHIN, Beside, Untried, beside_published, untried
from specstudy.analysis.contest import contenders
from specstudy.catalog.published import published_ratios
from specstudy.figures.parallel_tables import end_text
from specstudy.figures.tables import Table, ratio_text
from specstudy.figures.text import NO_RECORDS, Text, bullets

NOT_BESIDE = Text("*No workload here imposes the acceptance of a published comparison of P-EAGLE with EAGLE-3, so there is nothing to put beside it.*")
SAID = {"yes": "yes", "by its mean": "mean only", "not by its mean": "not excluded", "no": "no"}


def beside_published_table(cells: Sequence[Cell]) -> Table | Text:
    """Each published ratio with ours at the same concurrency and data set, both best K against best K, and what our steps alone would give."""
    found = beside_published(cells)
    if not found:
        return NOT_BESIDE if cells else NO_RECORDS
    rows = []
    for one in found:
        row: dict[str, object] = {"data set": one.dataset, "concurrency": one.concurrency, "published": f"{one.published:.2f}"}
        row |= {"here": ratio_text(one.contest.ratio), "off": f"{one.off:+.1%}", "within 10 %": SAID[one.within]}
        sides = zip((one.contest.cell, one.contest.baseline), one.step_ms, strict=True)
        row["step ms, P-EAGLE / EAGLE-3"] = " / ".join(f"{step:.2f} (K={cell.variant.num_speculative_tokens})" for cell, step in sides)
        row["its ratio; implied"] = f"{one.step_ratio:.2f}; {one.published_step_ratio:.2f}"
        row["from steps alone"] = f"{one.from_steps:.2f}"
        rows.append(row)
    note = (
        "Published: one B200, real weights, best K of 3, 5 and 7 on each side. Here: random weights with the published acceptance lengths imposed, on the GPU "
        "named above, best of the K measured. Mean only: within 10 %, but its interval reaches beyond; not excluded: the interval reaches within. A step is "
        "TPOT times acceptance length. Implied: the ratio of the published lengths over the published ratio of throughputs, as if its best K were ours. From "
        "steps alone: the ratio of the published lengths over our ratio of steps."
    )
    return Table(pd.DataFrame(rows), cells[0].records[0].evidence, note)


def beside_published_conclusion(cells: Sequence[Cell]) -> Text:
    """How many ratios are within 10 % of the published ones; of the others, whether measured step times explain the difference; where the advantage ends."""
    found = beside_published(cells)
    if not found:
        return NOT_BESIDE if cells else NO_RECORDS
    near, far = [one for one in found if abs(one.off) <= WITHIN], [one for one in found if abs(one.off) > WITHIN]
    lines = [_count_line(found, near)]
    lines += _far_lines("explained by step times: with the published lengths, steps alone give our ratio within 10 %", [one for one in far if one.explained])
    lines += _far_lines("**not explained** by step times: steps alone would give another ratio than ours", [one for one in far if not one.explained])
    lines += _untried_lines(untried(cells, found))
    lines += _end_lines(cells, found)
    return bullets(lines)


def _count_line(found: Sequence[Beside], near: Sequence[Beside]) -> str:
    absent = [one for one in published_ratios() if (one.benchmark, one.concurrency) not in {(have.dataset, have.concurrency) for have in found}]
    sure = sum(one.within == "yes" for one in near)
    told = f"{len(near)} of {len(found)} ratios are within 10 % of the published ones" + (f", {sure} of them with their whole interval" if near else "") + "."
    return told + (f" Not measured here: {', '.join(f'{one.benchmark} at {one.concurrency}' for one in absent)}." if absent else "")


def _far_lines(what: str, own: Sequence[Beside]) -> list[str]:
    """A line for each data set: ours and the published ratio, then the ratio of steps here and the one that the published ratio implies."""
    lines = []
    for dataset in dict.fromkeys(one.dataset for one in own):
        told = "; ".join(
            f"{one.contest.ratio.estimate:.2f} for {one.published:.2f} at {one.concurrency}, steps {one.step_ratio:.2f} for {one.published_step_ratio:.2f}"
            + ("" if one.explained else f", which alone give {one.from_steps:.2f}")
            for one in own
            if one.dataset == dataset
        )
        lines.append(f"{dataset}, further off and {what}. Ours for the published ratio, and P-EAGLE's step over EAGLE-3's here for the implied one: {told}.")
    return lines


def _untried_lines(found: Sequence[Untried]) -> list[str]:
    """A K that wasn't measured on this data set and would be faster: then the best K isn't the best."""
    lines = []
    for variant, dataset in dict.fromkeys((one.variant, one.dataset) for one in found):
        own = [one for one in found if (one.variant, one.dataset) == (variant, dataset)]
        told = ", ".join(f"{one.gain:.2f} times at {one.concurrency}" for one in sorted(own, key=lambda one: one.concurrency))
        lines.append(
            f"Computed, not measured: on {dataset} {variant.label} would be faster than the best K measured there, with its published length and the steps it "
            f"takes on another data set: {told}. The ratio there would change by as much."
        )
    return lines


def _end_lines(cells: Sequence[Cell], found: Sequence[Beside]) -> list[str]:
    """Where the advantage ends on each data set, best K against best K."""
    pair = contenders(cells)
    if pair is None:
        return []
    lines = []
    for dataset in dict.fromkeys(one.dataset for one in found):
        workload = next(one.contest.cell.load.workload for one in found if one.dataset == dataset)
        end = inflection(best_k([cell for cell in cells if cell.load.workload == workload], *pair))
        if end is not None:
            lines.append(f"{dataset}, best K against best K: {end_text(end)}.")
    return lines
