"""A shape from its YAML file to records, on the real vLLM; imposed acceptance alone needs a GPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.live.conftest import START_TIMEOUT_S

from specstudy.analysis import decode_throughputs
from specstudy.catalog import load_draft, load_profile, load_target
from specstudy.catalog.materialise import draft_folder, target_folder
from specstudy.measure import Sampling, measure
from specstudy.serving import check_files, deploy, launch
from specstudy.serving.vllm import vllm_version
from specstudy.study import read_study, run_chapter
from specstudy.workloads import Closed, Prompt

pytestmark = [pytest.mark.live, pytest.mark.skipif(vllm_version() is None, reason="vLLM isn't installed here")]


def test_a_shape_profile_is_measured_as_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECSTUDY_CACHE", str(tmp_path / "cache"))
    profile = load_profile("cpu-llama-tiny-shape")
    run_chapter(profile, "03_baseline", tmp_path / profile.name)
    study = read_study(profile, "03_baseline", tmp_path)
    assert {record.evidence for record in study.records} == {"shape"}
    assert len(study.records) == 8 and {record.status for record in study.records} == {"ok"}
    requests = study.requests.to_pandas()
    of = {workload: [record.record_id for record in study.records if record.workload == workload] for workload in ("fixed", "sharegpt-mix")}
    fixed, mixed = (requests[requests["record_id"].isin(of[workload])] for workload in ("fixed", "sharegpt-mix"))
    assert set(fixed["prompt_tokens"]) == {64} and set(fixed["completion_tokens"]) == {32}
    assert mixed["prompt_tokens"].nunique() > 1 and mixed["completion_tokens"].max() <= 64
    assert decode_throughputs(study.cells)


def test_a_head_with_random_weights_keeps_its_own_lm_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that vLLM drafts with the target's, which is larger: see serving.random_weights."""
    monkeypatch.setenv("SPECSTUDY_CACHE", str(tmp_path / "cache"))
    target, draft = load_target("llama-tiny-shape"), load_draft("llama-tiny-eagle3-shape")
    deployment = deploy(
        target=target.name,
        target_path=str(target_folder(target)),
        hardware="cpu",
        max_model_len=1024,
        max_num_seqs=4,
        method="eagle3",
        draft=draft.name,
        draft_path=str(draft_folder(draft)),
        num_speculative_tokens=3,
        random_weights=True,
        flags={"enforce-eager": True},
    )
    check_files(deployment)
    log = tmp_path / "server.log"
    with launch(deployment, log, timeout_s=START_TIMEOUT_S) as server:
        prompts = [Prompt(token_ids=tuple(range(start, start + 40))) for start in range(4)]
        measured = measure(server, prompts, prompts[:1], Closed(2), Sampling(24, 0, 0, 8))
    assert measured.error is None
    assert measured.figures["output_tokens"] == 4 * 24
    assert 1 <= measured.figures["acceptance_length"] <= 4
    said = log.read_text()
    assert "distinct lm_head weights" in said
    # The target: two norms in each of four layers and the last one. The head: one more for the target's hidden states.
    assert re.findall(r"random weights: (\d+) tensors filled", said) == ["9", "4"]
