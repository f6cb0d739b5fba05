"""`specstudy lab run` to its end, and cut off: what it leaves on disk, and that it leaves no process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from dataclasses import replace
from functools import partial
from http.client import HTTPException
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from specstudy.book.lab import Wanted, prepare
from specstudy.book.scaling import open_scaling
from specstudy.errors import ServerStartError
from specstudy.figures import Picture
from specstudy.scaling.binaries import VARIABLE, Binaries
from specstudy.scaling.lab import lab
from specstudy.scaling.record import load_runs
from specstudy.serving.local import get
from specstudy.serving.vllm import vllm_version

MARKER = "SPECSTUDY_TEST_MARKER"
WORDS = ["lab", "run", "--low-s", "15", "--high-s", "45", "--after-s", "15", "--sync-s", "5"]


def begin(binaries: Binaries, results: Path, marker: str, *words: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", "from specstudy.cli import main; main()", *WORDS, "--results-dir", str(results), *words]
    env = {**os.environ, VARIABLE: str(binaries.folder), MARKER: marker}
    # A shell's background job ignores SIGINT, and what it starts would too.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=heed)


def left(marker: str) -> list[str]:
    """Command lines of the processes that were started with the marker and are still there after two minutes."""
    deadline = time.monotonic() + 120
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
    output, _ = process.communicate(timeout=1200)
    assert process.returncode == 0, output
    assert left(marker) == []
    (run,) = load_runs(tmp_path / "cpu-smollm2").runs
    assert (run.server, run.failed, run.kubernetes_version) == ("stand-in", 0, "1.20.2")
    assert run.replicas_max is not None
    assert run.replicas_max > 1
    assert isinstance(open_scaling("cpu-smollm2", results_dir=str(tmp_path)).timeline(), Picture)


def test_a_run_that_is_killed_leaves_nothing_running(binaries: Binaries, tmp_path: Path) -> None:
    """SIGKILL: nothing of ours is left to clean up, so the guards do."""
    marker = uuid.uuid4().hex
    process = begin(binaries, tmp_path, marker)
    deadline = time.monotonic() + 300
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
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 2, output
        assert says in output
        assert left(marker) == []


def test_a_replica_that_cant_start_ends_the_run_at_once_with_its_log(binaries: Binaries, tmp_path: Path) -> None:
    """It would be restarted for as long as a start may take, ten minutes with vLLM; the first end says why, and not that the ten minutes are over."""
    spec = prepare(Wanted()).spec
    broken = replace(spec, command=(*spec.command, "--token-ms", "fast"), start_s=600)
    with pytest.raises(ServerStartError, match="ended, or gave no answer in time, before it was ready") as raised, lab(binaries, tmp_path, broken):
        pass
    assert "invalid float value: 'fast'" in str(raised.value)


def test_an_earlier_labs_series_are_gone(binaries: Binaries, tmp_path: Path) -> None:
    """Prometheus shows a series for five minutes after its last sample, so the pods of a lab that has just ended would count as scraped."""
    for name in ("a", "b"):
        with lab(binaries, tmp_path, prepare(Wanted()).spec) as running:
            deadline = time.monotonic() + 180
            while not (pods := {one["metric"]["pod"] for one in running.prometheus.query("up")}) and time.monotonic() < deadline:
                time.sleep(0.5)
            assert pods == set(running.ready()), name


def in_flight(results: Path) -> float:
    """Requests that run or wait in the replicas that Prometheus is told of; 0 where none answers."""
    found = 0.0
    for path in results.glob("cpu-smollm2/logs/*/prometheus/targets.json"):
        for address in [address for one in json.loads(path.read_text()) for address in one["targets"]]:
            with suppress(OSError, HTTPException):
                families = text_string_to_metric_families(get(f"http://{address}/metrics", timeout_s=10).decode())
                found += sum(sample.value for one in families for sample in one.samples if re.fullmatch("vllm:num_requests_(running|waiting)", sample.name))
    return found


def await_load(results: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 900
    while not in_flight(results):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.1)


def test_ctrl_c_under_load_leaves_nothing_and_no_record(binaries: Binaries, tmp_path: Path) -> None:
    ctrl_c(binaries, tmp_path)


def ctrl_c(binaries: Binaries, results: Path, *words: str) -> None:
    """Interrupt a run with requests in flight."""
    marker = uuid.uuid4().hex
    process = begin(binaries, results, marker, *words)
    await_load(results, process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 130, output
    assert left(marker) == []
    assert load_runs(results / "cpu-smollm2").runs == ()


@pytest.mark.live
@pytest.mark.skipif(vllm_version() is None, reason="vLLM isn't installed here")
def test_vllm_replicas_are_scaled_and_recorded_as_real(binaries: Binaries, tmp_path: Path) -> None:
    """One replica at most, since a second would take minutes to start on a small machine: probes, metrics, record, drain, and Ctrl-C in the next."""
    marker = uuid.uuid4().hex
    process = begin(binaries, tmp_path, marker, "--server", "real", "--max-replicas", "1", "--rate", "1")
    output, _ = process.communicate(timeout=1800)
    assert process.returncode == 0, output
    assert left(marker) == []
    loaded = load_runs(tmp_path / "cpu-smollm2")
    (run,) = loaded.runs
    assert (run.server, run.engine, run.engine_version, run.failed) == ("real", "vllm", vllm_version(), 0)
    waits = loaded.samples.column("seen_wait_ms").drop_null().to_pylist()
    slots = loaded.samples.column("slots_in_use").drop_null().to_pylist()
    assert min(waits) >= 0  # zero where nobody waited, and there all along
    assert len(waits) > loaded.samples.num_rows / 3
    assert max(slots) > 0.3  # by Little's law 3 requests/s of 0.5 s are 1.5


@pytest.mark.live
@pytest.mark.skipif(vllm_version() is None, reason="vLLM isn't installed here")
def test_ctrl_c_while_vllm_replicas_run_leaves_no_engine(binaries: Binaries, tmp_path: Path) -> None:
    ctrl_c(binaries, tmp_path, "--server", "real", "--max-replicas", "1", "--rate", "1")
