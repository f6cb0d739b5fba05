"""Limits are kept for each allocation, and a file of something else is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from specstudy.errors import RecordError
from specstudy.records.machine import MachineLimits, limits_path, read_limits, write_limits

GIVEN: dict[str, Any] = {
    "allocation": "a" * 12,
    "measured_at": datetime(2026, 11, 29, tzinfo=UTC),
    "device": "a GPU",
    "torch": "2.11.0",
    "memory_bytes": 10**9,
    "copy_bytes_per_s": (3e12, 4e12),
    "read_bytes_per_s": {"sum": (2e12,), "maximum": (1e12, 5e12)},
    "bf16_flop_per_s": (1e14,),
}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    limits = MachineLimits(**GIVEN)
    assert write_limits(tmp_path / "profile", limits) == limits_path(tmp_path / "profile", "a" * 12)
    assert read_limits(tmp_path / "profile", "a" * 12) == limits
    assert read_limits(tmp_path / "profile", "b" * 12) is None
    assert [path.name for path in (tmp_path / "profile").iterdir()] == [f"limits-{'a' * 12}.json"]


def test_the_best_counts() -> None:
    limits = MachineLimits(**GIVEN)
    assert (limits.read_limit, limits.copy_limit, limits.bandwidth, limits.bf16_limit, limits.fp8_limit) == (5e12, 4e12, 5e12, 1e14, 1e14)


@pytest.mark.parametrize("change", [{"copy_bytes_per_s": ()}, {"bf16_flop_per_s": (0.0,)}, {"fp8_flop_per_s": (float("inf"),)}, {"bandwidth": 1.0}])
def test_rates_that_cannot_be(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        MachineLimits(**{**GIVEN, **change})


def test_another_allocations_limits_are_refused(tmp_path: Path) -> None:
    written = write_limits(tmp_path, MachineLimits(**GIVEN))
    written.rename(limits_path(tmp_path, "c" * 12))
    with pytest.raises(RecordError, match="allocation a"):
        read_limits(tmp_path, "c" * 12)


def test_a_broken_file_is_refused(tmp_path: Path) -> None:
    limits_path(tmp_path, "a" * 12).write_text("{")
    with pytest.raises(RecordError, match="holds no limits"):
        read_limits(tmp_path, "a" * 12)
