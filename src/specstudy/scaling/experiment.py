"""Drive a load that steps up and down over an autoscaled Deployment, and make the record of it."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import numpy as np

from specstudy.catalog.paths import cache_dir, project_root
from specstudy.measure import StreamClient, gpu_identity, run_async
from specstudy.measure.cell import request_row
from specstudy.measure.load import Load, drive
from specstudy.records import RequestRow, portable, provenance
from specstudy.records.schema import Method
from specstudy.scaling.balancer import Balancer
from specstudy.scaling.cluster import Cluster
from specstudy.scaling.outcomes import outcomes
from specstudy.scaling.policy import HpaPolicy
from specstudy.scaling.record import CHAPTER, Sample, ScalingRun, ServerKind
from specstudy.scaling.sampler import EVERY_S, Query, Sampled, sampling
from specstudy.workloads.arrivals import Open, steps
from specstudy.workloads.prompts import Prompt


@dataclass(frozen=True)
class Replica:
    """What serves: as a record names it."""

    server: ServerKind
    target: str
    engine: str
    engine_version: str
    slots: int
    argv: tuple[str, ...]
    method: Method = "none"
    draft: str | None = None
    num_speculative_tokens: int | None = None


@dataclass(frozen=True)
class LoadSpec:
    """Open-loop Poisson arrivals in stages of (requests/s, s); the prompts are used in turn. `slo_ttft_ms`: for goodput."""

    stages: tuple[tuple[float, float], ...]
    prompts: tuple[Prompt, ...]
    max_tokens: int
    slo_ttft_ms: float = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises ConfigError for stages that give no arrivals: here, before anything is started."""
        _ = self.arrival

    @cached_property
    def arrival(self) -> Open:
        """When each request is due."""
        return steps(self.stages, self.seed)


@dataclass(frozen=True)
class Place:
    """Where it runs: the cluster, what Prometheus answers, what sends requests for a model, how the autoscaler is set.

    `raise_if_dead`: raises ServerError where a program has ended without which nothing is scaled; `restarts`: how often a replica's process has ended
    by itself so far. A place elsewhere can't tell either.
    """

    cluster: Cluster
    deployment: str
    autoscaler: str
    query: Query
    client: Callable[[str], Balancer | StreamClient]
    sync_s: float
    window_s: float
    slots_window_s: float
    scrape_s: float
    raise_if_dead: Callable[[], None] = lambda: None
    restarts: Callable[[], int | None] = lambda: None


@dataclass(frozen=True)
class Finished:
    """One run as it is kept."""

    run: ScalingRun
    requests: tuple[RequestRow, ...]
    samples: tuple[Sample, ...]


def run_load(place: Place, replica: Replica, policy: HpaPolicy, load: LoadSpec, *, profile: str, settle_s: float = 0) -> Finished:
    """Drive the load and sample meanwhile, and for `settle_s` after the last answer.

    A lost request is counted, and makes no run failed; a run of lost ones alone is.

    Raises ServerError where the place has died under it: what wasn't scaled says nothing of the policy.
    """
    record_id, started = uuid.uuid4().hex[:16], datetime.now(UTC)
    prompts = [load.prompts[index % len(load.prompts)] for index in range(len(load.arrival.times_s))]
    restarts = place.restarts()
    with sampling(place.cluster, place.deployment, place.autoscaler, place.query) as sampled:
        driven = run_async(_drive(place, replica.target, load, prompts))
        _wait_until(driven.began + sum(length for _, length in load.stages) + settle_s)
        place.raise_if_dead()
    # The pauses between chunks are left out: a scaling run asks nothing of them, and they are most of a row.
    no_chunks: dict[str, Any] = {"chunk_tokens": (), "chunk_gap_us": ()}
    requests = tuple(request_row(record_id, index, prompts[index], driven).model_copy(update=no_chunks) for index in range(len(prompts)))
    samples = sampled.rows(record_id, driven.began)
    lags = [(outcome.sent - due) * 1e3 for outcome, due in zip(driven.outcomes, driven.scheduled, strict=True)]
    ok = sum(outcome.ok for outcome in driven.outcomes)
    error = None if ok else f"none of {len(prompts):,} requests ended well; the first: {driven.outcomes[0].error}"
    found: dict[str, Any] = {
        "record_id": record_id,
        "profile": profile,
        "chapter": CHAPTER,
        "started_at": started,
        "status": "ok" if error is None else "failed",
        "error": error,
        "policy": policy,
        **_place_fields(place, sampled, driven),
        **{name: value for name, value in vars(replica).items() if name != "argv"},
        "server_argv": portable(replica.argv, cache_dir()),
        **{name: getattr(load, name) for name in ("stages", "max_tokens", "seed", "slo_ttft_ms")},
        "num_prompts": len(prompts),
        "completed": ok,
        "failed": len(prompts) - ok,
        "resent": sum(outcome.resent for outcome in driven.outcomes),
        "replica_restarts": None if restarts is None else (place.restarts() or 0) - restarts,
        "schedule_lag_ms_p99": max(0.0, float(np.percentile(lags, 99))),
        **outcomes(requests, samples, load.stages, slots=replica.slots, slo_ttft_ms=load.slo_ttft_ms, minimum=policy.min_replicas),
        **_machine(),
    }
    return Finished(ScalingRun.model_validate(found), requests, tuple(samples))


def _place_fields(place: Place, sampled: Sampled, driven: Load) -> dict[str, Any]:
    return {
        "kubernetes_version": place.cluster.version,
        "sync_period_s": place.sync_s,
        "metric_window_s": place.window_s,
        "slots_window_s": place.slots_window_s,
        "scrape_period_s": place.scrape_s,
        "samples_missed": sampled.missed,
        "conditions": [(round(at - driven.began, 3), kind, says) for at, kind, says in sampled.conditions],
    }


def _machine() -> dict[str, Any]:
    identity = gpu_identity()
    source = provenance(project_root(), identity.uuids if identity else ())
    return {**vars(source), "packages": dict(source.packages), "gpu": identity.label if identity else None}


async def _drive(place: Place, model: str, load: LoadSpec, prompts: Sequence[Prompt]) -> Load:
    """Raises ServerError as soon as the place has died."""
    async with place.client(model) as client, asyncio.TaskGroup() as both:
        bodies = [client.body(prompt, max_tokens=load.max_tokens, temperature=0, seed=load.seed + index) for index, prompt in enumerate(prompts)]
        watch = both.create_task(_watch(place.raise_if_dead))
        driven = await drive(client, bodies, load.arrival)
        watch.cancel()
    return driven


async def _watch(raise_if_dead: Callable[[], None]) -> None:
    while True:
        raise_if_dead()
        await asyncio.sleep(EVERY_S)


def _wait_until(when: float) -> None:
    time.sleep(max(0.0, when - time.perf_counter()))
