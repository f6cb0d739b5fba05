"""Each validator of the catalog's types, by what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from specstudy.catalog.models import (
    Arrivals,
    ChapterPlan,
    Draft,
    Engine,
    Measuring,
    MethodSpec,
    Profile,
    PrunedSource,
    StrictModel,
    Target,
    WheelFile,
    WorkloadSpec,
)
from specstudy.errors import ConfigError

SHA = "0123456789abcdef" * 4
WORKLOAD = {"dataset": "humaneval", "max_prompt_tokens": 32, "max_tokens": 8}
DRAFT = {"name": "d", "title": "D", "target": "t", "licence": "MIT", "source": {"kind": "folder", "path": "x"}}
ARRIVALS = {"concurrencies": [1]}


def refusal(model: type[StrictModel], fields: dict[str, Any]) -> ConfigError:
    """The error of `model` for `fields`, as a reader of a file gets it."""
    with pytest.raises(ValidationError) as refused:
        model.model_validate(fields)
    return ConfigError.from_pydantic(refused.value, "file")


@pytest.mark.parametrize(
    ("model", "fields", "field", "got", "allowed"),
    [
        (Draft, {**DRAFT, "method": "none"}, "method", "none", "loads a draft"),
        (Draft, {**DRAFT, "method": "ngram"}, "method", "ngram", "loads a draft"),
        (Draft, {**DRAFT, "method": "suffix"}, "method", "suffix", "loads a draft"),
        (WorkloadSpec, {**WORKLOAD, "min_prompt_tokens": 33}, "min_prompt_tokens", 33, "at most max_prompt_tokens, 32"),
        (WorkloadSpec, {**WORKLOAD, "path": "a.jsonl"}, "path", "a.jsonl", "only there"),
        (WorkloadSpec, {**WORKLOAD, "dataset": "domain"}, "path", None, "required for dataset domain"),
        (MethodSpec, {"method": "none", "num_speculative_tokens": [3]}, "num_speculative_tokens", (3,), "nothing without a method"),
        (
            ChapterPlan,
            {
                "workloads": ["chat"],
                "arrivals": ARRIVALS,
                "methods": [{"method": "none"}, *({"method": "ngram", "num_speculative_tokens": [3], "prompt_lookup_max": most} for most in (3, 5))],
            },
            "methods",
            ("ngram", None, 3),
            "each method, draft and K once",
        ),
        (
            ChapterPlan,
            {"workloads": ["chat"], "arrivals": ARRIVALS, "methods": [{"method": "none"}, {"method": "ngram", "num_speculative_tokens": [2, 3, 2]}]},
            "methods",
            ("ngram", None, 2),
            "each method, draft and K once",
        ),
        (ChapterPlan, {"workloads": ["chat"], "arrivals": ARRIVALS, "methods": [{"method": "none"}] * 2}, "methods", ("none", None, None), "once"),
        (MethodSpec, {"method": "ngram"}, "num_speculative_tokens", (), "at least one K"),
        (MethodSpec, {"method": "eagle3", "draft": "d", "num_speculative_tokens": []}, "num_speculative_tokens", (), "at least one K"),
        (Arrivals, {}, "concurrencies", None, "pattern closed takes concurrencies"),
        (Arrivals, {"concurrencies": [1], "request_rates": [2]}, "request_rates", (2.0,), "pattern closed takes concurrencies"),
        (Arrivals, {"pattern": "closed", "request_rates": [2]}, "concurrencies", None, "pattern closed takes concurrencies"),
        (Arrivals, {"pattern": "poisson"}, "request_rates", None, "pattern poisson takes request_rates"),
        (Arrivals, {"pattern": "poisson", "concurrencies": [1]}, "concurrencies", (1,), "pattern poisson takes request_rates"),
        (Arrivals, {"pattern": "steps"}, "stages", None, "pattern steps takes stages"),
        (Arrivals, {"pattern": "steps", "stages": [[1, 60]], "request_rates": [2]}, "request_rates", (2.0,), "pattern steps takes stages"),
        (Arrivals, {"pattern": "trace"}, "trace", None, "pattern trace takes trace"),
        (Arrivals, {"pattern": "trace", "trace": "t.csv", "stages": [[1, 60]]}, "stages", ((1.0, 60.0),), "pattern trace takes trace"),
        (Measuring, {"min_repeats": 5, "max_repeats": 4}, "max_repeats", 4, "at least min_repeats, 5"),
        (
            ChapterPlan,
            {"workloads": ["w"], "arrivals": ARRIVALS, "methods": [{"method": "suffix", "num_speculative_tokens": [1]}]},
            "methods",
            ["suffix"],
            "none",
        ),
    ],
)
def test_a_validator_says_field_value_and_what_is_allowed(model: type[StrictModel], fields: dict[str, Any], field: str, got: object, allowed: str) -> None:
    error = refusal(model, fields)
    assert (error.field, error.got) == (f"file: {field}", got)
    assert allowed in error.allowed


@pytest.mark.parametrize(
    ("model", "fields", "field"),
    [
        (WheelFile, {"package": "p", "version": "1", "sha256": SHA.upper(), "member": "m"}, "sha256"),
        (WheelFile, {"package": "p", "version": "1", "sha256": SHA[:-1], "member": "m"}, "sha256"),
        (PrunedSource, {"kind": "pruned", "of": "t", "layers": []}, "layers"),
        (Target, {"name": "t", "title": "T", "licence": "MIT", "source": {"kind": "pruned", "of": "t", "layers": [0]}}, "source"),
        (Target, {"name": "t", "title": "T", "licence": "MIT", "source": {"kind": "packed", "path": "x"}}, "source"),
        (Draft, {**DRAFT, "method": "eagle3", "source": {"kind": "packed", "path": "x", "bits": 4}}, "source.packed.bits"),
        (Draft, {**DRAFT, "method": "eagle3", "source": {"kind": "packed"}}, "source.packed.path"),
        (Draft, {**DRAFT, "method": "medusa"}, "method"),
        (Engine, {"max_model_len": 0, "max_num_seqs": 1}, "max_model_len"),
        (Engine, {"max_model_len": 1, "max_num_seqs": 0}, "max_num_seqs"),
        (Engine, {"name": "llama.cpp", "max_model_len": 1, "max_num_seqs": 1}, "name"),
        (Engine, {"max_model_len": 1, "max_num_seqs": 1, "start_timeout_s": 0}, "start_timeout_s"),
        (Engine, {"max_model_len": 1, "max_num_seqs": 1, "quantization": "int3"}, "quantization"),
        (WorkloadSpec, {**WORKLOAD, "max_tokens": 0}, "max_tokens"),
        (WorkloadSpec, {**WORKLOAD, "temperature": -0.1}, "temperature"),
        (Arrivals, {"concurrencies": [1, 0]}, "concurrencies.1"),
        (Arrivals, {"pattern": "poisson", "request_rates": [0]}, "request_rates.0"),
        (Arrivals, {"pattern": "poisson", "request_rates": [float("inf")]}, "request_rates.0"),
        (Arrivals, {"pattern": "poisson", "request_rates": [float("nan")]}, "request_rates.0"),
        (Arrivals, {"pattern": "steps", "stages": [[1, 60, 2]]}, "stages.0"),
        (Arrivals, {"concurrencies": [1], "requests": 9}, "requests"),
        (MethodSpec, {"method": "ngram", "num_speculative_tokens": [3], "prompt_lookup_min": 0}, "prompt_lookup_min"),
        (Measuring, {"seed": -1}, "seed"),
        (Measuring, {"min_repeats": 1}, "min_repeats"),
        (Measuring, {"target_interval": 0}, "target_interval"),
        (Measuring, {"max_schedule_lag_ms": 0}, "max_schedule_lag_ms"),
        (ChapterPlan, {"workloads": [], "arrivals": ARRIVALS, "methods": [{"method": "none"}]}, "workloads"),
        (ChapterPlan, {"workloads": ["w"], "arrivals": ARRIVALS, "methods": []}, "methods"),
    ],
)
def test_a_bound_is_refused_with_its_field(model: type[StrictModel], fields: dict[str, Any], field: str) -> None:
    assert refusal(model, fields).field.startswith(f"file: {field}")


@pytest.mark.parametrize("method", ["draft_model", "eagle3", "peagle", "dflash"])
def test_a_method_that_loads_a_draft_may_have_one(method: str) -> None:
    assert Draft.model_validate({**DRAFT, "method": method}).method == method


def test_a_chapter_can_only_use_workloads_of_its_profile() -> None:
    fields = {
        "name": "p",
        "title": "P",
        "evidence": "real",
        "hardware": "cpu",
        "target": "t",
        "dtype": "float32",
        "engine": {"max_model_len": 1, "max_num_seqs": 1},
        "workloads": {"code": WORKLOAD, "chat": WORKLOAD},
        "chapters": {"05_peagle": {"workloads": ["math"], "arrivals": ARRIVALS, "methods": [{"method": "none"}]}},
    }
    error = refusal(Profile, fields)
    assert (error.field, error.got, error.allowed) == ("file: chapters.05_peagle.workloads", "math", "known: chat, code")


@pytest.mark.parametrize("name", ["../elsewhere", "a b", ""])
def test_a_chapters_name_becomes_a_files(name: str) -> None:
    chapter = {"workloads": ["chat"], "arrivals": ARRIVALS, "methods": [{"method": "none"}]}
    rest = {"name": "p", "title": "P", "evidence": "real", "hardware": "cpu", "target": "t", "dtype": "float32"}
    profile = {**rest, "engine": {"max_model_len": 64, "max_num_seqs": 2}, "workloads": {"chat": WORKLOAD}}
    assert list(Profile.model_validate({**profile, "chapters": {"03_baseline": chapter}}).chapters) == ["03_baseline"]
    assert refusal(Profile, {**profile, "chapters": {name: chapter}}).got == name


def test_the_defaults_are_the_studys_rules() -> None:
    # DESIGN, Measuring: prompts >= 10 c, warm-ups >= 2 c, 3 to 10 repeats, interval within 3 %, p99 from 300 requests.
    rules = Measuring()
    assert (rules.prompts_per_slot, rules.warmups_per_slot, rules.min_repeats, rules.max_repeats, rules.target_interval) == (10, 2, 3, 10, 0.03)
    assert Arrivals.model_validate(ARRIVALS).requests == 300


def test_a_loaded_model_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        Measuring().seed = 1  # type: ignore[misc]


@pytest.mark.parametrize("layers", [(0, 0), (-1,)])
def test_layers_that_make_no_model_are_refused(layers: tuple[int, ...]) -> None:
    with pytest.raises(ValidationError):
        PrunedSource(kind="pruned", of="t", layers=layers)


@pytest.mark.parametrize(
    "fields",
    [
        {"concurrencies": [1, 8]},
        {"pattern": "poisson", "request_rates": [0.5]},
        {"pattern": "steps", "stages": [[1, 60], [4, 60]]},
        {"pattern": "trace", "trace": "t.csv"},
    ],
)
def test_each_pattern_takes_its_own_field(fields: dict[str, Any]) -> None:
    assert Arrivals.model_validate(fields).pattern == fields.get("pattern", "closed")


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (MethodSpec, {"method": "suffix", "num_speculative_tokens": [0]}),
        (Arrivals, {"pattern": "steps", "stages": [[0, 60]]}),
        (Arrivals, {"pattern": "steps", "stages": [[float("nan"), 60]]}),
    ],
)
def test_values_that_can_never_be_measured_are_refused_on_reading(model: type[StrictModel], fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        model.model_validate(fields)
