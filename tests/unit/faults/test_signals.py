"""Ctrl-C, SIGTERM and SIGKILL in each phase: no process is left, finished repeats are kept, a rerun goes on."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable

import pytest
from tests.standin.engine import command_lines, marked
from tests.standin.world import StudyProcess, World, await_true, finished, start_study

from specstudy.errors import SpecstudyError

SERVED_PER_SERVER = 24
LOADED = 14  # the first round, 4 requests at c = 1 and 8 at c = 2; of the second a warm-up and one more: the load is on
Run = Callable[[], SpecstudyError | None]
GONE_WITHIN_S = 90


def starting(world: World, study: StudyProcess) -> None:
    await_true(lambda: any("server.py" in line for line in command_lines(world.marker)), 120)


def warming_up(world: World, study: StudyProcess) -> None:
    study.await_text("server ready")
    time.sleep(0.3)  # the warm-up's one request never ends


def loading(world: World, study: StudyProcess) -> None:
    await_true(lambda: world.requests_served() >= LOADED, 120)


def between_cells(world: World, study: StudyProcess) -> None:
    study.await_text("none, words c=2, repeat 1:")


# Phase -> how to wait for it, what keeps the baseline's server in it until the signal has come, repeats that are on disk by then.
PHASES: dict[str, tuple[Callable[[World, StudyProcess], None], dict[str, dict[str, int]], int]] = {
    "start": (starting, {"hang_at_start": {}}, 0),
    "warm-up": (warming_up, {"hang_mid_stream": {}}, 0),
    "load": (loading, {"hang_mid_stream": {"after": LOADED}}, 2),
    "between cells": (between_cells, {"hang_mid_stream": {"after": 12}}, 2),
}


def stop_in(world: World, phase: str, number: signal.Signals, via: str = "study", **more: dict[str, int]) -> StudyProcess:
    """Run until `phase`, send the signal, wait for the end, and look for what may be left."""
    wait_for, faults, _ = PHASES[phase]
    world.behave("none", faults={**faults, **more})
    study = start_study(world, via=via)
    wait_for(world, study)
    study.process.send_signal(number)
    status = study.end(GONE_WITHIN_S)
    assert status != 0, study.text()
    await_true(lambda: not marked(world.marker), GONE_WITHIN_S)
    return study


def check_resumes(world: World, run: Run, finished_before: int) -> None:
    """What was there stays, byte for byte; a rerun measures the rest and nothing twice."""
    kept = world.lines()
    assert len(kept) == finished_before
    assert all(record.status == "ok" for record in world.records())
    done = world.records()
    world.behave("none", faults={}, chunk_delay_s=0.001)
    served = world.requests_served()
    assert run() is None
    assert world.lines()[: len(kept)] == kept
    records = world.records()
    assert sorted(finished(record) for record in records) == sorted({finished(record) for record in records})
    assert len(records) == 8
    spared = sum(record.num_prompts + (record.concurrency or 0) for record in done)
    assert world.requests_served() - served == 2 * SERVED_PER_SERVER - spared


@pytest.mark.parametrize("phase", PHASES)
def test_ctrl_c(world: World, run: Run, phase: str) -> None:
    study = stop_in(world, phase, signal.SIGINT)
    assert "KeyboardInterrupt" in study.text()
    check_resumes(world, run, PHASES[phase][2])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
@pytest.mark.parametrize("phase", ["start", "load"])
def test_ended_from_outside(world: World, run: Run, phase: str, number: signal.Signals) -> None:
    stop_in(world, phase, number)
    check_resumes(world, run, PHASES[phase][2])


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"])
def test_the_command_line_ends_in_order(world: World, number: signal.Signals, status: int) -> None:
    study = stop_in(world, "load", number, via="cli")
    assert study.end() == status
    # Warnings are errors here: a file that the signal left open is told of, and isn't how the command ended.
    assert "Traceback" not in re.sub(r"Exception ignored in: .*\nTraceback[^\n]*\n(?:  .*\n)*\w+Warning: .*\n", "", study.text())
    assert len(world.records()) >= 2


def test_a_worker_that_ignores_sigterm_is_gone_too(world: World) -> None:
    stop_in(world, "load", signal.SIGKILL, stubborn_worker={})


def test_ctrl_c_twice_leaves_nothing_either(world: World) -> None:
    """The second one comes while the server, which takes its time, is being stopped."""
    world.behave("none", faults={"ignore_sigterm": {}, "hang_mid_stream": {"after": LOADED}})
    study = start_study(world)
    loading(world, study)
    study.process.send_signal(signal.SIGINT)
    time.sleep(1)
    study.process.send_signal(signal.SIGINT)
    assert study.end(2 * GONE_WITHIN_S) != 0
    await_true(lambda: not marked(world.marker), GONE_WITHIN_S)
    assert len(world.records()) >= 2
