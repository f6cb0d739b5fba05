"""`specstudy lab run` to its end, and cut off: what it leaves on disk, and that it leaves no process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil

from specstudy.book.scaling import open_scaling
from specstudy.figures import Picture
from specstudy.scaling.binaries import VARIABLE, Binaries
from specstudy.scaling.record import load_runs

MARKER = "SPECSTUDY_TEST_MARKER"
WORDS = ["lab", "run", "--low-s", "15", "--high-s", "45", "--after-s", "15", "--sync-s", "5"]


def begin(binaries: Binaries, results: Path, marker: str, *words: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", "from specstudy.cli import main; main()", *WORDS, "--results-dir", str(results), *words]
    env = {**os.environ, VARIABLE: str(binaries.folder), MARKER: marker}
    return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def left(marker: str) -> list[str]:
    """Command lines of the processes that were started with the marker and are still there after 20 s."""
    deadline = time.monotonic() + 20
    while (found := marked(marker)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def marked(marker: str) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARKER) == marker and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


def test_a_run_is_kept_and_drawn_and_leaves_nothing_running(binaries: Binaries, tmp_path: Path) -> None:
    marker = uuid.uuid4().hex
    process = begin(binaries, tmp_path, marker)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert left(marker) == []
    (run,) = load_runs(tmp_path / "cpu-smollm2").runs
    assert (run.server, run.failed, run.kubernetes_version) == ("stand-in", 0, "1.20.2")
    assert run.decided_s is not None
    assert isinstance(open_scaling("cpu-smollm2", results_dir=str(tmp_path)).timeline(), Picture)


def test_a_run_that_is_killed_leaves_nothing_running(binaries: Binaries, tmp_path: Path) -> None:
    """SIGKILL: nothing of ours is left to clean up, so the guards do."""
    marker = uuid.uuid4().hex
    process = begin(binaries, tmp_path, marker)
    deadline = time.monotonic() + 60
    while not any("specstudy.scaling.standin" in line for line in marked(marker)):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert left(marker) == []


def test_what_cant_be_run_is_refused_before_anything_starts(binaries: Binaries, tmp_path: Path) -> None:
    marker = uuid.uuid4().hex
    for words, says in ((["--policy", "hope"], "wait-and-slots"), (["--profile", "nobody"], "known: ")):
        process = begin(binaries, tmp_path, marker, *words)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 2, output
        assert says in output
        assert left(marker) == []
