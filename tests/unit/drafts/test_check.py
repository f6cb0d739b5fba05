"""Each silent acceptance killer, planted alone in an otherwise good head, fails exactly its own check."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.standin.heads import KINDS, Kind, card_for
from tests.unit.drafts.conftest import HIDDEN, LAYERS, VOCAB, MakeHead, edit_config, word_tokenizer

from specstudy.catalog.packed import weights_sha256
from specstudy.drafts.card import Card, NormFlags
from specstudy.drafts.check import CHECKS, Finding, check_head, findings_table
from specstudy.drafts.checkpoint import read_head
from specstudy.errors import ConfigError

Tensors = dict[str, torch.Tensor]
Plant = Callable[[Path], None]
AUX = "eagle_aux_hidden_state_layer_ids"


def failed(findings: list[Finding]) -> list[str]:
    return [one.check for one in findings if one.verdict == "fail"]


def config(**changes: object) -> Plant:
    """A fault in config.json; None takes a key out."""
    return lambda folder: edit_config(folder, **changes)


def nested(**changes: object) -> Plant:
    """A fault in config.json's eagle_config."""

    def plant(folder: Path) -> None:
        eagle_config = json.loads((folder / "config.json").read_text())["eagle_config"] | changes
        edit_config(folder, eagle_config={key: value for key, value in eagle_config.items() if value is not None})

    return plant


def weights(change: Callable[[Tensors], object]) -> Plant:
    """A fault in the weights: `change` alters the dictionary of tensors."""

    def plant(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")

    return plant


def both(*plants: Plant) -> Plant:
    """One fault that sits at two places."""

    def plant(folder: Path) -> None:
        for one in plants:
            one(folder)

    return plant


def aux(layers: list[Any]) -> Plant:
    return both(config(**{AUX: layers}), nested(**{AUX: layers}))


def put(name: str, *shape: int) -> Plant:
    return weights(lambda tensors: tensors.update({name: torch.ones(*shape, dtype=torch.bfloat16)}))


def take(*names: str) -> Plant:
    return weights(lambda tensors: [tensors.pop(name) for name in names])


def spoil(name: str, row: int, value: float) -> Plant:
    return weights(lambda tensors: tensors[name][row].fill_(value))


def ids(change: Callable[[torch.Tensor], torch.Tensor]) -> Plant:
    """Alter the target ids that d2t stands for."""

    def alter(tensors: Tensors) -> None:
        counted = torch.arange(len(tensors["d2t"]))
        tensors["d2t"] = change(tensors["d2t"] + counted) - counted

    return weights(alter)


FAULTS: list[tuple[str, Kind, Plant, str]] = [
    ("a plain language model", "eagle3", config(architectures=["GPT2LMHeadModel"]), "architecture"),
    ("another method's head", "eagle3", config(architectures=["EagleLlamaForCausalLM"]), "architecture"),
    ("no architecture", "eagle3", config(architectures=None), "architecture"),
    ("another vocabulary", "eagle3", config(vocab_size=VOCAB + 64), "vocabulary"),
    ("draft_vocab_size isn't lm_head's", "eagle3", config(draft_vocab_size=64), "draft vocabulary"),
    ("d2t shorter than lm_head", "eagle3", weights(lambda tensors: tensors.update(d2t=tensors["d2t"][:-1])), "draft vocabulary"),
    ("an id past the vocabulary", "eagle3", ids(lambda found: found.index_fill(0, torch.tensor([127]), VOCAB)), "draft vocabulary"),
    ("a negative id", "eagle3", ids(lambda found: found.index_fill(0, torch.tensor([0]), -1)), "draft vocabulary"),
    ("an id twice", "eagle3", ids(lambda found: found.index_fill(0, torch.tensor([5]), 8)), "draft vocabulary"),
    ("ids in another order", "eagle3", ids(lambda found: found.flip(0)), "draft vocabulary"),
    ("another hidden size", "eagle3", config(hidden_size=HIDDEN * 2, head_dim=16), "hidden size"),
    ("another head_dim", "eagle3", config(head_dim=32), "attention heads"),
    ("fewer key and value heads than the weights", "eagle3", config(num_key_value_heads=1), "attention heads"),
    ("another rope base", "eagle3", config(rope_parameters={"rope_type": "default", "rope_theta": 10000.0}), "rope"),
    ("no rope base, so the default", "eagle3", config(rope_parameters=None), "rope"),
    ("rope scaled", "eagle3", config(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 100000.0}), "rope"),
    ("a shorter context", "eagle3", config(max_position_embeddings=256), "context"),
    ("fc reads two hidden states", "eagle3", weights(lambda tensors: tensors.update({"fc.weight": tensors["fc.weight"][:, : 2 * HIDDEN]})), "fc input"),
    ("aux layers only in eagle_config", "eagle3", config(**{AUX: None}), "auxiliary layers"),
    ("aux layers only at the top level", "eagle3", nested(**{AUX: None}), "auxiliary layers"),
    ("aux layers that differ", "eagle3", nested(**{AUX: [0, 2, 3]}), "auxiliary layers"),
    ("an aux layer past the target's last", "eagle3", aux([1, 2, LAYERS + 1]), "auxiliary layers"),
    ("aux layers out of order, which vLLM sorts", "eagle3", aux([3, 1, 2]), "auxiliary layers"),
    ("an aux layer twice", "eagle3", aux([1, 3, 3]), "auxiliary layers"),
    ("aux layers that aren't numbers", "eagle3", aux(["1", "2", "3"]), "auxiliary layers"),
    ("other aux layers than the card's", "eagle3", aux([0, 2, 4]), "auxiliary layers"),
    ("hidden states switched off", "eagle3", nested(use_aux_hidden_state=False), "auxiliary layers"),
    ("fc_norm in the weights only", "eagle3.1", config(fc_norm=None), "norm weights"),
    ("fc_norm in the config only", "eagle3", config(fc_norm=True), "norm weights"),
    ("fc_norm in eagle_config only", "eagle3.1", both(config(fc_norm=None), nested(fc_norm=True)), "norm weights"),
    ("one fc_norm too few", "eagle3.1", take("fc_norm.2.weight"), "norm weights"),
    ("norm_before_fc in the weights only", "eagle3", put("input_norm.weight", 3 * HIDDEN), "norm weights"),
    ("norm_before_fc in the config only", "eagle3", nested(norm_before_fc=True), "norm weights"),
    ("norm_output missing", "eagle3.1", config(norm_output=None), "norm flags"),
    ("norm_output where none was trained", "eagle3", config(norm_output=True), "norm flags"),
    ("norm_before_residual turned round", "eagle3", config(norm_before_residual=True), "norm flags"),
    ("fc_norm gone from weights and config", "eagle3.1", both(config(fc_norm=None), take(*(f"fc_norm.{i}.weight" for i in range(3)))), "norm flags"),
    ("no mask_hidden", "peagle", take("mask_hidden"), "parallel drafting"),
    ("no pard_token", "peagle", config(pard_token=None), "parallel drafting"),
    ("no parallel_drafting", "peagle", config(parallel_drafting=None), "parallel drafting"),
    ("a mask token past the vocabulary", "peagle", config(pard_token=VOCAB), "parallel drafting"),
    ("mask_hidden for one hidden state", "peagle", put("mask_hidden", HIDDEN), "parallel drafting"),
    ("an untrained mask_hidden", "peagle", weights(lambda tensors: tensors["mask_hidden"].zero_()), "parallel drafting"),
    ("a tensor missing", "eagle3", take("layers.0.hidden_norm.weight"), "tensors"),
    ("a tensor that nothing reads", "eagle3", put("layers.0.self_attn.q_norm.weight", 16), "tensors"),
    ("a layer that config.json doesn't count", "peagle", config(num_hidden_layers=1), "tensors"),
    ("another intermediate size", "eagle3", config(intermediate_size=64), "tensors"),
    ("the first layer without the embeddings", "eagle3", put("layers.0.self_attn.v_proj.weight", 32, HIDDEN), "tensors"),
    ("nan in a weight", "eagle3", spoil("layers.0.mlp.up_proj.weight", 3, float("nan")), "finite weights"),
    ("inf in a norm", "eagle3", spoil("norm.weight", 0, float("inf")), "finite weights"),
    ("an empty row of lm_head", "eagle3", spoil("lm_head.weight", 7, 0.0), "lm_head rows"),
    ("nan in lm_head", "eagle3", spoil("lm_head.weight", 7, float("nan")), "lm_head rows"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_good_head_passes_every_check(kind: Kind, make_head: MakeHead, target: Path) -> None:
    folder = make_head(kind)
    findings = check_head(folder, target, card_for(kind, folder, target, weights_sha256=weights_sha256(read_head(folder).tensors)))
    assert {one.check: one.verdict for one in findings} == dict.fromkeys(CHECKS, "ok")


@pytest.mark.parametrize(("kind", "plant", "check"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS])
def test_a_planted_fault_fails_its_check_and_no_other(kind: Kind, plant: Plant, check: str, make_head: MakeHead, target: Path) -> None:
    folder = make_head(kind)
    card = card_for(kind, folder, target)
    plant(folder)
    assert failed(check_head(folder, target, card)) == [check]


def test_both_norms_before_fc_are_one_too_many(make_head: MakeHead, target: Path) -> None:
    folder = make_head("eagle3.1")
    both(config(norm_before_fc=True), put("input_norm.weight", 3 * HIDDEN))(folder)
    card = card_for("eagle3.1", folder, target)  # even where the card says so too
    findings = check_head(folder, target, card)
    assert failed(findings) == ["norm weights"]
    assert "together" in next(one.found for one in findings if one.check == "norm weights")


@pytest.mark.parametrize(("kind", "method"), [("eagle3", "peagle"), ("peagle", "eagle3"), ("peagle", "eagle3.1")])
def test_a_head_of_another_method_than_its_cards(kind: Kind, method: Kind, make_head: MakeHead, target: Path) -> None:
    folder = make_head(kind)
    assert failed(check_head(folder, target, card_for(method, folder, target))) == ["method"]


def test_a_target_whose_tokens_have_other_ids(make_head: MakeHead, target: Path, tmp_path: Path) -> None:
    folder = make_head("eagle3")
    card = card_for("eagle3", folder, target)
    other = shutil.copytree(target, tmp_path / "other")
    word_tokenizer(VOCAB - 1).save(str(other / "tokenizer.json"))
    assert failed(check_head(folder, other, card)) == ["tokenizer"]


def test_a_card_of_other_weights_of_the_same_shape(make_head: MakeHead, target: Path) -> None:
    """A head that was trained further fits the old head's card in everything else."""
    folder = make_head("eagle3")
    card = card_for("eagle3", folder, target, weights_sha256=weights_sha256(read_head(folder).tensors))
    spoil("layers.0.mlp.up_proj.weight", 3, 0.5)(folder)
    assert failed(check_head(folder, target, card)) == ["weights"]


def test_a_card_of_another_target(make_head: MakeHead, target: Path) -> None:
    folder = make_head("eagle3")
    card = card_for("eagle3", folder, target)
    card = card.model_copy(update={"target": card.target.model_copy(update={"num_hidden_layers": 5})})
    assert failed(check_head(folder, target, card)) == ["target"]


def test_without_a_card_nothing_is_claimed_about_it(make_head: MakeHead, target: Path) -> None:
    folder = make_head("eagle3.1")
    edit_config(folder, norm_output=None)
    verdicts = {one.check: one.verdict for one in check_head(folder, target)}
    assert {name for name, verdict in verdicts.items() if verdict == "not checked"} == {"method", "target", "tokenizer", "norm flags", "weights"}
    assert {verdict for verdict in verdicts.values()} == {"ok", "not checked"}


def test_a_card_without_norm_flags_leaves_them_unchecked(make_head: MakeHead, target: Path) -> None:
    folder = make_head("eagle3")
    card: Card = card_for("eagle3", folder, target, norm_flags=None)
    assert [one.check for one in check_head(folder, target, card) if one.verdict != "ok"] == ["norm flags", "weights"]


@pytest.mark.parametrize("name", ["LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "LlamaForCausalLM"])
def test_architectures_that_vllm_takes_for_method_eagle3(name: str, make_head: MakeHead, target: Path) -> None:
    folder = make_head("eagle3")
    edit_config(folder, architectures=[name])
    assert failed(check_head(folder, target)) == []


def test_the_published_name_of_the_first_layer(make_head: MakeHead, target: Path) -> None:
    folder = make_head("eagle3")
    tensors = load_file(folder / "model.safetensors")
    save_file({name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()}, folder / "model.safetensors")
    assert failed(check_head(folder, target)) == []


def test_a_head_that_drafts_every_token_needs_no_map(make_head: MakeHead, target: Path) -> None:
    folder = make_head("eagle3")
    whole = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    both(config(draft_vocab_size=VOCAB), weights(lambda tensors: tensors.update({"lm_head.weight": whole})), take("d2t"))(folder)
    assert failed(check_head(folder, target)) == []


def test_a_p_eagle_head_may_name_its_token_otherwise(make_head: MakeHead, target: Path) -> None:
    folder = make_head("peagle")
    edit_config(folder, pard_token=None, ptd_token_id=5)
    assert failed(check_head(folder, target, card_for("peagle", folder, target))) == []


def test_what_cannot_be_read_at_all_is_refused(make_head: MakeHead, target: Path, tmp_path: Path) -> None:
    folder = make_head("eagle3")
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-10])
    with pytest.raises(ConfigError, match="a whole safetensors file"):
        check_head(folder, target)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"model\.safetensors"):
        check_head(folder, target)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="JSON object"):
        check_head(folder, target)
    with pytest.raises(ConfigError, match=r"config\.json"):
        check_head(folder, tmp_path)


def test_the_findings_as_a_table(make_head: MakeHead, target: Path) -> None:
    folder = make_head("eagle3")
    edit_config(folder, max_position_embeddings=256)
    table = findings_table(check_head(folder, target)).set_index("check")
    assert list(table.index) == list(CHECKS)
    assert dict(table.loc["context"]) == {"verdict": "fail", "found": "max_position_embeddings 256", "allowed": "at least the target's, 512"}


def test_norm_flags_as_vllm_reads_them() -> None:
    # eagle_config's norm_before_fc goes before the top level's; the others are read at the top level only.
    assert NormFlags.of({"norm_before_fc": True, "eagle_config": {"norm_before_fc": False, "fc_norm": True}}).model_dump() == {
        "fc_norm": False,
        "norm_output": False,
        "norm_before_residual": False,
        "norm_before_fc": False,
    }


def test_a_targets_config_with_a_wrong_type_is_refused(make_head: MakeHead, target: Path, tmp_path: Path) -> None:
    other = shutil.copytree(target, tmp_path / "other")
    edit_config(other, max_position_embeddings="long")
    with pytest.raises(ConfigError, match=r"^target: config\.json: max_position_embeddings: got 'long'"):
        check_head(make_head("eagle3"), other)
