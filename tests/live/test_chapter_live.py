"""A chapter by papermill against a real vLLM: it runs to its end, and nothing of it outlives an interruption."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import nbformat
import psutil
import pytest
import yaml
from tests.live.conftest import pictures

from specstudy.catalog import project_root
from specstudy.records import load_records, load_requests

pytestmark = pytest.mark.live
ROOT = project_root()


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """The CPU profile with one small cell."""
    kept = yaml.safe_load((ROOT / "data" / "profiles" / "cpu-smollm2.yaml").read_text())
    kept |= {"name": "tiny", "measuring": {"prompts_per_slot": 3, "warmups_per_slot": 1, "min_repeats": 2, "max_repeats": 2}}
    kept["workloads"] = {"chat": {"dataset": "mtbench", "max_prompt_tokens": 512, "max_tokens": 8}}
    kept["chapters"] = {"03_baseline": {"workloads": ["chat"], "arrivals": {"concurrencies": [2]}, "methods": [{"method": "none"}]}}
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(kept))
    return path


def papermill(profile: Path, tmp_path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "papermill", str(ROOT / "chapters" / "03_baseline.ipynb"), str(tmp_path / "out.ipynb")]
    command += ["-p", "mode", "live", "-p", "profile", str(profile), "-p", "results_dir", str(tmp_path / "results"), "--no-progress-bar"]
    # A shell's background job ignores SIGINT, and what it starts would too.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=heed)


def family(process: subprocess.Popen[str]) -> dict[psutil.Process, str]:
    """Everything that it started and that is still there, with the command line."""
    found = {}
    for one in psutil.Process(process.pid).children(recursive=True):
        try:
            found[one] = " ".join(one.cmdline())
        except psutil.Error:  # a helper of a moment
            continue
    return found


def test_a_chapter_measures_and_renders(profile: Path, tmp_path: Path) -> None:
    process = papermill(profile, tmp_path)
    output, _ = process.communicate(timeout=1200)
    assert process.returncode == 0, output[-3000:]
    path = tmp_path / "results" / "tiny" / "03_baseline.jsonl"
    loaded = load_records(path)
    assert not loaded.skipped
    assert [(record.method, record.concurrency, record.repeat, record.status) for record in loaded.records] == [("none", 2, 0, "ok"), ("none", 2, 1, "ok")]
    rows = load_requests(path.with_suffix(".requests.parquet")).to_pandas()
    for record in loaded.records:
        own = rows[rows["record_id"] == record.record_id]
        assert len(own) == record.num_prompts == 6
        assert own["completion_tokens"].sum() == record.output_tokens
        assert record.kv_cache_tokens and record.weights_gib
        assert record.engine_cores and record.api_server_cores and record.load_generator_cores
        assert record.engine_cores > record.api_server_cores
    other = [set(rows[rows["record_id"] == record.record_id]["prompt_id"]) for record in loaded.records]
    assert not other[0] & other[1], "repeats shared a prompt"
    notebook = nbformat.read(tmp_path / "out.ipynb", as_version=4)
    own, recorded = ([cell for cell in notebook.cells if cell.get("id", "").startswith("full-size") == full] for full in (False, True))
    assert (pictures(own), pictures(recorded)) == (2, 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_an_interrupted_chapter(profile: Path, tmp_path: Path, number: signal.Signals) -> None:
    process = papermill(profile, tmp_path)
    log = tmp_path / "results" / "tiny" / "logs" / "03_baseline-none.log"
    deadline = time.monotonic() + 600
    while not (log.exists() and log.stat().st_size):
        assert process.poll() is None, process.communicate()[0][-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.2)
    started = family(process)
    assert any("vllm.entrypoints" in line for line in started.values())
    process.send_signal(number)
    process.communicate(timeout=300)
    assert process.returncode != 0
    assert psutil.wait_procs(list(started), timeout=120)[1] == []
