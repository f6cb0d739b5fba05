"""Quantize a target by each recipe and measure all forms of it on the same texts."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from specstudy.catalog import Target, project_root
from specstudy.catalog.assets import Say
from specstudy.catalog.materialise import target_folder
from specstudy.errors import ConfigError
from specstudy.quantize.recipes import MAX_TOKENS, Recipe, compress
from specstudy.quantize.score import ARITHMETIC, agreements, greedy_answers, load, negative_log_likelihoods
from specstudy.quantize.texts import Exchange, calibration, digest, held_out
from specstudy.records.provenance import git_sha
from specstudy.records.quality import Quality, Scores

CALIBRATION_TEXTS = 16
ANSWER_TOKENS = 32
PACKAGES = ("llmcompressor", "compressed-tensors", "transformers", "torch", "specstudy")


def quantize_and_score(target: Target, recipes: Sequence[Recipe], say: Say, *, texts: int = 100) -> Quality:
    """Its record; the quantized checkpoints are thrown away. About 10 minutes on two processors for SmolLM2-135M.

    Raises ConfigError without llm-compressor, AssetError without the target or the texts.
    """
    packages = _packages()
    from transformers import AutoTokenizer

    source = target_folder(target, say)
    tokenizer = AutoTokenizer.from_pretrained(source)
    exchanges = held_out(tokenizer, texts, MAX_TOKENS, say)
    samples = calibration(tokenizer, CALIBRATION_TEXTS, MAX_TOKENS, say) if any(recipe.calibrated for recipe in recipes) else []
    questions = [one.question for one in exchanges]
    say(f"answering {texts} questions without quantization")
    base = load(source)
    answers = greedy_answers(base, questions, ANSWER_TOKENS)
    models = [_scores("bf16", "the model as it was", source, base, exchanges, answers)]
    for recipe in recipes:
        with tempfile.TemporaryDirectory() as scratch:
            say(f"quantizing: {recipe.name}")
            compress(source, recipe, Path(scratch), samples)
            say(f"scoring: {recipe.name}")
            models.append(_scores(recipe.name, recipe.words, Path(scratch), load(Path(scratch)), exchanges, answers))
    return Quality(
        target=target.name,
        created_at=datetime.now(UTC),
        git_sha=git_sha(project_root()),
        packages=packages,
        arithmetic=ARITHMETIC,
        texts=f"ShareGPT, the first {texts} opening exchanges of the evaluation side with at most {MAX_TOKENS} tokens; the answer's tokens count",
        texts_sha256=digest(exchanges),
        calibration=f"ShareGPT, the first {MAX_TOKENS} tokens of {len(samples)} conversations of the training side",
        scored_tokens=tuple(len(one.answer) for one in exchanges),
        answer_tokens=tuple(map(len, answers)),
        models=tuple(models),
    )


def _scores(name: str, words: str, folder: Path, model: Any, exchanges: Sequence[Exchange], answers: Sequence[Sequence[int]]) -> Scores:
    agreed, same_until = zip(*agreements(model, [one.question for one in exchanges], answers), strict=True)
    nll = tuple(round(value, 3) for value in negative_log_likelihoods(model, exchanges))
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    return Scores(name=name, recipe=words, weights_bytes=size, nll=nll, agreed=agreed, same_until=same_until)


def _packages() -> dict[str, str]:
    try:
        return {name: version(name) for name in PACKAGES}
    except PackageNotFoundError as error:
        raise ConfigError("llm-compressor", str(error.name), 'an environment of its own with it: pip install ".[quantize]"') from None
