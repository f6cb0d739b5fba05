"""What a shape run imposed, beside what its server then counted."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from specstudy.analysis import Cell, mean_interval
from specstudy.figures.tables import Table, with_interval
from specstudy.figures.text import NO_RECORDS, Text

NONE_IMPOSED = Text("*Acceptance is the drafts' own here; none was imposed.*")


def imposed_table(cells: Sequence[Cell]) -> Table | Text:
    """For each method and workload with imposed acceptance: the length, its source, and the length counted over all loads and repeats."""
    groups: dict[tuple[str, str, float, str], list[float]] = {}
    for cell in cells:
        for record in cell.records:
            if record.imposed_acceptance_length is not None:
                key = cell.variant.label, record.workload, record.imposed_acceptance_length, record.acceptance_source or ""
                groups.setdefault(key, []).extend([record.acceptance_length] if record.acceptance_length is not None else [])
    if not groups:
        return NONE_IMPOSED if cells else NO_RECORDS
    rows = [
        {
            "method": label,
            "workload": workload,
            "imposed length": f"{length:.3f}",
            "counted length": with_interval(mean_interval(counted) if counted else None, 3),
            "published row": source,
        }
        for (label, workload, length, source), counted in groups.items()
    ]
    note = (
        "Random weights accept nothing of their own, so the server draws which drafted tokens are accepted. Rows are those of "
        "data/published/acceptance.csv, which has their sources. At a constant rate: each drafted token is accepted with the same chance once all before it "
        "were; a real head's chance differs from place to place, which changes how much steps scatter, not their mean. Counted: from the server's counters, "
        "over all loads and repeats."
    )
    return Table(pd.DataFrame(rows), cells[0].records[0].evidence, note)
