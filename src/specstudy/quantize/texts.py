"""The texts: ShareGPT exchanges of the evaluation side to score, of the training side to calibrate with."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from specstudy.catalog.assets import Say
from specstudy.errors import AssetError
from specstudy.workloads.prompts import Message
from specstudy.workloads.sharegpt import sharegpt_conversations, sharegpt_training_conversations

SHORTEST_ANSWER = 32


@dataclass(frozen=True)
class Exchange:
    """Token ids of a question as the chat template puts it, and of the answer that was given to it."""

    question: tuple[int, ...]
    answer: tuple[int, ...]

    @property
    def ids(self) -> list[int]:
        """Both."""
        return [*self.question, *self.answer]


def held_out(tokenizer: Any, count: int, max_tokens: int, say: Say) -> list[Exchange]:
    """The first `count` opening exchanges of evaluation conversations with at most `max_tokens` tokens.

    The answers are somebody else's model's: perplexity asks how well this one would have guessed them. Raises AssetError if there
    are fewer.
    """
    conversations = (one.turns[:2] for one in sharegpt_conversations(say) if one.is_evaluation and len(one.turns) > 1)
    found = list(itertools.islice(_exchanges(tokenizer, conversations, max_tokens), count))
    if len(found) < count:
        raise AssetError(f"{len(found)} exchanges of at most {max_tokens} tokens; {count} are needed")
    return found


def _exchanges(tokenizer: Any, conversations: Iterator[tuple[tuple[str, str], ...]], max_tokens: int) -> Iterator[Exchange]:
    for (_, asked), (_, answered) in conversations:
        question = tokenizer.apply_chat_template([{"role": "user", "content": asked}], add_generation_prompt=True, tokenize=True, return_dict=False)
        answer = tokenizer(answered, add_special_tokens=False)["input_ids"]
        if len(answer) >= SHORTEST_ANSWER and len(question) + len(answer) <= max_tokens:
            yield Exchange(tuple(question), tuple(answer))


def calibration(tokenizer: Any, count: int, max_tokens: int, say: Say) -> list[list[int]]:
    """Beginnings of `count` training conversations as token ids, `max_tokens` each."""

    def ids(messages: list[Message]) -> list[int]:
        whole: list[int] = tokenizer.apply_chat_template(messages[:4], tokenize=True, return_dict=False)
        return whole[:max_tokens]

    enough = (found for messages in sharegpt_training_conversations(say) if len(found := ids(messages)) == max_tokens)
    return list(itertools.islice(enough, count))


def digest(exchanges: list[Exchange]) -> str:
    """SHA-256 over the token ids."""
    return hashlib.sha256(json.dumps([one.ids for one in exchanges]).encode()).hexdigest()
