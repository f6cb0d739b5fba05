"""A head trained from nothing on this machine, by the command a user would give, then loaded in a real vLLM."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.live.conftest import START_TIMEOUT_S, TARGET, greedy

from specstudy.catalog import load_target
from specstudy.catalog.materialise import target_folder
from specstudy.drafts.card import read_card
from specstudy.drafts.check import check_head, failures
from specstudy.drafts.prompts import evaluation_keys
from specstudy.measure import read_counters
from specstudy.serving import ENGINES, Deployment, launch
from specstudy.workloads import Prompt

pytestmark = [pytest.mark.live, pytest.mark.skipif(ENGINES["vllm"].version() is None, reason="vLLM isn't installed here")]

COMMAND = [sys.executable, "-c", "from specstudy.cli import main; main()", "drafts", "train", "--setting", "tiny", "--target", TARGET]


@pytest.fixture(scope="module")
def own_prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's own data: short questions, one a line."""
    path = tmp_path_factory.mktemp("data") / "own.jsonl"
    path.write_text(
        "".join(f'{{"prompt": "Name {n} things that one finds in a {place}."}}\n' for n in range(2, 6) for place in ("kitchen", "forest", "school"))
    )
    return path


@pytest.mark.parametrize("method", ["eagle3.1"])
def test_train_tiny(method: str, own_prompts: Path, deployment: Callable[..., Deployment], prompts: list[Prompt], log_path: Path, tmp_path: Path) -> None:
    out, work = tmp_path / "head", tmp_path / "work"
    told = subprocess.run([*COMMAND, "--method", method, "--data", str(own_prompts), "--out", str(out), "--work", str(work)], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr[-2000:]
    card = read_card(out)
    losses = [loss for _, loss in card.training.loss_curve]
    assert card.training.steps == 12
    assert losses[-1] < losses[0]
    assert list(failures(check_head(out, target_folder(load_target(TARGET)), card))) == []
    keys = evaluation_keys()
    assert card.data.sources[0].prompts > 4
    assert not [line for line in (work / "prompts.jsonl").read_text().splitlines() if any(key in line for key in keys)]
    with launch(deployment(method="eagle3", draft="tiny", draft_path=str(out), num_speculative_tokens=2), log_path, timeout_s=START_TIMEOUT_S) as server:
        before = read_counters(server.base_url)
        greedy(server, prompts[:2])
        change = read_counters(server.base_url).since(before)
    assert change.drafts
    assert change.draft_tokens
    more = ["--method", method, "--data", str(own_prompts), "--out", str(tmp_path / "more"), "--work", str(work), "--from", str(out), "--steps", "2"]
    assert subprocess.run([*COMMAND, *more], capture_output=True, text=True).returncode == 0
    assert (started := read_card(tmp_path / "more").training.started_from) is not None
    assert (started.name, started.tokens_seen) == ("head", card.training.tokens_seen)
    again = subprocess.run([*COMMAND, "--method", method, "--data", str(own_prompts), "--out", str(out), "--work", str(work)], capture_output=True, text=True)
    assert again.returncode == 2
    assert "this one holds one" in again.stderr
