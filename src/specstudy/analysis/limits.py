"""Where a request's time goes, and how far more requests raise throughput."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specstudy.analysis.cells import Cell


@dataclass(frozen=True)
class TimeShares:
    """Mean milliseconds of a request: waiting for a slot, prefill (first token less the wait), decode (the rest)."""

    cell: Cell
    queue_ms: float
    prefill_ms: float
    decode_ms: float

    @property
    def total_ms(self) -> float:
        """Mean E2E."""
        return self.queue_ms + self.prefill_ms + self.decode_ms

    @property
    def largest(self) -> str:
        """The part that takes most."""
        parts = {"waiting for a slot": self.queue_ms, "prefill": self.prefill_ms, "decode": self.decode_ms}
        return max(parts, key=lambda name: parts[name])


def time_shares(cells: Sequence[Cell]) -> list[TimeShares]:
    """One for each cell whose records have the queue's counters.

    Prefill holds whatever passes before the first token once a slot is free, steps shared with other requests included.
    """
    found = []
    for cell in cells:
        queue, ttft, e2e = (cell.interval(field) for field in ("queue_wait_ms_mean", "ttft_ms_mean", "e2e_ms_mean"))
        if queue and ttft and e2e:
            wait = min(queue.estimate, ttft.estimate)
            found.append(TimeShares(cell, wait, ttft.estimate - wait, e2e.estimate - ttft.estimate))
    return found


@dataclass(frozen=True)
class Scaling:
    """Throughput at the highest concurrency against the lowest, of one variant and workload."""

    low: Cell
    high: Cell
    gain: float
    ideal: float


def scaling(cells: Sequence[Cell]) -> Scaling | None:
    """How far concurrency paid; None with fewer than two closed-loop cells."""
    closed = sorted((cell for cell in cells if cell.load.concurrency), key=lambda cell: cell.load.concurrency or 0)
    if len(closed) < 2:
        return None
    low, high = closed[0], closed[-1]
    slow, fast = low.interval("output_tokens_per_s"), high.interval("output_tokens_per_s")
    if slow is None or fast is None:
        return None
    return Scaling(low, high, fast.estimate / slow.estimate, (high.load.concurrency or 0) / (low.load.concurrency or 1))


def weight_read_gib_per_s(cell: Cell) -> float | None:
    """Weights over TPOT at concurrency 1: a decode step can't be faster than one pass over the weights.

    Gives the rate at which they were read if nothing else took time; None elsewhere or without figures.
    """
    tpot, weights = cell.interval("tpot_ms_mean"), cell.interval("weights_gib")
    if cell.load.concurrency != 1 or cell.variant.method != "none" or tpot is None or weights is None:
        return None
    return weights.estimate / (tpot.estimate / 1e3)
