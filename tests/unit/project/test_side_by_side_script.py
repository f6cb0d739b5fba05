"""Jobs beside each other: cores of their own, a log each, a limit that stops them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "side_by_side.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("side_by_side", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def side_by_side(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), "--logs", str(tmp_path), *words], capture_output=True, text=True, timeout=300)


def test_one_hardware_thread_of_each_core(script: ModuleType, tmp_path: Path) -> None:
    """Eight threads on four cores, two each; the last core's are not ours."""
    for cpu in range(8):
        place = tmp_path / f"cpu{cpu}" / "topology"
        place.mkdir(parents=True)
        (place / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    assert script.one_thread_each({0, 1, 2, 4, 5, 6}, tmp_path) == [0, 1, 2]
    assert script.one_thread_each({3, 9}, tmp_path / "none") == [3, 9]


def test_equal_shares_of_neighbours(script: ModuleType) -> None:
    assert script.core_shares([0, 2, 4, 6, 8], 2) == [[0, 2], [4, 6]]
    with pytest.raises(SystemExit, match="3 jobs, 2 cores"):
        script.core_shares([0, 1], 3)


def test_commands_run_in_turn_and_a_failed_one_shows(tmp_path: Path) -> None:
    done = side_by_side(tmp_path, "version; measure 99_none; version")
    assert done.returncode == 1
    assert [line.rpartition(" after")[0] for line in done.stdout.splitlines()] == [
        "job 0, version: status 0",
        "job 0, measure 99_none: status 2",
        "job 0, version: status 0",
    ]
    log = (tmp_path / "job-0.log").read_text()
    assert "got '99_none'" in log
    assert side_by_side(tmp_path, "version").returncode == 0


def test_the_limit_stops_what_runs_and_begins_nothing_more(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that would take ten minutes ends as by Ctrl-C."""
    monkeypatch.setattr(script, "START", "import sys, time\ntry:\n    time.sleep(600)\nexcept KeyboardInterrupt:\n    sys.exit(130)  # {cores}")
    deadline = time.monotonic() + 5
    good = script.job(0, [["first"], ["second"]], [0], tmp_path, script.Event(), deadline)
    assert not good
    assert time.monotonic() < deadline + 60
