"""Count prompt tokens as the server will: after the model's own chat template."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specstudy.errors import AssetError
from specstudy.workloads.prompts import Message, TokenCounter


def chat_token_counter(model_folder: Path) -> TokenCounter:
    """A counter for the tokenizer and template of `model_folder`. Raises AssetError where it has no template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    if tokenizer.chat_template is None:
        raise AssetError(f"{model_folder} has no chat template; the study sends every prompt through one")

    def count(messages: Sequence[Message]) -> int:
        encoded: Any = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=True)
        return len(encoded["input_ids"])

    return count
