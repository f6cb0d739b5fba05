"""Prompts: what a request says, chosen so that a run can be repeated and nothing is measured that was trained on."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from specstudy.errors import ConfigError

Message = dict[str, str]
# Messages -> number of prompt tokens after the model's chat template.
TokenCounter = Callable[[Sequence[Message]], int]

EVALUATION_SHARE = 0.25


@dataclass(frozen=True)
class Prompt:
    """The messages of one request, and for one of several beginnings of a conversation that one's name.

    In their place `token_ids` may be given: such a prompt goes to the engine as it is, without a chat template. Then
    the answer isn't ended by the model: it has `output_tokens`, or as many tokens as the load allows.
    """

    messages: tuple[tuple[str, str], ...] = ()
    conversation: str | None = field(default=None, compare=False)
    token_ids: tuple[int, ...] = ()
    output_tokens: int | None = None

    @classmethod
    def user(cls, text: str) -> Prompt:
        """One user turn."""
        return cls((("user", text),))

    def as_messages(self) -> list[Message]:
        """As the chat endpoint takes them."""
        return [{"role": role, "content": content} for role, content in self.messages]

    @cached_property
    def key(self) -> str:
        """SHA-256 over the messages with white space folded, so that two prompts that differ only there are one, or over the token ids."""
        if self.token_ids:
            return hashlib.sha256(json.dumps([self.output_tokens, *self.token_ids]).encode()).hexdigest()
        folded = [[role, " ".join(content.split())] for role, content in self.messages]
        return hashlib.sha256(json.dumps(folded, ensure_ascii=False).encode()).hexdigest()

    @property
    def is_evaluation(self) -> bool:
        """Which side of the split it is on, decided by its own key, so that the sides never overlap."""
        return int(self.key[:8], 16) < EVALUATION_SHARE * 2**32


@dataclass(frozen=True)
class Pool:
    """Prompts of one workload, deduplicated and of a fitting length, in a fixed order."""

    name: str
    prompts: tuple[Prompt, ...]
    read: int
    duplicates: int
    out_of_length: int

    @cached_property
    def sha256(self) -> str:
        """SHA-256 over the prompts' keys."""
        return hashlib.sha256("\n".join(prompt.key for prompt in self.prompts).encode()).hexdigest()

    def draw(self, count: int, *, seed: int, start: int = 0) -> list[Prompt]:
        """`count` prompts from position `start` of the order that `seed` gives.

        Draws that don't overlap in [start, start + count) share no prompt as long as the pool lasts; past its
        end the order begins again. Raises ConfigError when one draw alone would repeat a prompt.
        """
        if count > len(self.prompts):
            raise ConfigError(f"workload {self.name}", count, f"at most the {len(self.prompts)} prompts that the pool holds")
        order = list(self.prompts)
        random.Random(seed).shuffle(order)
        return [order[(start + i) % len(order)] for i in range(count)]


def build_pool(name: str, prompts: Iterable[Prompt], *, count_tokens: TokenCounter, min_tokens: int, max_tokens: int) -> Pool:
    """Drop duplicates and prompts outside [min_tokens, max_tokens], and say how many of each.

    Beginnings of one conversation count as one: the shortest that is long enough is taken if it isn't too long.
    """

    def length(prompt: Prompt) -> int:
        return count_tokens(prompt.as_messages())

    read = duplicates = out_of_length = 0
    kept: dict[str, Prompt] = {}
    seen: set[str] = set()
    for group in _conversations(prompts):
        read += 1
        if group[0].key in seen:
            duplicates += 1
            continue
        seen.add(group[0].key)
        first = bisect_left(group, min_tokens, key=length)
        if first < len(group) and length(group[first]) <= max_tokens:
            kept[group[first].key] = group[first]
        else:
            out_of_length += 1
    if not kept:
        raise ConfigError(f"workload {name}", 0, f"prompts of {min_tokens} to {max_tokens} tokens; {read} read, none fits")
    return Pool(name, tuple(kept[key] for key in sorted(kept)), read, duplicates, out_of_length)


def _conversations(prompts: Iterable[Prompt]) -> Iterator[list[Prompt]]:
    """Each prompt alone, but the beginnings of a conversation, which come shortest first, together."""
    for name, group in itertools.groupby(prompts, key=lambda prompt: prompt.conversation):
        if name is None:
            yield from ([prompt] for prompt in group)
        else:
            yield list(group)
