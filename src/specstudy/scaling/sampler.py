"""Note once a second what the autoscaler, the Deployment and Prometheus say."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from specstudy.errors import MetricsUnavailableError
from specstudy.scaling import QUEUE_WAIT, SLOTS_IN_USE
from specstudy.scaling.cluster import Cluster
from specstudy.scaling.record import Sample

EVERY_S = 1.0
QUERIES = {"queue_wait_ms": "queue_wait_ms", "slots_in_use": "slots_in_use", "waiting": "sum(vllm:num_requests_waiting)"}
Query = Callable[[str], list[dict[str, Any]]]


@dataclass
class Sampled:
    """Grows while the sampler runs; times on the clock of `time.perf_counter()`. `conditions`: time, type, what it says, at each change."""

    samples: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    conditions: list[tuple[float, str, str]] = field(default_factory=list)
    missed: int = 0

    def rows(self, record_id: str, began: float) -> list[Sample]:
        """The samples, counted from the load's begin."""
        return [Sample(record_id, at - began, **values) for at, values in self.samples]


@contextmanager
def sampling(cluster: Cluster, deployment: str, autoscaler: str, query: Query) -> Iterator[Sampled]:
    """Sample for the length of the block. `query`: an instant query of Prometheus."""
    found, ended = Sampled(), threading.Event()

    def run() -> None:
        due = time.perf_counter()
        while not ended.wait(max(0.0, due - time.perf_counter())):
            due += EVERY_S
            try:
                _sample(cluster, deployment, autoscaler, query, found)
            except Exception:  # the API server may be away for a moment; the gap is counted
                found.missed += 1

    thread = threading.Thread(target=run, name="sampler", daemon=True)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def _sample(cluster: Cluster, deployment: str, autoscaler: str, query: Query, found: Sampled) -> None:
    at = time.perf_counter()
    replicas, scaler = cluster.deployment(deployment), cluster.hpa(autoscaler)
    values: dict[str, Any] = {"replicas": replicas.wanted, "listed": replicas.listed, "ready": replicas.ready, "desired": scaler.desired}
    values |= {"seen_wait_ms": scaler.metrics.get(QUEUE_WAIT), "seen_slots_average": scaler.metrics.get(SLOTS_IN_USE)}
    found.samples.append((at, {**values, **{name: _value(query, text) for name, text in QUERIES.items()}}))
    for kind, says in scaler.conditions.items():
        last = next((text for _, other, text in reversed(found.conditions) if other == kind), None)
        if says != last:
            found.conditions.append((at, kind, says))


def _value(query: Query, text: str) -> float | None:
    try:
        result = query(text)
    except MetricsUnavailableError:
        return None
    return float(result[0]["value"][1]) if len(result) == 1 else None
