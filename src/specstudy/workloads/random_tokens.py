"""Prompts of random token ids, for models whose weights are random too: their words would mean nothing."""

from __future__ import annotations

import csv
from collections.abc import Sequence

import numpy as np

from specstudy.catalog.models import WorkloadSpec
from specstudy.catalog.paths import data_dir
from specstudy.errors import ConfigError
from specstudy.workloads.prompts import Pool, Prompt

POOL_SIZE = 2048
SEED = 2026
Lengths = Sequence[tuple[int, int | None]]  # tokens in, tokens out; None: as many as the load allows


def random_pool(name: str, spec: WorkloadSpec, vocab_size: int) -> Pool:
    """A pool for dataset random or sharegpt_lengths, the same at each call; ids are drawn evenly from [0, `vocab_size`).

    An answer that was longer than the load's limit is cut to it, as a server would. Raises ConfigError where no pair of lengths fits `spec`.
    """
    rng = np.random.default_rng(SEED)
    if spec.dataset == "random":
        sizes = rng.integers(spec.min_prompt_tokens, spec.max_prompt_tokens, POOL_SIZE, endpoint=True)
        lengths: Lengths = [(int(size), None) for size in sizes]
        read = len(lengths)
    else:
        whole = sharegpt_lengths()
        read = len(whole)
        lengths = [(size, min(out, spec.max_tokens)) for size, out in whole if spec.min_prompt_tokens <= size <= spec.max_prompt_tokens]
    if not lengths:
        raise ConfigError(f"workload {name}", spec.max_prompt_tokens, f"limits that fit one of the {read} pairs of lengths")
    prompts = tuple(Prompt(token_ids=tuple(rng.integers(0, vocab_size, size).tolist()), output_tokens=out) for size, out in lengths)
    return Pool(name, prompts, read, 0, read - len(prompts))


def sharegpt_lengths() -> list[tuple[int, int]]:
    """(prompt tokens, answer tokens) of ShareGPT conversations' first exchange, from data/workloads; `scripts/sharegpt_lengths.py` counted them."""
    with (data_dir() / "workloads" / "sharegpt_lengths.csv").open(newline="") as file:
        return [(int(row["prompt_tokens"]), int(row["output_tokens"])) for row in csv.DictReader(file)]
