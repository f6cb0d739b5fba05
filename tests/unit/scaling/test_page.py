"""Chapter 08's page: without runs it says so, and every part of it can be shown."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.standin.scaling import made, row, sample, scaling_run
from typer.testing import CliRunner

from specstudy.book.lab import Wanted, prepare
from specstudy.book.lab_vllm import recorded_slowdown, usual_rate
from specstudy.book.saving import saving
from specstudy.book.scaling import Scaling, open_scaling
from specstudy.catalog import load_profile, recorded_dir
from specstudy.cli import app
from specstudy.errors import ConfigError
from specstudy.figures import Picture, Stack, Table, Text
from specstudy.records import load_records
from specstudy.scaling.pictures import conclusion
from specstudy.scaling.record import ScalingStore, load_runs
from specstudy.scaling.scenarios import tried_policy
from specstudy.scaling.views import AS_DEPLOYED, every
from specstudy.serving.vllm import vllm_version

PARTS = (
    "timeline",
    "conclusion",
    "policies_figure",
    "policies_table",
    "slowdown_figure",
    "slowdown_runs",
    "slowdown_study",
    "beside_table",
    "beside_conclusion",
    "step_table",
    "step_conclusion",
    "cold_start_figure",
    "overshoot_figure",
    "cold_start_conclusion",
    "fleet_table",
    "measured_saving",
    "measured_saving_conclusion",
)
NEEDS_VLLM = pytest.mark.skipif(vllm_version() is None, reason="the command line is that of the vLLM installed here")


def test_without_runs_the_page_says_so(tmp_path: Path) -> None:
    page = open_scaling("cpu-smollm2", results_dir=str(tmp_path))
    assert "specstudy lab run" in page.note.markdown
    assert all(isinstance(getattr(page, part)(), Text) for part in PARTS)


def test_an_unknown_mode_or_profile_is_refused() -> None:
    with pytest.raises(ConfigError, match="recorded"):
        open_scaling(mode="dead")
    with pytest.raises(ConfigError, match="known"):
        open_scaling("nobody")


def test_a_saving_is_told_with_its_verdict() -> None:
    """From the recorded chapter 04 on an H200: the table's counts are those of the sentence, and whether it is a gain comes from the records."""
    found = saving("h200-smollm2", recorded_dir())
    assert found is not None
    told = found.conclusion().markdown
    last = found.frame.iloc[-1]
    base, best = found.best.baseline.variant.label, found.best.cell.variant.label
    assert f"{last[base]:.0f} replicas without, {last[best]:.0f} with" in told
    assert found.best.verdict in told
    assert "simulated" in found.table()._repr_html_()


def test_without_a_comparison_there_is_no_saving(tmp_path: Path) -> None:
    assert saving("h200-smollm2", tmp_path) is None


def test_the_lab_of_a_cpu_runs_stand_ins_with_the_shipped_rules() -> None:
    made = prepare(Wanted())
    assert made.replica.server == "stand-in"
    assert made.spec.command[:3] == ("python", "-m", "specstudy.scaling.standin")
    assert made.spec.pre_stop[1].endswith("drain.py")
    assert made.load.stages == ((3.4, 60), (pytest.approx(10.2), 180), (3.4, 180))
    recorded = {rule.get("record") for group in made.spec.rules["groups"] for rule in group["rules"]}
    assert {"queue_wait_ms", "slots_in_use"} <= recorded


def test_a_lab_with_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match="policy"):
        prepare(Wanted(policy="hope"))


def beside_the_recorded(folder: Path, **more: Any) -> Scaling:
    """The CPU profile's runs, and the newest of them with the shipped policy as if vLLM had served it under a GPU's profile, with these fields changed."""
    recorded = load_runs(recorded_dir() / "cpu-smollm2")
    first = next(one for one in reversed(recorded.runs) if one.policy.name == "wait-and-slots")
    real = first.model_copy(update={"server": "real", "profile": "h200-smollm2", **more})
    for profile, runs in (("cpu-smollm2", recorded.runs), ("h200-smollm2", (real,))):
        (folder / profile).mkdir()
        for suffix in ("requests", "samples"):
            name = f"08_hpa_scaling.{suffix}.parquet"
            (folder / profile / name).symlink_to(recorded_dir() / "cpu-smollm2" / name)
        (folder / profile / "08_hpa_scaling.jsonl").write_text("".join(one.model_dump_json() + "\n" for one in runs))
    return open_scaling(results_dir=str(folder))


def test_real_runs_come_first_and_stand_ins_keep_their_own_badge(tmp_path: Path) -> None:
    """The timeline is of the real run, the policies of the others."""
    page = beside_the_recorded(tmp_path)
    assert page.profile == "h200-smollm2"
    note = page.note.markdown
    assert 0 < note.index("evidence: real") < note.index("evidence: stand-in")
    timeline, policies, table = page.timeline(), page.policies_figure(), page.policies_table()
    assert isinstance(timeline, Picture)
    assert isinstance(policies, Picture)
    assert isinstance(table, Table)
    assert (timeline.evidence, policies.evidence, table.evidence) == ("real", "stand-in", "stand-in")
    assert "wait-alone" in set(table.frame["policy"])
    assert isinstance(page.measured_saving(), Text)  # one run is no pair


def test_a_run_with_speculation_alone_is_shown_as_one(tmp_path: Path) -> None:
    page = beside_the_recorded(tmp_path, method="eagle3", draft="head", num_speculative_tokens=5)
    assert "vLLM replicas with head K=5" in page.conclusion().markdown
    assert isinstance(page.measured_saving(), Text)
    (tmp_path / "cpu-smollm2" / "08_hpa_scaling.jsonl").unlink()
    alone = open_scaling(results_dir=str(tmp_path))
    assert "evidence: real" in alone.note.markdown
    assert isinstance(alone.policies_table(), Text)  # it tells no policies apart


def test_where_all_real_runs_failed_it_says_so_and_shows_the_stand_ins(tmp_path: Path) -> None:
    page = beside_the_recorded(tmp_path, status="failed", error="the API server has ended", method="eagle3", draft="head", num_speculative_tokens=5)
    assert "**Failed:** wait-and-slots, head K=5: the API server has ended" in page.note.markdown
    timeline = page.timeline()
    assert isinstance(timeline, Picture)
    assert timeline.evidence == "stand-in"


def test_a_run_on_a_cluster_of_ones_own_is_drawn_and_no_machine_is_named(tmp_path: Path) -> None:
    """Its record states the machine that sent the load, which the replicas don't share."""
    policy = tried_policy("wait-and-slots", 4, 90).model_copy(update={"name": "cluster"})
    page = beside_the_recorded(tmp_path, policy=policy, server_argv=AS_DEPLOYED, kubernetes_version="1.34.1")
    timeline = page.timeline()
    assert isinstance(timeline, Picture)
    assert timeline.evidence == "real"
    assert "A cluster of Kubernetes 1.34.1" in page.note.markdown.split("Other policies were tried")[0]
    assert "on one machine" not in page.note.markdown.split("Other policies were tried")[0]
    assert "share" not in page.conclusion().markdown


def test_a_cluster_that_speculates_is_recorded_as_such_or_refused() -> None:
    words = ["lab", "cluster", "--kubeconfig", "none", "--url", "http://127.0.0.1:1", "--prometheus", "http://127.0.0.1:1", "--slots", "4"]
    found = CliRunner().invoke(app, [*words, "--engine-version", "0.26.0", "--method", "eagle3"])
    assert isinstance(found.exception, ConfigError)
    assert found.exception.field.endswith("num_speculative_tokens")


@NEEDS_VLLM
def test_the_lab_runs_vllm_on_a_cpu_when_asked() -> None:
    made = prepare(Wanted(server="real", rate=1, max_replicas=2))
    assert (made.replica.server, made.replica.engine, made.replica.slots) == ("real", "vllm", 4)
    command = made.spec.command
    assert command[command.index("--max-num-seqs") + 1] == "4"
    assert "--gpu-memory-utilization" not in command
    assert made.spec.env["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert made.policy.max_replicas == 2
    assert made.label == "wait-and-slots"


@NEEDS_VLLM
def test_replicas_on_a_gpu_get_a_slice_of_it_and_the_policy_knows_their_start() -> None:
    """Nine of them beside each other: at 5 % of the memory each, and none asks for more than is free."""
    made = prepare(Wanted("h200-smollm2", rate=1))
    command = made.spec.command
    assert float(command[command.index("--gpu-memory-utilization") + 1]) * 9 < 1
    assert "--kv-cache-memory-bytes" in command
    assert made.policy.up.limits[0].period_s == 280  # twice 90 s, and 100 s
    assert made.spec.start_s > 270  # a start counts as failed long after the policy expects it to be over


def test_stand_ins_have_no_speculation() -> None:
    with pytest.raises(ConfigError, match="--server real"):
        prepare(Wanted(method="eagle3", draft="smollm2-135m-eagle3", num_speculative_tokens=3))


def test_a_maximum_below_the_minimum_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_replicas"):
        prepare(Wanted(max_replicas=0))


def test_a_load_without_an_end_or_without_a_request_is_refused() -> None:
    for rate in (float("inf"), 1e-9):
        with pytest.raises(ConfigError, match="stages"):
            prepare(Wanted(rate=rate))
    for word, value in (("--rate", "inf"), ("--rate", "1e9"), ("--high-s", "1e9"), ("--seed", str(2**32)), ("--slowdown", "0.9")):
        assert CliRunner().invoke(app, ["lab", "run", word, value]).exit_code == 2


@NEEDS_VLLM
def test_a_draft_of_another_method_or_target_is_refused_before_anything_starts() -> None:
    for draft, said in (("smollm2-135m-peagle", "this one is for peagle of smollm2"), ("llama-3.3-70b-redhat-eagle3", "of llama-3.3-70b")):
        with pytest.raises(ConfigError, match=f"draft: got '{draft}'; a draft for eagle3 of smollm2-135m-instruct; .*{said}"):
            prepare(Wanted(server="real", rate=1, method="eagle3", draft=draft, num_speculative_tokens=3))


def test_a_slowdown_paces_the_stand_ins_and_divides_the_floor() -> None:
    made = prepare(Wanted(slowdown=2.0))
    assert made.spec.command[-2:] == ("--slowdown", "2")
    assert made.policy.floor_slots == pytest.approx(0.7 * 4 / 2)
    linear = prepare(Wanted(slowdown=2.0, policy="floor-as-if-linear"))
    assert (linear.spec.command, linear.policy.floor_slots) == (made.spec.command, pytest.approx(2.8))
    assert "--slowdown" not in prepare(Wanted()).spec.command


def test_a_recorded_slowdown_is_the_largest_of_any_method(tmp_path: Path) -> None:
    """So that two methods run under one policy: at least what the kept chapter 04's baseline has. Nothing recorded, nothing allowed for."""
    profile = load_profile("h200-smollm2")
    records = [one for one in load_records(recorded_dir() / profile.name / "04_eagle3.jsonl").records if one.method == "none" and one.status == "ok"]
    at = {load: np.mean([one.tpot_ms_mean for one in records if (one.workload, one.concurrency) == ("chat", load)]) for load in (1, 8)}
    assert recorded_slowdown(profile, 64) >= at[8] / at[1] > 1
    assert recorded_slowdown(profile, 64, results=tmp_path) == 1


def test_a_draft_without_a_method_is_refused() -> None:
    """It would have been a run of stand-ins that hold none."""
    with pytest.raises(ConfigError, match="draft: got 'smollm2-135m-eagle3'; none with stand-ins"):
        prepare(Wanted(draft="smollm2-135m-eagle3"))


def test_a_folder_that_is_not_there_is_refused_and_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"results_dir: got .*nowhere"):
        open_scaling("cpu-smollm2", results_dir=str(tmp_path / "nowhere"))
    assert open_scaling("cpu-smollm2", results_dir=str(tmp_path)).main is None


@pytest.mark.parametrize(("decided_s", "told"), [(10, "20 s after the step, within the 30 s asked for"), (60, ""), (None, "")])
def test_the_latest_decision_is_told_from_the_samples(decided_s: float | None, told: str, tmp_path: Path) -> None:
    """The wait is past 550 ms from 65 s on, 5 s after the step, and passes lie 15 s apart: 20 s at the latest. Nothing decided, nothing told."""
    (view,) = every(made(tmp_path / "p"))
    view = replace(view, run=view.run.model_copy(update={"decided_s": decided_s}))
    assert view.crossed_s == 5
    assert ("Had a pass come just before" in conclusion(view).markdown) == bool(told)
    assert told in conclusion(view).markdown
    assert (view.scale_downs(60, 180), view.scale_downs(180, 240)) == (0, 1)


def test_the_usual_rate_leaves_one_replica_enough_for_the_floor(tmp_path: Path) -> None:
    """At 0.6 of its slots, over the slowdown that the floor of 0.7 is divided by too; a request's time by hand from chapter 03's nearest load."""
    profile = load_profile("h200-smollm2")
    records = [one for one in load_records(recorded_dir() / profile.name / "03_baseline.jsonl").records if one.status == "ok"]
    took_s = {load: np.mean([one.e2e_ms_mean for one in records if one.concurrency == load]) / 1e3 for load in (1, 8, 32)}
    assert usual_rate(profile, 2.0) == pytest.approx(4 * 0.6 / 2.0 / took_s[1], abs=0.006)
    assert usual_rate(profile, 1.0, 64) == pytest.approx(64 * 0.6 / took_s[32], abs=0.006)
    wanted = prepare(Wanted(slowdown=2.0, policy="floor-as-if-linear")), prepare(Wanted(slowdown=2.0)), prepare(Wanted())
    assert [one.load.stages[0][0] for one in wanted] == [1.7, 1.7, 3.4]
    with pytest.raises(ConfigError, match=r"rate: got None; requests/s: no record .* about 600.0 in flight"):
        usual_rate(profile, 1.0, 1000)
    with pytest.raises(ConfigError, match=r"about 2.4 in flight"):
        usual_rate(profile, 1.0, results=tmp_path)


def test_runs_of_slower_stand_ins_stand_apart(tmp_path: Path) -> None:
    """They tell nothing of the policies that even ones tried, nor are they the run that the page begins with."""
    even, slow = ("python", "-m", "specstudy.scaling.standin"), ("python", "-m", "specstudy.scaling.standin", "--slowdown", "2")
    made(tmp_path / "cpu-smollm2", "a", server_argv=even)
    made(tmp_path / "cpu-smollm2", "b", server_argv=slow, started_at=datetime(2026, 12, 1, tzinfo=UTC))
    page = open_scaling("cpu-smollm2", results_dir=str(tmp_path))
    assert page.main is not None
    assert (page.main.run.record_id, [view.run.record_id for view in page.tried]) == ("a", ["a"])
    assert [view.run.record_id for view in page.slowed] == ["b"]


@pytest.mark.parametrize("slowdown", [0.0, 0.5, float("nan"), float("inf")])
@pytest.mark.parametrize("policy", ["wait-and-slots", "wait-alone", "floor-as-if-linear"])
def test_a_slowdown_that_is_none_is_refused_whatever_the_policy(policy: str, slowdown: float) -> None:
    with pytest.raises(ConfigError, match="slowdown"):
        prepare(Wanted(slowdown=slowdown, policy=policy))


def test_a_page_of_slower_stand_ins_alone_has_no_main_run_of_its_own(tmp_path: Path) -> None:
    """The other profile's even run leads then; without one the page says that there is none, and still shows the slower ones."""
    slow = {"server_argv": ("python", "--slowdown", "2"), "started_at": datetime(2026, 12, 1, tzinfo=UTC)}
    made(tmp_path / "h200-smollm2", "a", **slow)
    alone = open_scaling("h200-smollm2", results_dir=str(tmp_path))
    assert (alone.main, [view.run.record_id for view in alone.slowed]) == (None, ["a"])
    assert "No good scaling run" in alone.note.markdown
    made(tmp_path / "cpu-smollm2", "b")
    made(tmp_path / "cpu-smollm2", "c", **slow)
    beside = open_scaling("h200-smollm2", results_dir=str(tmp_path))
    assert beside.main is not None
    assert (beside.main.run.record_id, beside.main.slowdown) == ("b", 1)
    assert [view.run.record_id for view in beside.tried] == ["b"]  # once, though it leads the page too
    assert "paced stand-ins" in beside.note.markdown


def test_slower_stand_ins_are_compared_under_one_load(tmp_path: Path) -> None:
    argv = ("python", "--slowdown", "2")
    made(tmp_path / "cpu-smollm2", "a", server_argv=argv, stages=((1.0, 60.0), (3.0, 120.0), (1.0, 60.0)), started_at=datetime(2026, 12, 1, tzinfo=UTC))
    made(tmp_path / "cpu-smollm2", "b", server_argv=argv, started_at=datetime(2026, 12, 2, tzinfo=UTC))
    page = open_scaling("cpu-smollm2", results_dir=str(tmp_path))
    assert [view.run.record_id for view in page.slowed] == ["b"]
    table = page.slowdown_runs()
    assert isinstance(table, Table)
    assert "2 times as long with all slots busy" in table.note
    assert "5 and 15 requests/s" in table.note


def test_a_run_that_says_too_little_breaks_no_part_of_the_page(tmp_path: Path) -> None:
    """All of the first stage lost; a load so short that no pass comes before the step; passes further apart than the load is long; no samples."""
    run = {"stages": ((5.0, 60.0), (15.0, 120.0), (5.0, 60.0))}
    lost = [row("a", i, at / 2, None if at < 120 else 0.05) for i, at in enumerate(range(480))]
    seen = [sample("a", float(at), 1 if at < 70 else 3) for at in range(240)]
    short = {"stages": ((5.0, 15.0), (15.0, 165.0), (5.0, 60.0))}
    for name, more, requests, samples in (
        ("lost", run, lost, seen),
        ("short", short, [row("a", i, at / 2, 0.05) for i, at in enumerate(range(480))], seen),
        ("seldom", {**run, "sync_period_s": 300.0}, [row("a", i, at / 2, 0.05) for i, at in enumerate(range(480))], seen),
        ("unseen", run, lost, []),
    ):
        folder = tmp_path / name
        with ScalingStore.opened(folder / "cpu-smollm2") as store:
            store.keep(scaling_run("a", slots_window_s=60.0, num_prompts=len(requests), **more), requests, samples)
        page = open_scaling("cpu-smollm2", results_dir=str(folder))
        assert page.main is not None, name
        for part in PARTS:
            assert isinstance(getattr(page, part)(), Picture | Table | Text | Stack), (name, part)
