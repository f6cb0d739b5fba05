"""Acceptance by position, workload and context, against hand calculation."""

from __future__ import annotations

import math

import pytest
from tests.standin.synthetic import cell, record, repeats, request

from specstudy.analysis import Family, by_context, context_ratios, deepest_curves, position_curve, workload_shares

HEAD = {"method": "eagle3", "draft": "smollm2-135m-eagle3", "num_speculative_tokens": 3}


def test_a_position_curve_by_hand() -> None:
    curves = [(0.8, 0.4, 0.1), (0.6, 0.3, 0.15)]
    made = cell([record(**HEAD, repeat=i, acceptance_per_position=curve) for i, curve in enumerate(curves)])
    found = position_curve(made)
    assert found is not None
    assert [one.estimate for one in found.rate] == pytest.approx([0.7, 0.35, 0.125])
    # Of what was accepted before: 0.8 and 0.6; 0.4/0.8 and 0.3/0.6; 0.1/0.4 and 0.15/0.3.
    assert [one.estimate for one in found.conditional] == pytest.approx([0.7, 0.5, 0.375])
    # Two repeats: t(0.975, 1) = 12.706 times the standard error, half the difference of two values.
    assert found.rate[0].high - found.rate[0].estimate == pytest.approx(12.706 * 0.1, rel=1e-4)
    assert found.hold == pytest.approx(0.375 / 0.7)


def test_where_nothing_was_accepted_there_is_nothing_to_be_conditional_on() -> None:
    found = position_curve(cell([record(**HEAD, acceptance_per_position=(0.5, 0.0, 0.0))]))
    assert found is not None
    assert [one.estimate for one in found.conditional] == [0.5, 0.0]
    assert position_curve(repeats([1.0])) is None


def test_a_workloads_share_of_chat_is_taken_at_the_same_concurrency() -> None:
    chat_1 = repeats([3.0, 3.0], "acceptance_length", **HEAD, concurrency=1)
    chat_8 = repeats([2.0, 2.0], "acceptance_length", **HEAD, concurrency=8)
    code = repeats([1.0, 4.0], "acceptance_length", **HEAD, concurrency=8, workload="humaneval")
    band = repeats([2.5, 2.5], "acceptance_length", **HEAD, concurrency=1, workload="context-4k")
    (found,) = workload_shares([chat_1, chat_8, code, band])
    assert found.ratio.estimate == pytest.approx(1.0)  # geometric mean 2 over 2
    # Welch with one side without spread: the other's t interval, ln 4 / 2 its standard error, t(0.975, 1) = 12.706.
    assert math.log(found.ratio.high) == pytest.approx(12.706 * math.log(4) / 2, rel=1e-4)
    assert workload_shares([chat_1, code]) == []


def banded(draft: str, band: str, lengths: list[float], prompt_tokens: int) -> object:
    records = [record(repeat=i, record_id=f"{i:016x}", **{**HEAD, "draft": draft}, workload=band, acceptance_length=al) for i, al in enumerate(lengths)]
    return cell(records, [request(one.record_id, 0, prompt_tokens=prompt_tokens) for one in records])


def test_context_bands_are_in_the_order_of_their_length_and_compared_by_repeat() -> None:
    cells = [
        banded("smollm2-135m-eagle3", "context-4k", [2.0, 2.5], 3900),
        banded("smollm2-135m-eagle3", "context-256", [3.0, 3.0], 250),
        banded("smollm2-135m-eagle3.1", "context-4k", [2.4, 3.0], 3900),
    ]
    plain, newer = Family("eagle3", "smollm2-135m-eagle3"), Family("eagle3", "smollm2-135m-eagle3.1")
    assert [(point.band_tokens, point.prompt_tokens, point.length.estimate) for point in by_context(cells, plain)] == [(256, 250, 3.0), (4096, 3900, 2.25)]
    ((point, ratio),) = context_ratios(cells, newer, plain)
    assert (point.band_tokens, ratio.n) == (4096, 2)
    assert (ratio.low, ratio.estimate, ratio.high) == pytest.approx((1.2, 1.2, 1.2))  # 2.4/2.0 and 3.0/2.5


def test_of_each_head_the_deepest_k_at_its_lowest_load_is_drawn() -> None:
    def curve(k: int, c: int) -> object:
        return cell([record(method="eagle3", draft="a", num_speculative_tokens=k, concurrency=c, acceptance_per_position=(0.5,) * k)])

    found = deepest_curves([repeats([1.0]), curve(2, 8), curve(4, 1), curve(2, 1), curve(8, 8)])
    assert [(one.cell.variant.num_speculative_tokens, one.cell.load.concurrency) for one in found] == [(4, 1)]
