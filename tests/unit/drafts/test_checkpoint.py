"""Facts read from the files of heads and targets, whatever form a library writes them in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.unit.drafts.conftest import MakeHead, edit_config, word_tokenizer
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE

from specstudy.drafts.checkpoint import group_of, head_dim, read_head, rope, tokenizer_sha256
from specstudy.errors import ConfigError


def kept(tokenizer: Tokenizer, folder: Path, *, pretty: bool = True) -> str | None:
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"), pretty=pretty)
    return tokenizer_sha256(folder)


def bpe(merges: list[tuple[str, str]]) -> Tokenizer:
    return Tokenizer(BPE({"a": 0, "b": 1, "ab": 2, "ba": 3}, merges))


def test_a_tokenizers_hash_is_of_its_tokens_not_of_its_file(tmp_path: Path) -> None:
    pretty, dense = (kept(word_tokenizer(), tmp_path / name, pretty=name == "pretty") for name in ("pretty", "dense"))
    assert (tmp_path / "pretty" / "tokenizer.json").read_bytes() != (tmp_path / "dense" / "tokenizer.json").read_bytes()
    assert pretty == dense is not None


def test_merges_as_pairs_or_as_words_are_the_same(tmp_path: Path) -> None:
    pairs = kept(bpe([("a", "b")]), tmp_path / "pairs")
    content = json.loads((tmp_path / "pairs" / "tokenizer.json").read_text())
    content["model"]["merges"] = ["a b"]
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "tokenizer.json").write_text(json.dumps(content))
    assert tokenizer_sha256(tmp_path / "words") == pairs


def test_other_tokens_merges_or_added_tokens_give_another_hash(tmp_path: Path) -> None:
    added = word_tokenizer()
    added.add_special_tokens([AddedToken("<end>", special=True)])
    tokenizers = [word_tokenizer(), word_tokenizer(255), added, bpe([("a", "b")]), bpe([("a", "b"), ("b", "a")]), bpe([("b", "a"), ("a", "b")])]
    hashes = [kept(tokenizer, tmp_path / str(i)) for i, tokenizer in enumerate(tokenizers)]
    assert len(set(hashes)) == len(tokenizers)


def test_no_tokenizer_no_hash(tmp_path: Path) -> None:
    assert tokenizer_sha256(tmp_path) is None


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({}, {"rope_type": "default", "rope_theta": 10000.0}),
        ({"rope_theta": 100000}, {"rope_type": "default", "rope_theta": 100000.0}),
        ({"rope_theta": 100000, "rope_scaling": None}, {"rope_type": "default", "rope_theta": 100000.0}),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 100000.0}}, {"rope_type": "default", "rope_theta": 100000.0}),
        ({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2}}, {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}}, {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}),
    ],
)
def test_old_and_new_forms_of_rotary_parameters(config: dict[str, Any], found: dict[str, Any]) -> None:
    assert rope(config) == found


@pytest.mark.parametrize(
    ("config", "width"),
    [({"head_dim": 64, "hidden_size": 576, "num_attention_heads": 12}, 64), ({"hidden_size": 576, "num_attention_heads": 9}, 64), ({"hidden_size": 576}, None)],
)
def test_the_width_of_an_attention_head(config: dict[str, Any], width: int | None) -> None:
    assert head_dim(config) == width


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("layers.3.self_attn.o_proj.weight", "attention"),
        ("layers.0.mlp.gate_proj.weight", "mlp"),
        ("fc.weight", "fc"),
        ("lm_head.weight", "lm_head"),
        ("d2t", "d2t"),
        ("fc_norm.0.weight", "other"),
        ("mask_hidden", "other"),
        ("layers.0.hidden_norm.weight", "other"),
    ],
)
def test_the_group_of_a_tensor(name: str, group: str) -> None:
    assert group_of(name) == group


@pytest.mark.parametrize(
    ("field", "given", "allowed"),
    [
        ("num_attention_heads", "x", "valid integer"),
        ("num_hidden_layers", "two", "valid integer"),
        ("num_key_value_heads", True, "valid integer"),
        ("head_dim", 16.5, "valid integer"),
        ("hidden_size", 0, "greater than 0"),
        ("num_hidden_layers", 10**12, "less than or equal to 1024"),  # a check would fill the memory with what each of them must hold
        ("vocab_size", 2**31, "less than 2147483648"),
        ("intermediate_size", [96], "valid integer"),
        ("vocab_size", "256", "valid integer"),
        ("draft_vocab_size", "a", "valid integer"),
        ("max_position_embeddings", "long", "valid integer"),
        ("architectures", 5, "valid list"),
        ("rope_theta", "big", "valid number"),
        ("rope_scaling", "big", "valid dictionary"),
        ("rope_parameters", [1], "valid dictionary"),
        ("eagle_config", "none", "valid dictionary"),
        ("pard_token", "<mask>", "valid integer"),
        ("norm_output", "no", "valid boolean"),
    ],
)
def test_a_field_of_another_type_is_refused(field: str, given: object, allowed: str, make_head: MakeHead) -> None:
    folder = make_head("eagle3")
    edit_config(folder, **{field: given})
    with pytest.raises(ConfigError) as refused:
        read_head(folder)
    assert (refused.value.field, refused.value.got) == (f"head: config.json: {field}", given)
    assert allowed in refused.value.allowed


def test_fields_that_nothing_here_reads_are_not_our_affair(make_head: MakeHead) -> None:
    folder = make_head("eagle3")
    edit_config(folder, hidden_act=5, quantization_config=["x"])
    assert read_head(folder).config["hidden_act"] == 5


def test_weights_are_model_safetensors_or_its_parts_and_nothing_else(make_head: MakeHead) -> None:
    folder = make_head("eagle3")
    whole = load_file(folder / "model.safetensors")
    save_file({"stray": torch.zeros(1)}, folder / "head.safetensors")
    save_file({"stray": torch.zeros(1)}, folder / "adapter.safetensors")
    assert read_head(folder).tensors.keys() == whole.keys()
    (folder / "model.safetensors").unlink()
    names = sorted(whole)
    for part, those in enumerate((names[:4], names[4:]), start=1):
        save_file({name: whole[name] for name in those}, folder / f"model-0000{part}-of-00002.safetensors")
    assert read_head(folder).tensors.keys() == whole.keys()


def test_a_packed_head_is_not_read_as_weights(make_head: MakeHead) -> None:
    folder = make_head("eagle3")
    (folder / "model.safetensors").rename(folder / "head.safetensors.xz")
    with pytest.raises(ConfigError, match="unpack it first"):
        read_head(folder)


@pytest.mark.parametrize("name", ["fc.weight", "d2t", "lm_head.weight", "layers.0.hidden_norm.weight"])
@pytest.mark.parametrize(
    "spoil",
    [lambda tensor: tensor.flatten()[0].clone(), lambda tensor: tensor[:0].clone(), lambda tensor: tensor.float().to(torch.float8_e4m3fn)],
    ids=["a number", "empty", "FP8"],
)
def test_a_tensor_that_no_head_holds_is_refused(name: str, spoil: Callable[[torch.Tensor], torch.Tensor], make_head: MakeHead) -> None:
    folder = make_head("eagle3")
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, name: spoil(tensors[name])}, folder / "model.safetensors")
    with pytest.raises(ConfigError, match=f"head: {name}: got"):
        read_head(folder)
