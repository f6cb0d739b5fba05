"""It starts, it says why when it doesn't, and it leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from specstudy.errors import ConfigError, MetricsUnavailableError, ServerDiedError, ServerStartError
from specstudy.scaling.binaries import SERVERS, TOOLS, VARIABLE, Binaries, find
from specstudy.scaling.control_plane import control_plane
from specstudy.scaling.prometheus import prometheus


def of_folder(folder: Path) -> list[str]:
    """Names of the processes whose command line names this folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if any(str(folder) in word for word in process.cmdline()) and process.pid != os.getpid():
                found.append(process.name())
        except psutil.Error:
            continue
    return found


def gone(folder: Path, wait_s: float = 120) -> bool:
    deadline = time.monotonic() + wait_s
    while (left := of_folder(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not left


def test_it_leaves_logs_and_nothing_else(binaries: Binaries, tmp_path: Path) -> None:
    with control_plane(binaries, tmp_path) as plane:
        assert of_folder(tmp_path)
        plane.raise_if_dead()
    assert gone(tmp_path)
    kept = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert kept == [f"logs/{name}.log" for name in sorted(set(SERVERS) - {"prometheus"})]


def test_a_program_that_ends_is_told_with_its_log(binaries: Binaries, tmp_path: Path) -> None:
    with control_plane(binaries, tmp_path) as plane:
        (etcd,) = [child for child in psutil.Process(plane.processes["etcd"].pid).children() if child.name() == "etcd"]
        etcd.kill()
        plane.processes["etcd"].wait(120)
        with pytest.raises(ServerDiedError, match="etcd ended with status 137"):
            plane.raise_if_dead()
    assert gone(tmp_path)


def test_one_that_does_not_start_takes_the_others_with_it(binaries: Binaries, tmp_path: Path) -> None:
    wrong = control_plane(binaries, tmp_path, controller_flags={"no-such-flag": "1"})
    with pytest.raises(ServerStartError, match="kube-controller-manager ended with status 1"), wrong:
        pass
    assert gone(tmp_path)
    assert "unknown flag: --no-such-flag" in (tmp_path / "logs" / "kube-controller-manager.log").read_text()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_none_outlives_the_program_that_started_it(binaries: Binaries, tmp_path: Path, number: signal.Signals) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from specstudy.scaling.binaries import need; from specstudy.scaling.control_plane import control_plane\n"
        "with control_plane(need(), Path(sys.argv[1])):\n    print('up', flush=True); time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    process.send_signal(number)
    process.communicate(timeout=300)
    assert gone(tmp_path)


def test_prometheus_scrapes_itself_by_what_it_is_told(binaries: Binaries, tmp_path: Path) -> None:
    with prometheus(binaries, tmp_path, [], scrape_interval_s=1, evaluation_interval_s=1) as running:
        running.set_targets({"first": running.url.removeprefix("http://")})
        deadline = time.monotonic() + 180
        while not (found := running.query('up{job="vllm"} == 1')):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert {key: found[0]["metric"][key] for key in ("namespace", "pod", "job")} == {"namespace": "default", "pod": "first", "job": "vllm"}
        running.set_targets({})
        while running.query("up"):
            assert time.monotonic() < deadline + 180
            time.sleep(0.2)
        with pytest.raises(MetricsUnavailableError):
            running.query("not a query(")
    assert gone(tmp_path)


def test_a_broken_rule_stops_prometheus_at_its_start(binaries: Binaries, tmp_path: Path) -> None:
    rules = {"groups": [{"name": "bad", "rules": [{"record": "x", "expr": "sum("}]}]}
    with pytest.raises(ServerStartError, match="unclosed left parenthesis"), prometheus(binaries, tmp_path, [rules]):
        pass
    assert gone(tmp_path)


def test_a_folder_that_lacks_a_program_is_refused(binaries: Binaries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*SERVERS, *TOOLS):
        if name != "kube-scheduler":
            (tmp_path / name).symlink_to(binaries.path(name))
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(ConfigError, match="a folder that also holds kube-scheduler"):
        find()
    shutil.copy2(binaries.path("kube-scheduler"), tmp_path)
    assert find() == Binaries(tmp_path)
