"""Count prompt tokens as the server will: after the model's own chat template."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from specstudy.catalog.paths import cache_dir
from specstudy.errors import AssetError
from specstudy.workloads.prompts import Message, TokenCounter


def chat_token_counter(model_folder: Path) -> TokenCounter:
    """A counter for the tokenizer and template of `model_folder`. Raises AssetError where there is no template."""
    encode = chat_token_ids(model_folder)

    def count(messages: Sequence[Message]) -> int:
        return len(encode([messages])[0])

    return count


@contextmanager
def kept_token_counter(model_folder: Path) -> Iterator[TokenCounter]:
    """The same, its counts kept in the user's cache: to count thousands of conversations takes half a minute.

    They belong to the very tokenizer and template; the tokenizer is loaded only when a prompt is new.
    """
    path = cache_dir() / "token-counts" / f"{_tokenizer_hash(model_folder)}.json"
    known, new = _kept(path), dict[str, int]()
    counter = cache(lambda: chat_token_counter(model_folder))

    def count(messages: Sequence[Message]) -> int:
        key = hashlib.sha256(json.dumps(list(messages), ensure_ascii=False).encode()).hexdigest()[:24]
        if key not in known:
            known[key] = new[key] = counter()(messages)
        return known[key]

    try:
        yield count
    finally:
        if new:
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_suffix(f".{hashlib.sha256(repr(sorted(new)).encode()).hexdigest()[:8]}")
            fresh.write_text(json.dumps(_kept(path) | new))
            fresh.replace(path)


def _kept(path: Path) -> dict[str, int]:
    try:
        return {str(key): int(count) for key, count in json.loads(path.read_text()).items()}
    except (OSError, ValueError, AttributeError):  # nothing there, or not whole: it is counted again
        return {}


def _tokenizer_hash(model_folder: Path) -> str:
    files = [model_folder / name for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "tokenizer.model")]
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files if path.is_file())).hexdigest()[:16]


def chat_token_ids(model_folder: Path) -> Callable[[Sequence[Sequence[Message]]], list[list[int]]]:
    """Prompts' token ids as the server will see them, many at once. Raises AssetError where there is no template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    if tokenizer.chat_template is None:
        raise AssetError(f"{model_folder} has no chat template; the study sends every prompt through one")

    def encode(prompts: Sequence[Sequence[Message]]) -> list[list[int]]:
        encoded: Any = tokenizer.apply_chat_template([list(messages) for messages in prompts], add_generation_prompt=True, return_dict=True)
        return [[int(token) for token in ids] for ids in encoded["input_ids"]]

    return encode
