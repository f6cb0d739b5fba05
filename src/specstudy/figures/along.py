"""Tokens a step along an answer, as a table and in sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from specstudy.analysis import Cell
from specstudy.analysis.along import LEAST_TOKENS, PARTS, Along, along_answers
from specstudy.figures.tables import Table, with_interval
from specstudy.figures.text import NO_RECORDS, Text, bullets, not_measured

LACKING = f"Acceptance along an answer (answers of {LEAST_TOKENS} tokens or more, with their chunks)"


def along_table(cells: Sequence[Cell]) -> Table | Text:
    """Tokens a step in each quarter of the answers, each method at its largest K and lowest load."""
    found = along_answers(cells)
    if not found:
        return not_measured(LACKING) if cells else NO_RECORDS
    rows = [
        {
            "method": one.cell.variant.label,
            "load": one.cell.load.label,
            **{_name(part, one.max_tokens): with_interval(interval, 2) for part, interval in enumerate(one.parts)},
            "answers counted": f"{one.share:.0%}",
        }
        for one in found
    ]
    note = (
        "Tokens a step, by the place in the answer at which the step begins; ± over repeats. Only answers that ran to their limit are counted, so every column "
        "holds the same ones. The first chunk is left out. Steps without a draft, which ngram has, are in it."
    )
    return Table(pd.DataFrame(rows), found[0].cell.records[0].evidence, note)


def along_conclusion(cells: Sequence[Cell]) -> Text:
    """How much of acceptance comes late in the answers, and whether that is repetition."""
    found = along_answers(cells)
    lines = [f"{along_text(one)}." for one in found]
    if any(one.cell.variant.method == "ngram" and grows(one) for one in found):
        lines.append(
            "ngram accepts only what the text repeats, and it gains too: the further these answers go, the more they repeat earlier text. So acceptance and "
            "speed-up measured over whole answers are better than for short answers, or for a target that repeats itself less."
        )
    return bullets(lines) if lines else not_measured(LACKING)


def along_text(one: Along) -> str:
    """Like a-head K=3 at chat c=1: 2.35 ± 0.06 tokens a step in the first quarter of an answer, 5.33 ± 0.61 in the last."""
    said = f"{one.cell.variant.label} at {one.cell.load.label}: {with_interval(one.parts[0], 2)} tokens a step in the first quarter of an answer, "
    unsure = ", one repeat, so not told apart" if one.parts[-1].n < 2 else ", no difference"
    return said + f"{with_interval(one.parts[-1], 2)} in the last" + (unsure if one.parts[-1].overlaps(one.parts[0]) else "")


def grows(one: Along) -> bool:
    """Whether the last quarter's steps deliver more than the first's, beyond the noise."""
    first, last = one.parts[0], one.parts[-1]
    return last.estimate > first.estimate and not last.overlaps(first)


def _name(part: int, limit: int) -> str:
    return f"tokens {math.ceil(part * limit / PARTS) + 1} to {math.ceil((part + 1) * limit / PARTS)}"
