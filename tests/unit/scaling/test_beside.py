"""The simulation beside runs of the real autoscaler: what it is told, and how near it comes to what the kept runs did."""

from __future__ import annotations

import pandas as pd
import pytest

from specstudy.catalog import recorded_dir
from specstudy.scaling.beside import beside, cold_start_s, scenario_of
from specstudy.scaling.record import load_runs
from specstudy.scaling.simulated import beside_conclusion, beside_table
from specstudy.scaling.views import RunView, every

KEPT = [view for folder in sorted(recorded_dir().iterdir()) if folder.is_dir() for view in every(load_runs(folder))]


def kept(record_id: str) -> RunView:
    return next(view for view in KEPT if view.run.record_id == record_id)


def test_what_the_simulation_is_told_by_hand() -> None:
    """Of the shipped policy's run over stand-ins: 40 ms to a first token and 29 tokens of 19 ms; asked for at 77 s, ready at 90 s; seen first at 17 s."""
    scenario = scenario_of(kept("a4384c9830f64bf4"))
    assert scenario is not None
    assert sum(scenario.service_s) / len(scenario.service_s) == pytest.approx(0.04 + 29 * 0.019, rel=0.02)
    assert scenario.cold_start_s == pytest.approx(13, abs=1)
    assert (scenario.first_sync_s, scenario.first_replicas, scenario.slowdown, scenario.window_s) == (17, 1, 1, 15)


def test_a_cold_start_is_from_the_first_scale_out_to_a_further_ready_replica() -> None:
    rows = {"at_s": [0.0, 10.0, 20.0, 30.0, 40.0], "replicas": [1, 1, 3, 3, 3], "ready": [1, 1, 1, 1, 3]}
    assert cold_start_s(pd.DataFrame(rows)) == 20
    assert cold_start_s(pd.DataFrame({**rows, "ready": [1] * 5})) is None
    assert cold_start_s(pd.DataFrame({**rows, "replicas": [1] * 5})) is None


def test_the_simulation_does_what_the_real_autoscaler_and_servers_did() -> None:
    """Over the kept runs that scale out by their queue: the pass of the decision, and the share of requests within the SLO.

    Two of fourteen may differ by more: at a threshold one request decides, and a floor that flaps multiplies small differences.
    """
    found = beside(KEPT)
    assert len(found) >= 10
    decided = [one for one in found if one.recorded.decided_s is not None and one.simulated.decided_s is not None]
    apart = [abs((one.recorded.decided_s or 0) - (one.simulated.decided_s or 0)) for one in decided]
    assert sum(value >= 15 for value in apart) <= 1
    goods = sorted(abs(one.recorded.good - one.simulated.good) for one in found)
    assert goods[len(goods) // 2] < 0.02
    assert goods[-3] < 0.05


def test_a_run_of_an_earlier_rule_is_left_out() -> None:
    older = [view for view in KEPT if view.run.slots_window_s is None]
    assert older
    assert beside(older) == []


def test_the_page_says_where_it_is_wrong() -> None:
    found = beside([kept("a4384c9830f64bf4"), kept("d069358a6a914ab2")])
    text = beside_conclusion(found).markdown
    assert "in 2 of 2 runs." in text
    assert "The most replicas are the same in 2." in text
    assert "floor-as-if-linear, full ones 2 times as slow: 84.3% recorded" in text
    assert beside_table(found).evidence == "simulated"
