"""Draft heads in a real vLLM: each kind loads, really drafts, and loses nothing. The shipped head of a kind where there is one, else a random one."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.live.conftest import START_TIMEOUT_S, TARGET, greedy
from tests.standin.heads import KINDS, Kind, write_random_head

from specstudy.catalog import load_draft, load_target, names_in
from specstudy.catalog.materialise import draft_folder, target_folder
from specstudy.drafts.check import ARCHITECTURES, check_head, failures
from specstudy.measure import read_counters
from specstudy.serving import ENGINES, Deployment, launch
from specstudy.workloads import Prompt

pytestmark = [pytest.mark.live, pytest.mark.skipif(ENGINES["vllm"].version() is None, reason="vLLM isn't installed here")]

K = 3


def shipped(kind: Kind) -> str | None:
    """The catalog's head of this kind for the target."""
    name = f"smollm2-135m-{kind}"
    return name if name in names_in("drafts") else None


def head_folder(kind: Kind, tmp_path: Path) -> Path:
    name = shipped(kind)
    return draft_folder(load_draft(name)) if name else write_random_head(kind, target_folder(load_target(TARGET)), tmp_path / kind, inner=512, draft_vocab=4096)


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_drafts_and_is_lossless(
    kind: Kind, deployment: Callable[..., Deployment], prompts: list[Prompt], baseline: list[list[int]], log_path: Path, tmp_path: Path
) -> None:
    folder = head_folder(kind, tmp_path)
    assert list(failures(check_head(folder, target_folder(load_target(TARGET))))) == []
    method = "peagle" if kind == "peagle" else "eagle3"
    with launch(deployment(method=method, draft=kind, draft_path=str(folder), num_speculative_tokens=K), log_path, timeout_s=START_TIMEOUT_S) as server:
        before = read_counters(server.base_url)
        answers = greedy(server, prompts[::2])
        change = read_counters(server.base_url).since(before)
    assert answers == baseline[::2]
    assert change.drafts
    # A request may draft fewer tokens than K only where its limit cuts it off.
    assert change.drafts < (change.draft_tokens or 0) <= K * change.drafts
    assert len(change.accepted_per_position) == K
    assert sum(change.accepted_per_position) == change.accepted_tokens
    if shipped(kind):
        assert change.acceptance_length is not None
        assert change.acceptance_length > 1.5


def test_every_architecture_that_a_check_lets_pass_is_one_that_vllm_knows() -> None:
    package = importlib.util.find_spec("vllm")
    assert package is not None
    assert package.origin is not None
    registry = (Path(package.origin).parent / "model_executor" / "models" / "registry.py").read_text()
    assert set(re.findall(r'"(\w+)": \("\w*eagle3"', registry)) >= ARCHITECTURES
