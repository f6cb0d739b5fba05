"""One repeat on the stand-in: every figure recomputed from the requests, or from what the server is known to do."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from tests.standin.engine import StandIn

from specstudy.measure import Measured, Sampling, measure, record_of
from specstudy.records import Record
from specstudy.workloads import Arrival, Closed, Prompt, poisson
from specstudy.workloads.arrivals import Open

FACTS: dict[str, Any] = {
    "profile": "p",
    "chapter": "c",
    "evidence": "real",
    "allocation": "a",
    "repeat": 0,
    "seed": 5,
    "target": "words",
    "quantization": None,
    "dtype": "float32",
    "kv_cache_dtype": "auto",
    "engine": "vllm",
    "engine_version": "standin",
    "method": "ngram",
    "num_speculative_tokens": 3,
    "workload": "w",
    "max_tokens": 9,
    "temperature": 0.0,
    "git_sha": "unknown",
    "packages": {},
    "server_argv": (),
    "host_cpu": "x",
    "host_cpus": 1,
    "dataset_sha256": "0",
}


def prompts(count: int, first: str = "measured") -> list[Prompt]:
    return [Prompt.user(f"{first} prompt number {i}") for i in range(count)]


def repeat(standin: StandIn, arrival: Arrival, count: int = 12, **how: Any) -> Measured:
    return measure(standin.server, prompts(count), prompts(2, "warm-up"), arrival, Sampling(9, 0.0, 5), **how)


@pytest.fixture
def closed(standin: StandIn) -> Measured:
    # 9 tokens: 1 from the prompt's pass, then 3 1 3 1: four drafts of 3 tokens, 4 accepted.
    standin.order(chunk_tokens=[1, 3], chunk_delay_s=0.004, first_delay_s=0.01, queue_s=0.25)
    return repeat(standin, Closed(2))


def test_counts_and_tokens(closed: Measured, standin: StandIn) -> None:
    assert closed.error is None
    figures = closed.figures
    assert (figures["num_prompts"], figures["completed"], figures["failed"], figures["resent"]) == (12, 12, 0, 0)
    assert figures["output_tokens"] == 108
    assert figures["tokens_per_chunk_mean"] == pytest.approx(9 / 5)
    assert len(standin.journal()) == 14  # the warm-ups came too, and are in no figure


def test_acceptance_is_what_the_server_did(closed: Measured) -> None:
    figures = closed.figures
    assert figures["acceptance_length"] == 2.0  # 1 + 4/4
    assert figures["acceptance_rate"] == pytest.approx(4 / 12)
    assert figures["acceptance_per_position"] == (0.5, 0.5, 0.0)


def test_queue_wait_is_what_the_server_said(closed: Measured) -> None:
    assert closed.figures["queue_wait_ms_mean"] == pytest.approx(250)
    assert closed.figures["queue_wait_ms_p99"] is None  # 12 requests


def test_every_latency_can_be_recomputed_from_the_requests(closed: Measured) -> None:
    rows, figures = closed.requests, closed.figures
    first = np.array([row.first_token_s for row in rows]) - np.array([row.scheduled_s for row in rows])
    whole = np.array([row.last_token_s for row in rows]) - np.array([row.scheduled_s for row in rows])
    gaps = np.concatenate([row.chunk_gap_us for row in rows]) / 1e3
    assert figures["ttft_ms_mean"] == pytest.approx(1e3 * first.mean())
    assert figures["e2e_ms_p90"] == pytest.approx(1e3 * np.percentile(whole, 90))
    assert figures["tpot_ms_p50"] == pytest.approx(1e3 * np.median((whole - first) / 8))
    assert figures["chunk_gap_ms_p90"] == pytest.approx(np.percentile(gaps, 90), abs=2e-3)
    assert figures["chunk_gap_ms_p99"] is None  # 48 gaps
    assert figures["duration_s"] == pytest.approx(max(row.last_token_s or 0 for row in rows) - min(row.sent_s for row in rows))


def test_throughput_from_the_servers_own_send_times(standin: StandIn) -> None:
    """By another road: tokens that the server sent between request 3 and request 11 of 12; a tenth of a second, so in one of many tries."""
    tries = []
    for _ in range(20):
        standin.order(chunk_tokens=[1, 3], chunk_delay_s=0.004, first_delay_s=0.01)
        figures = repeat(standin, Closed(2)).figures
        served = sorted((entry for entry in standin.journal() if "measured" in str(entry["body"])), key=lambda entry: entry["received_s"])
        start, end = served[2]["received_s"], served[10]["received_s"]
        tokens = sum(count for entry in served for when, count in entry["sends"] if start <= when < end)
        tries.append((figures["output_tokens_per_s"] * (end - start) / tokens, figures["steady_s"] / (end - start)))
        if tries[-1] == pytest.approx((1, 1), rel=0.1):
            return
    raise AssertionError(tries)


def test_requests_join_their_record(closed: Measured) -> None:
    rows = closed.requests
    assert [row.index for row in rows] == list(range(12))
    assert {row.record_id for row in rows} == {closed.figures["record_id"]}
    assert [row.prompt_id for row in rows] == [prompt.key[:16] for prompt in prompts(12)]
    assert all(row.chunk_tokens == (1, 3, 1, 3, 1) and row.chunks == 5 and len(row.chunk_gap_us) == 4 for row in rows)
    assert all((row.prompt_tokens, row.completion_tokens, row.status, row.error) == (4, 9, "ok", None) for row in rows)


def test_a_measured_repeat_is_a_valid_record(closed: Measured) -> None:
    record = record_of(closed, FACTS)
    assert Record.model_validate_json(record.model_dump_json()) == record
    assert (record.status, record.pattern, record.concurrency, record.request_rate) == ("ok", "closed", 2, None)
    assert record.started_at.utcoffset() is not None
    assert (record.gpu is None) == (record.energy_j_per_token is None)


def test_an_open_load_reports_its_lag_and_counts_from_the_schedule(standin: StandIn) -> None:
    arrival = poisson(60, 20, seed=1)
    measured = repeat(standin, arrival, 20, max_schedule_lag_ms=10_000)
    rows, figures = measured.requests, measured.figures
    assert measured.error is None
    assert figures["pattern"] == "poisson"
    assert figures["request_rate"] == 60
    assert [row.scheduled_s for row in rows] == pytest.approx(arrival.times_s)
    lag = np.array([row.sent_s - row.scheduled_s for row in rows])
    assert figures["schedule_lag_ms_p99"] == pytest.approx(1e3 * np.percentile(lag, 99))
    from_schedule = [1e3 * ((row.first_token_s or 0) - row.scheduled_s) for row in rows]
    assert figures["ttft_ms_mean"] == pytest.approx(np.mean(from_schedule))


def test_a_late_load_generator_is_refused(standin: StandIn) -> None:
    measured = repeat(standin, poisson(60, 20, seed=1), 20, max_schedule_lag_ms=1e-6)
    assert measured.error is not None
    assert "late at p99" in measured.error
    assert len(measured.requests) == 20
    assert "ttft_ms_mean" not in measured.figures


def test_a_closed_load_has_no_schedule(closed: Measured) -> None:
    assert "schedule_lag_ms_p99" not in closed.figures
    assert [row.scheduled_s for row in closed.requests] == [row.sent_s for row in closed.requests]


def test_output_limits_of_a_trace(standin: StandIn) -> None:
    measured = repeat(standin, Open("trace", (0.0, 0.01, 0.02), (2, 5, 3)), 3, max_schedule_lag_ms=10_000)
    assert [row.completion_tokens for row in measured.requests] == [2, 5, 3]


@pytest.mark.parametrize(
    ("faults", "says"),
    [
        ({"http_500": {"after": 4, "times": 1}}, "1 of 12 requests failed; the first: .*HTTP 500"),
        ({"no_final_usage": {"after": 4, "times": 2}}, "2 of 12 requests failed; the first: .*without usage"),
        ({"metrics_reset": {"after": 5, "times": 1}}, "went backwards|finished requests, 12 were ours"),
        ({"foreign_request": {"after": 5, "times": 1}}, "counted 13 finished requests, 12 were ours"),
        ({"metrics_503": {"after": 5}}, "503"),
        ({"metrics_503": {}}, "503"),
    ],
)
def test_a_spoilt_repeat_keeps_its_requests_and_gives_no_figure(standin: StandIn, faults: dict[str, Any], says: str) -> None:
    standin.order(faults=faults)
    measured = repeat(standin, Closed(2))
    assert measured.error is not None
    assert re.search(says, measured.error), measured.error
    record = record_of(measured, FACTS)
    assert (record.status, record.error) == ("failed", measured.error)
    assert record.num_prompts == 12
    assert (record.output_tokens_per_s, record.ttft_ms_mean, record.acceptance_length) == (None, None, None)
    assert len(measured.requests) in (0, 12)  # none only where it was refused before the load
    assert {row.status for row in measured.requests} <= {"ok", "failed"}


def test_a_lost_request_is_noticed(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specstudy.measure.counters.SETTLE_S", 0.5)
    standin.order(faults={"lost_request": {"after": 5, "times": 1}})
    assert "counted 11 finished requests, 12 were ours" in (repeat(standin, Closed(2)).error or "")


def test_a_resent_request_is_counted_and_not_failed(standin: StandIn) -> None:
    standin.order(faults={"stale_keep_alive": {"after": 6, "times": 1}})
    measured = repeat(standin, Closed(1))
    assert measured.error is None
    assert (measured.figures["completed"], measured.figures["failed"], measured.figures["resent"]) == (12, 0, 1)
    assert [row.resent for row in measured.requests].count(True) == 1


def test_a_server_that_counts_late_spoils_nothing(standin: StandIn) -> None:
    """The last warm-up must not be counted into the measured load."""
    standin.order(count_delay_s=0.3)
    measured = repeat(standin, Closed(2))
    assert measured.error is None


def test_p99_of_the_queue_from_300_requests_on(standin: StandIn) -> None:
    standin.order(chunk_delay_s=0, queue_s=0.4, answer_tokens=1)
    measured = repeat(standin, Closed(16), 300)
    assert measured.error is None
    # The stand-in's buckets are 0.3, 0.5, 1, 5: all 300 lie in (0.3, 0.5], rank 297.
    assert measured.figures["queue_wait_ms_p99"] == pytest.approx(1e3 * (0.3 + 0.2 * 297 / 300))
    assert measured.figures["ttft_ms_p99"] is not None
    assert measured.figures["tpot_ms_mean"] is None
