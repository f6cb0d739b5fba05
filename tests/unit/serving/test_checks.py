from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specstudy.errors import ConfigError
from specstudy.serving import Deployment, check_files

Gpu = Callable[..., Deployment]
Folder = Callable[..., str]

TARGET = {"vocab_size": 100, "hidden_size": 64, "max_position_embeddings": 4096}
PEAGLE = {"vocab_size": 100, "hidden_size": 64, "pard_token": 7}


@pytest.fixture
def pair(gpu: Gpu, model_folder: Folder) -> Callable[..., Deployment]:
    """A deployment whose target has TARGET's config and whose draft has `config`."""

    def make(method: str, config: dict[str, Any]) -> Deployment:
        paths = {"target_path": model_folder("target", **TARGET), "draft_path": model_folder("draft", **config)}
        return gpu(method=method, draft="d", num_speculative_tokens=3, **paths)

    return make


@pytest.mark.parametrize(
    ("method", "config", "field", "got", "allowed"),
    [
        ("draft_model", {"vocab_size": 99, "hidden_size": 64}, "draft: vocab_size", 99, "must be 100"),
        ("eagle3", {"vocab_size": 101, "hidden_size": 64}, "draft: vocab_size", 101, "must be 100"),
        ("eagle3", {"vocab_size": 100, "hidden_size": 32}, "draft: hidden_size", 32, "must be 64"),
        ("dflash", {"vocab_size": 100, "hidden_size": 32}, "draft: hidden_size", 32, "must be 64"),
        ("peagle", {**PEAGLE, "hidden_size": 128}, "draft: hidden_size", 128, "must be 64"),
        ("peagle", {"vocab_size": 100, "hidden_size": 64}, "draft: pard_token", None, "pard_token or ptd_token_id"),
        ("eagle3", {"transformer_layer_config": {"vocab_size": 100, "hidden_size": 32}}, "draft: hidden_size", 32, "must be 64"),
        ("eagle3", {"architectures": ["LlamaForCausalLM"]}, "draft: architectures", ["LlamaForCausalLM"], "LlamaForCausalLMEagle3"),
        ("eagle3", {"architectures": ["EagleLlamaForCausalLM"]}, "draft: architectures", ["EagleLlamaForCausalLM"], "EAGLE-3 head"),
        ("eagle3", {"architectures": ["DFlashDraftModel"]}, "draft: architectures", ["DFlashDraftModel"], "EAGLE-3 head"),
        ("peagle", {**PEAGLE, "architectures": ["Qwen3ForCausalLM"]}, "draft: architectures", ["Qwen3ForCausalLM"], "for method peagle"),
        ("dflash", {"architectures": ["LlamaForCausalLMEagle3"]}, "draft: architectures", ["LlamaForCausalLMEagle3"], "DFlash head"),
        ("draft_model", {"architectures": ["LlamaForCausalLMEagle3"]}, "draft: architectures", ["LlamaForCausalLMEagle3"], "whole model"),
    ],
)
def test_a_draft_that_cannot_fit_is_refused(
    pair: Callable[..., Deployment], method: str, config: dict[str, Any], field: str, got: object, allowed: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        check_files(pair(method, config))
    assert (refused.value.field, refused.value.got) == (field, got)
    assert allowed in refused.value.allowed


@pytest.mark.parametrize(
    ("method", "config"),
    [
        ("draft_model", {"vocab_size": 100, "hidden_size": 8}),
        ("eagle3", {"vocab_size": 100, "hidden_size": 64, "draft_vocab_size": 50}),
        ("dflash", {"vocab_size": 100, "hidden_size": 64}),
        ("peagle", PEAGLE),
        ("peagle", {"vocab_size": 100, "hidden_size": 64, "ptd_token_id": 0}),
        ("peagle", {"mask_token_id": 3, "transformer_layer_config": {"vocab_size": 100, "hidden_size": 64}}),
        ("eagle3", {}),
        ("eagle3", {"architectures": ["LlamaForCausalLMEagle3"]}),
        ("eagle3", {"architectures": ["LlamaForCausalLM"], "draft_vocab_size": 50}),  # as the authors' own heads have it
        ("eagle3", {"architectures": ["Eagle3DraftModel"], "transformer_layer_config": {"vocab_size": 100}}),
        ("peagle", {**PEAGLE, "architectures": ["LlamaForCausalLMEagle3"]}),
        ("peagle", {**PEAGLE, "architectures": ["PEagleDraftModel"]}),
        ("dflash", {"architectures": ["DFlashDraftModel"]}),
        ("draft_model", {"architectures": ["LlamaForCausalLM"]}),
    ],
)
def test_a_draft_that_fits_or_says_nothing_is_taken(pair: Callable[..., Deployment], method: str, config: dict[str, Any]) -> None:
    check_files(pair(method, config))


@pytest.mark.parametrize(("length", "fits"), [(4096, True), (4097, False)])
def test_the_context_is_at_most_the_models(gpu: Gpu, model_folder: Folder, length: int, fits: bool) -> None:
    deployment = gpu(target_path=model_folder("target", **TARGET), max_model_len=length)
    if fits:
        check_files(deployment)
        return
    with pytest.raises(ConfigError) as refused:
        check_files(deployment)
    assert (refused.value.field, refused.value.got) == ("max_model_len", 4097)
    assert "4096" in refused.value.allowed


def test_a_target_without_config_json_is_refused(gpu: Gpu, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        check_files(gpu(target_path=str(tmp_path)))
    assert (refused.value.field, refused.value.got) == ("target", str(tmp_path))
    assert "no such file" in refused.value.allowed


def test_a_draft_without_config_json_is_refused(gpu: Gpu, model_folder: Folder, tmp_path: Path) -> None:
    paths = {"target_path": model_folder("target", **TARGET), "draft_path": str(tmp_path / "gone")}
    with pytest.raises(ConfigError) as refused:
        check_files(gpu(method="eagle3", num_speculative_tokens=1, **paths))
    assert (refused.value.field, refused.value.got) == ("draft", str(tmp_path / "gone"))


def test_a_config_json_that_is_cut_off_is_refused(gpu: Gpu, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": ')
    with pytest.raises(ConfigError, match=r"config\.json"):
        check_files(gpu(target_path=str(tmp_path)))


def test_a_config_json_that_is_no_object_is_refused(gpu: Gpu, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ConfigError):
        check_files(gpu(target_path=str(tmp_path)))
