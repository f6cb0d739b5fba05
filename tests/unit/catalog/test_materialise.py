"""Folders that an engine loads. The pruned one is checked against transformers with those layers taken out."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from specstudy.catalog.load import load_draft, load_target
from specstudy.catalog.materialise import draft_folder, same_content, target_folder
from specstudy.catalog.models import Draft, FolderSource, GgufSource, HubSource, PrunedSource, Target, WheelFile
from specstudy.errors import AssetError

Write = Callable[[str, dict[str, object]], Path]

SHAPE: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "tie_word_embeddings": True,
}
TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6], [60, 0, 7, 7, 7, 1, 2, 3]])


@pytest.fixture(scope="module")
def llama() -> LlamaForCausalLM:
    """A random Llama of four layers, its weights far enough from zero that each layer matters."""
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SHAPE, initializer_range=0.2)).eval()


@pytest.fixture
def tiny_model(tiny_catalog: Path, cache: Path, llama: LlamaForCausalLM) -> Path:
    """The catalog's target as a folder on disk."""
    folder = tiny_catalog / "models" / "tiny"
    llama.save_pretrained(folder)
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    return folder


def logits_of(model: torch.nn.Module) -> torch.Tensor:
    """Without a KV cache, whose layer numbers pruning changes."""
    with torch.no_grad():
        return model(TOKENS, use_cache=False).logits


def pruned(layers: tuple[int, ...], of: str = "tiny") -> Draft:
    """A draft of the tiny target that keeps `layers`."""
    source = PrunedSource(kind="pruned", of=of, layers=layers)
    return Draft(name="-".join(["kept", *map(str, layers)]), title="", method="draft_model", target=of, licence="MIT", source=source)


@pytest.mark.parametrize("layers", [(0, 2), (3,), (0, 1, 2, 3)])
def test_a_pruned_folder_answers_like_the_model_with_the_other_layers_removed(tiny_model: Path, llama: LlamaForCausalLM, layers: tuple[int, ...]) -> None:
    loaded, told = AutoModelForCausalLM.from_pretrained(draft_folder(pruned(layers)), dtype=torch.float32, output_loading_info=True)
    assert not any(told.values()), "transformers found every weight and no other"

    cut = LlamaForCausalLM(LlamaConfig(**SHAPE)).eval()
    cut.load_state_dict(llama.state_dict())
    cut.model.layers = torch.nn.ModuleList([cut.model.layers[i] for i in layers])
    cut.model.config.num_hidden_layers = len(layers)
    assert torch.equal(logits_of(loaded.eval()), logits_of(cut))
    assert torch.equal(logits_of(loaded), logits_of(llama)) == (len(layers) == 4)


def test_a_pruned_folder_keeps_config_and_tokenizer_and_says_its_own_depth(tiny_model: Path, cache: Path) -> None:
    folder = draft_folder(load_draft("tiny-pruned"))
    assert folder.parent == cache.resolve() / "drafts"
    assert folder.name.rpartition("-")[0] == "tiny-pruned"
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in tiny_model.iterdir())
    assert (folder / "tokenizer.json").read_text() == '{"version": "1.0"}'
    before, after = (json.loads((where / "config.json").read_text()) for where in (tiny_model, folder))
    assert after == {**before, "num_hidden_layers": 2}
    numbers = {int(name.split("layers.")[1].split(".")[0]) for name in load_file(folder / "model.safetensors") if "layers." in name}
    assert numbers == {0, 1}


def test_a_pruned_folder_is_made_once(tiny_model: Path) -> None:
    said: list[str] = []
    for _ in range(2):
        draft_folder(load_draft("tiny-pruned"), said.append)
    assert said == ["keeping 2 of 4 layers of tiny"]


def test_a_pruned_draft_whose_entry_changed_is_made_anew(tiny_model: Path) -> None:
    before = load_draft("tiny-pruned")
    changed = before.model_copy(update={"source": PrunedSource(kind="pruned", of="tiny", layers=(0, 1, 2))})
    depths = [json.loads((draft_folder(one) / "config.json").read_text())["num_hidden_layers"] for one in (before, changed, before)]
    assert depths == [2, 3, 2]
    name = draft_folder(before).name
    assert (same_content(before, name), same_content(changed, name), same_content(before, "tiny-pruned")) == (True, False, None)


def test_a_layer_that_the_target_lacks_is_refused_and_nothing_is_kept(tiny_model: Path, cache: Path) -> None:
    with pytest.raises(AssetError, match="tiny has 4 layers; layer 4 can't be kept"):
        draft_folder(pruned((0, 4)))
    assert [path.name for path in (cache / "drafts").iterdir() if path.suffix != ".lock"] == []


def test_a_folder_is_taken_relative_to_the_project(tiny_model: Path) -> None:
    assert target_folder(load_target("tiny")) == tiny_model.resolve()


def test_a_folder_is_taken_from_the_home_folder(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tiny_model.parent))
    target = Target(name="mine", title="", licence="MIT", source=FolderSource(kind="folder", path="~/tiny"))
    assert target_folder(target) == tiny_model.resolve()


@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_without_config_json_is_refused_with_name_and_path(root: Path, tmp_path: Path, exists: bool) -> None:
    folder = tmp_path / "empty"
    if exists:
        folder.mkdir()
    source = FolderSource(kind="folder", path=str(folder))
    with pytest.raises(AssetError, match=r"mine: .*empty holds no config\.json"):
        target_folder(Target(name="mine", title="", licence="MIT", source=source))
    with pytest.raises(AssetError, match=r"mine: .*empty holds no config\.json"):
        draft_folder(Draft(name="mine", title="", method="eagle3", target="tiny", licence="MIT", source=source))


def test_a_hub_that_is_off_is_an_asset_error(root: Path, tmp_path: Path) -> None:
    """huggingface_hub reads its switches when it is imported, so this runs in a process of its own."""
    code = """
from specstudy.catalog.materialise import target_folder
from specstudy.catalog.models import HubSource, Target
from specstudy.errors import AssetError
try:
    target_folder(Target(name="far", title="", licence="MIT", source=HubSource(kind="hub", repo_id="nobody/nothing")))
except AssetError as error:
    print(error)
"""
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300)
    assert done.stdout.startswith("far: nobody/nothing can't be had from the hub:"), done.stderr


def test_a_repository_name_that_the_hub_refuses_is_an_asset_error(root: Path) -> None:
    with pytest.raises(AssetError):
        target_folder(Target(name="far", title="", licence="MIT", source=HubSource(kind="hub", repo_id="not a name!")))


def test_a_target_in_shards_can_be_pruned(tiny_model: Path, llama: LlamaForCausalLM) -> None:
    (tiny_model / "model.safetensors").unlink()
    llama.save_pretrained(tiny_model, max_shard_size="4KB")
    assert (tiny_model / "model.safetensors.index.json").is_file()
    AutoModelForCausalLM.from_pretrained(draft_folder(pruned((0, 2))))


def test_a_target_with_a_list_entry_per_layer_can_be_pruned(tiny_model: Path) -> None:
    Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=4)).save_pretrained(tiny_model)
    AutoModelForCausalLM.from_pretrained(draft_folder(pruned((0, 2))))


def test_a_target_folder_with_a_folder_inside_can_be_pruned(tiny_model: Path) -> None:
    (tiny_model / "original").mkdir()
    draft_folder(pruned((0, 2)))


GGUF = {"package": "no-such-model", "version": "1.0", "sha256": "0" * 64, "member": "model.gguf"}


def converted(**changes: str) -> Target:
    """A target that is a GGUF file in a wheel."""
    source = GgufSource(kind="gguf_wheel", wheel=WheelFile(**{**GGUF, **changes}))
    return Target(name="tiny-gguf", title="", licence="MIT", source=source)


def test_a_converted_gguf_is_found_by_the_file_that_it_was_made_from(root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that goes by the name alone may hold what another version of the entry named, so it isn't taken."""
    said = '{"kind":"gguf_wheel","wheel":{"package":"no-such-model","version":"1.0","sha256":"' + "0" * 64 + '","member":"model.gguf"}}'
    folder = cache / "models" / f"tiny-gguf-{hashlib.sha256(said.encode()).hexdigest()[:8]}"
    for made in (folder, cache / "models" / "tiny-gguf"):
        made.mkdir(parents=True)
    assert target_folder(converted()) == folder.resolve()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    for changes in ({"version": "1.1"}, {"sha256": "1" * 64}, {"member": "other.gguf"}):
        with pytest.raises(AssetError, match="no-such-model"):
            target_folder(converted(**changes))
