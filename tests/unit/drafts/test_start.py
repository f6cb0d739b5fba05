"""Training that begins with a head: the same weights, a lower loss, refusals before anything starts, and what the card says."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.standin.heads import KINDS, Kind, card_for
from tests.unit.drafts.conftest import VOCAB, MakeHead, edit_config
from transformers import LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

from specstudy.catalog import load_target
from specstudy.catalog.assets import silent
from specstudy.catalog.models import ShapeSource, Target
from specstudy.catalog.packed import content_sha256
from specstudy.cli import app
from specstudy.drafts.answers import Conversation, Job, _write, wanted
from specstudy.drafts.card import StartedFrom, card_text, facts_table, read_card, write_card
from specstudy.drafts.head import build_head, start_from_target
from specstudy.drafts.pack import pack_head
from specstudy.drafts.pipeline import Order, exported, regenerate, train_head
from specstudy.drafts.prompts import data_id
from specstudy.drafts.recipe import Recipe, recipe_for
from specstudy.drafts.start import read_start
from specstudy.drafts.training import Progress, train
from specstudy.errors import AssetError, ConfigError, StoreWriteError


def tiny(folder: Path) -> Target:
    return Target.model_validate({"name": "tiny", "title": "", "licence": "MIT", "source": {"kind": "folder", "path": str(folder)}})


def recipe_of(method: str, **changes: Any) -> Recipe:
    return recipe_for(method, "tiny", **{"intermediate_size": 64, "row_tokens": 48, "learning_rate": 3e-3, **changes})


@pytest.fixture
def head_of(make_head: MakeHead) -> MakeHead:
    """A random head with the norms that training gives to its method."""

    def make(kind: Kind) -> Path:
        folder = make_head(kind)
        if kind == "peagle":
            edit_config(folder, fc_norm=True)
            tensors = load_file(folder / "model.safetensors")
            norms = {f"fc_norm.{i}.weight": torch.full((64,), 1.5, dtype=torch.bfloat16) for i in range(3)}
            save_file({**tensors, **norms}, folder / "model.safetensors")
        return folder

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_it_begins_with_the_heads_weights_vocabulary_and_shape(kind: Kind, head_of: MakeHead, target: Path) -> None:
    folder = head_of(kind)
    start = read_start(str(folder), tiny(target), target, recipe_of(kind), silent)
    tensors = load_file(folder / "model.safetensors")
    assert start.vocabulary.tolist() == (torch.arange(128) + tensors["d2t"]).tolist()
    assert (start.recipe.layers, start.recipe.intermediate_size, start.recipe.draft_vocab_size) == (2 if kind == "peagle" else 1, 128, 128)
    assert start.recipe.aux_layers == (1, 2, 3)
    config, again = exported(start.build(target), start.recipe, start.vocabulary, start.mask_token, target)
    assert set(again) == set(tensors)
    for name, tensor in tensors.items():
        assert torch.equal(again[name], tensor), name
    assert config.get("pard_token") == (5 if kind == "peagle" else None)
    assert start.said.weights_sha256 == content_sha256({name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"})
    assert start.said.tokens_seen is None


def test_a_packed_head_is_one_too_by_its_folder_or_its_name(head_of: MakeHead, target: Path, checkout: Path) -> None:
    folder, packed = head_of("eagle3"), checkout / "data/drafts/tiny-head"
    write_card(card_for("eagle3", folder, target, name="tiny-head"), folder)
    pack_head(folder, packed, target)
    found = [read_start(given, load_target("tiny"), target, recipe_of("eagle3"), silent) for given in (str(packed), "tiny-head")]
    stages = read_card(packed).stages
    assert stages is not None and [(one.name, one.command, one.tokens_seen, one.prompts) for one in stages] == [
        ("tiny-head", "none: random weights", 1536, 200),
    ]
    assert found[0].said == found[1].said == StartedFrom(name="tiny-head", weights_sha256=found[0].said.weights_sha256, tokens_seen=1536, stages=stages)
    whole = load_file(folder / "model.safetensors")
    for name, tensor in found[1].head.tensors.items():
        torch.testing.assert_close(tensor, whole[name], atol=0.08, rtol=0)  # 4 bits of weights about 0.1 wide


def test_another_method_is_refused(head_of: MakeHead, target: Path) -> None:
    for kind, wanted_ in (("eagle3", "eagle3.1"), ("eagle3.1", "eagle3"), ("peagle", "eagle3"), ("eagle3", "peagle")):
        with pytest.raises(ConfigError, match=f"method: must be {kind}|{kind}, which is the method"):
            read_start(str(head_of(kind)), tiny(target), target, recipe_of(wanted_), silent)


def test_norms_that_training_does_not_give_are_refused(make_head: MakeHead, target: Path) -> None:
    with pytest.raises(ConfigError, match="norms that training gives to peagle"):
        read_start(str(make_head("peagle")), tiny(target), target, recipe_of("peagle"), silent)  # it has no fc_norm


def test_another_target_is_refused_by_name_by_size_and_by_its_output_rows(head_of: MakeHead, target: Path, tmp_path: Path, checkout: Path) -> None:
    folder, recipe = head_of("eagle3"), recipe_of("eagle3")
    torch.manual_seed(1)
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCAB}
    shape |= {"max_position_embeddings": 512, "tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0}}
    other = tmp_path / "other"
    LlamaForCausalLM(LlamaConfig(**shape)).bfloat16().save_pretrained(other)
    with pytest.raises(ConfigError, match="output rows of tiny"):
        read_start(str(folder), tiny(other), other, recipe, silent)
    wide = tmp_path / "wide"
    LlamaForCausalLM(LlamaConfig(**{**shape, "hidden_size": 96})).bfloat16().save_pretrained(wide)
    with pytest.raises(ConfigError, match="passes every check"):
        read_start(str(folder), tiny(wide), wide, recipe, silent)
    write_card(card_for("eagle3", folder, target), folder)
    with pytest.raises(ConfigError, match="for elsewhere; this one is for tiny"):
        read_start(str(folder), tiny(target).model_copy(update={"name": "elsewhere"}), target, recipe, silent)
    with pytest.raises(ConfigError, match="for elsewhere; this one is for tiny"):
        read_start("tiny-head", tiny(target).model_copy(update={"name": "elsewhere"}), target, recipe, silent)


def test_a_head_that_is_damaged_or_not_there_is_refused(head_of: MakeHead, target: Path) -> None:
    folder = head_of("eagle3")
    with pytest.raises(ConfigError, match="nowhere"):
        read_start("nowhere", tiny(target), target, recipe_of("eagle3"), silent)
    tensors = load_file(folder / "model.safetensors")
    save_file({name: tensor for name, tensor in tensors.items() if name != "layers.0.mlp.up_proj.weight"}, folder / "model.safetensors")
    with pytest.raises(ConfigError, match="up_proj"):
        read_start(str(folder), tiny(target), target, recipe_of("eagle3"), silent).build(target)


def test_a_head_that_does_not_say_how_many_layers_it_has_is_refused(head_of: MakeHead, target: Path) -> None:
    folder = head_of("eagle3")
    edit_config(folder, num_hidden_layers=None)
    with pytest.raises(ConfigError, match=r"config\.json: layers: got None"):
        read_start(str(folder), tiny(target), target, recipe_of("eagle3"), silent)


@pytest.mark.parametrize(("option", "value"), [("--layers", "1"), ("--intermediate-size", "64"), ("--draft-vocab-size", "100")])
def test_the_shape_is_that_of_the_head_and_cannot_be_given_beside_it(option: str, value: str, head_of: MakeHead, checkout: Path, tmp_path: Path) -> None:
    words = ["drafts", "train", "--method", "eagle3", "--target", "tiny", "--out", str(tmp_path / "out"), "--from", str(head_of("eagle3")), option, value]
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, ConfigError)
    assert done.exception.field == option[2:].replace("-", "_")
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def told(target: Path) -> list[Conversation]:
    """The target's own greedy answers."""
    model, generator, found = LlamaForCausalLM.from_pretrained(target).float().eval(), np.random.default_rng(1), []
    for _ in range(12):
        prompt = generator.integers(0, VOCAB, 6).astype(np.int32)
        whole = model.generate(torch.from_numpy(prompt.astype(np.int64))[None], max_new_tokens=16, do_sample=False, eos_token_id=None, pad_token_id=0)
        found.append(Conversation("own", 0.0, prompt, whole[0, 6:].numpy().astype(np.int32)))
    return found


def work_of(place: Path, target: Path, told: list[Conversation], recipe: Recipe, data: Path) -> Path:
    """A work folder whose answers are made, so that no engine is started."""
    data.write_text('{"prompt": "one"}\n')
    place.mkdir()
    lines: list[dict[str, Any]] = [{"key": str(number), "source": "own", "ids": one.prompt.tolist()} for number, one in enumerate(told)]
    (place / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    digest = hashlib.sha256("\n".join(line["key"] for line in lines).encode()).hexdigest()
    job = Job(prompts_sha256=digest, compared_with=(), **wanted(target, recipe, [data_id(str(data))]))
    (place / "job.json").write_text(json.dumps(asdict(job)))
    _write(place / "answers-0000.npz", lines, 0.0, [one.answer.tolist() for one in told])
    return place


@pytest.fixture
def order(target: Path, told: list[Conversation], tmp_path: Path) -> Order:
    """Forty steps on the tiny target's answers."""
    recipe, data = recipe_of("eagle3.1", steps=40, draft_vocab_size=128, aux_layers=(1, 2, 3)), tmp_path / "own.jsonl"
    work = work_of(tmp_path / "work", target, told, recipe, data)
    return Order("first", tiny(target), (str(data),), recipe, tmp_path / "first", work)


def test_a_started_heads_loss_is_below_that_of_a_new_one_and_its_card_says_from_where(order: Order, tmp_path: Path) -> None:
    first = train_head(order, ["first"], silent)
    few = order.recipe.model_copy(update={"steps": 10})
    anew = read_card(train_head(replace(order, name="anew", out=tmp_path / "anew", recipe=few), ["anew"], silent))
    more = read_card(train_head(replace(order, name="more", out=tmp_path / "more", recipe=few, start=str(first)), ["more"], silent))
    assert more.training.steps == anew.training.steps == 10
    assert more.training.loss_curve[-1][1] < anew.training.loss_curve[-1][1]
    assert more.training.loss_curve[-1][1] < read_card(first).training.loss_curve[-1][1]
    seen = read_card(first).training.tokens_seen
    weights = {name: tensor for name, tensor in load_file(first / "model.safetensors").items() if name != "lm_head.weight"}
    assert (start := more.training.started_from) is not None
    assert (start.name, start.weights_sha256, start.tokens_seen) == ("first", content_sha256(weights), seen)
    assert more.stages is not None and [(one.command, one.steps) for one in more.stages] == [("first", 40), ("more", 10)]
    assert more.training.tokens_in_all == seen + more.training.tokens_seen
    assert torch.equal(load_file(tmp_path / "more/model.safetensors")["d2t"], load_file(first / "model.safetensors")["d2t"])
    assert f"| tokens seen in all | {seen + more.training.tokens_seen:,} |" in card_text(more)
    assert facts_table([more, anew]).loc["started from"].tolist()[0].startswith("first, weights ")


def test_a_mismatch_stops_it_before_anything_is_written(order: Order, head_of: MakeHead) -> None:
    before = {path: path.read_bytes() for path in order.work.iterdir()}
    with pytest.raises(ConfigError, match="eagle3"):
        train_head(replace(order, start=str(head_of("eagle3"))), ["x"], silent)
    after = {path: path.read_bytes() for path in order.work.iterdir() if path.suffix != ".lock"}
    assert after == before
    assert not order.out.exists()


def test_what_lies_in_the_way_of_the_head_costs_no_training(order: Order, tmp_path: Path) -> None:
    """A file that came to lie in --out meanwhile stays, and training isn't done again once it is gone."""

    def put_one_there(what: str) -> None:
        if what.startswith("training"):
            order.out.mkdir()
            (order.out / "mine.txt").write_text("mine")

    with pytest.raises(StoreWriteError, match=r"first can't be written: Directory not empty; the training is in .*head-first\.pt"):
        train_head(order, ["x"], put_one_there)
    assert (order.out / "mine.txt").read_text() == "mine"
    (order.out / "mine.txt").unlink()
    told_: list[str] = []
    train_head(order, ["x"], told_.append)
    assert any(line.startswith("going on from step 40") for line in told_)
    assert read_card(order.out).training.steps == 40


def test_a_target_of_random_weights_is_refused(order: Order) -> None:
    shape = order.target.model_copy(update={"source": ShapeSource(kind="shape", shape="llama-tiny")})
    before = sorted(order.work.iterdir())
    with pytest.raises(ConfigError, match="target: got 'tiny'; a target with weights of its own"):
        train_head(replace(order, target=shape), ["x"], silent)
    assert sorted(order.work.iterdir()) == before


def test_a_work_folder_that_is_a_file_is_refused(order: Order, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for make in (lambda found: train_head(found, ["x"], silent), lambda found: regenerate(found, silent)):
        with pytest.raises(ConfigError, match="work: got"):
            make(replace(order, work=tmp_path / "file"))


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_the_engine_does_not_take_is_refused(seed: int) -> None:
    with pytest.raises(ConfigError, match="seed"):
        recipe_of("eagle3", seed=seed)


def trained(target: Path, told: list[Conversation], recipe: Recipe, head: Any, path: Path, began: str | None) -> Progress:
    model = LlamaForCausalLM.from_pretrained(target).float().eval().requires_grad_(False)
    return train(head, model, (told, told[:2]), torch.arange(128) * 2, recipe, path, silent, began)


def test_a_started_training_goes_on_and_only_from_the_same_head(head_of: MakeHead, target: Path, told: list[Conversation], tmp_path: Path) -> None:
    """Stopped after four of eight steps, or not stopped, it ends in the same weights; a checkpoint of another beginning is refused."""
    start = read_start(str(head_of("eagle3")), tiny(target), target, recipe_of("eagle3", steps=8), silent)
    straight = start.build(target)
    trained(target, told, start.recipe, straight, tmp_path / "straight.pt", "a")
    head, left = start.build(target), [4]

    def stop(module: Any, inputs: Any, output: Any) -> None:
        left[0] -= torch.is_grad_enabled()
        if left[0] < 0:
            raise KeyboardInterrupt

    head.fc.register_forward_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        trained(target, told, start.recipe, head, tmp_path / "stopped.pt", "a")
    again = start.build(target)
    assert trained(target, told, start.recipe, again, tmp_path / "stopped.pt", "a").step == 8
    for mine, theirs in zip(again.parameters(), straight.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
    fresh = build_head(start.recipe, target, start.vocabulary, 0)
    start_from_target(fresh, LlamaForCausalLM.from_pretrained(target), 1.0)
    for other in ("b", None):
        with pytest.raises(AssetError, match="another --from"):
            trained(target, told, start.recipe, fresh, tmp_path / "stopped.pt", other)
