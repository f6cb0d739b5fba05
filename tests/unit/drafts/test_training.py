"""The training loop on a small random Llama: it learns, it stops and goes on, and what it exports is what it trained."""

from __future__ import annotations

import multiprocessing
import resource
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specstudy.catalog.assets import silent
from specstudy.drafts.answers import Conversation
from specstudy.drafts.head import build_head, depth_states, output_rows, start_from_target, trainable
from specstudy.drafts.pipeline import check_fits, command_line, exported
from specstudy.drafts.recipe import Recipe, RowShape, recipe_for
from specstudy.drafts.rows import batch_of
from specstudy.drafts.step import target_states
from specstudy.drafts.training import Progress, accepted_runs, train, walk
from specstudy.errors import AssetError, ConfigError, StoreWriteError

VOCAB = 64
VOCABULARY = torch.arange(0, VOCAB, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("target")
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCAB}
    LlamaForCausalLM(LlamaConfig(**shape, tie_word_embeddings=True, initializer_range=0.3)).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def told(folder: Path) -> list[Conversation]:
    """Greedy answers of the target itself."""
    target = LlamaForCausalLM.from_pretrained(folder).eval()
    generator, found = np.random.default_rng(1), []
    for _ in range(12):
        prompt = generator.integers(0, VOCAB, 6).astype(np.int32)
        whole = target.generate(torch.from_numpy(prompt.astype(np.int64))[None], max_new_tokens=16, do_sample=False, eos_token_id=None, pad_token_id=0)
        found.append(Conversation("test", 0.0, prompt, whole[0, 6:].numpy().astype(np.int32)))
    return found


def recipe_of(method: str, **changes: Any) -> Recipe:
    fields = {"intermediate_size": 64, "depth": 3, "aux_layers": (1, 3, 5), "row_tokens": 48, "rows": 2, "learning_rate": 3e-3}
    return recipe_for(method, "tiny", **{**fields, **changes})


def trained(folder: Path, told: list[Conversation], recipe: Recipe, checkpoint: Path) -> tuple[Any, Progress]:
    target = LlamaForCausalLM.from_pretrained(folder).eval().requires_grad_(False)
    torch.manual_seed(recipe.seed)
    head = build_head(recipe, folder, VOCABULARY, 3)
    start_from_target(head, target, 1.0)
    return head, train(head, target, (told, told[:2]), VOCABULARY, recipe, checkpoint, silent)


@pytest.mark.parametrize("method", ["eagle3", "eagle3.1", "peagle"])
def test_it_learns_what_the_target_says(method: str, folder: Path, told: list[Conversation], tmp_path: Path) -> None:
    _, before = trained(folder, told, recipe_of(method, steps=1), tmp_path / "one.pt")
    _, after = trained(folder, told, recipe_of(method, steps=60), tmp_path / "many.pt")
    assert after.step == 60
    assert after.loss_curve[-1][1] < before.loss_curve[0][1]
    assert after.validation[-1]["expected_acceptance_length"] >= before.validation[-1]["expected_acceptance_length"]
    assert after.validation[-1]["accuracy_per_position"][0] > 0.2  # one in 32 by chance


class _Interrupt:
    """Ctrl-C in the fifth forward pass, as a hook of the head's fusion layer."""

    def __init__(self, after: int) -> None:
        self._left = after

    def watch(self, head: Any) -> Any:
        head.fc.register_forward_hook(self._count)
        return head

    def _count(self, module: Any, inputs: Any, output: Any) -> None:
        self._left -= torch.is_grad_enabled()
        if self._left < 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("method", ["eagle3", "eagle3.1"])
def test_training_that_was_stopped_goes_on(method: str, folder: Path, told: list[Conversation], tmp_path: Path) -> None:
    """Eight steps at once, or stopped on the way and gone on with, end in the same weights."""
    straight, whole = trained(folder, told, recipe_of(method, steps=8), tmp_path / "whole.pt")
    interrupted = _Interrupt(after=4)

    target = LlamaForCausalLM.from_pretrained(folder).eval().requires_grad_(False)
    recipe = recipe_of(method, steps=8)
    torch.manual_seed(recipe.seed)
    head = build_head(recipe, folder, VOCABULARY, 3)
    start_from_target(head, target, 1.0)
    stopped = tmp_path / "stopped.pt"
    with pytest.raises(KeyboardInterrupt):
        train(interrupted.watch(head), target, (told, told[:2]), VOCABULARY, recipe, stopped, silent)
    assert torch.load(stopped, weights_only=True)["progress"]["step"] == 4
    torch.manual_seed(99)
    again = build_head(recipe, folder, VOCABULARY, 3)
    progress = train(again, target, (told, told[:2]), VOCABULARY, recipe, stopped, silent)
    assert progress.step == whole.step == 8
    for mine, theirs in zip(trainable(again), trainable(straight), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_checkpoint_of_another_recipe_is_refused(folder: Path, told: list[Conversation], tmp_path: Path) -> None:
    trained(folder, told, recipe_of("eagle3", steps=1), tmp_path / "kept.pt")
    with pytest.raises(AssetError, match="another recipe"):
        trained(folder, told, recipe_of("eagle3", steps=2, learning_rate=1e-4), tmp_path / "kept.pt")


def test_a_loss_that_is_no_number_stops_it(folder: Path, told: list[Conversation], tmp_path: Path) -> None:
    with pytest.raises(AssetError, match="the loss is nan"):
        trained(folder, told, recipe_of("eagle3", steps=30, learning_rate=1e18), tmp_path / "nan.pt")


def test_what_is_exported_is_what_was_trained(folder: Path, told: list[Conversation], tmp_path: Path) -> None:
    recipe = recipe_of("peagle", steps=2)
    head, _ = trained(folder, told, recipe, tmp_path / "two.pt")
    config, tensors = exported(head, recipe, VOCABULARY, 3, folder)
    assert config["pard_token"] == 3
    assert config["fc_norm"] is True
    assert "norm_output" not in config
    assert config["num_hidden_layers"] == 4
    assert torch.equal(torch.arange(32) + tensors["d2t"], VOCABULARY)
    target = LlamaForCausalLM.from_pretrained(folder)
    assert torch.equal(tensors["lm_head.weight"], target.lm_head.weight[VOCABULARY].to(torch.bfloat16))
    learned = {name for name, value in head.named_parameters() if value.requires_grad}
    assert set(tensors) == learned | {"lm_head.weight", "d2t"}


@pytest.mark.parametrize(
    ("given", "field"),
    [({"method": "medusa"}, "method"), ({"setting": "huge"}, "setting"), ({"learning_rate": -1.0}, "learning_rate"), ({"layers": 0}, "layers")],
)
def test_a_recipe_that_makes_no_sense_is_refused(given: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        recipe_for(**{"method": "eagle3", **given})


def test_training_has_to_end() -> None:
    with pytest.raises(ValueError, match="steps or minutes"):
        Recipe(method="eagle3", layers=1, intermediate_size=8, depth=1)


def test_a_step_begins_behind_the_last_token_that_was_right() -> None:
    run = np.array([0, 0, 2, 9, 9, 1, 9, 3, 9, 9])
    # Begin at 2: two accepted and the target's own, so 5; one accepted, so 7; three accepted, and the answer is over.
    assert list(walk(run, np.arange(2, 9))) == [2, 1, 3]


def test_what_is_accepted_along_an_answer_is_what_drafting_for_real_accepts(folder: Path, told: list[Conversation], tmp_path: Path) -> None:
    """Draft by hand from each place, feeding the head its own tokens, and compare the accepted run with the one from the answer's tokens."""
    recipe = recipe_of("eagle3.1", steps=40)
    head, _ = trained(folder, told, recipe, tmp_path / "head.pt")
    target = LlamaForCausalLM.from_pretrained(folder).eval()
    whole = batch_of(told[:1], [[0]], RowShape(1, 48, 48), np.random.default_rng(0))
    runs = accepted_runs(head, target, whole, recipe, VOCABULARY)[0]
    answer = np.concatenate([told[0].prompt, told[0].answer])
    places = sorted(whole.anchors[whole.counts].tolist())
    assert len(places) > 10
    for place in places:
        guessed: list[int] = []
        for depth in range(recipe.depth):
            ids = np.concatenate([answer[: place + 2], guessed, np.zeros(48, np.int64)])[:48].astype(np.int64)
            row = replace(whole, ids=torch.from_numpy(ids)[None], anchors=torch.tensor([[place]]), counts=torch.ones(1, 1, dtype=torch.bool))
            with torch.no_grad():
                state = depth_states(head, row, target_states(target, whole, head.target_layer_ids).aux)[depth]
            guessed.append(int(VOCABULARY[(state @ output_rows(head).T).argmax()]))
        right = [guess == told_ for guess, told_ in zip(guessed, answer[place + 2 :], strict=False)]
        assert runs[place] == next((n for n, one in enumerate(right) if not one), len(right))


def test_a_cards_command_names_no_folder_of_this_machine() -> None:
    given = ["drafts", "train", "--method", "eagle3", "--work", "/somewhere/work", "--out=/somewhere/else/my-head", "--data", "/home/own.jsonl"]
    assert command_line(given) == ["specstudy", "drafts", "train", "--method", "eagle3", "--out", "my-head", "--data", "own.jsonl"]
    assert command_line(["drafts", "train", "--work=/x", "--minutes", "5"]) == ["specstudy", "drafts", "train", "--minutes", "5"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"layers": 2}, "layers"), ({"minutes": float("inf")}, "minutes"), ({"learning_rate": float("inf")}, "learning_rate")],
)
def test_what_training_could_not_use_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        recipe_for("eagle3", **changes)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"layers": 7}, "layers"),
        ({"draft_vocab_size": 65}, "draft_vocab_size"),
        ({"aux_layers": (1, 9)}, "aux_layers"),
        ({"long_row_tokens": 2049}, "long_row_tokens"),
    ],
)
def test_a_shape_that_the_target_has_no_room_for_is_refused(changes: dict[str, Any], field: str, folder: Path) -> None:
    fits = {"layers": 4, "draft_vocab_size": 64, "aux_layers": (1, 3, 5), "long_row_tokens": 2048}  # a LlamaConfig has 2,048 positions
    check_fits(recipe_for("peagle", **fits), folder)
    with pytest.raises(ConfigError, match=field):
        check_fits(recipe_for("peagle", **{**fits, **changes}), folder)


def test_a_loss_that_is_no_number_leaves_the_checkpoint_alone(folder: Path, told: list[Conversation], tmp_path: Path) -> None:
    path = tmp_path / "kept.pt"
    trained(folder, told, recipe_of("eagle3", steps=2), path)
    before = path.read_bytes()
    kept = torch.load(path, weights_only=True)
    with torch.no_grad():
        kept["head"]["fc.weight"].fill_(float("nan"))
    torch.save(kept, path)
    spoilt = path.read_bytes()
    with pytest.raises(AssetError, match="the loss is nan"):
        trained(folder, told, recipe_of("eagle3", steps=40), path)
    assert path.read_bytes() == spoilt != before


def test_a_checkpoint_that_is_cut_off_is_named(folder: Path, told: list[Conversation], tmp_path: Path) -> None:
    path = tmp_path / "cut.pt"
    trained(folder, told, recipe_of("eagle3", steps=1), path)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(AssetError, match=r"cut\.pt isn't whole"):
        trained(folder, told, recipe_of("eagle3", steps=2), path)


def test_a_full_disk_is_named_and_leaves_no_half_checkpoint(folder: Path, told: list[Conversation], tmp_path: Path) -> None:
    """In a process of its own: a limit on the size of files is a full disk that needs no root."""
    path = tmp_path / "full.pt"
    trained(folder, told, recipe_of("eagle3", steps=1), path)
    before = path.read_bytes()
    child = multiprocessing.get_context("fork").Process(target=_with_little_room, args=(folder, told, path))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert path.read_bytes() == before
    assert not path.with_suffix(".partial").exists()


def _with_little_room(folder: Path, told: list[Conversation], path: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
    torch.set_num_threads(1)
    with pytest.raises(StoreWriteError, match="one before is still there"):
        trained(folder, told, recipe_of("eagle3", steps=2), path)
