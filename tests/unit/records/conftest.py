from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.standin.synthetic import REQUEST

from specstudy.records import Record, RequestRow

RECORD: dict[str, Any] = {
    "record_id": "0123456789abcdef",
    "profile": "tiny-cpu",
    "chapter": "03_baseline",
    "evidence": "real",
    "allocation": "0123456789ab",
    "repeat": 0,
    "seed": 7,
    "started_at": "2026-11-29T12:00:00Z",
    "status": "ok",
    "target": "tiny",
    "dtype": "float32",
    "kv_cache_dtype": "auto",
    "engine": "vllm",
    "engine_version": "0.32.0",
    "method": "none",
    "workload": "chat",
    "pattern": "closed",
    "concurrency": 1,
    "num_prompts": 10,
    "max_tokens": 32,
    "temperature": 0,
    "completed": 10,
    "failed": 0,
    "resent": 0,
    "git_sha": "0123456789ab",
    "packages": {"numpy": "2.3.5"},
    "server_argv": ("python", "-m", "server"),
    "host_cpu": "A processor",
    "host_cpus": 2,
    "dataset_sha256": "0" * 64,
}


@pytest.fixture
def record() -> Callable[..., Record]:
    """A record, with these fields changed."""
    return lambda **changes: Record.model_validate({**RECORD, **changes})


@pytest.fixture
def row() -> Callable[..., RequestRow]:
    """A request, with these fields changed."""
    return lambda **changes: RequestRow.model_validate({**REQUEST, **changes})
