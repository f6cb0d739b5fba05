"""Scaling runs: the store, the kept ones, and what is drawn from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from tests.standin.scaling import made, scaling_run

from specstudy.errors import RecordError, StoreBusyError
from specstudy.figures import Picture, Table, Text
from specstudy.records import RequestRow
from specstudy.scaling import pictures
from specstudy.scaling.outcomes import outcomes
from specstudy.scaling.policy import HpaPolicy
from specstudy.scaling.record import Sample, ScalingRun, ScalingStore, load_runs
from specstudy.scaling.replay import replay
from specstudy.scaling.scenarios import tried_policy
from specstudy.scaling.views import RunView, of_policy, views

RESULTS = Path(__file__).parents[3] / "data" / "results"
KEPT = sorted(path.parent for path in RESULTS.glob("*/08_hpa_scaling.jsonl"))

MICROSECOND_S = 1e-6  # two times that are each kept to the nearest one are at most so far off together


FROM_NEEDED = ("enough_ready_s", "replicas_low_while_high")


def run(record_id: str = "a", policy: HpaPolicy | None = None, **more: Any) -> ScalingRun:
    return scaling_run(record_id, **({} if policy is None else {"policy": policy}), **more)


def test_what_is_kept_is_read_again(tmp_path: Path) -> None:
    made(tmp_path)
    loaded = made(tmp_path, "b")
    assert [one.record_id for one in loaded.runs] == ["a", "b"]
    assert loaded.runs[0].policy == tried_policy("wait-and-slots", 4, 5)
    assert (loaded.requests.num_rows, loaded.samples.num_rows) == (2 * 2400, 2 * 240)
    assert loaded.skipped == ()


def test_a_line_that_is_cut_off_is_named_and_the_rest_stays(tmp_path: Path) -> None:
    made(tmp_path)
    with (tmp_path / "08_hpa_scaling.jsonl").open("a") as out:
        out.write('{"record_id": "b", "prof')
    loaded = made(tmp_path, "c")
    assert [one.record_id for one in loaded.runs] == ["a", "c"]
    assert [one.number for one in loaded.skipped] == [2]


def test_two_runs_at_once_are_refused(tmp_path: Path) -> None:
    with ScalingStore.opened(tmp_path), pytest.raises(StoreBusyError), ScalingStore.opened(tmp_path):
        pass


def test_a_broken_samples_file_is_an_error(tmp_path: Path) -> None:
    made(tmp_path)
    (tmp_path / "08_hpa_scaling.samples.parquet").write_bytes(b"no parquet")
    with pytest.raises(RecordError, match="samples"):
        load_runs(tmp_path)


def test_a_failed_run_says_why() -> None:
    with pytest.raises(ValueError, match="a failed run says why"):
        run(status="failed")


def test_percentiles_rest_on_300_requests(tmp_path: Path) -> None:
    """2,400 requests: windows of 300, 100 apart, are 22. In the first 300 all take 50 ms; at 15/s the 300 slow ones fill windows of their own."""
    (view,) = views(made(tmp_path))
    times, p99 = view.ttft_percentile(99)
    assert len(times) == 22
    assert p99[0] == pytest.approx(50)
    assert p99.max() == pytest.approx(2000)
    _, arrived, good = view.goodput()
    assert arrived[2] == pytest.approx(5)
    assert good[13] == 0  # 65 to 70 s
    assert good[17] == pytest.approx(15, abs=0.2)


def test_only_the_newest_good_run_of_a_policy_is_shown(tmp_path: Path) -> None:
    made(tmp_path)
    later = made(tmp_path, "b", started_at=datetime(2026, 11, 30, tzinfo=UTC))
    assert [view.run.record_id for view in views(later)] == ["b"]


def test_of_runs_that_lasted_differently_the_same_time_at_3x_is_compared(tmp_path: Path) -> None:
    """The first 20 s of 3x are slow: of 120 s at 15/s 1,500 of 1,800 requests are good. A run said to have 60 s at 3x leaves 600 of 900 of each."""
    alone = pictures.policies_table(views(made(tmp_path / "alone")))
    assert isinstance(alone, Table)
    assert list(alone.frame["within SLO"]) == ["83.3%"]
    made(tmp_path / "both")
    short = {"stages": ((5.0, 60.0), (15.0, 60.0), (5.0, 120.0)), "policy": tried_policy("wait-alone", 4, 5)}
    both = pictures.policies_table(views(made(tmp_path / "both", "b", **short)))
    assert isinstance(both, Table)
    assert list(both.frame["within SLO"]) == ["66.7%", "66.7%"]
    assert list(both.frame["1x, 3x, 1x for (s)"]) == ["60, 120, 60", "60, 60, 120"]
    assert "the first 60 s at 3x, which all runs have" in both.note


def test_a_lost_request_is_never_within_the_slo(tmp_path: Path) -> None:
    """Its first token came, its last one didn't."""
    loaded = made(tmp_path)
    requests = loaded.requests.to_pandas()
    requests.loc[requests["index"] == 0, ["status", "error"]] = ["failed", "lost"]
    (view,) = views(replace(loaded, requests=pa.Table.from_pandas(requests, preserve_index=False)))
    assert view.good_share(0, 0.1) == 0
    assert view.good_share(-2, -1) is None


def test_facts_name_what_never_came() -> None:
    nobody = pd.DataFrame({"scheduled_s": [], "first_token_s": [], "status": []})
    told = pictures.run_facts(RunView(run(replicas_max=1, replicas_needed=2), nobody, pd.DataFrame()))
    assert "No scale-out decided; 2 replicas, the fewest that suffice, ready never; latency good again never; at most 1 replicas" in told
    assert "not back at the minimum 60 s after the load fell; 0 of 2 requests lost." in told


Draw = Callable[[list[Any]], Any]


@pytest.mark.parametrize(
    ("draw", "kind"),
    [
        (lambda found: pictures.timeline(of_policy(found, "wait-and-slots")), Picture),
        (pictures.policies_figure, Picture),
        (pictures.policies_table, Table),
        (lambda found: pictures.conclusion(of_policy(found, "wait-and-slots")), Text),
    ],
    ids=["timeline", "policies", "table", "conclusion"],
)
def test_everything_can_be_drawn_and_says_that_it_is_of_stand_ins(tmp_path: Path, draw: Draw, kind: type[object]) -> None:
    shown = draw(views(made(tmp_path)))
    assert isinstance(shown, kind)
    text = shown.markdown if isinstance(shown, Text) else shown._repr_html_()
    assert "stand-in" in text
    assert isinstance(draw([]), Text)


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({}, "holds"),
        ({"decided_s": 31.0}, "late"),
        ({"replicas_low_while_high": 1}, "scaled down below the need"),
        ({"replicas_low_while_high": None}, "never had enough"),
        ({"replicas_max": 5}, "overshoots"),
        ({"back_to_min_s": None}, "not back in time"),
        ({"failed": 1, "completed": 1}, "lost requests"),
        ({"replica_restarts": 1}, "replicas ended by themselves"),
        ({"decided_s": 45.0}, "late"),
        ({"decided_s": 45.0, "enough_ready_s": 1.0}, "holds"),  # what was needed was there before
        ({"decided_s": None, "enough_ready_s": 1.0}, "holds"),
    ],
)
def test_a_verdict_names_what_failed(more: dict[str, Any], wanted: str) -> None:
    good = {"decided_s": 10.0, "replicas_needed": 2, "replicas_low_while_high": 2, "replicas_max": 4, "back_to_min_s": 100.0}
    assert pictures.verdict(run(**{**good, **more})) == wanted


@pytest.mark.parametrize("folder", KEPT, ids=[folder.name for folder in KEPT])
def test_the_kept_runs_are_whole_and_their_figures_found_again(folder: Path) -> None:
    loaded = load_runs(folder)
    assert loaded.skipped == ()
    requests, samples = loaded.requests.to_pylist(), loaded.samples.to_pylist()
    for one in loaded.runs:
        own = [RequestRow.model_validate(each) for each in requests if each["record_id"] == one.record_id]
        seen = [Sample(**each) for each in samples if each["record_id"] == one.record_id]
        assert (one.profile, len(own)) == (folder.name, one.num_prompts)
        assert sum(each.status == "ok" for each in own) == one.completed
        found = outcomes(own, seen, one.stages, slots=one.slots, slo_ttft_ms=one.slo_ttft_ms, minimum=one.policy.min_replicas)
        if one.service_full_s_mean is None:  # older than that field, and than how the need is reckoned
            found = {name: value for name, value in found.items() if name not in ("service_full_s_mean", "replicas_needed", *FROM_NEEDED)}
        if one.replica_restarts is None:  # older than that field, and than how a lull is told from a recovery
            del found["recovered_s"]
        assert {name: getattr(one, name) for name in found} == pytest.approx(found, abs=MICROSECOND_S, nan_ok=False)
        assert not any(word.startswith("/") for word in one.server_argv)


@pytest.mark.parametrize("folder", KEPT, ids=[folder.name for folder in KEPT])
def test_the_algorithm_decides_as_the_controller_of_the_kept_runs_did(folder: Path) -> None:
    loaded = load_runs(folder)
    samples = loaded.samples.to_pylist()
    passes = []
    for one in loaded.runs:
        own = [Sample(**each) for each in samples if each["record_id"] == one.record_id]
        passes += replay(one.policy, own, "v1_20", one.sync_period_s)
    assert len(passes) > 20 * len(loaded.runs)
    agreed = sum(one.ours == one.theirs for one in passes) / len(passes)
    assert agreed >= 0.97


@pytest.mark.parametrize("name", ["samples", "requests"])
def test_a_file_to_which_no_run_can_be_added_is_refused_before_the_run(name: str, tmp_path: Path) -> None:
    """Else the run would be lost when it is over."""
    path = tmp_path / f"08_hpa_scaling.{name}.parquet"
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(RecordError, match=path.name), ScalingStore.opened(tmp_path):
        pytest.fail("it was opened")
    assert path.read_bytes() == b"PAR1 and no more"


def test_a_conclusion_says_what_the_floor_allows_for(tmp_path: Path) -> None:
    """2.8 of 4 slots are 70 %; 1.4 the same over 2."""
    for slowdown, says in (
        (1.0, "2.8 of 4 slots in use a replica, allows for no slowdown"),
        (2.0, "1.4 of 4 slots in use a replica, allows for a slowdown of 2.00"),
    ):
        (view,) = views(made(tmp_path / str(slowdown), policy=tried_policy("wait-and-slots", 4, 5, slowdown)))
        assert says in pictures.conclusion(view).markdown
    (view,) = views(made(tmp_path / "none", policy=tried_policy("wait-alone", 4, 5)))
    assert "floor" not in pictures.conclusion(view).markdown
