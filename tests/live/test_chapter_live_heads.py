"""The chapters on draft heads by papermill against real vLLM servers, started side by side, with the heads kept in the checkout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml
from tests.live.conftest import pictures

from specstudy.catalog import load_draft, project_root
from specstudy.catalog.materialise import draft_folder
from specstudy.errors import AssetError
from specstudy.records import load_records

pytestmark = pytest.mark.live
ROOT = project_root()
HEADS = {"eagle3": "smollm2-135m-eagle3", "eagle3.1": "smollm2-135m-eagle3.1", "peagle": "smollm2-135m-peagle"}
K = 2


@pytest.fixture(autouse=True)
def _heads_are_there() -> None:
    for name in HEADS.values():
        try:
            draft_folder(load_draft(name))
        except AssetError as error:
            pytest.skip(str(error))


def head(kind: str) -> dict[str, Any]:
    return {"method": load_draft(HEADS[kind]).method, "draft": HEADS[kind], "num_speculative_tokens": [K]}


CHAPTERS: dict[str, dict[str, Any]] = {
    "04_eagle3": {
        "methods": [{"method": "none"}, head("eagle3"), head("eagle3.1")],
        "sections": [{"workloads": ["code"], "arrivals": {"concurrencies": [2]}, "repeats": 2}],
    },
    "05_peagle": {"methods": [{"method": "none"}, head("eagle3"), head("peagle")]},
}


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """The CPU profile with a few small cells; three servers share the processors but only one is asked at a time."""
    kept = yaml.safe_load((ROOT / "data" / "profiles" / "cpu-smollm2.yaml").read_text())
    kept |= {"name": "tiny", "measuring": {"prompts_per_slot": 3, "warmups_per_slot": 1, "min_repeats": 2, "max_repeats": 2, "servers_at_once": 3}}
    kept["workloads"] = {name: {"dataset": data, "max_prompt_tokens": 512, "max_tokens": 24} for name, data in (("chat", "mtbench"), ("code", "humaneval"))}
    kept["chapters"] = {name: {"workloads": ["chat"], "arrivals": {"concurrencies": [1, 2]}, **plan} for name, plan in CHAPTERS.items()}
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(kept))
    return path


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_with_heads_measures_and_renders(profile: Path, tmp_path: Path, chapter: str) -> None:
    command = [sys.executable, "-m", "papermill", str(ROOT / "chapters" / f"{chapter}.ipynb"), str(tmp_path / "out.ipynb")]
    command += ["-p", "mode", "live", "-p", "profile", str(profile), "-p", "results_dir", str(tmp_path / "results"), "--no-progress-bar"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2400)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    loaded = load_records(tmp_path / "results" / "tiny" / f"{chapter}.jsonl")
    assert not loaded.skipped
    servers = {record.draft or record.method for record in loaded.records}
    assert servers == {plan.get("draft", plan["method"]) for plan in CHAPTERS[chapter]["methods"]}
    for record in loaded.records:
        assert record.status == "ok"
        assert record.idle_neighbours == 2
        if record.draft is not None:
            # One that drafts at random has 1, whatever K is.
            assert record.acceptance_length is not None and 1.3 < record.acceptance_length <= K + 1
            assert record.acceptance_per_position is not None and len(record.acceptance_per_position) == K
            assert record.draft_weights_gib is not None and 0.005 < record.draft_weights_gib < 0.2
    code = {record.method for record in loaded.records if record.workload == "code"}
    assert code == ({"eagle3"} if "sections" in CHAPTERS[chapter] else set())
    own = [cell for cell in nbformat.read(tmp_path / "out.ipynb", as_version=4).cells if not cell.get("id", "").startswith("full-size")]
    assert pictures(own) >= 3
