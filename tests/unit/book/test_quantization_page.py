"""The page on quantization: arithmetic without records, and every part of it from records of two variants."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from tests.standin.synthetic import LIMITS, QUALITY, record, request, write

from specstudy.book import open_quantization
from specstudy.book import quantization as page_module
from specstudy.figures import Picture, Table, Text
from specstudy.records import Record, RequestRow
from specstudy.records.machine import MachineLimits, write_limits
from specstudy.records.quality import Quality, Scores, write_quality

PROFILE, ALLOCATION = "h200-llama-3.3-70b-shape", LIMITS["allocation"]
NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
VARIANTS: tuple[tuple[str, dict[str, Any], float], ...] = (
    ("fp8", {"quantization": "fp8", "linear_kernel": "CutlassFP8ScaledMMLinearKernel", "weights_gib": 67.7, "kv_cache_tokens": 190_000}, 20.0),
    ("fp8-marlin", {"quantization": "fp8", "linear_kernel": "MarlinFP8ScaledMMLinearKernel", "weights_gib": 67.7, "kv_cache_tokens": 190_000}, 25.0),
)


def rows() -> Iterator[tuple[Record, list[RequestRow]]]:
    """Two repeats of each variant at concurrency 1 and 8; a step takes as long as the table above says."""
    number = 0
    for name, fields, step_ms in VARIANTS:
        for concurrency in (1, 8):
            for repeat in range(2):
                number += 1
                own = record(
                    **fields,
                    record_id=f"{number:016x}",
                    profile=PROFILE,
                    chapter="01_quantization",
                    evidence="shape",
                    target="llama-3.3-70b-shape",
                    dtype="bfloat16",
                    allocation=ALLOCATION,
                    engine_variant=name,
                    method="none",
                    draft=None,
                    num_speculative_tokens=None,
                    workload="fixed-128",
                    concurrency=concurrency,
                    repeat=repeat,
                    started_at=NOON + timedelta(seconds=number),
                    output_tokens_per_s=concurrency * 1e3 / step_ms + repeat,
                    tpot_ms_mean=step_ms,
                    chunk_gap_ms_p50=step_ms,
                    tokens_per_chunk_mean=1.0,
                    queue_wait_ms_mean=0.0,
                    e2e_ms_mean=3_000.0,
                )
                yield own, [request(own.record_id, 0, prompt_tokens=512, completion_tokens=128)]


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A results folder with those records, limits of their allocation, and a record of quality."""
    write(tmp_path, rows(), PROFILE)
    write_limits(tmp_path / PROFILE, MachineLimits.model_validate(LIMITS))
    base = Scores(name="bf16", recipe="as it was", weights_bytes=10**6, nll=(20.0, 60.0), agreed=(4, 4), same_until=(4, 4))
    worse = Scores(name="awq", recipe="4 bits", weights_bytes=10**5, nll=(22.0, 66.0), agreed=(2, 4), same_until=(1, 4))
    own = {"target": "small", "packages": {"torch": "2"}, "texts": "Two", "calibration": "none", "models": (base, worse)}
    quality = Quality.model_validate({**QUALITY, **own})
    write_quality(tmp_path / "quality.json", quality)
    monkeypatch.setattr(page_module, "quality_path", lambda: tmp_path / "quality.json")
    return tmp_path


def test_without_records_the_arithmetic_stands_and_the_rest_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "quality_path", lambda: tmp_path / "none.json")
    page = open_quantization(results_dir=str(tmp_path))
    assert page.memory().evidence == "simulated"
    assert "29,441" in repr(page.memory_table())
    missing = (page.servers(), page.speed(), page.speed_table(), page.machine(), page.limits(), page.limits_table(), page.limits_text())
    assert all(repr(part) == "–" for part in missing)
    assert isinstance(page.quality(), Text)
    assert page.note.markdown.count("records of chapter 01_quantization") == 1
    assert "`specstudy measure 01_quantization --profile h200-llama-3.3-70b-shape`" in page.note.markdown
    assert [line.split(", unquantized, ")[0] for line in page.conclusion().markdown.splitlines()] == ["- By arithmetic"] * 2


def test_every_part_is_drawn_from_the_records(recorded: Path) -> None:
    page = open_quantization(results_dir=str(recorded))
    drawn: tuple[object, ...] = (page.speed(), page.speed_table(), page.servers(), page.limits(), page.limits_table())
    assert all(isinstance(part, Picture | Table) and part.evidence == "shape" for part in drawn)
    servers = repr(page.servers())
    assert "MarlinFP8ScaledMMLinearKernel" in servers and "67.70" in servers and "190,000" in servers
    # 16.46 ms at least (see test_shares), in 20 and in 25: 82 and 66 %; here the cache holds 512 + 64 + 1 tokens.
    lines = page.limits_text().markdown
    assert "fp8: 82% of the limit at fixed-128 c=1 (bound by weights)" in lines
    assert "fp8-marlin: 66% of the limit at fixed-128 c=1" in lines
    quality = page.quality()
    assert isinstance(quality, Table) and quality.evidence == "real"
    assert "75.0% of next tokens" in page.quality_text().markdown


def test_the_conclusion_names_the_fastest_and_what_is_missing(recorded: Path) -> None:
    told = open_quantization(results_dir=str(recorded)).conclusion().markdown
    assert "At fixed-128 c=1 fp8 serves most" in told
    assert "fp8-marlin is next, 0.8" in told
    assert [line for line in told.splitlines() if "Not measured yet" in line] == [f"- Not measured yet: {name}." for name in ("awq", "awq-marlin", "bf16")]


def variant(name: str, rates: dict[int, tuple[float, ...]], **fields: Any) -> Iterator[tuple[Record, list[RequestRow]]]:
    """One of the engine's variants: tokens/s of each repeat by concurrency."""
    for concurrency, values in rates.items():
        for repeat, rate in enumerate(values):
            own = record(
                **{
                    "profile": PROFILE,
                    "chapter": "01_quantization",
                    "evidence": "shape",
                    "allocation": ALLOCATION,
                    "gpu": "NVIDIA H200",
                    "method": "none",
                    "draft": None,
                    "num_speculative_tokens": None,
                    "workload": "fixed-128",
                    "record_id": f"{zlib.crc32(f'{name} {concurrency} {repeat}'.encode()):016x}",
                    "engine_variant": name,
                    "concurrency": concurrency,
                    "repeat": repeat,
                    "output_tokens_per_s": rate,
                    **fields,
                }
            )
            yield own, [request(own.record_id, 0, prompt_tokens=512, completion_tokens=128)]


def told_of(folder: Path, *made: Iterator[tuple[Record, list[RequestRow]]]) -> list[str]:
    write(folder, chain(*made), PROFILE)
    return open_quantization(results_dir=str(folder)).conclusion().markdown.splitlines()


def test_two_variants_that_are_equal_within_the_noise_share_the_first_place(tmp_path: Path) -> None:
    """By hand: awq-marlin is faster by 1 in one repeat and slower by 1 in the other."""
    told = told_of(tmp_path, variant("fp8", {1: (45.0, 46.0)}), variant("awq", {1: (78.0, 79.0)}), variant("awq-marlin", {1: (79.0, 78.1)}))
    (line,) = [line for line in told if "serves most" in line]
    assert line.startswith("- At fixed-128 c=1 awq-marlin serves most, 78.5") and "not told apart from awq (" in line and "; over fp8 it is 1.7" in line


def test_a_variant_that_is_clearly_behind_is_the_next_one_not_a_tie(tmp_path: Path) -> None:
    told = told_of(tmp_path, variant("fp8", {1: (45.0, 45.1)}), variant("awq", {1: (78.0, 78.1)}))
    (line,) = [line for line in told if "serves most" in line]
    assert "not told apart" not in line and "; fp8 is next, 0.58" in line


def test_marlin_beside_fp8_where_it_wins_and_where_it_loses(tmp_path: Path) -> None:
    """The reference is fp8 whatever was measured first."""
    marlin = variant("fp8-marlin", {1: (50.0, 50.1), 32: (700.0, 701.0)}, started_at=NOON, linear_kernel="MarlinFP8ScaledMMLinearKernel")
    told = told_of(tmp_path, marlin, variant("fp8", {1: (45.0, 45.1), 32: (960.0, 961.0)}, started_at=NOON + timedelta(hours=1)))
    (line,) = [line for line in told if line.startswith("- fp8-marlin over fp8: ")]
    first, second = line.split("; ")
    assert "1.11 (" in first and first.endswith("at fixed-128 c=1, faster")
    assert second.startswith("0.73 (") and second.endswith("at fixed-128 c=32, slower.")


def test_a_switch_that_forced_nothing_is_told(tmp_path: Path) -> None:
    told = told_of(tmp_path, variant("fp8", {1: (45.0, 46.0)}), variant("fp8-marlin", {1: (45.0, 46.0)}, linear_kernel="CutlassFP8ScaledMMLinearKernel"))
    assert any(line.endswith("Its log names CutlassFP8ScaledMMLinearKernel, so this isn't Marlin's speed.") for line in told)


def test_what_the_unquantized_server_had_and_served(tmp_path: Path) -> None:
    """640 tokens a request: 13,000 of cache hold 20 of them."""
    told = told_of(tmp_path, variant("bf16", {1: (26.0, 26.2)}, kv_cache_tokens=13_000))
    (line,) = [line for line in told if line.startswith("- Measured, unquantized on NVIDIA H200")]
    assert "13,000 tokens of KV cache, 20 requests of this chapter's length (640 tokens)" in line and "it served 26.1" in line


def test_a_variant_that_ran_out_of_memory_is_no_unmeasured_one(tmp_path: Path) -> None:
    nothing: dict[str, Any] = {"status": "failed", "error": "the server ended: out of memory", "output_tokens_per_s": None}
    told = told_of(tmp_path, variant("fp8", {1: (45.0, 46.0)}), variant("bf16", {1: (0.0,)}, **nothing))
    assert "- bf16 was tried and failed: the server ended: out of memory" in told
    assert not any(line.startswith("- Not measured yet: bf16") or "Measured, unquantized" in line for line in told)
    assert "**Failed:** bf16 at fixed-128 c=1, repeat 1" in open_quantization(results_dir=str(tmp_path)).note.markdown


def test_a_variant_has_one_place_in_both_figures(recorded: Path) -> None:
    """Its colour goes by the place; zeta was measured first and is the last by name."""
    early = variant("zeta", {1: (50.0, 50.1)}, started_at=NOON - timedelta(hours=1), quantization="fp8", target="llama-3.3-70b-shape", tpot_ms_mean=20.0)
    write(recorded, chain(early, rows()), PROFILE)
    page = open_quantization(results_dir=str(recorded))
    speed, limits = page.speed(), page.limits()
    assert isinstance(speed, Picture) and isinstance(limits, Picture)
    places = [[alt.index(f" {name}: ") for name in ("zeta", "fp8", "fp8-marlin")] for alt in (speed.alt, limits.alt)]
    assert places[0] == sorted(places[0]) and places[1] == sorted(places[1])
