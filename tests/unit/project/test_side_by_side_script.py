"""Jobs beside each other: cores of their own, a log each, a limit that stops them."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import time
import uuid
from pathlib import Path
from types import ModuleType

import psutil
import pytest

DRIVER = """
import runpy, typer
found = runpy.run_path({script!r})
found["run"].__globals__["START"] = {slow!r}
typer.run(found["main"])
"""
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


def test_the_limit_stops_what_runs_and_begins_nothing_more(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command that would take ten minutes ends as by Ctrl-C."""
    monkeypatch.setattr(script, "START", "import sys, time\ntry:\n    time.sleep(600)\nexcept KeyboardInterrupt:\n    sys.exit(130)  # {cores}")
    deadline = time.monotonic() + 5
    good = script.run_job(0, [["first"], ["second"]], [0], "", tmp_path, script.Event(), deadline)
    assert not good
    assert time.monotonic() < deadline + 60
    told = capsys.readouterr().out.splitlines()
    assert re.match(r"job 0, first: status (?!0 )", told[0])  # 130, or killed where it hadn't come far enough to heed it
    assert told[1:] == ["job 0, second: not begun"]


def test_a_terminated_script_leaves_nothing_running(tmp_path: Path) -> None:
    """The command would take ten minutes; it goes with the script."""
    marker = f"job-{uuid.uuid4().hex}"
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER.format(script=str(SCRIPT), slow="import time; time.sleep(600)  # {cores}"))
    process = subprocess.Popen([sys.executable, str(driver), "--logs", str(tmp_path), marker], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not (found := with_word(marker, {process.pid})):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.terminate()
        assert process.wait(60) == 130
        assert not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in found)
    finally:
        process.kill()


def with_word(word: str, but: set[int]) -> list[psutil.Process]:
    """Processes with this word on their command line, but for these."""
    return [one for one in psutil.process_iter(["cmdline"]) if one.pid not in but and word in (one.info["cmdline"] or [])]


@pytest.mark.parametrize(
    ("job", "wanted"),
    [
        ("version; measure a --only 'b; c'", [["version"], ["measure", "a", "--only", "b; c"]]),
        ("version;;", [["version"]]),
    ],
)
def test_a_job_is_split_at_semicolons_outside_of_quotes(script: ModuleType, job: str, wanted: list[list[str]]) -> None:
    assert script.commands_of(job) == wanted


@pytest.mark.parametrize(("job", "says"), [("", "no command"), (";", "no command"), ("version 'x", "quotation")])
def test_a_job_that_is_none_is_refused(tmp_path: Path, job: str, says: str) -> None:
    done = side_by_side(tmp_path / "logs", job)
    assert done.returncode == 1
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "logs").exists()


def test_each_job_has_a_gpu_of_the_callers(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, GPU-5")
    assert script.gpus_for(2) == ["4", "GPU-5"]
    with pytest.raises(SystemExit, match="3 jobs, 2 GPUs"):
        script.gpus_for(3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(script, "gpu_count", lambda: 0)
    assert script.gpus_for(2) == ["", ""]
