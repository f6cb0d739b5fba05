"""One repeat on a real server, held against vLLM's own histograms; and a real server that is killed."""

from __future__ import annotations

import itertools
import threading
import time
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.live.conftest import START_TIMEOUT_S

from specstudy.errors import ServerDiedError
from specstudy.measure import Measured, Sampling, measure, record_of
from specstudy.records import Record
from specstudy.serving import Deployment, Server, launch
from specstudy.workloads import Closed, Prompt

pytestmark = pytest.mark.live

FACTS: dict[str, object] = {
    "profile": "live-test",
    "chapter": "live-test",
    "evidence": "real",
    "allocation": "test",
    "repeat": 0,
    "seed": 0,
    "target": "smollm2-135m-instruct",
    "dtype": "float32",
    "kv_cache_dtype": "auto",
    "engine": "vllm",
    "engine_version": "test",
    "method": "none",
    "workload": "questions",
    "max_tokens": 24,
    "temperature": 0.0,
    "git_sha": "unknown",
    "packages": {},
    "server_argv": (),
    "host_cpu": "x",
    "host_cpus": 1,
    "dataset_sha256": "0",
}


def questions(count: int, max_tokens: int = 24) -> tuple[list[Prompt], Sampling]:
    return [Prompt.user(f"Tell me something about the number {i}.") for i in range(count)], Sampling(max_tokens, 0.0, 0)


def histogram(server: Server, name: str) -> tuple[float, float]:
    """(sum, count) over its labels."""
    total = {"sum": 0.0, "count": 0.0}
    with urllib.request.urlopen(f"{server.base_url}/metrics", timeout=120) as response:
        for family in text_string_to_metric_families(response.read().decode()):
            for sample in family.samples:
                for part in total:
                    total[part] += sample.value if sample.name == f"{name}_{part}" else 0
    return total["sum"], total["count"]


def mean_ms(before: tuple[float, float], after: tuple[float, float], requests: int) -> float:
    assert after[1] - before[1] == requests
    return 1e3 * (after[0] - before[0]) / requests


TTFT, E2E = "vllm:time_to_first_token_seconds", "vllm:e2e_request_latency_seconds"


def repeat(server: Server, requests: int = 12, concurrency: int = 2) -> tuple[Measured, float, float]:
    """(a repeat, vLLM's own mean TTFT and E2E of its requests in ms)."""
    prompts, how = questions(requests)
    ttft, e2e = histogram(server, TTFT), histogram(server, E2E)
    found = measure(server, prompts, [], Closed(concurrency), how)
    assert found.error is None
    return found, mean_ms(ttft, histogram(server, TTFT), requests), mean_ms(e2e, histogram(server, E2E), requests)


@pytest.fixture(scope="module")
def measured(vllm_server: Server) -> tuple[Measured, float, float]:
    """The first repeat, on a warm server."""
    prompts, how = questions(4)
    measure(vllm_server, prompts, [], Closed(2), how)
    return repeat(vllm_server)


def test_a_measured_repeat_is_a_valid_record(measured: tuple[Measured, float, float]) -> None:
    found, *_ = measured
    record = record_of(found, FACTS)
    assert Record.model_validate_json(record.model_dump_json()) == record
    assert (record.status, record.completed, record.failed) == ("ok", 12, 0)
    assert (datetime.now(UTC) - record.started_at).total_seconds() < 3600
    assert record.output_tokens_per_s is not None
    assert 1 < record.output_tokens_per_s < 10_000
    assert record.queue_wait_ms_mean is not None
    assert record.acceptance_length is None


def test_the_chunks_carry_what_usage_counts(measured: tuple[Measured, float, float]) -> None:
    found, *_ = measured
    assert all(sum(row.chunk_tokens) == row.completion_tokens for row in found.requests)
    assert sum(row.completion_tokens or 0 for row in found.requests) == found.figures["output_tokens"]


def test_our_latencies_are_vllms_and_the_way_to_us(vllm_server: Server, measured: tuple[Measured, float, float]) -> None:
    """Never below vLLM's own; above by little for one of many lone requests at least: a busy machine delays both on the way."""
    over: list[tuple[float, float]] = []
    for found, *theirs in itertools.chain([measured], (repeat(vllm_server, 1, 1) for _ in range(50))):
        ours = (found.figures["ttft_ms_mean"], found.figures["e2e_ms_mean"])
        over.append((ours[0] - theirs[0], ours[1] - theirs[1]))
        assert min(over[-1]) >= 0
        if min(ttft for ttft, _ in over) <= 50 and min(e2e for _, e2e in over) <= 50:
            return
    raise AssertionError(f"ms above vLLM's own TTFT and E2E: {over}")


def test_a_killed_server_is_noticed_and_leaves_nothing(deployment: Callable[..., Deployment], log_path: Path) -> None:
    """SIGKILL to vLLM itself once two warm-ups and three requests are over, its engine core and workers left behind."""
    prompts, how = questions(100, 64)
    with launch(deployment(), log_path, timeout_s=START_TIMEOUT_S) as server:
        family = psutil.Process(server.process.pid).children(recursive=True)
        (vllm,) = psutil.Process(server.process.pid).children()  # the guard's only child
        assert len(family) > 1

        def kill() -> None:
            while not over.wait(0.1) and histogram(server, E2E)[1] < 5:
                pass
            vllm.kill()

        over = threading.Event()
        killer = threading.Thread(target=kill)
        killer.start()
        try:
            found = measure(server, prompts, prompts[:2], Closed(2), how)
        finally:
            over.set()
            killer.join()
        assert found.error is not None and not found.error.startswith("warm-up")
        assert 1 <= sum(row.status == "ok" for row in found.requests) < len(prompts)
        record = record_of(found, {**FACTS, "max_tokens": 64})
        assert record.status == "failed"
        assert record.output_tokens_per_s is None
        deadline = time.monotonic() + 120
        while server.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        with pytest.raises(ServerDiedError, match="its log ends"):
            server.raise_if_dead()
    gone, alive = psutil.wait_procs(family, timeout=120)
    assert alive == []
    assert len(gone) == len(family)
