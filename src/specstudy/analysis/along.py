"""Do guesses get better along an answer? Tokens a step by the part of the answer that the step lies in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from specstudy.analysis.acceptance import deepest_curves
from specstudy.analysis.cells import Cell
from specstudy.analysis.stats import Interval, mean_interval

PARTS = 4
LEAST_TOKENS = 64  # of an answer: in shorter ones a step would be a large share of a part


@dataclass(frozen=True)
class Along:
    """Tokens a step in each quarter of the answers that ran to their limit; `share` is theirs of all answers."""

    cell: Cell
    max_tokens: int
    parts: tuple[Interval, ...]
    share: float


def along_answers(cells: Sequence[Cell]) -> list[Along]:
    """One for each method at its largest K and lowest load, where the requests' chunks are on file.

    Only answers of full length count, so that every quarter holds the same answers. A chunk after the first is a step, and
    lies where its first token lies; steps without a draft, which ngram has, are steps too.
    """
    found = (_along(curve.cell) for curve in deepest_curves(cells))
    return [one for one in found if one is not None]


def _along(cell: Cell) -> Along | None:
    limit = cell.records[0].max_tokens
    if limit < LEAST_TOKENS or "chunk_tokens" not in cell.requests:
        return None
    rows = cell.requests[cell.requests["chunk_tokens"].str.len() > 0]
    whole = rows[rows["completion_tokens"] == limit]
    repeats = [lengths for record in cell.records if (lengths := _quarters(whole[whole["record_id"] == record.record_id], limit)) is not None]
    if not repeats:
        return None
    return Along(cell, limit, tuple(mean_interval(list(values)) for values in zip(*repeats, strict=True)), len(whole) / len(rows))


def _quarters(rows: pd.DataFrame, limit: int) -> list[float] | None:
    """Mean tokens of a repeat's steps in each quarter; None where a quarter has none."""
    tokens, steps = np.zeros(PARTS), np.zeros(PARTS)
    for start, delivered in _steps(rows):
        part = min(start * PARTS // limit, PARTS - 1)
        tokens[part] += delivered
        steps[part] += 1
    return list(tokens / steps) if steps.all() else None


def _steps(rows: pd.DataFrame) -> Iterator[tuple[int, int]]:
    """(tokens before it, tokens) of every chunk but each answer's first, which the prompt's own step delivers."""
    for chunks in rows["chunk_tokens"]:
        before = int(chunks[0])
        for delivered in chunks[1:]:
            yield before, int(delivered)
            before += int(delivered)
