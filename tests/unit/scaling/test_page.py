"""Chapter 08's page: without runs it says so, and every part of it can be shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from specstudy.book.lab import Wanted, prepare
from specstudy.book.saving import saving
from specstudy.book.scaling import open_scaling
from specstudy.catalog import recorded_dir
from specstudy.errors import ConfigError
from specstudy.figures import Text

PARTS = ("timeline", "conclusion", "policies_figure", "policies_table", "cold_start_figure", "overshoot_figure", "cold_start_conclusion", "fleet_table")


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
