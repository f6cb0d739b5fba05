"""Count prompt tokens as the server will: after the model's own chat template."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from specstudy.errors import AssetError
from specstudy.workloads.prompts import Message, TokenCounter


def chat_token_counter(model_folder: Path) -> TokenCounter:
    """A counter for the tokenizer and template of `model_folder`, which remembers what it counted.

    Raises AssetError where there is no template.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    if tokenizer.chat_template is None:
        raise AssetError(f"{model_folder} has no chat template; the study sends every prompt through one")

    @cache
    def counted(messages: tuple[tuple[tuple[str, str], ...], ...]) -> int:
        encoded: Any = tokenizer.apply_chat_template([dict(items) for items in messages], add_generation_prompt=True, return_dict=True)
        return len(encoded["input_ids"])

    def count(messages: Sequence[Message]) -> int:
        return counted(tuple(tuple(message.items()) for message in messages))

    return count


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
