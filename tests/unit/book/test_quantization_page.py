"""The page on quantization: arithmetic without records, and every part of it from records of two variants."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
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
    missing = (page.servers(), page.speed(), page.speed_table(), page.machine(), page.limits(), page.limits_table(), page.limits_text(), page.quality())
    assert all(isinstance(part, Text) and "measured" in part.markdown for part in missing)
    assert "Not measured yet: tokens/s, TPOT" in page.conclusion().markdown


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
    assert "fp8-marlin over fp8: 0.8" in told
    assert [line for line in told.splitlines() if "Not measured yet" in line] == [f"- Not measured yet: {name}." for name in ("awq", "awq-marlin", "bf16")]
