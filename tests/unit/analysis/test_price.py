"""Costs against hand calculations and other people's published ones."""

from __future__ import annotations

import math

import pytest
from tests.standin.synthetic import cell, record, repeats, request

from specstudy.analysis import (
    Interval,
    best_changes,
    break_even_tokens_per_s,
    cell_costs,
    cheapest_k,
    cost_changes,
    cost_interval,
    input_per_output,
    reaches,
)
from specstudy.analysis.price import gpus_of, usd_per_million


@pytest.mark.parametrize(
    ("tokens_per_s", "usd_per_hour", "usd"),
    [
        (1250, 4.50, 1.00),  # 4.50 / 3,600 = 0.00125 dollars a second, over 1,250 tokens: a millionth of a dollar each
        (1000, 3.60, 1.00),
        (1620, 3.99, 0.6842),  # gpt-oss-120b on an H100 at batch 64, without and with a draft
        (2339, 3.99, 0.4739),
        (4715, 1.61, 0.0949),  # as published for an H100 at 1.61 an hour: https://caleta.io/blog/100x-cheaper-than-gpt4o/
        (595, 1.61, 0.75),
    ],
)
def test_a_cost_is_the_hour_shared_out(tokens_per_s: float, usd_per_hour: float, usd: float) -> None:
    assert usd_per_million(tokens_per_s, usd_per_hour) == pytest.approx(usd, rel=3e-3)


@pytest.mark.parametrize(("usd_per_hour", "usd", "tokens_per_s"), [(4.50, 10, 125), (4.50, 15, 83.33), (3.60, 1, 1000), (9.0, 10, 250)])
def test_break_even_is_the_throughput_that_costs_as_much(usd_per_hour: float, usd: float, tokens_per_s: float) -> None:
    assert break_even_tokens_per_s(usd_per_hour, usd) == pytest.approx(tokens_per_s, rel=1e-3)
    assert usd_per_million(break_even_tokens_per_s(usd_per_hour, usd), usd_per_hour) == pytest.approx(usd)


def test_the_interval_is_carried_through_with_its_ends_exchanged() -> None:
    found = cost_interval(Interval(1000, 800, 1250, 5), 3.60)
    assert (found.estimate, found.low, found.high, found.n) == (pytest.approx(1.0), pytest.approx(0.8), pytest.approx(1.25), 5)


def test_a_throughput_that_may_be_nothing_leaves_the_cost_open_above() -> None:
    found = cost_interval(Interval(1000, -200, 2000, 3), 3.60)
    assert found.low == pytest.approx(0.5)
    assert found.high == math.inf


def test_one_repeat_has_no_interval() -> None:
    found = cost_interval(Interval(1000, math.nan, math.nan, 1), 3.60)
    assert found.estimate == pytest.approx(1.0)
    assert math.isnan(found.low) and math.isnan(found.high)


@pytest.mark.parametrize("busy", [0, -0.1, 1.1])
def test_a_share_outside_is_refused(busy: float) -> None:
    (one,) = cell_costs([repeats([900, 1000, 1100])], 3.60)
    with pytest.raises(ValueError, match="busy"):
        one.at(busy)


@pytest.mark.parametrize(("tokens_per_s", "usd"), [(0, 1), (-1, 1), (1, 0)])
def test_nothing_costs_nothing(tokens_per_s: float, usd: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        usd_per_million(tokens_per_s, usd)


def test_every_gpu_that_the_server_could_use_is_paid_for() -> None:
    two = repeats([1000, 1000, 1000], gpu="2 x NVIDIA H200", gpu_uuids=("GPU-a", "GPU-b"))
    unnamed = repeats([1000, 1000, 1000])
    assert (gpus_of(two), gpus_of(unnamed)) == (2, 1)
    assert [one.usd_per_1m.estimate for one in cell_costs([two, unnamed], 3.60)] == pytest.approx([2.0, 1.0])


def test_a_cell_without_throughput_has_no_cost() -> None:
    assert cell_costs([repeats([None, None])], 3.60) == []  # type: ignore[list-item]


def test_a_cells_cost_at_a_third_of_the_time_is_three_times_as_much() -> None:
    (one,) = cell_costs([repeats([900, 1000, 1100])], 3.60)
    third = one.at(1 / 3)
    assert (third.estimate, third.low, third.high) == pytest.approx((3 * one.usd_per_1m.estimate, 3 * one.usd_per_1m.low, 3 * one.usd_per_1m.high))


def test_of_several_k_the_cheapest_at_each_load_is_kept_and_every_baseline() -> None:
    eagle = {"method": "eagle3", "draft": "a head"}
    cells = [
        repeats([1000, 1000]),
        repeats([1500, 1500], num_speculative_tokens=3, **eagle),
        repeats([2000, 2000], num_speculative_tokens=5, **eagle),
        repeats([9000, 9000], num_speculative_tokens=3, concurrency=8, **eagle),
        repeats([8000, 8000], num_speculative_tokens=5, concurrency=8, **eagle),
    ]
    kept = [(one.cell.load.concurrency, one.cell.variant.num_speculative_tokens) for one in cheapest_k(cell_costs(cells, 3.60))]
    assert kept == [(1, None), (1, 5), (8, 3)]


def test_the_change_of_cost_is_the_speedup_turned_over() -> None:
    # Each repeat is twice as fast: half the cost, whatever the hour costs, and no spread.
    cells = [repeats([1000, 1100, 900]), repeats([2000, 2200, 1800], method="eagle3", draft="a head", num_speculative_tokens=3)]
    (one,) = cost_changes(cells)
    assert (one.ratio.estimate, one.ratio.low, one.ratio.high) == pytest.approx((0.5, 0.5, 0.5))
    assert one.verdict == "cheaper"


@pytest.mark.parametrize(
    ("values", "verdict"),
    [([500, 550, 450], "dearer"), ([1000, 1100, 900], "no difference"), ([1300, 900, 1000], "no difference"), ([2000], "one repeat only")],
)
def test_verdicts_are_worded_as_costs(values: list[float], verdict: str) -> None:
    cells = [repeats([1000, 1100, 900]), repeats(values, method="ngram", num_speculative_tokens=3)]
    (one,) = cost_changes(cells)
    assert one.verdict == verdict


def test_the_ends_of_a_changes_interval_are_exchanged() -> None:
    cells = [repeats([1000, 1000, 1000]), repeats([1900, 2000, 2100], method="ngram", num_speculative_tokens=3)]
    (one,) = cost_changes(cells)
    speedup = one.speedup.ratio
    assert one.ratio.low < one.ratio.estimate < one.ratio.high
    assert (one.ratio.low, one.ratio.high) == pytest.approx((1 / speedup.high, 1 / speedup.low))


def test_a_ratio_across_model_runners_is_no_best_one() -> None:
    cells = [repeats([1000, 1000]), repeats([3000, 3000], method="ngram", num_speculative_tokens=3, model_runner="V2")]
    cells.append(repeats([2000, 2000], method="ngram", num_speculative_tokens=5))
    assert [one.speedup.cell.variant.num_speculative_tokens for one in best_changes(cost_changes(cells))] == [5]


def test_input_per_output_counts_tokens_of_all_requests() -> None:
    identity = f"{0:016x}"
    one = cell(
        [record(record_id=identity)],
        [request(identity, 0, prompt_tokens=300, completion_tokens=100), request(identity, 1, prompt_tokens=100, completion_tokens=300)],
    )
    assert input_per_output([one]) == pytest.approx(1.0)  # 400 over 400, not the mean of 3 and 1/3
    assert input_per_output([]) is None


@pytest.mark.parametrize(
    ("low", "high", "told"), [(110, 130, "not told apart"), (126, 140, "above"), (100, 124, "below"), (math.nan, math.nan, "not told apart")]
)
def test_a_throughput_reaches_a_break_even_only_with_its_whole_interval(low: float, high: float, told: str) -> None:
    middle = 133.0 if told == "above" else 112.0
    assert reaches(Interval(middle, low, high, 3), 125) == told


def test_each_way_to_serve_the_target_has_a_best_change_of_its_own() -> None:
    """As fp8 it is twice as fast as its baseline, as awq three times as fast: one would hide the other."""
    cells = [
        repeats([speed * gain] * 3, engine_variant=name, **method)
        for name, speed, gains in (("fp8", 100.0, (1, 2)), ("awq", 200.0, (1, 3)))
        for gain, method in zip(gains, ({}, {"method": "eagle3", "draft": "a head", "num_speculative_tokens": 3}), strict=True)
    ]
    found = {one.speedup.cell.variant.engine_variant: one.ratio.estimate for one in best_changes(cost_changes(cells))}
    assert found == {"fp8": pytest.approx(1 / 2), "awq": pytest.approx(1 / 3)}
