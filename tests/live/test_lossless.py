"""In float32 every method gives the baseline's greedy tokens, and really drafts.

What is batched together depends on the machine's pace, and changes a logit by 5e-5 at most; the two best logits of the 768 tokens
lie 2e-3 apart at the closest (both by transformers in float32), so that no answer hangs on it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.live.conftest import START_TIMEOUT_S, greedy

from specstudy.catalog import load_draft
from specstudy.catalog.materialise import draft_folder
from specstudy.measure import read_counters
from specstudy.serving import Deployment, Server, launch
from specstudy.workloads import Prompt

pytestmark = pytest.mark.live

DRAFT = "smollm2-135m-pruned"
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
DRAFT_MODEL = {"method": "draft_model", "draft": DRAFT, "num_speculative_tokens": 2}


def test_the_baseline_repeats_itself(vllm_server: Server, prompts: list[Prompt], baseline: list[list[int]]) -> None:
    assert len(prompts) == 16
    assert greedy(vllm_server, prompts) == baseline


@pytest.mark.parametrize("method", [NGRAM, DRAFT_MODEL], ids=["ngram", "draft_model"])
def test_lossless(method: dict[str, Any], deployment: Callable[..., Deployment], prompts: list[Prompt], baseline: list[list[int]], log_path: Path) -> None:
    path = {"draft_path": str(draft_folder(load_draft(DRAFT)))} if "draft" in method else {}
    with launch(deployment(**method, **path), log_path, timeout_s=START_TIMEOUT_S) as server:
        before = read_counters(server.base_url)
        answers = greedy(server, prompts)
        change = read_counters(server.base_url).since(before)
    assert answers == baseline
    k = method["num_speculative_tokens"]
    assert change.requests_finished == 16
    assert change.drafts
    assert change.accepted_tokens
    assert change.acceptance_length is not None
    assert 1 < change.acceptance_length <= k + 1
    assert 0 < (change.acceptance_rate or 0) <= 1
    assert len(change.accepted_per_position) == k
    assert sum(change.accepted_per_position) == change.accepted_tokens
    assert list(change.accepted_per_position) == sorted(change.accepted_per_position, reverse=True)
    assert change.generation_tokens == sum(len(answer) for answer in answers)
