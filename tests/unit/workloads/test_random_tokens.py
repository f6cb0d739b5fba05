"""Prompts of random token ids: lengths as asked, the same at each call, all different."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specstudy.catalog.models import WorkloadSpec
from specstudy.errors import ConfigError
from specstudy.workloads import random_pool
from specstudy.workloads.random_tokens import sharegpt_lengths

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECSTUDY_ROOT", str(ROOT))


def spec(**more: Any) -> WorkloadSpec:
    return WorkloadSpec.model_validate({"dataset": "random", "min_prompt_tokens": 30, "max_prompt_tokens": 30, "max_tokens": 16, **more})


def test_fixed_lengths_within_the_vocabulary() -> None:
    pool = random_pool("fixed", spec(), 1000)
    assert {len(prompt.token_ids) for prompt in pool.prompts} == {30}
    ids = {token for prompt in pool.prompts for token in prompt.token_ids}
    assert min(ids) == 0 and max(ids) == 999
    assert len({prompt.key for prompt in pool.prompts}) == len(pool.prompts)
    assert all(prompt.output_tokens is None and not prompt.messages for prompt in pool.prompts)


def test_it_is_the_same_at_each_call_and_another_for_another_vocabulary() -> None:
    assert random_pool("a", spec(), 1000).sha256 == random_pool("b", spec(), 1000).sha256 != random_pool("a", spec(), 1001).sha256


def test_a_range_of_lengths_is_used_whole() -> None:
    pool = random_pool("range", spec(min_prompt_tokens=5, max_prompt_tokens=8), 100)
    assert {len(prompt.token_ids) for prompt in pool.prompts} == {5, 6, 7, 8}


def test_sharegpt_lengths_are_those_of_the_file() -> None:
    whole = sharegpt_lengths()
    assert len(whole) == 2000
    pool = random_pool("mix", spec(dataset="sharegpt_lengths", min_prompt_tokens=1, max_prompt_tokens=100, max_tokens=200), 1000)
    expected = [(size, min(out, 200)) for size, out in whole if size <= 100]
    assert [(len(prompt.token_ids), prompt.output_tokens) for prompt in pool.prompts] == expected
    assert (pool.read, pool.out_of_length) == (2000, 2000 - len(expected))


def test_lengths_that_nothing_fits_are_refused() -> None:
    with pytest.raises(ConfigError, match="limits that fit one of the 2000 pairs"):
        random_pool("mix", spec(dataset="sharegpt_lengths", min_prompt_tokens=2000, max_prompt_tokens=3000), 1000)
