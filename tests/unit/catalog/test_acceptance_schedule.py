"""Acceptance by position where only a mean is published, against sums that can be done by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from specstudy.catalog.imposed import constant_rate, rates_by_position
from specstudy.catalog.published import published_acceptance
from specstudy.errors import ConfigError


@pytest.fixture(autouse=True)
def _this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECSTUDY_ROOT", str(Path(__file__).parents[3]))


@pytest.mark.parametrize(
    ("length", "k", "rate"),
    [
        (1.875, 3, 0.5),  # 1 + 1/2 + 1/4 + 1/8
        (1.75, 2, 0.5),
        (1.7, 1, 0.7),
        (3.439, 3, 0.9),  # 1 + 0.9 + 0.81 + 0.729
        (1.0, 5, 0.0),
        (4.0, 3, 1.0),
    ],
)
def test_one_rate_has_the_mean(length: float, k: int, rate: float) -> None:
    assert constant_rate(length, k) == pytest.approx(rate, abs=1e-9)


def test_the_rates_are_powers() -> None:
    assert rates_by_position(0.5, 4) == (0.5, 0.25, 0.125, 0.0625)


@pytest.mark.parametrize(("length", "k"), [(0.99, 3), (4.01, 3), (2.5, 1)])
def test_a_mean_that_no_rate_reaches_is_refused(length: float, k: int) -> None:
    with pytest.raises(ConfigError, match="acceptance_length"):
        constant_rate(length, k)


def test_the_model_is_close_to_the_one_source_that_gives_positions_and_mean() -> None:
    (published,) = [row for row in published_acceptance() if row.id == "minimax-m3/amd-eagle3.1/speedbench/k3"]
    assert (published.acceptance_length, published.acceptance_per_position) == (2.80, (0.76, 0.56, 0.43))
    assert rates_by_position(constant_rate(2.80, 3), 3) == pytest.approx((0.76, 0.56, 0.43), abs=0.03)


def test_every_linear_row_has_a_schedule_with_its_mean() -> None:
    rows = [row for row in published_acceptance() if row.num_speculative_tokens is not None]
    assert len(rows) > 300
    for row in rows:
        k = row.num_speculative_tokens or 0
        rates = rates_by_position(constant_rate(row.acceptance_length, k), k)
        assert 1 + sum(rates) == pytest.approx(row.acceptance_length, abs=1e-6), row.id
