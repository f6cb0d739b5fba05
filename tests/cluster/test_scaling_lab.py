"""The lab against the real control plane: the load triples, and everything that may break breaks once.

The servers are paced stand-ins. The autoscaler looks every 2 s and Prometheus every second, so that a test takes
seconds; the metric's window is the shipped 15 s.
"""

from __future__ import annotations

import copy
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psutil
import pytest

from specstudy.book.lab import Prepared, Wanted, place_of, prepare
from specstudy.scaling.binaries import Binaries
from specstudy.scaling.experiment import Finished, LoadSpec, run_load
from specstudy.scaling.lab import Lab, lab, start_adapter
from specstudy.scaling.objects import APP
from specstudy.scaling.policy import Direction
from specstudy.scaling.replay import replay
from specstudy.serving.server import stop

HOLD_S = 16  # eight passes of the autoscaler
NEVER_READY = {"on": False}


def changed(spec: dict[str, Any]) -> dict[str, Any]:
    """While NEVER_READY is on, a new pod's port never opens."""
    if not NEVER_READY["on"]:
        return spec
    spec = copy.deepcopy(spec)
    command = spec["containers"][0]["command"]
    command[command.index("--cold-start-s") + 1] = "100000"
    return spec


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    """The shipped policy, scaling down in seconds instead of minutes."""
    made = prepare(Wanted(sync_s=2, low_s=20, high_s=70, after_s=70))
    rules = copy.deepcopy(dict(made.spec.rules))
    for group in rules["groups"]:
        group["interval"] = "1s"
        for rule in group["rules"]:
            rule["expr"] = rule["expr"].replace("[1m]", "[15s]")  # fifteen readings, where the shipped minute has twelve
    policy = made.policy.model_copy(
        update={
            "down": Direction(window_s=20, limits=tuple(one.model_copy(update={"period_s": 5}) for one in made.policy.down.limits)),
        }
    )
    return replace(made, spec=replace(made.spec, policy=policy, rules=rules, scrape_s=1, change=changed))


@pytest.fixture(scope="module")
def running(binaries: Binaries, prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(binaries, tmp_path_factory.mktemp("lab"), prepared.spec) as started:
        yield started


@pytest.fixture(scope="module")
def stepped(running: Lab, prepared: Prepared) -> Finished:
    """1x for 20 s, 3x for 70 s, 1x for 70 s."""
    return run_load(place_of(running), prepared.replica, prepared.policy, prepared.load, profile="test")


def await_that(what: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        time.sleep(0.3)


@contextmanager
def broken(running: Lab) -> Iterator[list[str]]:
    """With the fault in place, replicas put to 2 by hand stay for HOLD_S, which an idle autoscaler that sees a zero takes back at once.

    Gives a list that then holds the ScalingActive condition. Once the fault is mended, the same autoscaler does take one away.
    """
    says: list[str] = []
    yield says
    await_that(lambda: running.cluster.hpa(APP).reason("ScalingActive") == "FailedGetExternalMetric", 40)
    running.cluster.patch("Deployment", "apps/v1", APP, {"spec": {"replicas": 2}})
    deadline = time.monotonic() + HOLD_S
    while time.monotonic() < deadline:
        assert running.cluster.deployment(APP).wanted == 2
        time.sleep(0.5)
    says.append(running.cluster.hpa(APP).conditions["ScalingActive"])


def takes_one_away(running: Lab) -> None:
    """What shows that it was the fault that held it; then wait until it has gone."""
    await_that(lambda: running.cluster.deployment(APP).wanted == 1, 60)
    await_that(lambda: len(running.agent.pods) == 1 and len(running.ready()) == 1, 60)


def test_scale_out_is_decided_within_30_s(stepped: Finished) -> None:
    assert stepped.run.decided_s is not None
    assert stepped.run.decided_s <= 30


def test_what_was_needed_is_kept_while_it_is_needed(stepped: Finished) -> None:
    run = stepped.run
    assert run.replicas_needed == 2  # by hand: 10.2 requests/s of 0.59 s in 4 slots are 1.5 replicas' worth
    assert run.replicas_low_while_high is not None
    assert run.replicas_low_while_high >= 2
    assert run.replicas_max is not None
    assert run.replicas_max <= 4


def test_no_request_is_lost_and_the_load_was_on_time(stepped: Finished) -> None:
    """Replicas left under load, each with requests in flight."""
    run = stepped.run
    assert (run.failed, run.completed) == (0, run.num_prompts)
    assert run.scale_downs is not None
    assert run.scale_downs >= 1
    assert run.schedule_lag_ms_p99 is not None
    assert run.schedule_lag_ms_p99 < 100


def test_latency_recovers_and_the_minimum_comes_back(stepped: Finished) -> None:
    assert stepped.run.recovered_s is not None
    assert stepped.run.back_to_min_s is not None


def test_our_algorithm_decides_as_the_controller_did(stepped: Finished) -> None:
    """Fed with what the controller's status says that it saw. A pass in twenty may lie on an edge that a sample a second late shows otherwise."""
    passes = replay(stepped.run.policy, stepped.samples, "v1_20", stepped.run.sync_period_s)
    assert len(passes) > 30
    assert sum(one.ours != one.theirs for one in passes) <= len(passes) / 20


def test_a_dead_adapter_holds_the_replicas(running: Lab) -> None:
    with broken(running) as says:
        stop(running.adapter)
    running.adapter = start_adapter(running.plane, running.prometheus.url, running.agent.folder, running.adapter_port)
    takes_one_away(running)
    assert says[0].startswith("False FailedGetExternalMetric")
    assert "unable to fetch metrics from external metrics API" in says[0]


def test_a_missing_metric_holds_the_replicas(running: Lab) -> None:
    NEVER_READY["on"] = True  # a second pod that got ready would be scraped, and the metric be there again
    try:
        with broken(running) as says:
            running.prometheus.set_targets({})
        running.prometheus.set_targets(dict(running.ready()))
        takes_one_away(running)
    finally:
        NEVER_READY["on"] = False
    assert says[0].startswith("False FailedGetExternalMetric")
    # Both go missing, each when its window has passed; the controller names the one that it asked for last.
    assert re.search(r"Prometheus has no value for (queue_wait_ms|slots_in_use)\b", says[0]), says[0]


def test_a_dead_prometheus_holds_the_replicas(running: Lab) -> None:
    """Stopped, not ended: a request to it hangs, which is the worse of the two."""
    (child,) = psutil.Process(running.prometheus.process.pid).children()
    try:
        with broken(running) as says:
            os.kill(child.pid, signal.SIGSTOP)
    finally:
        os.kill(child.pid, signal.SIGCONT)
    takes_one_away(running)
    assert says[0].startswith("False FailedGetExternalMetric")
    assert "doesn't answer" in says[0]


def test_a_replica_that_never_gets_ready_scales_nothing_down(running: Lab, prepared: Prepared) -> None:
    """Under 3x load: more is asked for, nothing comes, and nothing is taken away; the status says that it is at a limit."""
    await_that(lambda: running.cluster.deployment(APP).wanted == 1 and len(running.ready()) == 1, 120)
    NEVER_READY["on"] = True
    try:
        load = LoadSpec(((10.2, 30), (10.2, 15), (0.1, 1)), prepared.load.prompts, prepared.load.max_tokens)
        finished = run_load(place_of(running), prepared.replica, prepared.policy, load, profile="test")
    finally:
        NEVER_READY["on"] = False
    counts = [sample.replicas for sample in finished.samples if sample.at_s < 45]
    rose = next(index for index, count in enumerate(counts) if count > 1)
    assert counts[rose:] == sorted(counts[rose:])
    assert {sample.ready for sample in finished.samples} == {1}
    assert finished.run.failed == 0
    limited = [says for _, kind, says in finished.run.conditions if kind == "ScalingLimited" and says.startswith("True")]
    assert any("ScaleUpLimit" in says or "TooManyReplicas" in says for says in limited)
