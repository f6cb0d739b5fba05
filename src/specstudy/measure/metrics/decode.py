"""Decode throughput of one closed load, tokens per second while every slot decodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEAST_S = 0.1  # of decoding in a load; from less no rate can be told


@dataclass(frozen=True)
class Decoding:
    """`tokens_per_s`: over all slots together. `share`: of the load's time, how much was spent with every slot decoding."""

    tokens_per_s: float
    share: float


def decoding(
    slots: int,
    *,
    sent_s: Sequence[float],
    first_s: Sequence[float | None],
    last_s: Sequence[float | None],
    gaps_us: Sequence[Sequence[int]],
    chunk_tokens: Sequence[Sequence[int]],
) -> Decoding | None:
    """Tokens that came in the stretches in which each of the slots was between its first and its last token, over their length.

    One entry a request: send, first and last token in seconds, the pauses between its chunks in µs, the tokens of each chunk.

    A stretch begins with the last of c first tokens, which is the end of a prefill, and ends with the first answer's last
    token. A step's tokens reach the client one request after another, so a stretch's own ends cut through a step. With
    speculation answers end at different times, stretches are a few steps long, and what is cut off would be a good part of them.
    So in a stretch each slot counts from its own first chunk to its own last one, which are whole steps: the tokens after the
    first over the time between, of all slots and stretches, times c. None where the slots hardly ever decoded all at once, or
    where no gaps were kept.
    """
    if not any(len(gaps) for gaps in gaps_us):
        return None
    firsts, lasts = np.array(first_s, float), np.array(last_s, float)
    stretches = _all_decoding(firsts, lasts, slots)
    tokens, slot_s = _whole_steps(firsts, gaps_us, chunk_tokens, stretches)
    if slot_s / slots < LEAST_S:
        return None
    load_s = float(np.nanmax(lasts) - min(sent_s))
    return Decoding(slots * tokens / slot_s, sum(end - start for start, end in stretches) / load_s)


def _all_decoding(firsts: np.ndarray, lasts: np.ndarray, slots: int) -> list[tuple[float, float]]:
    """(start, end) in seconds of the stretches in which `slots` requests have a first token and not yet their last."""
    when = np.concatenate([firsts, lasts])
    change = np.concatenate([np.ones(len(firsts)), -np.ones(len(lasts))])
    order = np.lexsort((change, when))  # at the same instant a slot is left before it is taken
    when, active = when[order], np.cumsum(change[order])
    return [(float(when[i]), float(when[i + 1])) for i in np.flatnonzero(active[:-1] >= slots) if when[i + 1] > when[i]]


def _whole_steps(
    firsts: np.ndarray, gaps_us: Sequence[Sequence[int]], chunk_tokens: Sequence[Sequence[int]], stretches: Sequence[tuple[float, float]]
) -> tuple[int, float]:
    """(tokens, seconds), both summed over requests and stretches: from a request's first chunk in the stretch, whose tokens aren't counted, to its last."""
    if not stretches:
        return 0, 0.0
    starts, ends = np.array(stretches).T
    # A chunk's time is rebuilt from rounded gaps; half a gap's rounding for each chunk may lie between it and the request's own last time.
    slack = 1e-6 * max(map(len, gaps_us))
    tokens, seconds = 0, 0.0
    for first, gaps, counts in zip(firsts, gaps_us, chunk_tokens, strict=True):
        if not len(gaps):
            continue  # one chunk: no step of its own to count
        times = first + np.concatenate([[0.0], np.cumsum(np.asarray(gaps, float)) / 1e6])
        total = np.cumsum(np.asarray(counts, int))
        i, j = np.searchsorted(times, starts - slack), np.searchsorted(times, ends + slack, side="right") - 1
        several = j > i
        tokens += int((total[j] - total[i % len(total)])[several].sum())
        seconds += float((times[j] - times[i % len(times)])[several].sum())
    return tokens, seconds
