"""A lab one of whose programs has ended says so: what wasn't scaled after that says nothing of a policy."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from kubernetes.client import ApiClient, ApiException
from urllib3.exceptions import HTTPError

from specstudy.errors import ServerDiedError
from specstudy.measure import StreamClient, run_async
from specstudy.scaling.agent import NodeAgent
from specstudy.scaling.control_plane import ControlPlane
from specstudy.scaling.experiment import LoadSpec, Place, _drive
from specstudy.scaling.lab import Lab, adapter_log
from specstudy.scaling.prometheus import Prometheus
from specstudy.serving.server import Command, free_port, running, start, stop
from specstudy.workloads.arrivals import steps
from specstudy.workloads.prompts import Prompt

WAIT = "import time; time.sleep(600)"
PROGRAMS = ("kube-controller-manager", "Prometheus", "the adapter")
LOAD = LoadSpec(((2.0, 200.0), (6.0, 200.0), (2.0, 200.0)), (Prompt.user("x"),), max_tokens=4)


@contextmanager
def paced(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Address and model of a paced stand-in."""
    port = free_port()
    argv = [sys.executable, "-m", "specstudy.scaling.standin", "--port", str(port), "--served-model-name", "m", "--max-num-seqs", "4"]
    with running(argv, {}, port=port, model="m", log_path=tmp_path / "log", timeout_s=120) as server:
        yield server.base_url, server.model


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Three processes that stand where a lab's programs stand, under the same guard, each with its log."""
    logs = (tmp_path / "plane" / "logs" / f"{PROGRAMS[0]}.log", tmp_path / "prometheus" / "logs" / "prometheus.log", adapter_log(tmp_path))
    found = {name: start(Command((sys.executable, "-c", WAIT), {}, 0, "", log)) for name, log in zip(PROGRAMS, logs, strict=True)}
    for log in logs:
        log.write_text("the last line\n")
    yield found
    for process in found.values():
        stop(process)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_that_ended_is_named_with_its_log(name: str, programs: dict[str, subprocess.Popen[bytes]], tmp_path: Path) -> None:
    nothing = cast("Any", None)  # what isn't asked whether it lives
    plane = ControlPlane("", tmp_path / "plane", tmp_path, nothing, nothing, nothing, {PROGRAMS[0]: programs[PROGRAMS[0]]})
    prometheus = Prometheus("", tmp_path / "prometheus", programs["Prometheus"])
    running = Lab(nothing, plane, nothing, prometheus, nothing, programs["the adapter"], 0, adapter_log(tmp_path))
    running.raise_if_dead()
    stop(programs[name])
    with pytest.raises(ServerDiedError, match=rf"{name} ended with status \d+; its log ends:\n    the last line"):
        running.raise_if_dead()


def test_a_load_ends_as_soon_as_the_place_has_died(tmp_path: Path) -> None:
    """Ten minutes of load, and the control plane is gone at the third look."""
    looks = []

    def gone() -> None:
        looks.append(1)
        if len(looks) == 3:
            raise ServerDiedError("kube-controller-manager ended")

    nothing = cast("Any", None)
    with paced(tmp_path) as (address, model):
        place = Place(nothing, "", "", nothing, lambda target: StreamClient(address, target), 15, 15, 15, 5, gone)
        prompts = [Prompt.user("x")] * len(steps(LOAD.stages, LOAD.seed).times_s)
        began = time.monotonic()
        with pytest.raises(ServerDiedError, match="kube-controller-manager ended"):
            run_async(_drive(place, model, LOAD, prompts))
        assert time.monotonic() - began < 300
    assert len(looks) == 3


@pytest.mark.parametrize("away", [[HTTPError("refused")] * 3, [ApiException(status=500)] * 3], ids=["away", "refuses"])
def test_what_an_api_server_that_was_away_missed_is_said_again(away: list[Exception], tmp_path: Path) -> None:
    agent, said = NodeAgent(ApiClient, tmp_path), []

    def say() -> None:
        said.append(1)
        if away:
            raise away.pop()

    agent._tell(say)
    assert len(said) == 4


def test_of_a_pod_that_is_gone_nothing_need_be_said(tmp_path: Path) -> None:
    agent, said = NodeAgent(ApiClient, tmp_path), []

    def say() -> None:
        said.append(1)
        raise ApiException(status=404)

    agent._tell(say)
    assert said == [1]
