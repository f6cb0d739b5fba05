"""A fleet of replicas with so many slots each, first come first served, under open-loop arrivals: computed, not measured.

A request goes to the ready replica with the fewest requests and stays there, as with a real load balancer: a backlog
isn't spread again when a replica is added. A replica runs up to `slots` requests; each takes a service time drawn from
measured ones, longer the more of the slots are busy when it begins: up to a quarter as they are, `slowdown` times as long
in the last free one.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np

from specstudy.errors import ConfigError
from specstudy.scaling.policy import check_slowdown


def pace(busy: int, slots: int, slowdown: float) -> float:
    """Time of a token over that where a quarter of the slots is busy: 1 up to there, then in a straight line to `slowdown` where all are."""
    quarter = max(1, slots // 4)
    return 1 + (slowdown - 1) * max(0, busy - quarter) / max(1, slots - quarter)


@dataclass
class _Replica:
    ready_s: float
    free: list[float]
    unfinished: int = 0
    open: bool = False  # takes new requests


@dataclass
class Fleet:
    """Replicas, and counts for each whole second of what was started and finished.

    `arrived_s`, `started_s` and `finished_s` are of each request in the order of arrival.
    """

    slots: int
    cold_start_s: float
    horizon_s: float
    slowdown: float = 1.0
    replicas: list[_Replica] = field(default_factory=list)
    arrived_s: list[float] = field(default_factory=list)
    started_s: list[float] = field(default_factory=list)
    finished_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise ConfigError("slots", self.slots, "at least 1")
        check_slowdown(self.slowdown)
        if self.cold_start_s < 0 or self.horizon_s <= 0:
            raise ConfigError("cold_start_s, horizon_s", (self.cold_start_s, self.horizon_s), "a time of at least 0, and one above 0")
        seconds = int(self.horizon_s) + 2
        self._arrived, self._started, self._ended = (np.zeros(seconds, dtype=np.int64) for _ in range(3))
        self._waited = np.zeros(seconds)
        self._fewest: list[tuple[int, int]] = []
        self._ends: list[tuple[float, int]] = []
        self._coming: list[tuple[float, int]] = []
        self._alive: list[int] = []  # in the order of creation

    @property
    def count(self) -> int:
        """Replicas that are there and not on their way out, ready or not."""
        return len(self._alive)

    def ready(self, now_s: float) -> int:
        """Replicas that take requests."""
        return sum(self.replicas[index].ready_s <= now_s for index in self._alive)

    def scale(self, desired: int, now_s: float, *, warm: bool = False) -> None:
        """Create, or take out: what isn't ready first, then the newest, as the ReplicaSet controller does. Whoever goes finishes its requests."""
        while len(self._alive) < desired:
            index = len(self.replicas)
            self.replicas.append(_Replica(now_s if warm else now_s + self.cold_start_s, [0.0] * self.slots))
            heapq.heappush(self._coming, (self.replicas[index].ready_s, index))
            self._alive.append(index)
        while len(self._alive) > desired:
            unready = [index for index in self._alive if self.replicas[index].ready_s > now_s]
            gone = (unready or self._alive)[-1]
            self._alive.remove(gone)
            self.replicas[gone].open, self.replicas[gone].ready_s = False, np.inf

    def run(self, arrivals: np.ndarray, services: np.ndarray) -> None:
        """Dispatch requests that arrive at `arrivals` (s, rising) and take `services` (s) once started. Raises ConfigError if nobody ever takes one."""
        replicas, fewest, ends, coming = self.replicas, self._fewest, self._ends, self._coming
        starts: list[float] = []
        finishes: list[float] = []
        for now, service in zip(arrivals.tolist(), services.tolist(), strict=True):
            while coming and coming[0][0] <= now:
                self._open(heapq.heappop(coming)[1])
            while ends and ends[0][0] <= now:
                replica = replicas[index := heapq.heappop(ends)[1]]
                replica.unfinished -= 1
                if replica.open:
                    heapq.heappush(fewest, (replica.unfinished, index))
            while True:
                if not fewest:
                    self._await_one()
                unfinished, index = heapq.heappop(fewest)
                replica = replicas[index]
                if replica.open and replica.unfinished == unfinished:
                    break
            start = max(now, replica.free[0], replica.ready_s)
            busy = 1 + sum(until > start for until in replica.free)
            end = start + service * pace(busy, self.slots, self.slowdown)
            heapq.heapreplace(replica.free, end)
            replica.unfinished += 1
            heapq.heappush(fewest, (replica.unfinished, index))
            heapq.heappush(ends, (end, index))
            starts.append(start)
            finishes.append(end)
        self._note(arrivals, starts, finishes)

    def _open(self, index: int) -> None:
        if self.replicas[index].ready_s < np.inf:
            self.replicas[index].open = True
            heapq.heappush(self._fewest, (self.replicas[index].unfinished, index))

    def _await_one(self) -> None:
        """Nobody is ready: the request waits for the replica that will be first."""
        if not self._coming:
            raise ConfigError("replicas", 0, "at least one that is, or gets, ready")
        self._open(heapq.heappop(self._coming)[1])

    def _note(self, arrivals: np.ndarray, starts: list[float], finishes: list[float]) -> None:
        started, finished = np.array(starts), np.array(finishes)
        self.arrived_s += arrivals.tolist()
        self.started_s += starts
        self.finished_s += finishes
        self._arrived += self._seconds(arrivals)
        self._started += self._seconds(started)
        self._ended += self._seconds(finished)
        self._waited += self._seconds(finished, started - arrivals)

    def _seconds(self, at_s: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        """Counts, or sums of weights, for each second; what comes after the horizon is left out."""
        inside = at_s < self.horizon_s
        size = len(self._waited)
        return np.bincount(at_s[inside].astype(int) + 1, None if weights is None else weights[inside], size)[:size]

    def metrics(self, now_s: float, window_s: float, slots_window_s: float | None = None, scrape_s: int = 1) -> dict[str, float | None]:
        """What Prometheus would say at `now_s`: the mean wait of the requests that ended in the window, and the mean of the slots in use in its own,
        read every `scrape_s`.

        As the shipped recording rules have it: vLLM counts a request's wait when it ends, so a long answer's wait is seen late. Where none ended
        and nothing waits, the wait is 0; where none ended and something waits, it isn't known, None.
        """
        now, begin = int(now_s), max(0, int(now_s - window_s))
        ended = int(self._ended[begin + 1 : now + 1].sum())
        running = np.cumsum(self._started[: now + 1] - self._ended[: now + 1])
        first = begin if slots_window_s is None else max(0, int(now_s - slots_window_s))
        busy = float(running[now:first:-scrape_s].mean()) if now > first else 0.0
        waiting = int((self._arrived[: now + 1] - self._started[: now + 1]).sum())
        wait_ms = float(self._waited[begin + 1 : now + 1].sum()) / ended * 1e3 if ended else (None if waiting else 0.0)
        return {"queue_wait_ms": wait_ms, "slots_in_use": busy}
