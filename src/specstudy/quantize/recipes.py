"""The recipes: what llm-compressor does to a model's linear layers. lm_head and embedding stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specstudy.errors import ConfigError

# The largest group that Marlin and Machete know and that divides SmolLM2's width, 576; 128, the usual one, doesn't.
GROUP_SIZE = 64
MAX_TOKENS = 256


@dataclass(frozen=True)
class Recipe:
    """A name, what it does in words, and llm-compressor's modifiers for it."""

    name: str
    words: str
    modifiers: Callable[[], list[Any]]
    calibrated: bool


def _fp8() -> list[Any]:
    from llmcompressor.modifiers.quantization import QuantizationModifier

    return [QuantizationModifier(targets="Linear", scheme="FP8_DYNAMIC", ignore=["lm_head"])]


def _awq() -> list[Any]:
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from llmcompressor.modifiers.transform.awq import AWQModifier

    weights = QuantizationArgs(num_bits=4, type="int", symmetric=False, strategy="group", group_size=GROUP_SIZE)
    groups = {"group_0": QuantizationScheme(targets=["Linear"], weights=weights)}
    return [AWQModifier(duo_scaling="both"), QuantizationModifier(config_groups=groups, ignore=["lm_head"])]


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("fp8", "weights in FP8 (e4m3), a scale for each row; activations in FP8, a scale for each token", _fp8, calibrated=False),
        Recipe("awq", f"weights in 4 bits with a scale and a zero point for each group of {GROUP_SIZE}, scaled by AWQ; activations as they are", _awq, True),
    )
}


def recipe_named(name: str) -> Recipe:
    """Raises ConfigError for an unknown one."""
    if name not in RECIPES:
        raise ConfigError.unknown("recipe", name, RECIPES)
    return RECIPES[name]


def compress(source: Path, recipe: Recipe, out: Path, calibration: Sequence[Sequence[int]]) -> None:
    """Quantize the model in `source` into `out`, a checkpoint that vLLM loads; `calibration` holds token ids of texts."""
    import torch
    from datasets import Dataset
    from llmcompressor import oneshot
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source)
    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype="auto")
    rows = [{"input_ids": list(ids), "attention_mask": [1] * len(ids)} for ids in calibration]
    data = {"dataset": Dataset.from_list(rows), "num_calibration_samples": len(rows), "max_seq_length": MAX_TOKENS} if recipe.calibrated else {}
    with _without_pinning(torch):
        oneshot(model=model, recipe=recipe.modifiers(), tokenizer=tokenizer, **data)
    model.save_pretrained(out, save_compressed=True)
    tokenizer.save_pretrained(out)


@contextmanager
def _without_pinning(torch: Any) -> Iterator[None]:
    """llm-compressor 0.14.0.1 pins AWQ's activations for copies to a GPU, which fails on a machine that has none."""
    from llmcompressor.pipelines.cache import IntermediatesCache

    pin = IntermediatesCache.pin_memory
    if not torch.accelerator.is_available():
        IntermediatesCache.pin_memory = lambda *_, **__: None
    try:
        yield
    finally:
        IntermediatesCache.pin_memory = pin
