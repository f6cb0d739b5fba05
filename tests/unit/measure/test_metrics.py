"""Each metric against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from specstudy.measure.metrics.chunk_gap import chunk_gaps_ms
from specstudy.measure.metrics.e2e import e2e_ms
from specstudy.measure.metrics.summary import summary
from specstudy.measure.metrics.throughput import Window, steady_window
from specstudy.measure.metrics.timeline import Timeline
from specstudy.measure.metrics.tpot import tpot_ms
from specstudy.measure.metrics.ttft import ttft_ms
from specstudy.workloads import Closed
from specstudy.workloads.arrivals import Open

# Due at 10 s; 1 token at 10.2 s, 3 at 10.5 s, 2 at 10.7 s.
REQUEST = Timeline(10.0, [10.2, 10.5, 10.7], [1, 3, 2], 6)
ONE_TOKEN = Timeline(10.0, [10.25], [1], 1)


def test_ttft_is_due_time_to_first_token() -> None:
    assert ttft_ms(REQUEST) == pytest.approx(200)


def test_e2e_is_due_time_to_last_token() -> None:
    assert e2e_ms(REQUEST) == pytest.approx(700)


def test_tpot_divides_by_tokens_not_by_chunks() -> None:
    assert tpot_ms(REQUEST) == pytest.approx(100)  # (10.7 - 10.2) / (6 - 1); by chunks it would be 250


def test_an_answer_of_one_token_has_no_tpot_and_no_gap() -> None:
    assert tpot_ms(ONE_TOKEN) is None
    assert chunk_gaps_ms(ONE_TOKEN) == []
    assert ttft_ms(ONE_TOKEN) == e2e_ms(ONE_TOKEN) == pytest.approx(250)


def test_an_answer_in_one_chunk_has_a_tpot_of_zero() -> None:
    assert tpot_ms(Timeline(0.0, [1.0], [4], 4)) == 0


def test_chunk_gaps_are_the_pauses() -> None:
    assert chunk_gaps_ms(REQUEST) == pytest.approx([300, 200])


def test_a_late_send_makes_an_open_request_slower() -> None:
    late = Timeline(9.6, REQUEST.chunk_s, REQUEST.chunk_tokens, 6)  # was due 0.4 s earlier than it was sent
    assert ttft_ms(late) == pytest.approx(600)
    assert e2e_ms(late) == pytest.approx(1100)
    assert tpot_ms(late) == pytest.approx(100)


@pytest.mark.parametrize(("count", "has_p99"), [(1, False), (299, False), (300, True), (1000, True)])
def test_p99_only_from_300_values_on(count: int, has_p99: bool) -> None:
    values = np.random.default_rng(count).exponential(10, count)
    found = summary("ttft_ms", list(values))
    assert found["ttft_ms_mean"] == pytest.approx(values.mean())
    assert found["ttft_ms_p50"] == pytest.approx(np.median(values))
    assert found["ttft_ms_p90"] == pytest.approx(np.percentile(values, 90))
    assert found["ttft_ms_p99"] == (pytest.approx(np.percentile(values, 99)) if has_p99 else None)


def test_percentiles_by_hand() -> None:
    assert summary("x", [4.0, 1.0, 3.0, 2.0]) == {"x_mean": 2.5, "x_p50": 2.5, "x_p90": pytest.approx(3.7), "x_p99": None}


def test_no_values_no_figures() -> None:
    assert summary("x", []) == {"x_mean": None, "x_p50": None, "x_p90": None, "x_p99": None}


def closed_load(lengths: list[float], concurrency: int, tokens: int = 2) -> tuple[list[float], list[Timeline]]:
    """Sends and timelines of a closed loop, slots refilled at once: half the tokens in mid-way, half at the end."""
    free = [0.0] * concurrency
    sends, requests = [], []
    for length in lengths:
        slot = free.index(min(free))
        start, free[slot] = free[slot], free[slot] + length
        sends.append(start)
        requests.append(Timeline(start, [start + length / 2, start + length], [tokens // 2, tokens - tokens // 2], tokens))
    return sends, requests


def test_steady_window_of_a_closed_loop_by_hand() -> None:
    # c = 2, each request takes 1 s, sends at 0 0 1 1 2 2 3 3: from send 3 (1 s) to send 7 (3 s).
    sends, requests = closed_load([1.0] * 8, 2)
    window = steady_window(sends, requests, Closed(2))
    assert (window.start_s, window.end_s) == (1.0, 3.0)
    # Inside: the chunk at 1.0 of the first two, both chunks of the two in the middle less those at 3.0 and
    # those of 2.5: 1.0 1.0 | 1.5 1.5 2.0 2.0 | 2.5 2.5 -> 8 tokens in 2 s.
    assert window.tokens(requests) == 8
    assert window.completions(requests) == 4


def test_steady_window_with_uneven_requests() -> None:
    # Two slots: a 0-3, b 0-1, c 1-2, d 2-4, e 3-5, f 4-5 -> sends 0 0 1 2 3 4; N = 6, c = 2.
    sends, requests = closed_load([3.0, 1.0, 1.0, 2.0, 2.0, 1.0], 2)
    assert sends == [0.0, 0.0, 1.0, 2.0, 3.0, 4.0]
    window = steady_window(sends, requests, Closed(2))
    assert (window.start_s, window.end_s) == (1.0, 3.0)
    # chunks: a 1.5 3.0, b 0.5 1.0, c 1.5 2.0, d 3.0 4.0, e 4.0 5.0, f 4.5 5.0; in [1, 3): 1.5 1.0 1.5 2.0
    assert window.tokens(requests) == 4
    assert window.completions(requests) == 2


def test_the_order_of_the_requests_changes_nothing() -> None:
    sends, requests = closed_load([3.0, 1.0, 1.0, 2.0, 2.0, 1.0], 2)
    assert steady_window(sends[::-1], requests[::-1], Closed(2)) == steady_window(sends, requests, Closed(2))


@pytest.mark.parametrize(("count", "expected"), [(5, (0.0, 3.0)), (6, (1.0, 2.0))])
def test_a_load_of_less_than_three_rounds_has_no_steady_part(count: int, expected: tuple[float, float]) -> None:
    sends, requests = closed_load([1.0] * count, 2)
    window = steady_window(sends, requests, Closed(2))
    assert (window.start_s, window.end_s) == expected


def test_one_slot_leaves_out_the_first_and_the_last_request() -> None:
    sends, requests = closed_load([1.0, 2.0, 3.0, 4.0], 1)
    window = steady_window(sends, requests, Closed(1))
    assert (window.start_s, window.end_s) == (1.0, 6.0)


def test_open_window_is_first_completion_to_last_arrival() -> None:
    requests = [Timeline(0.0, [0.5, 1.0], [1, 1], 2), Timeline(2.0, [2.5, 3.0], [1, 1], 2), Timeline(4.0, [4.5, 5.0], [1, 1], 2)]
    window = steady_window([0.0, 2.0, 4.0], requests, Open("poisson", (0.0, 2.0, 4.0)))
    assert (window.start_s, window.end_s) == (1.0, 4.0)
    assert window.tokens(requests) == 3  # 1.0, 2.5, 3.0
    assert window.completions(requests) == 2


def test_an_open_load_that_is_over_before_the_first_answer_is_taken_whole() -> None:
    requests = [Timeline(0.0, [5.0], [1], 1), Timeline(1.0, [6.0], [1], 1)]
    window = steady_window([0.0, 1.0], requests, Open("poisson", (0.0, 1.0)))
    assert (window.start_s, window.end_s) == (0.0, 6.0)


def test_a_window_takes_its_start_and_not_its_end() -> None:
    request = Timeline(0.0, [1.0, 2.0, 3.0], [1, 2, 4], 7)
    assert Window(1.0, 3.0).tokens([request]) == 3
    assert Window(1.0, 3.0).completions([request]) == 0
    assert Window(1.0, 3.5).completions([request]) == 1
    assert Window(1.0, 3.5).length_s == 2.5
