"""The lab against the real control plane: the load triples, and everything that may break breaks once.

The servers are paced stand-ins. The autoscaler looks every 2 s and Prometheus every second, so that a test takes
seconds; the metric's window is the shipped 15 s.
"""

from __future__ import annotations

import asyncio
import copy
import operator
import os
import re
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
from kubernetes.client import ApiException
from urllib3.exceptions import HTTPError

from specstudy.book import lab_cluster
from specstudy.book.lab import Prepared, Wanted, place_of, prepare
from specstudy.book.lab_cluster import Reach, run_cluster
from specstudy.catalog import load_profile
from specstudy.errors import ConfigError
from specstudy.measure import run_async
from specstudy.measure.load import Load, drive
from specstudy.scaling.binaries import Binaries
from specstudy.scaling.cluster import kubeconfig_cluster
from specstudy.scaling.experiment import Finished, LoadSpec, run_load
from specstudy.scaling.lab import Lab, lab, start_adapter
from specstudy.scaling.objects import APP
from specstudy.scaling.policy import Direction
from specstudy.scaling.record import Sample, load_runs
from specstudy.scaling.replay import replay
from specstudy.scaling.views import AS_DEPLOYED
from specstudy.serving.server import stop
from specstudy.workloads.arrivals import Closed

SYNC_S = 2
LOW_S, HIGH_S, AFTER_S = 20, 180, 70  # at 1x, 3x and 1x
STEP_S, FALL_S = LOW_S, LOW_S + HIGH_S
HOLD_S = 8 * SYNC_S
WAIT_S = 240  # for what comes within seconds where no process stops
NEVER_READY = {"on": False}
T = TypeVar("T")


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
    made = prepare(Wanted(sync_s=SYNC_S, low_s=LOW_S, high_s=HIGH_S, after_s=AFTER_S))
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
    """1x, 3x, 1x."""
    return run_load(place_of(running), prepared.replica, prepared.policy, prepared.load, profile="test")


def asked(what: Callable[[], T]) -> T | None:
    """None where the API server had no answer in time, as on a machine that is held up."""
    try:
        return what()
    except (ApiException, HTTPError):
        return None


def await_that(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not asked(what):
        assert time.monotonic() < deadline, f"not within {WAIT_S} s"
        time.sleep(0.3)


def scaling_active(running: Lab) -> str:
    return running.cluster.hpa(APP).conditions.get("ScalingActive", "")


@contextmanager
def broken(running: Lab, says: str) -> Iterator[None]:
    """With the fault in place, the ScalingActive condition says why, and replicas put to 2 by hand stay for HOLD_S.

    An idle autoscaler that sees a zero takes them back at once: once the fault is mended, the same autoscaler does take one away.
    """
    yield
    await_that(lambda: re.match(f"False FailedGetExternalMetric: .*{says}", scaling_active(running), re.DOTALL) is not None)
    running.cluster.patch("Deployment", "apps/v1", APP, {"spec": {"replicas": 2}})
    deadline = time.monotonic() + HOLD_S
    while time.monotonic() < deadline:
        assert asked(lambda: running.cluster.deployment(APP).wanted) in (2, None)
        time.sleep(0.5)
    await_that(lambda: scaling_active(running).startswith("False FailedGetExternalMetric"))
    assert running.cluster.deployment(APP).wanted == 2


def takes_one_away(running: Lab) -> None:
    """What shows that it was the fault that held it; then wait until it has gone."""
    await_that(lambda: running.cluster.deployment(APP).wanted == 1)
    await_that(lambda: len(running.agent.pods) == 1 and len(running.ready()) == 1)


# By hand: 3.4 requests/s of 0.59 s in 4 slots are half a replica's worth, three times as many are 1.5. One replica would be 3.4/s short.


def while_high(stepped: Finished) -> list[Sample]:
    return [sample for sample in stepped.samples if STEP_S < sample.at_s <= FALL_S]


def test_scale_out_is_decided_within_30_s(stepped: Finished) -> None:
    """Longer by what the samples, meant to come every second, show that the machine stood still meanwhile."""
    found = while_high(stepped)
    decided = next(sample for sample in found if sample.replicas >= 2)
    times = [sample.at_s for sample in found if sample.at_s <= decided.at_s]
    lost_s = sum(gap - 1 for gap in map(operator.sub, times[1:], times) if gap > 2)
    assert decided.at_s - STEP_S <= 30 + lost_s


def test_what_was_needed_is_kept_while_it_is_needed(stepped: Finished) -> None:
    found = while_high(stepped)
    enough = next(sample.at_s for sample in found if sample.ready >= 2)
    assert min(sample.replicas for sample in found if sample.at_s >= enough) >= 2
    # The policy lets the replicas triple once in the 110 s that are twice a cold start and 100 s more.
    first = next(sample.at_s for sample in found if sample.replicas > 1)
    assert max(sample.replicas for sample in stepped.samples if sample.at_s < first + 110 - SYNC_S) <= 3


def test_what_the_record_says_was_needed_is_no_less(stepped: Finished) -> None:
    """A stand-in's pace is a clock's, which a slow machine can only make longer."""
    run = stepped.run
    assert run.service_s_mean is not None and run.replicas_needed is not None
    assert run.service_s_mean >= 0.58
    assert run.replicas_needed >= 2


def test_no_request_is_lost_and_the_load_was_on_time(stepped: Finished) -> None:
    """Replicas left under load, each with requests in flight."""
    run = stepped.run
    assert (run.failed, run.completed) == (0, run.num_prompts)
    assert run.scale_downs is not None
    assert run.scale_downs >= 1
    lags = [row.sent_s - row.scheduled_s for row in stepped.requests]
    assert min(lags) >= 0
    assert statistics.median(lags) < 0.1


def test_latency_recovers(stepped: Finished) -> None:
    """One replica alone would be 561 requests behind after 165 s of the high load, which is 82 s; with enough of them nearly nobody waits."""
    late = [row.first_token_s - row.scheduled_s for row in stepped.requests if FALL_S - 15 <= row.scheduled_s < FALL_S and row.first_token_s is not None]
    assert len(late) > 100
    assert statistics.median(late) < 10


def test_the_minimum_comes_back_under_the_low_load(stepped: Finished, running: Lab, prepared: Prepared) -> None:
    """In more of it, if need be: a replica that stood still for seconds looks busy, and the autoscaler waits 20 s more."""
    found = [sample for sample in stepped.samples if sample.at_s > FALL_S]
    more = replace(prepared.load, stages=((prepared.load.stages[0][0], 20),) * 3)
    for _ in range(3):
        if any(sample.replicas == 1 for sample in found):
            return
        found = list(run_load(place_of(running), prepared.replica, prepared.policy, more, profile="test").samples)
    raise AssertionError(f"never one replica: {[sample.replicas for sample in found]}")


def one_change_at_a_time(samples: Sequence[Sample]) -> list[Sample]:
    """Without those taken between a pass's change of the Deployment and its telling what it had seen: passes lie SYNC_S apart at least."""

    def seen(sample: Sample) -> object:
        return sample.seen_wait_ms, sample.seen_slots_average

    kept = [samples[0]]
    for sample, after in zip(samples[1:], [*samples[2:], samples[-1]], strict=True):
        now = (sample.replicas != kept[-1].replicas, seen(sample) != seen(kept[-1]))
        then = (after.replicas != sample.replicas, seen(after) != seen(sample))
        if after.at_s - sample.at_s >= SYNC_S or {now, then} != {(True, False), (False, True)}:
            kept.append(sample)
    return kept


def test_our_algorithm_decides_as_the_controller_did(stepped: Finished) -> None:
    """Fed with what the controller's status says that it saw. One change may lie on an edge that a sample a second late shows otherwise."""
    passes = replay(stepped.run.policy, one_change_at_a_time(stepped.samples), "v1_20", stepped.run.sync_period_s)
    changes = [one for one in passes if one.theirs != one.before]
    assert len(passes) > 20
    assert min(one.theirs - one.before for one in changes) < 0 < max(one.theirs - one.before for one in changes)
    assert sum(one.ours != one.theirs for one in changes) <= 1
    # Where ours alone changes something, theirs soon does the same: a window's end lies between two passes.
    alone = [number for number, one in enumerate(passes) if one.ours != one.before == one.theirs]
    assert sum(passes[number].ours not in [one.theirs for one in passes[number : number + 4]] for number in alone) <= 2


def test_a_replica_that_goes_ends_answers_that_outlast_the_settling(running: Lab, prepared: Prepared) -> None:
    """400 tokens of 19 ms are 7.6 s, the first part of preStop 2: whoever stopped the server behind that alone would cut them off."""
    await_that(lambda: running.cluster.deployment(APP).wanted == 1 and len(running.agent.pods) == 1)
    at_least(running, 2)  # an idle autoscaler would take the second one away before it is ready
    await_that(lambda: len(running.ready()) >= 2)
    before = set(running.ready())
    bodies_of = range(4 * len(before))

    async def send() -> Load:
        async with place_of(running).client(prepared.replica.target) as client:
            bodies = [client.body(prepared.load.prompts[0], max_tokens=400, temperature=0, seed=index) for index in bodies_of]
            sending = asyncio.create_task(drive(client, bodies, Closed(len(bodies))))
            await asyncio.sleep(1)
            await asyncio.to_thread(at_least, running, 1)
            await asyncio.to_thread(running.cluster.patch, "Deployment", "apps/v1", APP, {"spec": {"replicas": 1}})
            return await sending

    load = run_async(send())
    assert [outcome.error for outcome in load.outcomes] == [None for _ in bodies_of]
    assert {outcome.completion_tokens for outcome in load.outcomes} == {400}
    await_that(lambda: not before <= set(running.agent.pods))  # one of those that were asked has gone
    takes_one_away(running)


def at_least(running: Lab, replicas: int) -> None:
    """The fewest that the autoscaler may keep."""
    running.cluster.patch("HorizontalPodAutoscaler", running.cluster.hpa_version, APP, {"spec": {"minReplicas": replicas}})


def test_a_replica_that_ends_by_itself_is_counted(running: Lab, prepared: Prepared) -> None:
    await_that(lambda: running.cluster.deployment(APP).wanted == 1 and len(running.ready()) == 1)
    (pod,) = running.agent.pods.values()
    killing = threading.Timer(3, lambda: [psutil.Process(one.pid).kill() for one in processes_of(pod.address)])
    killing.start()
    load = replace(prepared.load, stages=((1.0, 10),) * 3)
    finished = run_load(place_of(running), prepared.replica, prepared.policy, load, profile="test")
    killing.join()
    assert finished.run.replica_restarts == 1
    await_that(lambda: len(running.ready()) == 1)


def processes_of(address: str) -> list[psutil.Process]:
    """The process that listens there."""
    port = int(address.rsplit(":", 1)[1])
    return [psutil.Process(one.pid) for one in psutil.net_connections("tcp") if one.pid and one.status == psutil.CONN_LISTEN and one.laddr.port == port]


def test_the_load_of_lab_cluster_is_recorded_or_refused(running: Lab, prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lab's own API server, Prometheus and replica as the user's cluster. What serves another model than the profile's is refused before the load."""
    await_that(lambda: running.cluster.deployment(APP).wanted == 1 and len(running.ready()) == 1)
    (address,) = running.ready().values()
    reach = Reach(running.plane.kubeconfig, f"http://{address}", running.prometheus.url, "default", APP, APP)
    wanted = Wanted("cpu-smollm2", low_s=5, high_s=5, after_s=5, rate=1.0)
    more: dict[str, Any] = {"slots": 4, "engine_version": "0.26.0"}
    for field, changed_reach, changed_wanted, changed_more in (
        ("url", reach, wanted, more),  # it serves the model "words"
        ("url", replace(reach, url="nonsense"), wanted, more),
        ("prometheus", replace(reach, prometheus="nonsense"), wanted, more),
        ("engine_version", reach, wanted, {**more, "engine_version": "banana"}),
        ("draft", reach, replace(wanted, method="eagle3", draft="NOPE", num_speculative_tokens=3), more),
        ("autoscaler", replace(reach, autoscaler="none"), wanted, more),
        ("deployment", replace(reach, deployment="none"), wanted, more),
    ):
        with pytest.raises(ConfigError) as refused:
            run_cluster(changed_wanted, changed_reach, tmp_path, **changed_more)
        assert refused.value.field == field
    assert not list(tmp_path.iterdir())
    of_the_stand_in = load_profile("cpu-smollm2").model_copy(update={"target": prepared.replica.target})
    monkeypatch.setattr(lab_cluster, "load_profile", lambda name: of_the_stand_in)
    monkeypatch.setattr(lab_cluster, "lab_prompts", lambda profile: (prepared.load.prompts, prepared.load.max_tokens))
    run = run_cluster(wanted, reach, tmp_path, **more)
    assert (run.status, run.failed, run.policy.name, run.server_argv) == ("ok", 0, "cluster", AS_DEPLOYED)
    assert run.policy.metrics == prepared.policy.metrics
    assert load_runs(tmp_path / "cpu-smollm2").runs == (run,)


def test_a_load_of_which_nothing_is_answered_is_a_failed_run(running: Lab, prepared: Prepared) -> None:
    """Another model's name: each request is refused."""
    load = replace(prepared.load, stages=((1.0, 3),) * 3)
    run = run_load(place_of(running), replace(prepared.replica, target="another"), prepared.policy, load, profile="test").run
    assert (run.status, run.completed) == ("failed", 0)
    assert run.error is not None
    assert f"none of {run.num_prompts} requests ended well" in run.error


def test_an_api_server_that_refuses_or_is_away_is_told(running: Lab, tmp_path: Path) -> None:
    text = running.plane.kubeconfig.read_text()
    for name, changed_text in (
        ("away", re.sub(r"server: .*", "server: https://127.0.0.1:1", text)),
        ("no-one", re.sub(r"client-(certificate|key)(-data)?: .*", "", text)),
        ("other", "[not, a, kubeconfig]"),
    ):
        path = tmp_path / name
        path.write_text(changed_text)
        with pytest.raises(ConfigError, match="kubeconfig"):
            kubeconfig_cluster(path, "default")


def test_a_dead_adapter_holds_the_replicas(running: Lab) -> None:
    with broken(running, "unable to fetch metrics from external metrics API"):
        stop(running.adapter)
    running.adapter = start_adapter(running.plane, running.prometheus.url, running.agent.folder, running.adapter_port)
    takes_one_away(running)


def test_a_missing_metric_holds_the_replicas(running: Lab) -> None:
    NEVER_READY["on"] = True  # a second pod that got ready would be scraped, and the metric be there again
    try:
        # Both go missing, each when its window has passed; the controller names the one that it asked for last.
        with broken(running, r"Prometheus has no value for (queue_wait_ms|slots_in_use)\b"):
            running.prometheus.set_targets({})
        running.prometheus.set_targets(dict(running.ready()))
        takes_one_away(running)
    finally:
        NEVER_READY["on"] = False


def test_a_dead_prometheus_holds_the_replicas(running: Lab) -> None:
    """Stopped, not ended: a request to it hangs, which is the worse of the two."""
    (child,) = psutil.Process(running.prometheus.process.pid).children()
    try:
        with broken(running, "doesn't answer"):
            os.kill(child.pid, signal.SIGSTOP)
    finally:
        os.kill(child.pid, signal.SIGCONT)
    takes_one_away(running)


def test_a_replica_that_never_gets_ready_scales_nothing_down(running: Lab, prepared: Prepared) -> None:
    """Under 3x load: more is asked for, nothing comes, and nothing is taken away; the status says that it is at a limit."""
    await_that(lambda: running.cluster.deployment(APP).wanted == 1 and len(running.ready()) == 1)
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
