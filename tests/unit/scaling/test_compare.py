"""Two runs at one load, compared: which two are taken, and that the figures are those of a hand calculation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.standin.scaling import scaling_run

from specstudy.records import RequestRow
from specstudy.scaling.compare import Pair, pair_of
from specstudy.scaling.record import LoadedRuns, Sample, ScalingRun, ScalingStore, load_runs
from specstudy.scaling.scenarios import tried_policy
from specstudy.scaling.views import views

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
    """Each with the time of a request in s, and with how many replicas the last minute of 3x ran."""
    with ScalingStore.opened(folder) as store:
        for one, service_s, replicas in runs:
            rows = [request(one.record_id, index, service_s * (1.1 if index % 2 else 1.0)) for index in range(240)]
            samples = [
                Sample(one.record_id, float(at), replicas, replicas, replicas if at > 120 else 1, replicas, 0.0, 1.5 * replicas, 0.0) for at in range(240)
            ]
            store.keep(one, rows, samples)
    return load_runs(folder)


def pair(folder: Path, **more: Any) -> Pair | None:
    return pair_of(views(kept(folder, (run("a"), 0.6, 3), (run("b", **{**SPECULATION, **more}), 0.3, 2))))


def test_the_time_of_a_request_is_compared_pair_by_pair(tmp_path: Path) -> None:
    """Every request takes half as long, so the ratio is 0.5, though the requests differ among each other."""
    found = pair(tmp_path)
    assert found is not None
    assert found.ratio == pytest.approx(0.5)
    assert len(found.base.service_s) == 60  # those of the first stage alone


def test_the_last_minute_of_the_high_load_is_what_counts(tmp_path: Path) -> None:
    """Until 120 s one replica was ready; from then to 180 s, where the load falls, three and two."""
    found = pair(tmp_path)
    assert found is not None
    assert (found.base.replicas, found.other.replicas) == (3.0, 2.0)
    assert (found.base.slots, found.other.slots) == (4.5, 3.0)
    html = found.table()._repr_html_()
    assert "evidence: real" in html
    assert "0.630" in html  # half of 0.60 s, half of 0.66 s
    told = found.conclusion().markdown
    assert "it saved 1 of 3" in told
    assert "took 0.50 times as long" in told
    assert "no figure here has an interval" in told


@pytest.mark.parametrize(
    "more",
    [
        {"server": "stand-in"},
        {"stages": ((1.1, 60.0), (3.3, 120.0), (1.1, 60.0))},
        {"slots": 8},
        {"policy": tried_policy("wait-and-slots", 4, 40)},
        {"engine_version": "2"},
        {"seed": 1},
        {"allocation": "another boot"},
        {"host_cpus": 64},
    ],
    ids=lambda more: next(iter(more)),
)
def test_runs_that_differ_in_more_than_speculation_are_no_pair(tmp_path: Path, more: dict[str, Any]) -> None:
    assert pair(tmp_path, **more) is None


def test_another_length_of_the_high_load_is_no_hindrance(tmp_path: Path) -> None:
    assert pair(tmp_path, stages=((1.0, 60.0), (3.0, 125.0), (1.0, 55.0))) is not None


def test_equal_counts_save_nothing(tmp_path: Path) -> None:
    found = pair(tmp_path)
    assert found is not None
    same = replace(found, other=found.base)
    assert "it saved none" in same.conclusion().markdown
    assert "took 1.00 times as long" in same.conclusion().markdown


def test_a_run_without_samples_is_no_pair(tmp_path: Path) -> None:
    """The API server or Prometheus was away for the last minute of 3x: nothing is known of its replicas."""
    loaded = kept(tmp_path, (run("a"), 0.6, 3), (run("b", **SPECULATION), 0.3, 2))
    assert pair_of(views(loaded)) is not None
    table = loaded.samples.to_pandas()
    late = (table["record_id"] == "b") & (table["at_s"] > 100)
    for spoilt in (table[~late], table.assign(slots_in_use=table["slots_in_use"].where(~late))):
        assert pair_of(views(replace(loaded, samples=pa.Table.from_pandas(spoilt, preserve_index=False)))) is None
