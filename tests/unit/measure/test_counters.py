"""Counters, their differences and what follows from them, against numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tests.standin.engine import StandIn

from specstudy.errors import MetricsResetError, MetricsUnavailableError
from specstudy.measure import Counters, counters, read_counters
from specstudy.measure.counters import parse_counters, read_settled
from specstudy.serving.server import free_port

# As vLLM 0.32 writes it, shortened; two engines, to be summed.
TEXT = """\
# HELP vllm:request_success_total Count of successfully processed requests.
# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 3.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 4.0
vllm:request_success_total{engine="1",finished_reason="length",model_name="m"} 10.0
# HELP vllm:request_success_created Count of successfully processed requests.
# TYPE vllm:request_success_created gauge
vllm:request_success_created{engine="0",finished_reason="stop",model_name="m"} 1.7e+09
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 100.0
vllm:generation_tokens_total{engine="1",model_name="m"} 50.0
# TYPE vllm:request_queue_time_seconds histogram
vllm:request_queue_time_seconds_bucket{engine="0",le="0.1",model_name="m"} 2.0
vllm:request_queue_time_seconds_bucket{engine="0",le="0.3",model_name="m"} 6.0
vllm:request_queue_time_seconds_bucket{engine="0",le="+Inf",model_name="m"} 7.0
vllm:request_queue_time_seconds_count{engine="0",model_name="m"} 7.0
vllm:request_queue_time_seconds_sum{engine="0",model_name="m"} 1.4
vllm:request_queue_time_seconds_bucket{engine="1",le="0.1",model_name="m"} 10.0
vllm:request_queue_time_seconds_bucket{engine="1",le="0.3",model_name="m"} 10.0
vllm:request_queue_time_seconds_bucket{engine="1",le="+Inf",model_name="m"} 10.0
vllm:request_queue_time_seconds_count{engine="1",model_name="m"} 10.0
vllm:request_queue_time_seconds_sum{engine="1",model_name="m"} 0.3
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 40.0
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 120.0
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 60.0
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 30.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 20.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="2"} 10.0
process_cpu_seconds_total 12.5
"""
NONE = Counters(0, 0, 0, 0, {0.1: 0.0, 0.3: 0.0, math.inf: 0.0}, None, None, None, ())


def without(*parts: str) -> str:
    return "".join(line for line in TEXT.splitlines(keepends=True) if not any(part in line for part in parts))


def test_an_exposition_is_summed_over_engines_and_reasons() -> None:
    found = parse_counters(TEXT)
    assert found.requests_finished == 17
    assert found.generation_tokens == 150
    assert found.queue_count == 17
    assert found.queue_sum_s == pytest.approx(1.7)
    assert found.queue_buckets == {0.1: 12.0, 0.3: 16.0, math.inf: 17.0}
    assert (found.drafts, found.draft_tokens, found.accepted_tokens) == (40, 120, 60)
    assert found.accepted_per_position == (30, 20, 10)


def test_positions_are_in_the_order_of_their_numbers() -> None:
    lines = "".join(f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="{i}"}} {100 - i}\n' for i in (10, 2, 0, 1, 9, 3, 4, 5, 6, 7, 8))
    assert parse_counters(without("per_pos") + lines).accepted_per_position == tuple(100.0 - i for i in range(11))


def test_without_speculation_there_is_no_acceptance() -> None:
    found = parse_counters(without("spec_decode"))
    assert (found.drafts, found.acceptance_length, found.acceptance_rate, found.acceptance_per_position) == (None, None, None, None)


@pytest.mark.parametrize("missing", ["request_success_total", "generation_tokens_total", "queue_time_seconds_sum", "queue_time_seconds_count"])
def test_a_counter_that_is_missing_is_named(missing: str) -> None:
    with pytest.raises(MetricsUnavailableError, match=missing):
        parse_counters(without(missing))


def test_acceptance_formulas() -> None:
    change = replace(NONE, drafts=8.0, draft_tokens=24.0, accepted_tokens=12.0, accepted_per_position=(6.0, 4.0, 2.0))
    assert change.acceptance_length == 2.5  # 1 + 12 / 8
    assert change.acceptance_rate == 0.5  # 12 / 24
    assert change.acceptance_per_position == (0.75, 0.5, 0.25)


def test_nothing_accepted_is_a_length_of_one() -> None:
    change = replace(NONE, drafts=5.0, draft_tokens=15.0, accepted_tokens=0.0, accepted_per_position=(0.0, 0.0, 0.0))
    assert (change.acceptance_length, change.acceptance_rate, change.acceptance_per_position) == (1.0, 0.0, (0.0, 0.0, 0.0))


def test_no_draft_at_all_gives_no_acceptance() -> None:
    change = replace(NONE, drafts=0.0, draft_tokens=0.0, accepted_tokens=0.0, accepted_per_position=(0.0,))
    assert (change.acceptance_length, change.acceptance_rate, change.acceptance_per_position) == (None, None, None)


def test_the_change_is_the_difference_of_every_part() -> None:
    before = parse_counters(TEXT)
    after = parse_counters(
        TEXT.replace('"0",finished_reason="stop",model_name="m"} 3.0', '"0",finished_reason="stop",model_name="m"} 5.0')
        .replace("} 100.0", "} 130.0")
        .replace('_total{engine="0",model_name="m"} 40.0', '_total{engine="0",model_name="m"} 50.0')
        .replace("} 60.0", "} 75.0")
        .replace('position="2"} 10.0', 'position="2"} 11.0')
    )
    change = after.since(before)
    assert (change.requests_finished, change.generation_tokens, change.queue_count) == (2, 30, 0)
    assert (change.drafts, change.draft_tokens, change.accepted_tokens) == (10, 0, 15)
    assert change.accepted_per_position == (0, 0, 1)
    assert change.acceptance_length == 2.5


@pytest.mark.parametrize(
    "fewer",
    [
        {"requests_finished": 16},
        {"generation_tokens": 149},
        {"queue_sum_s": 1.0},
        {"queue_count": 16},
        {"queue_buckets": {0.1: 11.0, 0.3: 16.0, math.inf: 17.0}},
        {"drafts": 39},
        {"draft_tokens": 119},
        {"accepted_tokens": 59},
        {"accepted_per_position": (30, 20, 9)},
        {"drafts": None, "draft_tokens": None, "accepted_tokens": None, "accepted_per_position": ()},
    ],
)
def test_anything_that_goes_backwards_is_a_reset(fewer: dict[str, object]) -> None:
    before = parse_counters(TEXT)
    with pytest.raises(MetricsResetError, match="went backwards"):
        replace(before, **fewer).since(before)


def test_queue_mean_is_sum_over_count() -> None:
    assert replace(NONE, queue_sum_s=1.5, queue_count=6).queue_wait_mean_s == 0.25
    assert NONE.queue_wait_mean_s is None


@pytest.mark.parametrize(
    ("q", "expected"),
    [
        (0.05, 0.05),  # rank 5 of the 10 in (0, 0.1]
        (0.10, 0.10),
        (0.50, 0.20),  # rank 50: 40 of the 80 in (0.1, 0.3]
        (0.90, 0.30),
        (0.95, 0.65),  # rank 95: 5 of the 10 in (0.3, 1]
        (1.00, 1.00),
    ],
)
def test_queue_quantile_by_hand(q: float, expected: float) -> None:
    change = replace(NONE, queue_count=100, queue_buckets={0.1: 10.0, 0.3: 90.0, 1.0: 100.0, math.inf: 100.0})
    assert change.queue_wait_quantile_s(q) == pytest.approx(expected)


def test_queue_quantile_in_the_open_bucket_is_its_lower_bound() -> None:
    change = replace(NONE, queue_count=100, queue_buckets={0.1: 10.0, 0.3: 90.0, math.inf: 100.0})
    assert change.queue_wait_quantile_s(0.99) == 0.3


def test_queue_quantile_skips_empty_buckets() -> None:
    change = replace(NONE, queue_count=10, queue_buckets={0.1: 0.0, 0.2: 0.0, 0.4: 10.0, math.inf: 10.0})
    assert change.queue_wait_quantile_s(0.5) == pytest.approx(0.3)


def test_queue_quantile_of_nothing_is_none() -> None:
    assert NONE.queue_wait_quantile_s(0.5) is None
    assert replace(NONE, queue_count=3, queue_buckets={}).queue_wait_quantile_s(0.5) is None


def reading(*finished: float) -> tuple[list[float], object]:
    """A reader that gives these counts of finished requests, the last one for ever."""
    left = list(finished)

    def read(base_url: str) -> Counters:
        return replace(NONE, requests_finished=left.pop(0) if len(left) > 1 else left[0])

    return left, read


def test_settling_waits_for_the_last_count(monkeypatch: pytest.MonkeyPatch) -> None:
    left, read = reading(1, 3, 4)
    monkeypatch.setattr(counters, "read_counters", read)
    assert read_settled("", NONE, 4).requests_finished == 4
    assert left == [4]


def test_more_requests_than_ours_are_somebody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    _, read = reading(2, 5)
    monkeypatch.setattr(counters, "read_counters", read)
    with pytest.raises(MetricsResetError, match="counted 5 finished requests, 4 were ours"):
        read_settled("", NONE, 4)


def test_a_request_that_is_never_counted_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "SETTLE_S", 0.3)
    _, read = reading(3)
    monkeypatch.setattr(counters, "read_counters", read)
    with pytest.raises(MetricsResetError, match="counted 3 finished requests, 4 were ours"):
        read_settled("", NONE, 4)


def test_reading_a_server(standin: StandIn) -> None:
    found = read_counters(standin.server.base_url)
    assert found.drafts is not None
    assert len(found.accepted_per_position) == 3
    assert math.inf in found.queue_buckets


@pytest.mark.parametrize(("fault", "says"), [("metrics_503", "503"), ("metrics_empty", "has no vllm:request_success_total")])
def test_a_server_that_gives_no_counters(standin: StandIn, fault: str, says: str) -> None:
    standin.order(faults={fault: {"after": -1}})
    with pytest.raises(MetricsUnavailableError, match=says):
        read_counters(standin.server.base_url)


def test_counters_of_a_server_that_isnt_there() -> None:
    with pytest.raises(MetricsUnavailableError, match="refused"):
        read_counters(f"http://127.0.0.1:{free_port()}")
