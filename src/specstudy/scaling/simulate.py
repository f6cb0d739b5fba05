"""The autoscaler's algorithm over a simulated fleet: what a policy does with a load, a cold start and a fleet's size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specstudy.scaling.fleet import Fleet
from specstudy.scaling.hpa import Autoscaler, Release
from specstudy.scaling.policy import HpaPolicy
from specstudy.workloads.arrivals import steps


@dataclass(frozen=True)
class Scenario:
    """A load over a fleet. `stages`: (requests/s, seconds). `service_s`: measured service times, drawn from with replacement.

    `slowdown`: how much longer they are in a full replica; see Fleet. `first_sync_s`: when the autoscaler passes first, by default `sync_s` from the begin.
    """

    stages: tuple[tuple[float, float], ...]
    service_s: tuple[float, ...]
    slots: int
    cold_start_s: float
    first_replicas: int
    window_s: float = 15
    slots_window_s: float = 60
    scrape_s: int = 5
    sync_s: float = 15
    seed: int = 0
    first_sync_s: float | None = None
    slowdown: float = 1.0

    @property
    def length_s(self) -> float:
        """Seconds."""
        return sum(length for _, length in self.stages)

    def needed(self, rate: float, utilisation: float = 1.0) -> int:
        """Fewest replicas whose slots hold arrivals times a full replica's mean service time, filled to `utilisation`."""
        return max(1, int(np.ceil(rate * self.slowdown * float(np.mean(self.service_s)) / (self.slots * utilisation) - 1e-9)))


@dataclass(frozen=True)
class Simulated:
    """One value a sync, and one a request; times in s from the start, the wait in ms."""

    at_s: np.ndarray
    replicas: np.ndarray
    ready: np.ndarray
    queue_wait_ms: np.ndarray
    slots_in_use: np.ndarray
    recommended: np.ndarray
    arrived_s: np.ndarray
    started_s: np.ndarray
    finished_s: np.ndarray

    @property
    def wait_s(self) -> np.ndarray:
        """Start minus arrival of each request."""
        waited: np.ndarray = self.started_s - self.arrived_s
        return waited

    @property
    def asked(self) -> np.ndarray:
        """Replicas that each pass asked for, which the next one finds; what the last asked for isn't known."""
        return np.append(self.replicas[1:], self.replicas[-1])

    def between(self, begin_s: float, end_s: float) -> np.ndarray:
        """Waits, in s, of the requests that arrived in [begin, end)."""
        chosen = (self.arrived_s >= begin_s) & (self.arrived_s < end_s)
        waits: np.ndarray = self.wait_s[chosen]
        return waits


def simulate(policy: HpaPolicy, scenario: Scenario, release: Release = "current") -> Simulated:
    """Run the load to its end; the fleet starts with `first_replicas` ready ones."""
    fleet = Fleet(scenario.slots, scenario.cold_start_s, scenario.length_s + 1, scenario.slowdown)
    fleet.scale(scenario.first_replicas, 0, warm=True)
    arrivals = np.array(steps(scenario.stages, scenario.seed).times_s)
    services = np.random.default_rng(scenario.seed + 1).choice(np.array(scenario.service_s), len(arrivals))
    controller, rows = Autoscaler(policy, release), []
    done = 0
    for now in np.arange(scenario.first_sync_s or scenario.sync_s, scenario.length_s + 1e-9, scenario.sync_s).tolist():
        until = int(np.searchsorted(arrivals, now))
        fleet.run(arrivals[done:until], services[done:until])
        done = until
        values = fleet.metrics(now, scenario.window_s, scenario.slots_window_s, scenario.scrape_s)
        ready, current = fleet.ready(now), fleet.count
        decision = controller.sync(now, values, current=current, ready=ready)
        rows.append((now, current, ready, _nan(values["queue_wait_ms"]), _nan(values["slots_in_use"]), _nan(decision.recommended)))
        fleet.scale(decision.desired, now)
    fleet.run(arrivals[done:], services[done:])
    at, replicas, ready_, wait, slots, recommended = np.array(rows).T
    return Simulated(at, replicas, ready_, wait, slots, recommended, np.array(fleet.arrived_s), np.array(fleet.started_s), np.array(fleet.finished_s))


def fixed_fleet_waits(rate: float, service_s: Sequence[float], slots: int, replicas: int, *, requests: int = 20_000, seed: int = 0) -> np.ndarray:
    """Waits, in s, of a fleet that doesn't scale under Poisson arrivals; the first tenth, while it fills, is left out."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate, requests))
    fleet = Fleet(slots, 0, float(arrivals[-1]) + 1)
    fleet.scale(replicas, 0, warm=True)
    fleet.run(arrivals, rng.choice(np.array(service_s), requests))
    waits: np.ndarray = np.array(fleet.started_s) - np.array(fleet.arrived_s)
    return waits[requests // 10 :]


def replicas_for(rate: float, service_s: Sequence[float], slots: int, wait_p99_s: float, **more: int) -> int:
    """Fewest replicas at which the 99th percentile of the wait is at most `wait_p99_s`."""
    count = max(1, int(np.ceil(rate * float(np.mean(service_s)) / slots)))
    while float(np.percentile(fixed_fleet_waits(rate, service_s, slots, count, **more), 99)) > wait_p99_s:
        count += 1
    return count


def _nan(value: float | None) -> float:
    return np.nan if value is None else float(value)
