from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from specstudy.records import Record, RequestRow, units_of
from specstudy.records.page import fields_page

# The field list of the design's section "A record", written out.
DESIGNED = """
profile chapter evidence repeat seed started_at
target quantization dtype kv_cache_dtype engine engine_version method draft num_speculative_tokens imposed_acceptance_length acceptance_source
workload pattern concurrency request_rate num_prompts max_tokens temperature
completed failed duration_s output_tokens output_tokens_per_s requests_per_s
ttft_ms_mean ttft_ms_p50 ttft_ms_p90 ttft_ms_p99
tpot_ms_mean tpot_ms_p50 tpot_ms_p90 tpot_ms_p99
e2e_ms_mean e2e_ms_p50 e2e_ms_p90 e2e_ms_p99
chunk_gap_ms_mean chunk_gap_ms_p50 chunk_gap_ms_p90 chunk_gap_ms_p99
schedule_lag_ms_p99 queue_wait_ms_mean queue_wait_ms_p99
acceptance_length acceptance_rate acceptance_per_position
gpu gpu_utilization_mean gpu_memory_peak_gib gpu_power_w_mean energy_j_per_token kv_cache_tokens weights_gib
git_sha packages server_argv driver host_cpus dataset_sha256
"""
METHODS = ("none", "ngram", "suffix", "draft_model", "eagle3", "peagle", "dflash")

# A number's unit, by the part of its name that says it; the first that fits counts.
UNIT_BY_NAME = [
    ("_tokens_per_s", "tokens/s"),
    ("requests_per_s", "requests/s"),
    ("_j_per_token", "J/token"),
    ("tokens_per_chunk", "tokens"),
    ("_ms_", "ms"),
    ("_gap_us", "µs"),
    ("_mhz_", "MHz"),
    ("_gib", "GiB"),
    ("_w_", "W"),
    ("_c_", "°C"),
    ("_tokens", "tokens"),
]
WITHOUT_UNIT = {"seed", "temperature"}  # numbers that have none


def is_number(annotation: Any) -> bool:
    """Whether a field holds numbers: plain, optional or in a tuple."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, tuple):
        return any(is_number(part) for part in typing.get_args(annotation))
    if typing.get_origin(annotation) is typing.Annotated:
        return is_number(typing.get_args(annotation)[0])
    return annotation in (int, float)


def test_a_record_has_every_designed_field() -> None:
    assert [name for name in DESIGNED.split() if name not in Record.model_fields] == []


@pytest.mark.parametrize("model", [Record, RequestRow])
def test_every_field_is_described_and_every_number_has_its_unit(model: type[BaseModel]) -> None:
    table = units_of(model)
    assert [name for name, _, _ in table] == list(model.model_fields)
    assert [name for name, _, description in table if not description.strip()] == []
    numbers = {name for name, field in model.model_fields.items() if is_number(field.annotation)}
    assert [name for name, unit, _ in table if name in numbers - WITHOUT_UNIT and not unit] == []
    assert [name for name, unit, _ in table if name not in numbers and unit] == []


@pytest.mark.parametrize("model", [Record, RequestRow])
def test_a_unit_in_a_name_is_the_unit_in_the_table(model: type[BaseModel]) -> None:
    wrong = []
    for name, unit, _ in units_of(model):
        expected = next((what for part, what in UNIT_BY_NAME if part in name), "s" if name.endswith("_s") else unit)
        if unit != expected:
            wrong.append((name, unit, expected))
    assert wrong == []


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("duration_s", "s"),
        ("ttft_ms_p99", "ms"),
        ("output_tokens_per_s", "tokens/s"),
        ("acceptance_length", "tokens/step"),
        ("acceptance_rate", "fraction"),
        ("acceptance_per_position", "fraction"),
        ("gpu_utilization_mean", "%"),
        ("gpu_power_w_mean", "W"),
        ("energy_j_per_token", "J/token"),
        ("concurrency", "requests"),
        ("request_rate", "requests/s"),
    ],
)
def test_units_are_the_designs(name: str, unit: str) -> None:
    assert {field: what for field, what, _ in units_of(Record)}[name] == unit


def test_the_books_page_has_a_row_for_every_field() -> None:
    rows = [line for line in fields_page().splitlines() if line.startswith("| `")]
    assert rows == [f"| `{name}` | {unit} | {text} |" for model in (Record, RequestRow) for name, unit, text in units_of(model)]
    assert "| `ttft_ms_p50` | ms | Time to first token, median |" in rows
    assert all(row.count("|") == 4 for row in rows), "a bar in a description would break the table"


def test_a_record_comes_back_from_its_line(record: Callable[..., Record]) -> None:
    full = record(
        method="eagle3",
        draft="head",
        num_speculative_tokens=3,
        output_tokens_per_s=0.1 + 0.2,
        ttft_ms_p50=1e-9,
        acceptance_per_position=(2 / 3, 1 / 3, 0.1),
        gpu="2 x GPU",
        error=None,
    )
    assert Record.model_validate_json(full.model_dump_json()) == full
    assert json.loads(full.model_dump_json())["started_at"] == "2026-11-29T12:00:00Z"


def test_a_request_comes_back_from_its_line(row: Callable[..., RequestRow]) -> None:
    for request in (row(), row(status="failed", error="HTTP 500", first_token_s=None, last_token_s=None, chunks=0, chunk_tokens=(), chunk_gap_us=())):
        assert RequestRow.model_validate_json(request.model_dump_json()) == request


@pytest.mark.parametrize(
    "changes",
    [
        {"ttft_ms": 3.0},
        {"method": "medusa"},
        {"evidence": "guess"},
        {"pattern": "burst"},
        {"status": "skipped"},
        {"repeat": -1},
        {"num_prompts": 0},
        {"completed": -1},
        {"host_cpus": 0},
        {"ttft_ms_mean": -0.1},
        {"temperature": -1},
        {"started_at": "noon"},
        {"record_id": None},
    ],
)
def test_what_does_not_fit_is_refused(record: Callable[..., Record], changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        record(**changes)
    assert [error["loc"] for error in refused.value.errors()] == [tuple(changes)]


@pytest.mark.parametrize("method", METHODS)
def test_the_methods_are_the_designs(record: Callable[..., Record], method: str) -> None:
    k = None if method == "none" else 3
    assert record(method=method, num_speculative_tokens=k).method == method


def test_an_unknown_key_of_a_request_is_refused(row: Callable[..., RequestRow]) -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        row(latency=3)


def test_a_missing_field_is_refused(record: Callable[..., Record]) -> None:
    fields = json.loads(record().model_dump_json())
    del fields["completed"]
    with pytest.raises(ValidationError, match="completed"):
        Record.model_validate(fields)


def test_a_record_cannot_be_changed(record: Callable[..., Record]) -> None:
    with pytest.raises(ValidationError):
        record().repeat = 1  # type: ignore[misc]


@pytest.mark.parametrize("changes", [{"output_tokens_per_s": float("inf")}, {"acceptance_per_position": (float("nan"),)}, {"temperature": float("inf")}])
def test_a_number_that_json_cannot_hold_is_refused_or_comes_back(record: Callable[..., Record], changes: dict[str, Any]) -> None:
    try:
        odd = record(**changes)
    except ValidationError:
        return
    assert repr(Record.model_validate_json(odd.model_dump_json())) == repr(odd)


def test_a_failed_record_says_why(record: Callable[..., Record]) -> None:
    with pytest.raises(ValidationError):
        record(status="failed")
    with pytest.raises(ValidationError, match="says why"):
        record(status="failed", error="")


@pytest.mark.parametrize(
    "changes",
    [
        {"concurrency": None},
        {"request_rate": 2.0},
        {"pattern": "poisson"},
        {"pattern": "poisson", "concurrency": None},
        {"method": "ngram"},
        {"num_speculative_tokens": 3},
        {"started_at": "2026-11-29T12:00:00"},  # of no time zone: two of these can't be put in order with the others
    ],
)
def test_a_record_without_its_load_its_k_or_its_time_zone_is_refused(record: Callable[..., Record], changes: dict[str, Any]) -> None:
    assert record().started_at.tzinfo is not None
    with pytest.raises(ValidationError):
        record(**changes)


def test_an_open_loop_has_a_rate_and_a_method_its_k(record: Callable[..., Record]) -> None:
    found = record(pattern="steps", concurrency=None, request_rate=1.5, method="ngram", num_speculative_tokens=3)
    assert (found.request_rate, found.num_speculative_tokens) == (1.5, 3)
