"""Step times and the slope of drafting, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.standin.synthetic import cell, record, repeats

from specstudy.analysis import Cell, drafting_slopes, step_times
from specstudy.analysis.steps import lack_of_fit, line_intervals, measured_in_one_go


def drafting(k: int, tpot_ms: list[float], lengths: list[float], method: str = "eagle3", **more: Any) -> Cell:
    same = {"method": method, "draft": None if method == "ngram" else "e", "num_speculative_tokens": k, **more}
    return cell([record(repeat=i, tpot_ms_mean=t, acceptance_length=a, **same) for i, (t, a) in enumerate(zip(tpot_ms, lengths, strict=True))])


def test_a_step_takes_tpot_times_what_it_delivers() -> None:
    baseline = repeats([3.0, 4.0], "tpot_ms_mean")
    (found,) = step_times([baseline, drafting(3, [2.0, 2.5], [2.5, 2.4])])
    assert found.step_ms.estimate == pytest.approx(5.5)  # 5.0 and 6.0
    assert found.extra_ms is not None
    assert (found.extra_ms.low, found.extra_ms.estimate, found.extra_ms.high) == pytest.approx((2.0, 2.0, 2.0))  # 5 - 3, 6 - 4


def test_a_method_that_does_not_draft_in_each_step_has_no_step_time() -> None:
    assert step_times([repeats([3.0], "tpot_ms_mean"), drafting(3, [2.0], [2.5], method="ngram")]) == []


def test_without_a_baseline_at_the_load_nothing_is_extra() -> None:
    (found,) = step_times([repeats([3.0], "tpot_ms_mean", concurrency=8), drafting(3, [2.0], [2.5])])
    assert found.extra_ms is None and found.extra_by_repeat == {}


def test_the_slope_is_the_line_through_exact_points() -> None:
    # Baseline 2 ms in both repeats; a step takes 2 + 1 + 0.5 K ms in the first, 2 + 1 + 0.7 K in the second.
    cells = [repeats([2.0, 2.0], "tpot_ms_mean")]
    for k in (1, 2, 4, 8):
        cells.append(drafting(k, [3 + 0.5 * k, 3 + 0.7 * k], [1.0, 1.0]))
    (found,) = drafting_slopes(cells)
    assert found.ks == (1, 2, 4, 8)
    assert found.per_token_ms.estimate == pytest.approx(0.6)
    assert found.per_token_ms.high - 0.6 == pytest.approx(12.706 * 0.1, rel=1e-4)  # t(0.975, 1) times half the difference
    assert (found.fixed_ms.low, found.fixed_ms.estimate) == pytest.approx((1.0, 1.0))


def test_the_slope_is_the_least_squares_line_by_hand() -> None:
    # Extra 1, 2, 6 ms at K = 1, 2, 3: slope (6 - 1) / 2 = 2.5, through the means (2, 3).
    cells = [repeats([1.0], "tpot_ms_mean"), *(drafting(k, [1.0 + extra], [1.0]) for k, extra in ((1, 1.0), (2, 2.0), (3, 6.0)))]
    (found,) = drafting_slopes(cells)
    assert (found.per_token_ms.estimate, found.fixed_ms.estimate) == pytest.approx((2.5, -2.0))


def test_two_k_make_no_line() -> None:
    assert drafting_slopes([repeats([1.0], "tpot_ms_mean"), drafting(1, [2.0], [1.0]), drafting(2, [3.0], [1.0])]) == []


def test_the_lack_of_fit_by_hand() -> None:
    """Means 1, 2, 6 over K = 1, 2, 3: the line 0.5, 3, 5.5 leaves 0.5, -1, 0.5. Repeats differ from the means by 0.5, -0.5, 0, one up and one down.

    Off the line: 2 x 1.5 on 1 degree of freedom; of the repeats: 4 x 0.25 on 2. So F = 3 / 0.5 = 6, and of F(1, 2) = t(2) squared beyond
    that lies 1 - t / sqrt(2 + t squared) = 1 - sqrt(6 / 8).
    """
    found = lack_of_fit([1, 2, 3], np.array([[1.5, 1.5, 6.0], [0.5, 2.5, 6.0]]))
    assert found is not None
    assert (found.ratio, found.p) == pytest.approx((6**0.5, 1 - 0.75**0.5))


def test_a_lines_own_interval_by_hand() -> None:
    """Means 1, 2, 6 at K = 1, 2, 3 leave 1.5 squared on 1 degree of freedom; K scatters by 2 about its mean 2. t(0.975, 1) = 12.706."""
    slope, at_zero = line_intervals([1, 2, 3], np.array([1.0, 2.0, 6.0]), 4)
    assert (slope.estimate, slope.high - slope.estimate) == pytest.approx((2.5, 12.706 * (1.5 / 2) ** 0.5), rel=1e-4)
    assert (at_zero.estimate, at_zero.estimate - at_zero.low) == pytest.approx((-2.0, 12.706 * (1.5 * (1 / 3 + 4 / 2)) ** 0.5), rel=1e-4)
    assert slope.n == 4


def test_where_single_k_lie_off_the_line_its_interval_is_the_lines_own() -> None:
    """Repeats agree to 0.01 ms, the K don't make a line: over repeats the slope would be known to a hundredth."""
    cells = [repeats([0.5, 0.5], "tpot_ms_mean"), *(drafting(k, [t, t + 0.01 * k * (-1) ** k], [1.0, 1.0]) for k, t in ((1, 1.5), (2, 2.5), (3, 6.5)))]
    (found,) = drafting_slopes(cells)
    assert found.off_line is not None and found.off_line.p < 0.05
    assert found.per_token_ms.high - found.per_token_ms.estimate == pytest.approx(12.706 * 0.75**0.5, rel=0.02)


def test_what_a_whole_repeat_has_in_common_is_no_scatter() -> None:
    """Each repeat has prompts of its own; 10 ms more in one of them for every K says nothing about the line."""
    found = lack_of_fit([1, 2, 3], np.array([[11.5, 11.5, 16.0], [0.5, 2.5, 6.0]]))
    assert found is not None
    assert (found.ratio, found.p) == pytest.approx((6**0.5, 1 - 0.75**0.5))


@pytest.mark.parametrize("values", [[[1.0, 2.0, 6.0]], [[1.0, 2.0], [1.5, 2.0]], [[1.0, 2.0, 6.0], [2.0, 3.0, 7.0]]], ids=["one repeat", "two K", "alike"])
def test_without_scatter_to_compare_with_there_is_no_lack_of_fit(values: list[list[float]]) -> None:
    assert lack_of_fit([1, 2, 3][: len(values[0])], np.array(values)) is None


def at_minutes(k: int, minutes: list[int]) -> Cell:
    return cell([record(repeat=i, method="eagle3", draft="e", num_speculative_tokens=k, started_at=f"2026-01-01T00:{m:02}:00Z") for i, m in enumerate(minutes)])


def test_repeats_in_one_go_are_told_from_repeats_in_rounds() -> None:
    assert measured_in_one_go([at_minutes(1, [0, 1, 2]), at_minutes(2, [3, 4, 5])])
    assert not measured_in_one_go([at_minutes(1, [0, 2, 4]), at_minutes(2, [1, 3, 5])])


def test_loads_that_take_turns_are_no_rounds_of_the_k() -> None:
    """One server after the other, its loads in rounds: each K still had minutes of its own."""

    def at(k: int, c: int, minutes: tuple[int, int]) -> Cell:
        own = {"method": "eagle3", "draft": "e", "num_speculative_tokens": k} if k else {"method": "none"}
        timed = {"tpot_ms_mean": 1.0 + k, "acceptance_length": 1.0 if k else None, "concurrency": c}
        return cell([record(repeat=i, started_at=f"2026-01-01T00:{m:02}:00Z", **own, **timed) for i, m in enumerate(minutes)])

    slopes = drafting_slopes([at(k, c, (4 * k + half, 4 * k + half + 2)) for k in range(4) for half, c in enumerate((1, 2))])
    assert [slope.one_go for slope in slopes] == [True, True]
