"""Training prompts: never one that a chapter measures with, checked by hash."""

from __future__ import annotations

import ast
import hashlib
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specstudy.catalog.assets import Say, silent
from specstudy.errors import AssetError, ConfigError
from specstudy.workloads import sharegpt
from specstudy.workloads.datasets import domain, gsm8k, humaneval, mtbench
from specstudy.workloads.prompts import Message, Prompt
from specstudy.workloads.sharegpt import sharegpt_conversations, sharegpt_training_conversations

# Turns of one conversation that are asked with the history before them.
MAX_TURNS = 5
# From here on a history is long, about 1,500 tokens; of one conversation's the next is longer by this factor.
LONG_CHARS, LONG_GROWTH = 6_000, 1.2
# Turns that begin with the same so many characters are the same text, perhaps edited.
SAME_CHARS = 200
PYTHON_FUNCTIONS = 4000


@dataclass(frozen=True)
class TrainingPrompt:
    """Messages that end with a user's turn, and where they came from."""

    source: str
    prompt: Prompt

    @property
    def keys(self) -> set[str]:
        """Keys of the whole and of each user turn by itself."""
        return {self.prompt.key} | {Prompt.user(text).key for role, text in self.prompt.messages if role == "user"}


def sharegpt_turns(say: Say) -> Iterator[Prompt]:
    """User turns of the ShareGPT conversations of the training side: each by itself, the first ones with their history, and long histories."""
    held_out = _openings(one.turns for one in sharegpt_conversations() if one.is_evaluation)
    for conversation in sharegpt_training_conversations(say):
        if held_out.isdisjoint(_openings([[(one["role"], one["content"]) for one in conversation]])):
            yield from _turns(conversation)


def _turns(conversation: Sequence[Message]) -> Iterator[Prompt]:
    asked = chars = longest = 0
    for at, message in enumerate(conversation):
        chars += len(message["content"])
        if message["role"] == "user":
            asked += 1
            yield _prompt([message])
            grown = chars >= max(LONG_CHARS, LONG_GROWTH * longest)
            if asked > 1 and (asked <= MAX_TURNS or grown):
                longest = chars if grown else longest
                yield _prompt(conversation[: at + 1])


def _openings(conversations: Iterable[Sequence[tuple[str, str]]]) -> set[str]:
    """How the long turns of either role begin: who asks the same at length, or got the same long answer, counts as measured with."""
    folded = (" ".join(text.split()) for turns in conversations for _, text in turns if len(text) >= SAME_CHARS)
    return {text[:SAME_CHARS] for text in folded if len(text) >= SAME_CHARS}


def python_functions(say: Say) -> Iterator[Prompt]:
    """Functions of Python's standard library, signature and docstring, to be written anew."""
    found = 0
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("**/*.py")):
        if "site-packages" in path.parts or "test" in path.parts:
            continue
        for head in _function_heads(path):
            found += 1
            yield Prompt.user(f"Write the body of this function from Python's module {path.stem}:\n\n{head}")
            if found == PYTHON_FUNCTIONS:
                return
    say(f"{found:,} functions with a docstring in the standard library")


def _function_heads(path: Path) -> Iterator[str]:
    try:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (SyntaxError, UnicodeDecodeError, ValueError):  # the standard library holds broken files on purpose
        return
    lines = text.splitlines()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and len(ast.get_docstring(node) or "") > 60:
            docstring_end = node.body[0].end_lineno
            yield "\n".join(lines[node.lineno - 1 : docstring_end])


SOURCES: dict[str, Callable[[Say], Iterator[Prompt]]] = {"sharegpt": sharegpt_turns, "python": python_functions}


def training_prompts(names: Sequence[str], measured: Mapping[str, str], say: Say = silent) -> list[TrainingPrompt]:
    """Prompts of the named sources, or of a JSONL file of one's own, without duplicates, in the order of their hashes.

    measured: `evaluation_keys`.

    A prompt that shares a user turn with what the chapters measure with is left out. Raises ConfigError for an unknown source.
    """
    kept: dict[str, TrainingPrompt] = {}
    left_out = 0
    for name in names:
        identity = data_id(name)
        for prompt in _source(name, say):
            one = TrainingPrompt(identity, prompt)
            if overlap(one, measured):
                left_out += 1
            else:
                kept.setdefault(prompt.key, one)
    say(f"{len(kept):,} training prompts; {left_out:,} left out because a chapter measures with one of their user turns")
    if not kept:
        raise ConfigError("data", list(names), "sources with at least one prompt that no chapter measures with")
    return [kept[key] for key in sorted(kept)]


def data_id(name: str) -> str:
    """A source's name; of a file its name and the beginning of its SHA-256, for it may change under the same name.

    Raises ConfigError for what is neither.
    """
    if name in SOURCES:
        return name
    path = Path(name)
    if not path.is_file():
        raise ConfigError("data", name, f"{', '.join(sorted(SOURCES))}, or a JSONL file with messages or a prompt a line")
    return f"{path.name}@{hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"


def _source(name: str, say: Say) -> Iterator[Prompt]:
    if name in SOURCES:
        return SOURCES[name](say)
    return (prompt for prompt in domain(Path(name)) if not prompt.is_evaluation)


def evaluation_keys(say: Say = silent) -> dict[str, str]:
    """Keys of all prompts that chapters measure with, and their dataset; of ShareGPT's conversations those of each user turn."""
    keys: dict[str, str] = {}
    others = {"humaneval": _keys(humaneval), "mtbench": _keys(mtbench), "gsm8k": _keys(gsm8k)}
    for name, read in {"sharegpt": lambda _: sharegpt.evaluation_keys(), **others}.items():
        try:
            keys |= dict.fromkeys(read(say), name)
        except AssetError as error:
            say(f"{name} isn't here, so no training prompt can be compared with it ({error})")
    return keys


def _keys(read: Callable[[Say], Iterable[Prompt]]) -> Callable[[Say], Iterable[str]]:
    return lambda say: [prompt.key for prompt in read(say)]


def overlap(one: TrainingPrompt, measured: Mapping[str, str]) -> set[str]:
    """Datasets that hold the whole prompt or any of its user turns."""
    return {measured[key] for key in one.keys if key in measured}


def _prompt(messages: Sequence[Message]) -> Prompt:
    return Prompt(tuple((message["role"], message["content"]) for message in messages))
