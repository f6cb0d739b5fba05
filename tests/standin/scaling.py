"""Scaling runs made by rule, for tests: never kept, never shown as a measurement."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from specstudy.records import RequestRow
from specstudy.scaling.outcomes import outcomes
from specstudy.scaling.record import LoadedRuns, Sample, ScalingRun, ScalingStore, load_runs
from specstudy.scaling.scenarios import tried_policy

RUN: dict[str, Any] = {
    "record_id": "a",
    "profile": "p",
    "chapter": "08_hpa_scaling",
    "server": "stand-in",
    "allocation": "m",
    "started_at": datetime(2026, 11, 29, tzinfo=UTC),
    "status": "ok",
    "policy": tried_policy("wait-and-slots", 4, 5),
    "kubernetes_version": "1.20.2",
    "sync_period_s": 15,
    "metric_window_s": 15,
    "scrape_period_s": 5,
    "target": "words",
    "engine": "paced stand-in",
    "engine_version": "1",
    "method": "none",
    "slots": 4,
    "stages": ((5.0, 60.0), (15.0, 120.0), (5.0, 60.0)),
    "max_tokens": 5,
    "seed": 0,
    "slo_ttft_ms": 500,
    "num_prompts": 2,
    "completed": 2,
    "failed": 0,
    "resent": 0,
    "git_sha": "x",
    "packages": {},
    "server_argv": ("python",),
    "host_cpu": "c",
    "host_cpus": 2,
    "conditions": ((1.5, "ScalingActive", "True ValidMetricFound: found"),),
}


def scaling_run(record_id: str, **changes: Any) -> ScalingRun:
    """A run, with these fields changed."""
    return ScalingRun.model_validate({**RUN, "record_id": record_id, **changes})


def row(record_id: str, index: int, scheduled_s: float, ttft_s: float | None) -> RequestRow:
    first = None if ttft_s is None else scheduled_s + ttft_s
    fixed: dict[str, Any] = {"prompt_id": "p", "chunks": 0, "chunk_tokens": (), "chunk_gap_us": (), "resent": False, "prompt_tokens": 2, "completion_tokens": 5}
    told = {"status": "ok", "error": None} if first is not None else {"status": "failed", "error": "lost"}
    last = None if first is None else first + 0.5
    return RequestRow(record_id=record_id, index=index, scheduled_s=scheduled_s, sent_s=scheduled_s, first_token_s=first, last_token_s=last, **fixed, **told)


def sample(record_id: str, at_s: float, replicas: int, wait_ms: float | None = 0.0) -> Sample:
    return Sample(record_id, at_s, replicas, replicas, replicas, replicas, wait_ms, 2.0, 0.0, wait_ms, 2.0)


def made(folder: Path, record_id: str = "a", **more: Any) -> LoadedRuns:
    """A run of 200 s with 15 requests/s in the middle, kept and read again; the first 20 s of the high load are slow."""
    times = [*np.arange(0, 60, 0.2), *np.arange(60, 180, 1 / 15), *np.arange(180, 240, 0.2)]
    requests = [row(record_id, i, float(at), 2.0 if 60 <= at < 80 else 0.05) for i, at in enumerate(times)]
    samples = [sample(record_id, float(at), 1 if at < 70 or at > 230 else 3, 3000.0 if 65 <= at < 85 else 0.0) for at in range(240)]
    computed = outcomes(requests, samples, RUN["stages"], slots=4, slo_ttft_ms=500, minimum=1)
    with ScalingStore.opened(folder) as store:
        store.keep(scaling_run(record_id, num_prompts=len(requests), completed=len(requests), **computed, **more), requests, samples)
    return load_runs(folder)
