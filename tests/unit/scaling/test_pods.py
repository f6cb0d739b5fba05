"""Pods as local processes, the paced stand-in they run, and the balancer in front of them."""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from specstudy.measure import StreamClient, drive, run_async
from specstudy.measure.load import Load
from specstudy.scaling.balancer import Balancer
from specstudy.scaling.podprocess import PodProcess, Probe, local_argv
from specstudy.workloads import Closed, Prompt
from specstudy.workloads.arrivals import Open

PROMPT = Prompt.user("two words")


def spec(*more: str, pre_stop: list[str] | None = None) -> dict[str, Any]:
    """A pod of the stand-in: 2 slots, 5 tokens of 40 ms after a first one of 40 ms."""
    words = ["python", "-m", "specstudy.scaling.standin", "--port", "8000", "--served-model-name", "words", "--max-num-seqs", "2"]
    get = {"httpGet": {"path": "/health", "port": 8000}}
    container: dict[str, Any] = {
        "name": "c",
        "command": [*words, "--first-ms", "40", "--token-ms", "40", *more],
        "ports": [{"containerPort": 8000}],
        "startupProbe": {**get, "periodSeconds": 0.2, "failureThreshold": 100},
        "readinessProbe": {**get, "periodSeconds": 0.2, "failureThreshold": 2},
    }
    if pre_stop is not None:
        container["lifecycle"] = {"preStop": {"exec": {"command": pre_stop}}}
    return {"containers": [container]}


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Any]:
    """`pods(spec, …)`: started, ready ones; stopped at the end."""
    made: list[PodProcess] = []

    def start(*specs: dict[str, Any]) -> list[PodProcess]:
        fresh = [PodProcess(f"pod-{len(made) + i}", one, tmp_path / f"{len(made) + i}.log", lambda pod: None) for i, one in enumerate(specs)]
        made.extend(fresh)
        for pod in fresh:
            pod.begin()
        await_that(lambda: all(pod.ready for pod in fresh))
        return fresh

    yield start
    for pod in made:
        pod.delete(1)
    for pod in made:
        pod.join()


def await_that(what: Any, timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def samples(address: str) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    return {
        sample.name: sample.value for family in families for sample in family.samples if "le" not in sample.labels and "finished_reason" not in sample.labels
    }


def load(address: str, requests: int) -> Load:
    async def run() -> Load:
        async with StreamClient(f"http://{address}", "words") as client:
            return await drive(client, [client.body(PROMPT, max_tokens=6, temperature=0, seed=0)] * requests, Closed(requests))

    return run_async(run())


def test_a_command_becomes_local() -> None:
    words = ["python3", "-m", "x", "--host", "0.0.0.0", "--port", "8000", "--url", "http://127.0.0.1:8000/a"]
    assert local_argv(words, 25000, 8000) == [sys.executable, "-m", "x", "--host", "127.0.0.1", "--port", "25000", "--url", "http://127.0.0.1:25000/a"]
    assert local_argv(["vllm", "serve", "m", "--port", "8000"], 25000, 8000)[1:5] == ["-m", "vllm.entrypoints.openai.api_server", "--model", "m"]


def test_probes_are_read_as_the_api_has_them() -> None:
    assert Probe.of({"httpGet": {"path": "/x", "port": 1}, "periodSeconds": 5}) == Probe("/x", 5, 1, 3)
    assert Probe.of({"exec": {"command": ["true"]}}) is None
    assert Probe.of(None) is None


def test_two_slots_run_two_and_the_others_wait(pods: Any) -> None:
    """Four at once, 6 tokens: 0.04 + 5 x 0.04 = 0.24 s in a slot, so two wait 0.24 s. Counted when they end: a sum of 0.48 s over 4.

    To the tenth of a second in one of thirty tries, since any process may be held up; what holds at any pace, in each.
    """
    (pod,) = pods(spec())
    tries, before = [], samples(pod.address)
    for _ in range(30):
        outcomes = load(pod.address, 4).outcomes
        assert [outcome.error for outcome in outcomes] == [None] * 4
        firsts = sorted(outcome.chunk_times[0] - outcome.sent for outcome in outcomes)
        await_that(lambda wanted=before["vllm:request_queue_time_seconds_count"] + 4: samples(pod.address)["vllm:request_queue_time_seconds_count"] >= wanted)
        found = samples(pod.address)
        waited = found["vllm:request_queue_time_seconds_sum"] - before["vllm:request_queue_time_seconds_sum"]
        assert found["vllm:request_queue_time_seconds_count"] - before["vllm:request_queue_time_seconds_count"] == 4
        assert (found["vllm:num_requests_running"], found["vllm:num_requests_waiting"]) == (0, 0)
        assert firsts[0] >= 0.04
        assert 0 <= waited <= sum(firsts) - 4 * 0.04 + 1e-3
        tries.append((*firsts, waited))
        before = found
        if firsts[1] < 0.14 and all(0.28 <= first < 0.45 for first in firsts[2:]) and 0.44 <= waited < 0.75:
            return
    raise AssertionError(tries)


def test_who_hangs_up_is_dropped(pods: Any) -> None:
    (pod,) = pods(spec("--token-ms", "2000"))
    body = json.dumps({"model": "words", "messages": PROMPT.as_messages(), "max_completion_tokens": 50, "stream": True}).encode()
    request = urllib.request.Request(f"http://{pod.address}/v1/chat/completions", body, {"Content-Type": "application/json"})
    answer = urllib.request.urlopen(request, timeout=60)
    assert samples(pod.address)["vllm:num_requests_running"] == 1
    answer.close()
    await_that(lambda: samples(pod.address)["vllm:num_requests_running"] == 0)


def test_pre_stop_comes_before_the_end(pods: Any, tmp_path: Path) -> None:
    """The server still answers while the hook runs, and has ended after it."""
    seen = tmp_path / "seen"
    hook = f"import pathlib, time, urllib.request; time.sleep(1); pathlib.Path({str(seen)!r}).write_text(str(urllib.request.urlopen('http://127.0.0.1:8000/health').status))"
    (pod,) = pods(spec(pre_stop=["python3", "-c", hook]))
    pod.delete(60)
    pod.join()
    assert seen.read_text() == "200"
    assert not any(str(pod.log_path) in line for process in psutil.process_iter() for line in _command_line(process))


def _command_line(process: psutil.Process) -> list[str]:
    """Nothing of one that has ended."""
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def test_a_process_that_dies_is_started_again(pods: Any) -> None:
    (pod,) = pods(spec())
    for one in psutil.process_iter():
        words = _command_line(one)
        if {"specstudy.scaling.standin", str(pod.port)} <= set(words) and not any("guard.py" in word for word in words):
            one.kill()
    await_that(lambda: not pod.ready)
    await_that(lambda: pod.ready and pod.restarts == 1)
    assert pod.log_path.exists()  # what the first said stays
    assert pod.log_path.with_suffix(".1.log").exists()


def test_the_balancer_spreads_and_loses_nothing(pods: Any) -> None:
    """Four at once over two replicas: two each. Then one leaves, and everything goes to the other."""
    one, other = pods(spec(), spec())
    ready = {"a": one.address, "b": other.address}

    async def run(requests: int) -> tuple[Load, dict[str, int]]:
        async with Balancer(lambda: ready, "words") as balancer:
            bodies = [balancer.body(PROMPT, max_tokens=6, temperature=0, seed=0)] * requests
            return await drive(balancer, bodies, Closed(requests)), dict(balancer.served)

    done, served = run_async(run(4))
    assert [outcome.error for outcome in done.outcomes] == [None] * 4
    assert served == {one.address: 2, other.address: 2}
    del ready["b"]
    _, served = run_async(run(4))
    assert served == {one.address: 4}


def test_a_refused_connection_goes_elsewhere_and_is_marked(pods: Any) -> None:
    (pod,) = pods(spec())
    ready = {"gone": "127.0.0.1:1", "here": pod.address}

    async def run() -> Load:
        async with Balancer(lambda: ready, "words") as balancer:
            return await drive(balancer, [balancer.body(PROMPT, max_tokens=6, temperature=0, seed=0)] * 2, Open("steps", (0.0, 0.1)))

    outcomes = run_async(run()).outcomes
    assert [outcome.error for outcome in outcomes] == [None, None]
    assert any(outcome.resent for outcome in outcomes)


def test_a_request_waits_for_the_first_replica(pods: Any) -> None:
    (pod,) = pods(spec())
    opens = time.perf_counter() + 0.5

    async def run() -> Load:
        async with Balancer(lambda: {"a": pod.address} if time.perf_counter() > opens else {}, "words") as balancer:
            return await drive(balancer, [balancer.body(PROMPT, max_tokens=6, temperature=0, seed=0)], Closed(1))

    (outcome,) = run_async(run()).outcomes
    assert outcome.error is None
    assert outcome.chunk_times[0] >= opens
