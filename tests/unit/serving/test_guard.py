"""The guard as a process: whatever ends it, its command and all that the command made end too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from specstudy.serving import guard
from specstudy.serving.server import free_port

Family = Callable[..., list[str]]
Members = Callable[..., list[psutil.Process]]
AssertGone = Callable[..., None]
Guarded = Callable[..., subprocess.Popen[bytes]]

ALL_KINDS = ("plain", "stubborn", "daemon", "deaf")
PROCESSES = ("server", "plain", "stubborn", "daemon")


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    """Start a command under the guard; its log is log.txt."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*command: str) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-S", "-E", guard.__file__, str(tmp_path / "log.txt"), *command]
        started.append(subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(timeout=60)


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -KILL $$"], 128 + signal.SIGKILL),
        (["sh", "-c", "kill -TERM $$"], 128 + signal.SIGTERM),
    ],
)
def test_its_exit_status_is_the_commands_as_a_shell_gives_it(guarded: Guarded, command: list[str], status: int) -> None:
    assert guarded(*command).wait(timeout=60) == status


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_the_command_and_is_told_by_the_status(guarded: Guarded, number: signal.Signals, tmp_path: Path) -> None:
    process = guarded("sh", "-c", "echo on; exec sleep 60")
    wait_for(lambda: (tmp_path / "log.txt").exists() and "on" in (tmp_path / "log.txt").read_text())
    process.send_signal(number)
    assert process.wait(timeout=60) == 128 + number


def wait_for(condition: Callable[[], bool], within_s: float = 60) -> None:
    """Wait until `condition` holds."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_output_and_errors_go_to_the_log_after_what_is_there_and_input_is_empty(guarded: Guarded, tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("before\n")
    guarded("sh", "-c", "echo out; echo err >&2; wc -c").wait(timeout=60)
    assert (tmp_path / "log.txt").read_text().split() == ["before", "out", "err", "0"]


def test_workers_of_a_command_that_ended_by_itself_are_stopped(guarded: Guarded, tmp_path: Path, assert_gone: AssertGone) -> None:
    process = guarded("sh", "-c", f"sleep 60 & echo $! > {tmp_path}/worker; setsid sleep 61 & echo $! >> {tmp_path}/worker; sleep 0.3; exit 4")
    wait_for(lambda: (tmp_path / "worker").exists() and len((tmp_path / "worker").read_text().split()) == 2)
    workers = [psutil.Process(int(pid)) for pid in (tmp_path / "worker").read_text().split()]
    assert process.wait(timeout=60) == 4
    assert_gone(workers, 0.1)


@pytest.mark.parametrize("way", ["SIGTERM", "end of input"])
def test_the_whole_family_ends_however_it_holds_on(
    quick_guard: Path, guarded: Guarded, family: Family, members: Members, assert_gone: AssertGone, way: str
) -> None:
    process = guarded(*family(free_port(), *ALL_KINDS))
    everybody = members(*PROCESSES)
    assert os.getsid(everybody[-1].pid) != os.getsid(everybody[0].pid), "the daemon has left the session"
    if way == "SIGTERM":
        process.terminate()
    else:
        assert process.stdin is not None
        process.stdin.close()
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    assert_gone(everybody, 0.1)


def test_sigterm_comes_first_so_that_a_server_can_stop_in_order(guarded: Guarded, tmp_path: Path) -> None:
    process = guarded("sh", "-c", 'trap "echo in order; exit 0" TERM; echo on; while :; do sleep 0.05; done')
    wait_for(lambda: (tmp_path / "log.txt").exists() and "on" in (tmp_path / "log.txt").read_text())
    process.terminate()
    process.wait(timeout=60)
    assert (tmp_path / "log.txt").read_text() == "on\nin order\n"


def test_the_command_dies_with_a_guard_that_is_killed(guarded: Guarded, family: Family, members: Members, assert_gone: AssertGone) -> None:
    process = guarded(*family(free_port(), "deaf"))
    server = members("server")
    process.kill()
    process.wait(timeout=60)
    assert_gone(server, 60)


def test_the_real_grace_is_eight_seconds() -> None:
    # vLLM's engine core is given this long to free the GPU before it is killed.
    assert guard.GRACE_S == 8.0
