"""A shape's ratios at the other acceptance lengths that were published for its head."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from specstudy.analysis import Cell
from specstudy.analysis.elsewhere import Elsewhere, elsewhere
from specstudy.figures.tables import DASH, Table
from specstudy.figures.text import NO_RECORDS, Text, bullets

NOTHING = Text("*No acceptance length was imposed here, so there is none to replace.*")
SHOWN = (1, 8, 32, 64)


def elsewhere_table(cells: Sequence[Cell]) -> Table | Text:
    """A row for each data set and K; decode and end-to-end throughput over the baseline's at a few loads."""
    found = elsewhere(cells)
    if not found:
        return NOTHING if cells else NO_RECORDS
    loads, longest = _loads(found), _longest(found)
    rows = []
    for row in dict.fromkeys(one.row for one in sorted(found, key=lambda one: (-longest[one.row.dataset], one.row.num_speculative_tokens or 0))):
        own = {one.cell.load.concurrency: one for one in found if one.row == row}
        rows.append(
            {
                "data set": row.dataset,
                "K": row.num_speculative_tokens,
                "published length": f"{row.acceptance_length:.2f}",
                "its published speed-up": DASH if row.speedup is None else f"{row.speedup:.2f}",
                **{f"decode c={c}": f"{own[c].decode:.2f}" if c in own else DASH for c in loads},
                **{f"end to end c={c}": f"{own[c].end_to_end:.2f}" if c in own else DASH for c in loads},
            }
        )
    note = (
        "Computed, not measured: the steps that were measured, at the length that was published for that data set, prompts kept as they are. Without "
        f"intervals; the measured ones are a guide. The published speed-up is the source's own: {found[0].row.setup}."
    )
    return Table(pd.DataFrame(rows), "simulated", note)


def _loads(found: Sequence[Elsewhere]) -> list[int]:
    return [c for c in SHOWN if any(one.cell.load.concurrency == c for one in found)]


def _longest(found: Sequence[Elsewhere]) -> dict[str, float]:
    """By data set, the acceptance length at the K where it is longest."""
    longest: dict[str, float] = {}
    for one in found:
        longest[one.row.dataset] = max(one.row.acceptance_length, longest.get(one.row.dataset, 0.0))
    return longest


def elsewhere_conclusion(cells: Sequence[Cell]) -> Text:
    """How much hangs on the data set: the best K on the one with the longest and the one with the shortest acceptance."""
    found = elsewhere(cells)
    if not found:
        return NOTHING if cells else NO_RECORDS
    loads, longest = _loads(found), _longest(found)
    ranked = sorted(longest, key=longest.__getitem__)
    lines = []
    for name in (ranked[-1], ranked[0]):
        told = []
        for load in loads:
            best = max((one for one in found if one.row.dataset == name and one.cell.load.concurrency == load), key=lambda one: one.end_to_end)
            told.append(f"{best.end_to_end:.2f} at concurrency {load} with K={best.row.num_speculative_tokens}")
        lines.append(f"End to end on {name}, {'the longest' if name == ranked[-1] else 'the shortest'} of {len(ranked)}: {', '.join(told)}.")
    return bullets(lines)
