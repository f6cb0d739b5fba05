"""The paced stand-in and a real vLLM, both with two slots: the same metrics, and the same behaviour of the queue."""

from __future__ import annotations

import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from specstudy.catalog import load_target
from specstudy.catalog.materialise import target_folder
from specstudy.measure import StreamClient, drive, run_async
from specstudy.serving import ENGINES, Server, deploy, launch
from specstudy.serving.server import free_port, running
from specstudy.workloads import Closed, Prompt

SLOTS, TOKENS = 2, 40
TARGET = "smollm2-135m-instruct"
READ = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:request_success",
    "vllm:prompt_tokens",
    "vllm:generation_tokens",
    "vllm:request_queue_time_seconds",
    "vllm:time_to_first_token_seconds",
    "vllm:e2e_request_latency_seconds",
)


@pytest.fixture(scope="module")
def paced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    port = free_port()
    argv = [sys.executable, "-m", "specstudy.scaling.standin", "--port", str(port), "--served-model-name", TARGET, "--max-num-seqs", str(SLOTS)]
    with running(argv, {}, port=port, model=TARGET, log_path=tmp_path_factory.mktemp("paced") / "log", timeout_s=30) as server:
        yield server


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if ENGINES["vllm"].version() is None:
        pytest.skip("vLLM isn't installed here")
    fixed: dict[str, Any] = {"target": TARGET, "target_path": str(target_folder(load_target(TARGET))), "hardware": "cpu", "dtype": "bfloat16"}
    made = deploy(**fixed, max_model_len=1024, max_num_seqs=SLOTS, flags={"enforce-eager": True})
    with launch(made, tmp_path_factory.mktemp("vllm") / "log", timeout_s=300) as server:
        yield server


@pytest.fixture(params=["paced", pytest.param("vllm", marks=pytest.mark.live)])
def server(request: pytest.FixtureRequest) -> Server:
    """Each of the two in turn."""
    found: Server = request.getfixturevalue(request.param)
    return found


@dataclass(frozen=True)
class Family:
    """A metric's type, its samples' label names, and a histogram's bounds."""

    type: str
    labels: frozenset[str]
    bounds: tuple[float, ...]


def families(server: Server) -> dict[str, Family]:
    with urllib.request.urlopen(f"{server.base_url}/metrics", timeout=10) as answer:
        found = list(text_string_to_metric_families(answer.read().decode()))
    made = {}
    for one in found:
        samples = [sample for sample in one.samples if not sample.name.endswith("_created")]
        bounds = tuple(sorted({float(sample.labels["le"]) for sample in samples if "le" in sample.labels}))
        made[one.name] = Family(one.type, frozenset(name for sample in samples for name in sample.labels), bounds)
    return made


def gauge(server: Server, name: str) -> float:
    with urllib.request.urlopen(f"{server.base_url}/metrics", timeout=10) as answer:
        return sum(sample.value for one in text_string_to_metric_families(answer.read().decode()) for sample in one.samples if sample.name == name)


def load(server: Server, requests: int) -> list[float]:
    """When each answer of requests sent at once was over, in s from the first one sent and in rising order; all must succeed."""

    async def run() -> list[float]:
        async with StreamClient(server.base_url, server.model) as client:
            prompts = [Prompt.user(f"Tell a story about number {i}.") for i in range(requests)]
            done = await drive(client, [client.body(prompt, max_tokens=TOKENS, temperature=0, seed=i) for i, prompt in enumerate(prompts)], Closed(requests))
        assert [outcome.error for outcome in done.outcomes] == [None] * requests
        start = min(outcome.sent for outcome in done.outcomes)
        return sorted(outcome.chunk_times[-1] - start for outcome in done.outcomes)

    return run_async(run())


@pytest.mark.live
def test_the_metrics_that_we_read_are_the_same(paced: Server, vllm: Server) -> None:
    """Name, type and labels; the queue's buckets too, from the same flag."""
    load(paced, 1)
    load(vllm, 1)
    ours, theirs = families(paced), families(vllm)
    assert {name: (ours[name].type, ours[name].labels) for name in READ} == {name: (theirs[name].type, theirs[name].labels) for name in READ}
    assert ours["vllm:request_queue_time_seconds"].bounds == theirs["vllm:request_queue_time_seconds"].bounds


def test_what_is_over_the_slots_waits_and_is_counted(server: Server) -> None:
    """Five at once on two slots: two run, three wait, and what they waited is in the counter; when all is over nothing runs or waits."""
    load(server, 1)  # the first request of a fresh server is slow for other reasons
    before = {name: gauge(server, f"vllm:request_queue_time_seconds_{name}") for name in ("count", "sum")}
    seen: list[tuple[float, float]] = []
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(load, server, 5)
        while not done.done():
            seen.append((gauge(server, "vllm:num_requests_running"), gauge(server, "vllm:num_requests_waiting")))
            time.sleep(0.05)
        ends = done.result()
    assert max(running for running, _ in seen) == SLOTS
    assert max(waiting for _, waiting in seen) == 3
    assert max(running + waiting for running, waiting in seen) == 5
    deadline = time.monotonic() + 5
    while gauge(server, "vllm:request_queue_time_seconds_count") < before["count"] + 5:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert (gauge(server, "vllm:num_requests_running"), gauge(server, "vllm:num_requests_waiting")) == (0, 0)
    waited = gauge(server, "vllm:request_queue_time_seconds_sum") - before["sum"]
    # Two found a slot; each of the three others waited until one more answer was over.
    assert waited == pytest.approx(sum(ends[:3]), rel=0.3, abs=0.5)


def test_a_wait_is_counted_when_its_request_ends(server: Server) -> None:
    """So the histogram of a window speaks of requests that came earlier, as early as an answer is long."""
    before = gauge(server, "vllm:request_queue_time_seconds_count")
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(load, server, 1)
        while gauge(server, "vllm:num_requests_running") == 0 and not done.done():
            time.sleep(0.01)
        during = gauge(server, "vllm:request_queue_time_seconds_count")
        done.result()
    deadline = time.monotonic() + 5
    while gauge(server, "vllm:request_queue_time_seconds_count") == before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (during - before, gauge(server, "vllm:request_queue_time_seconds_count") - before) == (0, 1)


def test_who_hangs_up_leaves_its_slot(server: Server, tmp_path: Path) -> None:
    import http.client
    import json

    host, port = server.base_url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    words = {
        "model": server.model,
        "messages": [{"role": "user", "content": uuid.uuid4().hex}],
        "max_completion_tokens": 800,
        "stream": True,
        "ignore_eos": True,
    }
    connection.request("POST", "/v1/chat/completions", json.dumps(words), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.read(10)
    assert gauge(server, "vllm:num_requests_running") == 1
    connection.close()
    answer.close()
    deadline = time.monotonic() + 10
    while gauge(server, "vllm:num_requests_running") > 0:
        assert time.monotonic() < deadline
        time.sleep(0.1)
