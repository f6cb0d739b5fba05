"""Throughput, tokens/s: completion tokens delivered in the steady window over its length.

Closed loop at concurrency c with N requests: the window opens at send number c + 1, when the first slot is
refilled, and closes at send number N - c + 1, when the last round begins. In between c requests are in
flight throughout; the ramp (one burst of c prefills) and the drain are left out, and both ends are the same
event, so a window holds whole rounds. Open loop: from the first completion to the last scheduled arrival.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specstudy.measure.metrics.timeline import Timeline
from specstudy.workloads.arrivals import Arrival, Closed


@dataclass(frozen=True)
class Window:
    """[start_s, end_s) on the requests' clock."""

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        """Seconds."""
        return self.end_s - self.start_s

    def tokens(self, requests: Sequence[Timeline]) -> int:
        """Tokens of the chunks that came inside."""
        return sum(
            count for request in requests for when, count in zip(request.chunk_s, request.chunk_tokens, strict=True) if self.start_s <= when < self.end_s
        )

    def completions(self, requests: Sequence[Timeline]) -> int:
        """Requests whose last chunk came inside."""
        return sum(self.start_s <= request.chunk_s[-1] < self.end_s for request in requests)


def steady_window(sends_s: Sequence[float], requests: Sequence[Timeline], arrival: Arrival) -> Window:
    """The window of a load whose requests were sent at `sends_s`.

    Where the load is too short to have one, it is first send to last chunk.
    """
    whole = Window(min(sends_s), max(request.chunk_s[-1] for request in requests))
    if isinstance(arrival, Closed):
        in_order, c = sorted(sends_s), arrival.concurrency
        if len(in_order) < 3 * c:
            return whole
        return Window(in_order[c], in_order[len(in_order) - c])
    opened = Window(min(request.chunk_s[-1] for request in requests), max(request.due_s for request in requests))
    return opened if opened.length_s > 0 else whole
