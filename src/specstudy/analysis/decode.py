"""Decode throughput: tokens per second while every slot decodes, so without the ramp, prefills and the drain.

End-to-end throughput (`output_tokens_per_s`) is what a user of the server gets: it holds the prefills of the requests that
come in. It therefore falls with the prompt's length and says little of what speculation speeds up, which is decoding alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from specstudy.analysis.cells import Cell, with_baseline
from specstudy.analysis.speedup import Speedup
from specstudy.analysis.stats import Interval, mean_interval, paired_ratio

LEAST_S = 0.1  # of decoding in a repeat; from less no rate can be told


@dataclass(frozen=True)
class Decode:
    """Decode throughput of one cell.

    `tokens_per_s`: over all slots together. `share`: of the load's time, how much was spent with every slot decoding.
    """

    cell: Cell
    tokens_per_s: Interval
    share: float
    by_repeat: dict[int, float]


def decode_throughputs(cells: Sequence[Cell]) -> list[Decode]:
    """One for each closed-loop cell; a cell whose slots never all decoded at once has none."""
    return [found for found in map(decode_throughput, cells) if found is not None]


def decode_throughput(cell: Cell) -> Decode | None:
    """Tokens that came in the stretches in which each of the c slots was between its first and its last token, over their length.

    A stretch begins with the last of c first tokens, which is the end of a prefill, and ends with the first answer's last
    token. A step's tokens reach the client one request after another, so a stretch's own ends cut through a step. With
    speculation answers end at different times, stretches are a few steps long, and what is cut off would be a good part of them.
    So in a stretch each slot counts from its own first chunk to its own last one, which are whole steps: the tokens after the
    first over the time between, of all slots and stretches, times c. None for an open loop, which has no slots.
    """
    slots = cell.load.concurrency
    if slots is None:
        return None
    rates: dict[int, float] = {}
    shares: list[float] = []
    for record in cell.records:
        rows = cell.requests[cell.requests["record_id"] == record.record_id]
        if not any(len(gaps) for gaps in rows["chunk_gap_us"]):
            continue  # kept without its chunk gaps
        stretches = _all_decoding(rows, slots)
        tokens, slot_s = _whole_steps(rows, stretches)
        if slot_s / slots >= LEAST_S:
            rates[record.repeat] = slots * tokens / slot_s
            shares.append(sum(end - start for start, end in stretches) / float(rows["last_token_s"].max() - rows["sent_s"].min()))
    return Decode(cell, mean_interval(list(rates.values())), sum(shares) / len(shares), rates) if rates else None


def decode_speedups(cells: Sequence[Cell]) -> list[Speedup]:
    """Decode throughput over the baseline's, paired by repeat; one for each cell with a method and a baseline."""
    rates = {id(found.cell): found.by_repeat for found in decode_throughputs(cells)}
    speedups = []
    for cell, baseline in with_baseline(cells):
        ours, theirs = rates.get(id(cell), {}), rates.get(id(baseline), {})
        shared = sorted(ours.keys() & theirs.keys())
        if shared:
            speedups.append(Speedup(cell, baseline, paired_ratio([ours[repeat] for repeat in shared], [theirs[repeat] for repeat in shared])))
    return speedups


def _all_decoding(rows: pd.DataFrame, slots: int) -> list[tuple[float, float]]:
    """(start, end) in seconds of the stretches in which `slots` requests have a first token and not yet their last."""
    firsts, lasts = rows["first_token_s"].to_numpy(float), rows["last_token_s"].to_numpy(float)
    when = np.concatenate([firsts, lasts])
    change = np.concatenate([np.ones(len(firsts)), -np.ones(len(lasts))])
    order = np.lexsort((change, when))  # at the same instant a slot is left before it is taken
    when, decoding = when[order], np.cumsum(change[order])
    return [(float(when[i]), float(when[i + 1])) for i in np.flatnonzero(decoding[:-1] >= slots) if when[i + 1] > when[i]]


def _whole_steps(rows: pd.DataFrame, stretches: Sequence[tuple[float, float]]) -> tuple[int, float]:
    """(tokens, seconds), both summed over requests and stretches: from a request's first chunk in the stretch, whose tokens aren't counted, to its last."""
    if not stretches:
        return 0, 0.0
    starts, ends = np.array(stretches).T
    # A chunk's time is rebuilt from rounded gaps; half a gap's rounding for each chunk may lie between it and the request's own last time.
    slack = 1e-6 * max(len(gaps) for gaps in rows["chunk_gap_us"])
    tokens, seconds = 0, 0.0
    for first, gaps, counts in zip(rows["first_token_s"], rows["chunk_gap_us"], rows["chunk_tokens"], strict=True):
        if not len(gaps):
            continue  # one chunk: no step of its own to count
        times = first + np.concatenate([[0.0], np.cumsum(np.asarray(gaps, float)) / 1e6])
        total = np.cumsum(np.asarray(counts, int))
        i, j = np.searchsorted(times, starts - slack), np.searchsorted(times, ends + slack, side="right") - 1
        several = j > i
        tokens += int((total[j] - total[i % len(total)])[several].sum())
        seconds += float((times[j] - times[i % len(times)])[several].sum())
    return tokens, seconds
