"""The recording rules, run by promtool over series whose figures are worked out by hand.

Samples come every 5 s. `a+bxn` starts at a and adds b each time, n times; `_` is a scrape without a sample; `stale` is
what Prometheus writes when a target goes away.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from specstudy.deploy.rules import rule_groups
from specstudy.scaling.binaries import Binaries

WAIT_TARGET_MS = 500
QUEUE = "vllm:request_queue_time_seconds"
Series = dict[str, str]


def pod(name: str, **values: str) -> Series:
    """Series of one pod: up, running, waiting, sum, count, and le_… for buckets."""
    names = {
        "up": "up",
        "running": "vllm:num_requests_running",
        "waiting": "vllm:num_requests_waiting",
        "sum": f"{QUEUE}_sum",
        "count": f"{QUEUE}_count",
        "accepted": "vllm:spec_decode_num_accepted_tokens_total",
        "drafts": "vllm:spec_decode_num_drafts_total",
    }
    labels = f'job="vllm", namespace="vllm", pod="{name}"'
    found = {}
    for key, value in values.items():
        if key.startswith("le_"):
            found[f'{QUEUE}_bucket{{{labels}, le="{key.removeprefix("le_").replace("_", ".").replace("inf", "+Inf")}"}}'] = value
        else:
            found[f"{names[key]}{{{labels}}}"] = value
    return found


IDLE = {"up": "1x60", "running": "0x60", "waiting": "0x60", "sum": "0x60", "count": "0x60"}


def check(binaries: Binaries, folder: Path, series: Series, at: str, expected: dict[str, float | None], alerts: dict[str, bool] | None = None) -> None:
    """Raise with promtool's own words unless each expression has this value at this time; None: no series at all."""
    (folder / "rules.yaml").write_text(yaml.safe_dump(rule_groups(WAIT_TARGET_MS)))
    tests: dict[str, Any] = {
        "interval": "5s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {"expr": f"round(sum({name}), 0.001)", "eval_time": at, "exp_samples": [] if value is None else [{"labels": "{}", "value": value}]}
            for name, value in expected.items()
        ],
    }
    for name, fires in (alerts or {}).items():
        count = f'count(ALERTS{{alertname="{name}", alertstate="firing"}}) or vector(0)'
        tests["promql_expr_test"].append({"expr": count, "eval_time": at, "exp_samples": [{"labels": "{}", "value": 1 if fires else 0}]})
    content = {"rule_files": ["rules.yaml"], "evaluation_interval": "5s", "tests": [tests]}
    (folder / "tests.yaml").write_text(yaml.safe_dump(content))
    done = subprocess.run([binaries.path("promtool"), "test", "rules", "tests.yaml"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_accepts_the_rules(binaries: Binaries, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rule_groups(WAIT_TARGET_MS)))
    done = subprocess.run(
        [binaries.path("promtool"), "check", "rules", "--lint=all", "--lint-fatal", "rules.yaml"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_expectation_would_be_noticed(binaries: Binaries, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="FAILED"):
        check(binaries, tmp_path, pod("a", **IDLE), "2m", {"queue_wait_ms": 1})


def test_idle_is_zero(binaries: Binaries, tmp_path: Path) -> None:
    check(binaries, tmp_path, pod("a", **IDLE), "2m", {"queue_wait_ms": 0, "slots_in_use": 0, "slots_in_use_per_replica": 0})


def test_no_pod_is_no_series(binaries: Binaries, tmp_path: Path) -> None:
    check(binaries, tmp_path, {}, "5m", {"queue_wait_ms": None, "slots_in_use": None}, {"VllmNotScraped": True})


def test_a_pod_that_cannot_be_scraped_is_no_series(binaries: Binaries, tmp_path: Path) -> None:
    series = pod("a", up="1x10 0x50", running="3x10 _x50", waiting="0x10 _x50", sum="0+1x10 _x50", count="0+2x10 _x50")
    check(binaries, tmp_path, series, "45s", {"queue_wait_ms": 500, "slots_in_use": 3})
    check(binaries, tmp_path, series, "1m", {"queue_wait_ms": None, "slots_in_use": None})
    check(binaries, tmp_path, series, "4m", {}, {"VllmNotScraped": True, "VllmPodNotScraped": True})


def test_requests_that_wait_while_none_finishes_are_no_zero(binaries: Binaries, tmp_path: Path) -> None:
    series = pod("a", **{**IDLE, "running": "4x60", "waiting": "2x60"})
    check(binaries, tmp_path, series, "90s", {"queue_wait_ms": None, "slots_in_use": 4}, {"VllmQueueWaitUnknown": False})
    check(binaries, tmp_path, series, "4m", {}, {"VllmQueueWaitUnknown": True, "VllmNotScraped": False})


def test_the_mean_is_over_all_pods_requests_and_not_over_pods(binaries: Binaries, tmp_path: Path) -> None:
    """In each 5 s pod a finishes 9 requests that waited 0.9 s together, pod b one that waited 3.1 s: 4 s over 10 requests."""
    series = pod("a", **{**IDLE, "sum": "0+0.9x60", "count": "0+9x60"}) | pod("b", **{**IDLE, "sum": "0+3.1x60", "count": "0+1x60"})
    check(binaries, tmp_path, series, "2m", {"queue_wait_ms": 400})


def test_the_figure_follows_within_the_window(binaries: Binaries, tmp_path: Path) -> None:
    """No wait for a minute, then 2 s each: at 75 s the window holds requests of the second kind alone."""
    series = pod("a", **{**IDLE, "sum": "0x12 2+2x20", "count": "0+1x40"})
    check(binaries, tmp_path, series, "55s", {"queue_wait_ms": 0})
    check(binaries, tmp_path, series, "80s", {"queue_wait_ms": 2000})


def test_a_pod_that_has_gone_counts_no_more(binaries: Binaries, tmp_path: Path) -> None:
    """Pod b waits 5 s a request and goes away at 60 s; its samples still lie in the window at 65 s."""
    gone = "stale"
    series = pod("a", **{**IDLE, "running": "1x60", "sum": "0+0.1x60", "count": "0+1x60"})
    series |= pod("b", up=f"1x11 {gone}", running=f"8x11 {gone}", waiting=f"3x11 {gone}", sum=f"0+5x11 {gone}", count=f"0+1x11 {gone}")
    check(binaries, tmp_path, series, "55s", {"queue_wait_ms": 2550, "slots_in_use": 9})
    check(binaries, tmp_path, series, "65s", {"queue_wait_ms": 100, "slots_in_use": 1, "vllm:requests_waiting": 0})


def test_a_pod_that_stops_answering_is_taken_to_be_as_busy_as_the_others(binaries: Binaries, tmp_path: Path) -> None:
    """Three pods with 6 requests each, one of them not scraped: 12 known of two, so 18 of three."""
    series = pod("a", **{**IDLE, "running": "6x60"}) | pod("b", **{**IDLE, "running": "6x60"}) | pod("c", up="0x60")
    check(binaries, tmp_path, series, "2m", {"slots_in_use": 18, "slots_in_use_per_replica": 6})
    check(binaries, tmp_path, series, "4m", {}, {"VllmPodNotScraped": True, "VllmNotScraped": False})


def test_a_restarted_server_counts_from_nothing(binaries: Binaries, tmp_path: Path) -> None:
    series = pod("a", **{**IDLE, "sum": "0+1x23 0+1x36", "count": "0+2x23 0+2x36"})
    check(binaries, tmp_path, series, "2m5s", {"queue_wait_ms": 500})


FINE = {"le_0_001": "0x60", "le_0_1": "0+5x60", "le_0_2": "0+10x60", "le_inf": "0+10x60"}
COARSE = {"le_0_3": "0+10x60", "le_0_5": "0+10x60", "le_inf": "0+10x60"}


def test_a_quantile_below_300_ms_is_seen(binaries: Binaries, tmp_path: Path) -> None:
    """Half within 100 ms, the rest within 200: the median is 100 ms and, by linear interpolation, the 90th percentile 180."""
    busy = {**IDLE, "sum": "0+1x60", "count": "0+10x60"}
    check(binaries, tmp_path, pod("a", **busy, **FINE), "2m", {"queue_wait_p50_ms": 100, "queue_wait_p90_ms": 180})


def test_coarse_buckets_give_no_quantile(binaries: Binaries, tmp_path: Path) -> None:
    """vLLM's own buckets begin at 0.3 s: 10 requests that waited 1 ms each would be given as 270 ms."""
    busy = {**IDLE, "sum": "0+0.01x60", "count": "0+10x60"}
    check(binaries, tmp_path, pod("a", **busy, **COARSE), "2m", {"queue_wait_ms": 1, "queue_wait_p90_ms": None})


def test_an_idle_services_quantile_is_zero_and_a_stuck_ones_unknown(binaries: Binaries, tmp_path: Path) -> None:
    still = dict.fromkeys(FINE, "7x60")
    check(binaries, tmp_path, pod("a", **IDLE, **still), "2m", {"queue_wait_p90_ms": 0})
    check(binaries, tmp_path, pod("a", **{**IDLE, "waiting": "1x60"}, **still), "2m", {"queue_wait_p90_ms": None})


def test_the_acceptance_length_has_the_bonus_token(binaries: Binaries, tmp_path: Path) -> None:
    """20 drafts with 30 accepted tokens: 1 + 1.5. Without speculation there is no such figure."""
    check(binaries, tmp_path, pod("a", **IDLE, accepted="0+30x60", drafts="0+20x60"), "4m", {"vllm:acceptance_length": 2.5})
    check(binaries, tmp_path, pod("a", **IDLE), "4m", {"vllm:acceptance_length": None})


def test_a_long_wait_is_told_after_five_minutes(binaries: Binaries, tmp_path: Path) -> None:
    series = pod("a", up="1x120", running="4x120", waiting="9x120", sum="0+2x120", count="0+1x120")
    check(binaries, tmp_path, series, "4m", {"queue_wait_ms": 2000}, {"VllmQueueWaitHigh": False})
    check(binaries, tmp_path, series, "6m", {}, {"VllmQueueWaitHigh": True})
