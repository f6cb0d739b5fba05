"""What a Deployment refuses, each with the field's name, and what it lets through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from specstudy.errors import ConfigError
from specstudy.serving import Deployment

Gpu = Callable[..., Deployment]

DRAFTED = {"method": "draft_model", "draft": "small", "draft_path": "/models/small", "num_speculative_tokens": 3}
IMPOSED = {**DRAFTED, "imposed_acceptance_length": 2.2, "imposed_acceptance_rates": (0.7, 0.4, 0.1), "random_weights": True}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 4}


@pytest.mark.parametrize(
    ("fields", "field", "got", "allowed"),
    [
        ({"num_speculative_tokens": 3}, "num_speculative_tokens", 3, "nothing without a method"),
        ({"method": "none", "num_speculative_tokens": 1}, "num_speculative_tokens", 1, "nothing without a method"),
        ({"method": "suffix"}, "num_speculative_tokens", None, "at least 1 for method suffix"),
        ({**DRAFTED, "num_speculative_tokens": None}, "num_speculative_tokens", None, "at least 1 for method draft_model"),
        ({**DRAFTED, "num_speculative_tokens": 0}, "num_speculative_tokens", 0, "greater than or equal to 1"),
        ({**NGRAM, "prompt_lookup_min": None}, "prompt_lookup_min", None, "ngram needs both lookup bounds"),
        ({**NGRAM, "prompt_lookup_max": None}, "prompt_lookup_max", None, "ngram needs both lookup bounds"),
        ({**NGRAM, "prompt_lookup_min": None, "prompt_lookup_max": None}, "prompt_lookup_min", None, "ngram needs both lookup bounds"),
        ({**NGRAM, "prompt_lookup_min": 5}, "prompt_lookup_min", 5, "at most prompt_lookup_max, 4"),
        ({**NGRAM, "prompt_lookup_min": 0}, "prompt_lookup_min", 0, "greater than or equal to 1"),
        ({"prompt_lookup_min": 2}, "prompt_lookup_min", 2, "only method ngram has lookup bounds"),
        ({**DRAFTED, "prompt_lookup_min": 2, "prompt_lookup_max": 4}, "prompt_lookup_min", 2, "only method ngram has lookup bounds"),
        ({**DRAFTED, "draft": None, "draft_path": None}, "draft", None, "method draft_model loads one"),
        ({"method": "eagle3", "num_speculative_tokens": 3}, "draft", None, "method eagle3 loads one"),
        ({"method": "peagle", "num_speculative_tokens": 3}, "draft", None, "method peagle loads one"),
        ({"method": "dflash", "num_speculative_tokens": 3}, "draft", None, "method dflash loads one"),
        ({"draft": "small"}, "draft", "small", "method none loads no draft"),
        ({**NGRAM, "draft_path": "/models/small"}, "draft", "/models/small", "method ngram loads no draft"),
        ({"method": "suffix", "num_speculative_tokens": 3, "draft": "small"}, "draft", "small", "method suffix loads no draft"),
        ({**DRAFTED, "hardware": "cpu", "imposed_acceptance_length": 2.0}, "imposed_acceptance_length", 2.0, "nothing on a CPU"),
        ({**DRAFTED, "imposed_acceptance_length": 4.01}, "imposed_acceptance_length", 4.01, "at most K + 1 = 4"),
        ({**DRAFTED, "imposed_acceptance_length": 0.9}, "imposed_acceptance_length", 0.9, "greater than or equal to 1"),
        ({"imposed_acceptance_length": 2.0}, "imposed_acceptance_length", 2.0, "a method"),
        ({**DRAFTED, "imposed_acceptance_length": 2.0}, "imposed_acceptance_rates", (), "3 shares that don't rise and sum to 1.000"),
        ({**IMPOSED, "imposed_acceptance_rates": (0.5, 0.6, 0.0)}, "imposed_acceptance_rates", (0.5, 0.6, 0.0), "3 shares that don't rise"),
        ({**IMPOSED, "imposed_acceptance_rates": (0.9, 0.6, 0.1)}, "imposed_acceptance_rates", (0.9, 0.6, 0.1), "sum to 1.200"),
        ({**IMPOSED, "imposed_acceptance_rates": (0.8, 0.4)}, "imposed_acceptance_rates", (0.8, 0.4), "3 shares"),
        ({**IMPOSED, "random_weights": False}, "imposed_acceptance_length", 2.2, "nothing with real weights"),
        ({**IMPOSED, "imposed_acceptance_length": None}, "imposed_acceptance_rates", (0.7, 0.4, 0.1), "nothing without imposed_acceptance_length"),
        ({**DRAFTED, "method": "medusa"}, "method", "medusa", "'eagle3'"),
        ({"quantization": "int3"}, "quantization", "int3", "'fp8'"),
        ({"dtype": "float64"}, "dtype", "float64", "'bfloat16'"),
        ({"kv_cache_dtype": "int8"}, "kv_cache_dtype", "int8", "'fp8'"),
        ({"hardware": "tpu"}, "hardware", "tpu", "'gpu'"),
        ({"max_model_len": 0}, "max_model_len", 0, "greater than 0"),
        ({"max_num_seqs": 0}, "max_num_seqs", 0, "greater than 0"),
        ({"num_speculative_token": 3}, "num_speculative_token", 3, "Extra inputs are not permitted"),
    ],
)
def test_a_refusal_says_field_value_and_what_is_allowed(gpu: Gpu, fields: dict[str, Any], field: str, got: object, allowed: str) -> None:
    with pytest.raises(ConfigError) as refused:
        gpu(**fields)
    assert (refused.value.field, refused.value.got) == (f"deployment: {field}", got)
    assert allowed in refused.value.allowed


@pytest.mark.parametrize(
    ("fields", "label"),
    [
        ({}, "none"),
        (NGRAM, "ngram-k3"),
        ({**NGRAM, "prompt_lookup_min": 4}, "ngram-k3"),
        ({"method": "suffix", "num_speculative_tokens": 8}, "suffix-k8"),
        (DRAFTED, "small-k3"),
        ({**DRAFTED, "draft": None, "method": "eagle3"}, "eagle3-k3"),
        ({**IMPOSED, "imposed_acceptance_length": 4.0, "imposed_acceptance_rates": (1.0, 1.0, 1.0)}, "small-k3-al4"),
        ({**IMPOSED, "imposed_acceptance_length": 1.0, "imposed_acceptance_rates": (0.0, 0.0, 0.0)}, "small-k3-al1"),
        (IMPOSED, "small-k3-al2.2"),
    ],
)
def test_what_is_consistent_is_taken_and_has_a_short_label(gpu: Gpu, fields: dict[str, Any], label: str) -> None:
    assert gpu(**fields).label == label


def test_the_bound_that_was_given_is_the_one_named(gpu: Gpu) -> None:
    with pytest.raises(ConfigError) as refused:
        gpu(**DRAFTED, prompt_lookup_max=4)
    assert refused.value.field == "deployment: prompt_lookup_max"
