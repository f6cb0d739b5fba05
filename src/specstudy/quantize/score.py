"""Perplexity on given answers, and agreement with given greedy answers, by plain forward passes on the processor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from specstudy.quantize.texts import Exchange

BATCH = 10
ARITHMETIC = (
    "A processor has no FP8 or 4-bit products. Weights, and for FP8 each token's activations, are rounded as the checkpoint says and multiplied in "
    "float32: what rounding does to the answers, without what a kernel's own order of summing adds."
)


def load(folder: Path) -> Any:
    """The model in float32, quantized layers as they simulate it."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


def greedy_answers(model: Any, questions: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
    """The model's own answer to each question: at most `tokens` tokens, at least one; its end token, where it comes, is the last."""
    import torch

    given = model.generation_config.eos_token_id
    ends = {given} if isinstance(given, int) else set(given or ())
    answers = []
    for batch in _batched(questions, BATCH):
        width = max(map(len, batch))
        ids = torch.tensor([[0] * (width - len(question)) + list(question) for question in batch])
        mask = torch.tensor([[0] * (width - len(question)) + [1] * len(question) for question in batch])
        with torch.inference_mode():
            done = model.generate(ids, attention_mask=mask, max_new_tokens=tokens, do_sample=False, pad_token_id=0)
        answers += [_until_its_end(row, ends) for row in done[:, width:].tolist()]
    return answers


def _batched(questions: Sequence[Sequence[int]], size: int) -> Iterator[list[Sequence[int]]]:
    """In lists of `size`, the last one perhaps shorter."""
    rest = iter(questions)
    while batch := list(islice(rest, size)):
        yield batch


def _until_its_end(answer: list[int], ends: set[int]) -> list[int]:
    last = next((place for place, token in enumerate(answer) if token in ends), len(answer))
    return answer[: last + 1]


def negative_log_likelihoods(model: Any, exchanges: Sequence[Exchange]) -> list[float]:
    """Nats of each exchange's answer, summed over its tokens."""
    import torch

    found = []
    for one in exchanges:
        logits = _logits(model, one.ids, len(one.answer))
        wanted = torch.tensor(one.answer)
        found.append(float(torch.nn.functional.cross_entropy(logits, wanted, reduction="sum")))
    return found


def agreements(model: Any, questions: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """(tokens of the answer that are the model's first choice, how many before the first that isn't) for each question."""
    found = []
    for question, answer in zip(questions, answers, strict=True):
        chosen = _logits(model, [*question, *answer], len(answer)).argmax(-1).tolist()
        same = [ours == theirs for ours, theirs in zip(chosen, answer, strict=True)]
        found.append((sum(same), same.index(False) if False in same else len(same)))
    return found


def _logits(model: Any, ids: list[int], last: int) -> Any:
    """Logits, shape (last, vocabulary), for the `last` tokens: each from what stands before it."""
    import torch

    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0, -last - 1 : -1].float()
