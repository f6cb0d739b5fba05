"""Intervals against scipy's own, a textbook's table, and hand calculation."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from specstudy.analysis.stats import Interval, mean_interval, paired_ratio, unpaired_ratio

UNHURRIED = settings(deadline=None, derandomize=True, database=None)
VALUES = st.lists(st.floats(0.01, 1e4), min_size=2, max_size=10)


def test_a_mean_interval_by_hand() -> None:
    # 10, 12, 14: mean 12, standard deviation 2, standard error 2/sqrt 3; t(0.975, 2) = 4.303 in any t table.
    found = mean_interval([10, 12, 14])
    half = 4.303 * 2 / math.sqrt(3)
    assert found.n == 3
    assert found.estimate == 12
    assert found.low == pytest.approx(12 - half, abs=1e-3)
    assert found.high == pytest.approx(12 + half, abs=1e-3)
    assert found.half_width_share == pytest.approx(half / 12, abs=1e-4)


@pytest.mark.parametrize(("n", "t"), [(2, 12.706), (3, 4.303), (5, 2.776), (10, 2.262)])
def test_the_half_width_is_the_tables_t_times_the_standard_error(n: int, t: float) -> None:
    values = [float(i * i) for i in range(n)]
    found = mean_interval(values)
    assert (found.high - found.low) / 2 == pytest.approx(t * statistics.stdev(values) / math.sqrt(n), rel=1e-3)


@UNHURRIED
@given(values=VALUES)
def test_a_mean_interval_is_scipys(values: list[float]) -> None:
    found = mean_interval(values)
    assert found.estimate == pytest.approx(statistics.fmean(values))
    error = statistics.stdev(values) / math.sqrt(len(values))
    if error == 0:
        assert (found.low, found.high) == pytest.approx((found.estimate, found.estimate))
        return
    low, high = stats.t.interval(0.95, df=len(values) - 1, loc=statistics.fmean(values), scale=error)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-9, abs=1e-9)


def test_the_interval_covers_the_true_mean_as_often_as_it_says() -> None:
    rng = np.random.default_rng(11)
    trials = 2_000
    covered = sum(not mean_interval(list(rng.normal(5, 2, size=4))).excludes(5) for _ in range(trials))
    assert abs(covered / trials - 0.95) < 4 * math.sqrt(0.95 * 0.05 / trials)


def test_one_repeat_has_an_estimate_and_no_interval() -> None:
    found = mean_interval([7.5])
    assert (found.estimate, found.n) == (7.5, 1)
    assert math.isnan(found.low) and math.isnan(found.high)
    assert found.half_width_share == math.inf
    assert not found.excludes(0)


def test_equal_repeats_have_an_interval_of_no_width() -> None:
    assert mean_interval([3.0, 3.0, 3.0]) == Interval(3.0, 3.0, 3.0, 3)
    assert mean_interval([3.0, 3.0, 3.0]).half_width_share == 0


def test_without_values_there_is_no_interval() -> None:
    with pytest.raises(ValueError, match="at least one value"):
        mean_interval([])


@pytest.mark.parametrize(("value", "outside"), [(0.9, True), (1.0, False), (1.1, False), (1.2, False), (1.3, True)])
def test_a_value_on_the_bound_is_not_excluded(value: float, outside: bool) -> None:
    assert Interval(1.1, 1.0, 1.2, 3).excludes(value) is outside


@pytest.mark.parametrize(
    ("other", "together"),
    [(Interval(1.3, 1.2, 1.4, 3), True), (Interval(1.4, 1.21, 1.5, 3), False), (Interval(0.8, 0.7, 0.99, 3), False), (mean_interval([9.0]), True)],
)
def test_intervals_without_a_common_value_are_told_apart_and_one_repeat_is_told_apart_from_nothing(other: Interval, together: bool) -> None:
    one = Interval(1.1, 1.0, 1.2, 3)
    assert one.overlaps(other) is other.overlaps(one) is together


def test_a_share_of_nothing_is_infinite_and_of_a_loss_is_positive() -> None:
    assert Interval(0.0, -1.0, 1.0, 3).half_width_share == math.inf
    assert Interval(-2.0, -3.0, -1.0, 3).half_width_share == 0.5


def test_a_paired_ratio_by_hand() -> None:
    # Ratios 2, 4, 8: their logarithms to base 2 are 1, 2, 3, mean 2, standard deviation 1; t(0.975, 2) = 4.303.
    found = paired_ratio([20, 40, 40], [10, 10, 5])
    half = 4.303 / math.sqrt(3)
    assert found.estimate == pytest.approx(4)
    assert (math.log2(found.low), math.log2(found.high)) == pytest.approx((2 - half, 2 + half), abs=1e-3)
    assert found.n == 3


@UNHURRIED
@given(pairs=st.lists(st.tuples(st.floats(0.1, 1e3), st.floats(0.1, 1e3)), min_size=2, max_size=10))
def test_a_paired_ratio_is_scipys_paired_t_test_on_logarithms(pairs: list[tuple[float, float]]) -> None:
    method, baseline = [a for a, _ in pairs], [b for _, b in pairs]
    logs = np.log(method) - np.log(baseline)
    if np.ptp(logs) < 1e-6:
        return  # without spread scipy gives nan
    wanted = stats.ttest_rel(np.log(method), np.log(baseline))
    interval = wanted.confidence_interval(0.95)
    found = paired_ratio(method, baseline)
    assert math.log(found.estimate) == pytest.approx(float(np.mean(logs)), abs=1e-9)
    assert (math.log(found.low), math.log(found.high)) == pytest.approx((interval.low, interval.high), rel=1e-7, abs=1e-7)
    if abs(wanted.pvalue - 0.05) > 1e-6:
        assert found.excludes(1) == (wanted.pvalue < 0.05)


@UNHURRIED
@given(values=VALUES, factor=st.floats(0.1, 10))
def test_what_the_prompts_cost_cancels_out(values: list[float], factor: float) -> None:
    found = paired_ratio([value * factor for value in values], values)
    assert (found.low, found.estimate, found.high) == pytest.approx((factor,) * 3)


def test_a_ratio_the_other_way_round_is_the_inverse() -> None:
    there, back = paired_ratio([3, 5, 4], [2, 2, 3]), paired_ratio([2, 2, 3], [3, 5, 4])
    assert (1 / back.estimate, 1 / back.high, 1 / back.low) == pytest.approx((there.estimate, there.low, there.high))


def test_one_pair_has_a_ratio_and_no_interval() -> None:
    found = paired_ratio([3], [2])
    assert found.estimate == pytest.approx(1.5)
    assert math.isnan(found.low) and math.isnan(found.high)


@pytest.mark.parametrize(("method", "baseline"), [([1, 2], [1]), ([], [1]), ([], [])])
def test_what_is_no_pair_is_refused(method: list[float], baseline: list[float]) -> None:
    with pytest.raises(ValueError, match=r"pairs are needed|at least one value"):
        paired_ratio(method, baseline)


@pytest.mark.parametrize(("method", "baseline"), [([0.0, 1.0], [1.0, 1.0]), ([1.0, 1.0], [0.0, 1.0])])
def test_a_ratio_with_zero_is_refused(method: list[float], baseline: list[float]) -> None:
    with pytest.raises(ValueError):
        paired_ratio(method, baseline)


def test_an_unpaired_ratio_by_hand() -> None:
    # log2 of the one side 1, 3 and of the other 0, 2: difference 1; both variances 2, so Welch's standard error is
    # sqrt(2/2 + 2/2) = 1.414 with 2 degrees of freedom; t(0.975, 2) = 4.303.
    found = unpaired_ratio([2, 8], [1, 4])
    half = 4.303 * math.sqrt(2)
    assert (math.log2(found.low), math.log2(found.estimate), math.log2(found.high)) == pytest.approx((1 - half, 1, 1 + half), abs=1e-3)
    assert found.n == 2


@UNHURRIED
@given(above=st.lists(st.floats(1, 9), min_size=2, max_size=6), below=st.lists(st.floats(1, 9), min_size=2, max_size=6))
def test_an_unpaired_ratio_is_scipys_welch_interval_on_logarithms(above: list[float], below: list[float]) -> None:
    if min(np.ptp(above), np.ptp(below)) < 1e-3:
        return  # scipy warns of lost precision there
    wanted = stats.ttest_ind(np.log(above), np.log(below), equal_var=False).confidence_interval(0.95)
    found = unpaired_ratio(above, below)
    assert (math.log(found.low), math.log(found.high)) == pytest.approx((wanted.low, wanted.high), rel=1e-6, abs=1e-6)


def test_an_unpaired_ratio_without_spread_or_repeats() -> None:
    assert unpaired_ratio([3, 3], [2, 2, 2]) == Interval(pytest.approx(1.5), pytest.approx(1.5), pytest.approx(1.5), 2)
    found = unpaired_ratio([3], [2, 2])
    assert found.estimate == pytest.approx(1.5) and math.isnan(found.low)
    with pytest.raises(ValueError, match="both sides"):
        unpaired_ratio([], [1])
    with pytest.raises(ValueError, match="above 0"):
        unpaired_ratio([0], [1])
