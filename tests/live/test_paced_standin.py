"""The paced stand-in and a real vLLM, both with two slots: the same metrics, and the same behaviour of the queue."""

from __future__ import annotations

import http.client
import json
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.live.conftest import START_TIMEOUT_S, TARGET

from specstudy.catalog import load_target
from specstudy.catalog.materialise import target_folder
from specstudy.measure import StreamClient, drive, run_async
from specstudy.serving import ENGINES, Server, deploy, launch
from specstudy.serving.server import free_port, running
from specstudy.workloads import Closed, Prompt

SLOTS, TOKENS = 2, 40
LONG_TOKENS = 1900  # half a minute: what is to be seen meanwhile stays long enough, even where any process may stop for seconds
TIMEOUT_S = 120
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
    with running(argv, {}, port=port, model=TARGET, log_path=tmp_path_factory.mktemp("paced") / "log", timeout_s=TIMEOUT_S) as server:
        yield server


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if ENGINES["vllm"].version() is None:
        pytest.skip("vLLM isn't installed here")
    fixed: dict[str, Any] = {"target": TARGET, "target_path": str(target_folder(load_target(TARGET))), "hardware": "cpu", "dtype": "bfloat16"}
    made = deploy(**fixed, max_model_len=2048, max_num_seqs=SLOTS, flags={"enforce-eager": True})
    with launch(made, tmp_path_factory.mktemp("vllm") / "log", timeout_s=START_TIMEOUT_S) as server:
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
    with urllib.request.urlopen(f"{server.base_url}/metrics", timeout=TIMEOUT_S) as answer:
        found = list(text_string_to_metric_families(answer.read().decode()))
    made = {}
    for one in found:
        samples = [sample for sample in one.samples if not sample.name.endswith("_created")]
        bounds = tuple(sorted({float(sample.labels["le"]) for sample in samples if "le" in sample.labels}))
        made[one.name] = Family(one.type, frozenset(name for sample in samples for name in sample.labels), bounds)
    return made


def total(server: Server, name: str, **labels: str) -> float:
    """Sum of a metric's samples that have these labels."""
    with urllib.request.urlopen(f"{server.base_url}/metrics", timeout=TIMEOUT_S) as answer:
        samples = [sample for one in text_string_to_metric_families(answer.read().decode()) for sample in one.samples]
    return sum(sample.value for sample in samples if sample.name == name and labels.items() <= sample.labels.items())


def counted(server: Server) -> float:
    """Requests whose wait is in the histogram."""
    return total(server, "vllm:request_queue_time_seconds_count")


def in_slots_and_queue(server: Server) -> tuple[float, float]:
    return total(server, "vllm:num_requests_running"), total(server, "vllm:num_requests_waiting")


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def load(server: Server, requests: int) -> list[float]:
    """TTFT, in s, of requests sent at once; all must succeed."""

    async def run() -> list[float]:
        async with StreamClient(server.base_url, server.model) as client:
            prompts = [Prompt.user(f"Tell a story about number {i}.") for i in range(requests)]
            done = await drive(client, [client.body(prompt, max_tokens=TOKENS, temperature=0, seed=i) for i, prompt in enumerate(prompts)], Closed(requests))
        assert [outcome.error for outcome in done.outcomes] == [None] * requests
        return [outcome.chunk_times[0] - outcome.sent for outcome in done.outcomes]

    return run_async(run())


@contextmanager
def begun(server: Server, tokens: int = LONG_TOKENS) -> Iterator[http.client.HTTPResponse]:
    """An answer whose first bytes are here, so that it has a slot; whatever is left of it at the end is hung up on."""
    connection = http.client.HTTPConnection(server.base_url.removeprefix("http://"), timeout=TIMEOUT_S)
    content = {"model": server.model, "messages": [{"role": "user", "content": uuid.uuid4().hex}], "max_completion_tokens": tokens}
    connection.request("POST", "/v1/chat/completions", json.dumps({**content, "stream": True, "ignore_eos": True}), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert len(answer.read(10)) == 10
    try:
        yield answer
    finally:
        connection.close()
        answer.close()


@pytest.mark.live
def test_the_metrics_that_we_read_are_the_same(paced: Server, vllm: Server) -> None:
    """Name, type and labels; the queue's buckets too, from the same flag."""
    load(paced, 1)
    load(vllm, 1)
    ours, theirs = families(paced), families(vllm)
    assert {name: (ours[name].type, ours[name].labels) for name in READ} == {name: (theirs[name].type, theirs[name].labels) for name in READ}
    assert ours["vllm:request_queue_time_seconds"].bounds == theirs["vllm:request_queue_time_seconds"].bounds


def test_what_is_over_the_slots_waits_and_is_counted(server: Server) -> None:
    """Two answers hold both slots, three requests wait until those hang up, and what the three waited is in the counter; then nothing runs or waits."""
    before = {name: total(server, f"vllm:request_queue_time_seconds_{name}") for name in ("count", "sum")}
    with ThreadPoolExecutor(1) as pool, ExitStack() as holders:
        for _ in range(SLOTS):
            holders.enter_context(begun(server))
        assert in_slots_and_queue(server) == (SLOTS, 0)
        done = pool.submit(load, server, 3)
        until(lambda: in_slots_and_queue(server) == (SLOTS, 3))
        all_wait = time.perf_counter()
        time.sleep(2)
        still_wait = time.perf_counter()
        assert in_slots_and_queue(server) == (SLOTS, 3)
        holders.close()
        firsts = done.result()
    until(lambda: counted(server) >= before["count"] + 3 and in_slots_and_queue(server) == (0, 0))
    assert counted(server) == before["count"] + 3
    waited = total(server, "vllm:request_queue_time_seconds_sum") - before["sum"]
    # Each waited for as long as all three were seen to, and had no token before its wait was over.
    assert 3 * (still_wait - all_wait) <= waited <= sum(firsts)


def test_a_wait_is_counted_when_its_request_ends(server: Server) -> None:
    """So the histogram of a window speaks of requests that came earlier, as early as an answer is long."""
    before = counted(server)
    with begun(server, 600) as answer:
        during = counted(server)
        assert in_slots_and_queue(server) == (1, 0)
        answer.read()
    until(lambda: counted(server) > before)
    assert (during - before, counted(server) - before) == (0, 1)


def test_who_hangs_up_leaves_its_slot(server: Server) -> None:
    """And not because its answer was over."""
    before = total(server, "vllm:request_success_total", finished_reason="length")
    with begun(server):
        assert in_slots_and_queue(server) == (1, 0)
    until(lambda: in_slots_and_queue(server) == (0, 0))
    assert total(server, "vllm:request_success_total", finished_reason="length") == before
