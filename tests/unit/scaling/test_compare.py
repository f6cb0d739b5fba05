"""Two runs at one load, compared: which two are taken, and that the figures are those of a hand calculation."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.standin.scaling import scaling_run

from specstudy.records import RequestRow
from specstudy.scaling.compare import Comparison, comparison_of, saved
from specstudy.scaling.record import LoadedRuns, Sample, ScalingRun, ScalingStore, load_runs
from specstudy.scaling.scenarios import tried_policy
from specstudy.scaling.views import every, views

STAGES = ((1.0, 60.0), (3.0, 120.0), (1.0, 60.0))
SPECULATION = {"method": "eagle3", "draft": "head", "num_speculative_tokens": 5}


def request(record_id: str, index: int, service_s: float) -> RequestRow:
    """Due each second; first token after 100 ms."""
    fixed: dict[str, Any] = {"prompt_id": "p", "chunks": 0, "chunk_tokens": (), "chunk_gap_us": (), "resent": False, "prompt_tokens": 2, "completion_tokens": 5}
    at = float(index)
    return RequestRow(
        record_id=record_id, index=index, scheduled_s=at, sent_s=at, first_token_s=at + 0.1, last_token_s=at + service_s, status="ok", error=None, **fixed
    )


def run(record_id: str, **more: Any) -> ScalingRun:
    fields: dict[str, Any] = {
        "server": "real",
        "policy": tried_policy("wait-and-slots", 4, 90),
        "target": "t",
        "engine": "vllm",
        "stages": STAGES,
        "num_prompts": 240,
        "completed": 240,
        "replicas_needed": 2,
        "replicas_max": 3,
        "goodput_share": 1.0,
        "conditions": (),
    }
    return scaling_run(record_id, **{**fields, **more})


def kept(folder: Path, *runs: tuple[ScalingRun, float, int]) -> LoadedRuns:
    """Each with the time of a request in s, and with how many replicas 3x ended; one replica until 120 s. All lasts 240 s, or as the stages say."""
    with ScalingStore.opened(folder) as store:
        for one, service_s, replicas in runs:
            lasts_s = int(sum(length for _, length in one.stages))
            rows = [request(one.record_id, index, service_s * (1.1 if index % 2 else 1.0)) for index in range(lasts_s)]
            samples = [
                Sample(one.record_id, float(at), replicas, replicas, replicas if at > 120 else 1, replicas, 0.0, 1.5 * replicas, 0.0) for at in range(lasts_s)
            ]
            store.keep(one, rows, samples)
    return load_runs(folder)


def compared(folder: Path, **more: Any) -> Comparison | None:
    return comparison_of(every(kept(folder, (run("a"), 0.6, 3), (run("b", **{**SPECULATION, **more}), 0.3, 2))))


def test_the_time_of_a_request_is_compared_pair_by_pair(tmp_path: Path) -> None:
    """Every request takes half as long, so the ratio is 0.5, though the requests differ among each other."""
    found = compared(tmp_path)
    assert found is not None
    base, other = found.ends
    assert found.ratio(other) == pytest.approx(0.5)
    assert found.same_instants(other)
    assert len(base.service_s) == 60  # those of the first stage alone


def test_the_last_minute_of_the_high_load_is_what_counts(tmp_path: Path) -> None:
    """Until 120 s one replica was ready; from then to 180 s, where the load falls, three and two."""
    found = compared(tmp_path)
    assert found is not None
    assert [end.replicas for end in found.ends] == [3.0, 2.0]
    assert [end.slots for end in found.ends] == [4.5, 3.0]
    assert "evidence: real" in found.picture()._repr_html_()
    html = found.table()._repr_html_()
    assert "evidence: real" in html
    assert "prompts and arrivals" in html
    assert "0.630" in html  # half of 0.60 s, half of 0.66 s
    told = found.conclusion().markdown
    assert "it saved 1 of 3" in told
    assert "took 0.50 times as long" in told
    assert "no figure here has an interval" in told
    assert "went on" not in told


@pytest.mark.parametrize(
    "more",
    [
        {"server": "stand-in"},
        {"stages": ((1.1, 60.0), (3.3, 120.0), (1.1, 60.0))},
        {"slots": 8},
        {"policy": tried_policy("wait-and-slots", 4, 40)},
        {"sync_period_s": 2},
        {"engine_version": "2"},
        {"seed": 1},
        {"allocation": "another boot"},
        {"host_cpus": 64},
        {"status": "failed", "error": "the API server has ended"},
    ],
    ids=lambda more: next(iter(more)),
)
def test_runs_that_differ_in_more_than_speculation_are_no_pair(tmp_path: Path, more: dict[str, Any]) -> None:
    assert compared(tmp_path, **more) is None


def test_of_runs_that_lasted_differently_the_time_that_all_were_at_3x_is_compared(tmp_path: Path) -> None:
    """The base's 3x is from 60 to 360 s and has 3 replicas to 240 s, 1 after it; the other's from 45 to 225 s. All had 180 s of it: the base to 240 s.

    Of the base's requests every one due until 150 s comes late, so since the step half of them are good there: 90 of 180; over its whole 3x it were 210 of 300.
    """
    loaded = kept(
        tmp_path,
        (run("a", stages=((1.0, 60.0), (3.0, 300.0), (1.0, 60.0))), 0.6, 3),
        (run("b", stages=((1.0, 45.0), (3.0, 180.0), (1.0, 75.0)), **SPECULATION), 0.3, 2),
    )
    samples, requests = loaded.samples.to_pandas(), loaded.requests.to_pandas()
    samples.loc[(samples["record_id"] == "a") & (samples["at_s"] > 240), "ready"] = 1
    slow = (requests["record_id"] == "a") & (requests["scheduled_s"] > 60) & (requests["scheduled_s"] <= 150)
    requests.loc[slow, "first_token_s"] += 5
    tables = {"samples": samples, "requests": requests}
    found = comparison_of(every(replace(loaded, **{name: pa.Table.from_pandas(table, preserve_index=False) for name, table in tables.items()})))
    assert found is not None
    base, other = found.ends
    assert found.high_s == 180
    assert (base.replicas, other.replicas) == (3.0, 2.0)
    assert (len(base.service_s), len(other.service_s)) == (45, 45)
    row = base.row()
    assert (row["within SLO there"], row["within SLO since the step"], row["lost, whole run"]) == ("100.0%", "50.0%", "0 of 240")
    html, told = found.table()._repr_html_(), found.conclusion().markdown
    assert "none: 60, 300, 60; head K=5: 45, 180, 75" in html
    assert "from 120 to 180 s after the step" in html
    assert "prompts and arrivals" not in html
    assert "The run without speculation went on at 3x to 300 s; in its last 60 s there 1.0 replicas were ready" in told
    assert "once in 280 s" in told  # twice 90 s, and 100 s: longer than what is compared
    assert "over its own 180 s at 3x and 75 s after it" in told


def test_prompts_at_other_instants_are_said_to_be_so(tmp_path: Path) -> None:
    loaded = kept(tmp_path, (run("a"), 0.6, 3), (run("b", **SPECULATION), 0.3, 2))
    requests = loaded.requests.to_pandas()
    times = ["scheduled_s", "sent_s", "first_token_s", "last_token_s"]
    requests.loc[requests["record_id"] == "b", times] += 0.25
    found = comparison_of(every(replace(loaded, requests=pa.Table.from_pandas(requests, preserve_index=False))))
    assert found is not None
    assert "the same prompts at other instants" in found.conclusion().markdown


def test_equal_counts_save_nothing_and_more_cost(tmp_path: Path) -> None:
    found = compared(tmp_path)
    assert found is not None
    base, other = found.ends
    assert saved(base, base) == "in whole replicas it saved none."
    assert saved(other, base) == "it cost 1 of 2."
    same = replace(found, others=(found.base,)).conclusion().markdown
    assert "it saved none" in same
    assert "took 1.00 times as long" in same


def test_counts_that_move_are_told_as_means(tmp_path: Path) -> None:
    """In the base's last minute of 3x 3 replicas were ready for 30 s and 2 for 30 s."""
    loaded = kept(tmp_path, (run("a"), 0.6, 3), (run("b", **SPECULATION), 0.3, 2))
    samples = loaded.samples.to_pandas()
    samples.loc[(samples["record_id"] == "a") & (samples["at_s"] > 150), "ready"] = 2
    found = comparison_of(every(replace(loaded, samples=pa.Table.from_pandas(samples, preserve_index=False))))
    assert found is not None
    assert "on average 0.5 fewer with speculation, while replicas came or went" in found.conclusion().markdown


def test_replicas_that_miss_the_slo_are_no_saving(tmp_path: Path) -> None:
    loaded = kept(tmp_path, (run("a"), 0.6, 3), (run("b", **SPECULATION), 0.3, 2))
    requests = loaded.requests.to_pandas()
    requests.loc[(requests["record_id"] == "b") & (requests["index"] % 10 == 0), "first_token_s"] += 5
    found = comparison_of(every(replace(loaded, requests=pa.Table.from_pandas(requests, preserve_index=False))))
    assert found is not None
    assert "With head K=5 90.0% of the requests due in that time met the SLO, fewer than 95%" in found.conclusion().markdown


def test_every_k_is_compared_and_shown(tmp_path: Path) -> None:
    """The newest run of each K, one hidden by none of the others."""
    three = {**SPECULATION, "num_speculative_tokens": 3}
    later = datetime(2026, 11, 30, tzinfo=UTC)
    loaded = kept(tmp_path, (run("a"), 0.6, 3), (run("b", **three), 0.4, 2), (run("c", **SPECULATION), 0.3, 2), (run("d", **three, started_at=later), 0.36, 2))
    assert [view.label for view in views(loaded)] == ["wait-and-slots", "wait-and-slots, head K=5", "wait-and-slots, head K=3"]
    found = comparison_of(every(loaded))
    assert found is not None
    assert [view.run.record_id for view in found.views] == ["a", "d", "c"]
    assert "took 0.60 times as long" in found.conclusion().markdown


def test_the_newest_run_without_speculation_hides_no_pair_of_another_allocation(tmp_path: Path) -> None:
    later = datetime(2026, 11, 30, tzinfo=UTC)
    loaded = kept(tmp_path, (run("a"), 0.6, 3), (run("b", **SPECULATION), 0.3, 2), (run("c", allocation="another boot", started_at=later), 0.6, 3))
    found = comparison_of(every(loaded))
    assert found is not None
    assert [view.run.record_id for view in found.views] == ["a", "b"]


def test_a_run_without_samples_is_no_pair(tmp_path: Path) -> None:
    """The API server or Prometheus was away for the last minute of 3x: nothing is known of its replicas."""
    loaded = kept(tmp_path, (run("a"), 0.6, 3), (run("b", **SPECULATION), 0.3, 2))
    assert comparison_of(every(loaded)) is not None
    table = loaded.samples.to_pandas()
    late = (table["record_id"] == "b") & (table["at_s"] > 100)
    for spoilt in (table[~late], table.assign(slots_in_use=table["slots_in_use"].where(~late))):
        assert comparison_of(every(replace(loaded, samples=pa.Table.from_pandas(spoilt, preserve_index=False)))) is None
