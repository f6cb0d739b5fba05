"""A lab one of whose programs has ended says so: what wasn't scaled after that says nothing of a policy."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from specstudy.errors import ServerDiedError
from specstudy.scaling.control_plane import ControlPlane
from specstudy.scaling.lab import Lab, adapter_log
from specstudy.scaling.prometheus import Prometheus
from specstudy.serving.server import Command, start, stop

WAIT = "import time; time.sleep(600)"
PROGRAMS = ("kube-controller-manager", "Prometheus", "the adapter")


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
