"""Rows for long prompts: who gets one, how they alternate with short ones, and what may not be in them."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from specstudy.catalog.assets import silent, wheel_file
from specstudy.drafts.answers import Conversation, _chosen
from specstudy.drafts.head import Batch
from specstudy.drafts.prompts import LONG_CHARS, SAME_CHARS, TrainingPrompt, sharegpt_turns, training_prompts
from specstudy.drafts.recipe import Recipe, recipe_for
from specstudy.drafts.rows import training_batches, validation_batches
from specstudy.errors import AssetError, ConfigError
from specstudy.workloads.prompts import Prompt
from specstudy.workloads.sharegpt import SHAREGPT, evaluation_keys, sharegpt_long

# By SHA-256 "Question 2" is on the evaluation side and the other is not; tests/unit/workloads/test_sharegpt.py counts on the same.
EVALUATION, TRAINING = "Question 2", "Question 0"


def recipe_of(**changes: Any) -> Recipe:
    fields = {"rows": 3, "row_tokens": 40, "max_prompt_tokens": 20, "max_answer_tokens": 20, "long_row_tokens": 160, "long_rows": 2}
    return recipe_for("eagle3", "tiny", **{**fields, **changes})


def talk(prompt: int, answer: int, start: int) -> Conversation:
    tokens = np.arange(start, start + prompt + answer, dtype=np.int32)
    return Conversation("test", 0.0, tokens[:prompt], tokens[prompt:])


SHORT = [talk(8 + at % 12, 6 + at % 9, 1000 * at) for at in range(40)]
LONG = [talk(60 + 7 * (at % 10), 10 + at % 10, 100_000 + 1000 * at) for at in range(15)]


def first(batches: Any, count: int) -> list[Batch]:
    return list(islice(batches, count))


def test_every_fourth_step_is_of_long_rows_and_nothing_in_them_is_cut() -> None:
    batches = first(training_batches(SHORT + LONG, recipe_of(), 0), 40)
    assert [tuple(batch.ids.shape) for batch in batches[:8]] == [(3, 40)] * 3 + [(2, 160)] + [(3, 40)] * 3 + [(2, 160)]
    prompts = {int(one.prompt[0]): one for one in SHORT + LONG}
    for number, batch in enumerate(batches, 1):
        assert tuple(batch.anchors.shape) == ((2, 20) if number % 4 == 0 else (3, 20))
        for row in range(len(batch.ids)):
            for doc in range(int(batch.docs[row].max()) + 1):
                ids = batch.ids[row][batch.docs[row] == doc].numpy()
                whole = prompts[int(ids[0])]
                assert ids.tolist() == [*whole.prompt, *whole.answer]
                assert (len(whole.prompt) > 20) == (number % 4 == 0)


def test_only_answers_are_learned_from() -> None:
    answers = {int(token) for one in SHORT + LONG for token in one.answer}
    for batch in first(training_batches(SHORT + LONG, recipe_of(), 0), 12):
        for depth in range(3):
            at, there = batch.label_at(depth)
            labels = batch.ids.gather(1, at + 1)[there]  # at depth 0 an anchor's label stands for the token two places on
            assert len(labels) > 0
            assert set(labels.tolist()) <= answers


@pytest.mark.parametrize("told", [SHORT, LONG, SHORT + LONG], ids=["short", "long", "both"])
@pytest.mark.parametrize("done", [1, 3, 4, 6, 21])
def test_batches_go_on_where_they_stopped(told: list[Conversation], done: int) -> None:
    straight = first(training_batches(told, recipe_of(), 0), done + 6)[done:]
    again = first(training_batches(told, recipe_of(), done), 6)
    for one, other in zip(straight, again, strict=True):
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(vars(one).values(), vars(other).values(), strict=True))


def test_without_long_rows_a_long_conversation_is_cut_as_before() -> None:
    (batch,) = first(training_batches(LONG, recipe_of(long_row_tokens=None, max_prompt_tokens=200), 0), 1)
    assert tuple(batch.ids.shape) == (3, 40)


def test_validation_looks_at_each_place_of_the_answers() -> None:
    shape = recipe_of().long_shape
    assert shape is not None
    batches = validation_batches(LONG, shape, 0)
    seen = {int(batch.ids[row, anchor]) for batch in batches for row, anchor in zip(*_counted(batch), strict=True)}
    # From the prompt's last token to the answer's last but two.
    assert seen >= {int(token) for one in LONG[:1] for token in [one.prompt[-1], *one.answer[:-2]]}
    assert len(batches) <= 4


def _counted(batch: Batch) -> tuple[list[int], list[int]]:
    rows, places = torch.nonzero(batch.counts, as_tuple=True)
    return rows.tolist(), batch.anchors[rows, places].tolist()


def test_a_long_row_without_room_for_more_than_a_short_prompt_is_refused() -> None:
    assert recipe_of(long_row_tokens=41).max_long_prompt_tokens == 21
    with pytest.raises(ConfigError, match="at least 41"):
        recipe_of(long_row_tokens=40)


def test_the_full_recipe_has_room_for_six_thousand_tokens_and_keeps_the_tokens_of_a_step() -> None:
    for method in ("eagle3", "eagle3.1", "peagle"):
        recipe = recipe_for(method)
        assert recipe.long_shape is not None
        assert recipe.long_row_tokens == 6144
        assert recipe.long_shape.rows * 6144 == pytest.approx(recipe.rows * recipe.row_tokens, rel=0.1)


def words(messages: list[Any]) -> list[list[int]]:
    """A tokenizer of words."""
    return [[len(word) for message in one for word in message["content"].split()] for one in messages]


def asked(*lengths: int) -> list[TrainingPrompt]:
    return [TrainingPrompt("x", Prompt.user(" ".join(["w"] * length))) for length in lengths]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [5, 30, 20, 140, 7]),  # 141 and its answer don't fit into 160
        ({"max_prompts": 2}, [5, 30, 20, 140]),
        ({"max_long_prompts": 1}, [5, 30, 20, 7]),
        ({"long_row_tokens": None}, [5, 20, 7]),
    ],
)
def test_short_and_long_prompts_are_counted_apart(changes: dict[str, Any], expected: list[int]) -> None:
    recipe = recipe_of(**changes)
    assert [len(ids) for _, _, ids in _chosen(asked(5, 30, 20, 141, 140, 7), words, recipe)] == expected


def share(path: Path, monkeypatch: pytest.MonkeyPatch, *conversations: tuple[str, list[str]]) -> None:
    """A ShareGPT file of whole conversations, user and assistant in turn, in a cache of this test's own."""
    monkeypatch.setenv("SPECSTUDY_CACHE", str(path))
    file = path / "files" / f"{SHAREGPT.package}-{SHAREGPT.version}" / SHAREGPT.member.replace("/", "__")
    file.parent.mkdir(parents=True)
    roles = ("human", "gpt")
    parts = [{"id": f"{name}_0", "conversations": [{"from": roles[at % 2], "value": text} for at, text in enumerate(turns)]} for name, turns in conversations]
    file.write_text(json.dumps(parts))


def test_long_histories_come_after_the_first_turns_each_longer_than_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = [TRAINING, "a" * 2000]
    for number in range(12):
        turns += [f"and then {number}", f"{number:02d}" * 600]
    share(tmp_path, monkeypatch, ("t", turns))
    histories = [prompt for prompt in sharegpt_turns(silent) if len(prompt.messages) > 1]
    assert [len(prompt.messages) for prompt in histories[:4]] == [3, 5, 7, 9]  # turns 2 to 5, whatever their length
    sizes = [sum(len(text) for _, text in prompt.messages) for prompt in histories[4:]]
    assert sizes[0] >= LONG_CHARS
    assert all(later >= 1.2 * sooner for sooner, later in pairwise(sizes))
    assert len(sizes) >= 3


def test_a_conversation_with_a_long_text_of_one_that_is_measured_is_not_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same long answer, or a long question that goes on differently, in the middle of a conversation of the training side."""
    said, other = "said " * 60, "else " * 60
    assert len(said) > SAME_CHARS
    measured = ("e", [EVALUATION, said, f"Rewrite this: {other}", "r"])
    same_answer, same_question = ("t", [TRAINING, said, "Thank you", "r"]), ("u", ["Question 1", "r", f"Rewrite  this: {other} but shorter", "r"])
    share(tmp_path, monkeypatch, measured, same_answer, same_question, ("v", ["Question 3 or so", "r", "Go on", "r"]))
    assert not Prompt.user("Question 3 or so").is_evaluation and not Prompt.user("Question 1").is_evaluation
    trained = {text for prompt in sharegpt_turns(silent) for _, text in prompt.messages}
    assert trained == {"Question 3 or so", "r", "Go on"}


def test_a_turn_in_the_middle_of_what_is_measured_long_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's own data that holds it is left out, with its history or without."""
    share(tmp_path / "cache", monkeypatch, ("e", [EVALUATION, "r", "Half way there", "r", "Tell me more", "r"]))
    assert not any(Prompt.user(text).is_evaluation for text in ("Half way there", "Tell me more"))  # else they would be left out anyway
    own = tmp_path / "own.jsonl"
    lines = [{"messages": [{"role": "user", "content": "Half  way there"}]}, {"prompt": "Tell me more"}]
    lines += [{"messages": [{"role": role, "content": text} for role, text in (("user", "a"), ("assistant", "b"), ("user", "Tell me more"))]}]
    lines += [{"prompt": f"Mine {number}"} for number in range(9)]
    own.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = {prompt.prompt.messages[-1][1] for prompt in training_prompts([str(own)], dict.fromkeys(evaluation_keys(), "sharegpt"), silent)}
    assert found
    assert all(text.startswith("Mine") for text in found)


def test_the_real_files_long_conversations_are_on_one_side() -> None:
    """No user turn of what is measured with its history is in any training prompt, nor a long text of either role; and there are long prompts."""
    try:
        wheel_file(SHAREGPT)
    except AssetError as error:
        pytest.skip(str(error))
    measured = [prompt for prompt in sharegpt_long() if sum(len(text) for _, text in prompt.messages) > LONG_CHARS]
    keys = {Prompt.user(text).key for prompt in measured for role, text in prompt.messages if role == "user"}
    long_texts = {" ".join(text.split())[:SAME_CHARS] for prompt in measured for _, text in prompt.messages if len(" ".join(text.split())) >= SAME_CHARS}
    kinds: Counter[bool] = Counter()
    for prompt in sharegpt_turns(silent):
        turns = [text for role, text in prompt.messages if role == "user"]
        kinds[sum(len(text) for _, text in prompt.messages) >= LONG_CHARS] += 1
        assert not keys & {Prompt.user(text).key for text in turns}
        assert not long_texts & {" ".join(text.split())[:SAME_CHARS] for _, text in prompt.messages if len(" ".join(text.split())) >= SAME_CHARS}
    assert len(measured) > 500
    assert kinds[True] > 2000
