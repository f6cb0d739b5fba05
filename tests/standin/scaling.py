"""Scaling runs made by rule, for tests: never kept, never shown as a measurement."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from specstudy.scaling.record import ScalingRun
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
