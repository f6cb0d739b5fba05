"""What is read from a simulation, on simulations made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from specstudy.scaling.simulate import Scenario, Simulated
from specstudy.scaling.studies import MADE_FOR_IT, answer, saving_study, step_scenario, step_study

# 1x for 60 s, 3x for 240, 1x for 60; a pass every 15 s. Slots of 4, 1 s each: 8 requests/s need 2.
SCENARIO = Scenario(((8 / 3, 60), (8.0, 240), (8 / 3, 60)), (1.0,), 4, 30, 1)
AT_S = np.arange(15.0, 361.0, 15.0)


def simulated(replicas: list[float], ready: list[float], slow: tuple[float, float]) -> Simulated:
    """A request a tenth of a second; those that arrive in `slow` wait 5 s."""
    arrived = np.arange(0.05, 360, 0.1)
    wait = np.where((arrived >= slow[0]) & (arrived < slow[1]), 5.0, 0.0)
    nothing = np.zeros(len(AT_S))
    return Simulated(AT_S, np.array(replicas), np.array(ready), nothing, nothing, nothing, arrived, arrived + wait, arrived + wait + 1)


def test_every_figure_by_hand() -> None:
    """The count at each pass is the one before it decides: 1 up to and at 75, so decided at 75; 3 ready at the pass of 120; slow until 110."""
    replicas = [1.0 if at <= 75 else 3.0 if at <= 330 else 2.0 for at in AT_S]
    found = answer(simulated(replicas, [1.0 if at < 120 else 3.0 for at in AT_S], (70, 110)), SCENARIO)
    assert (found.needed, found.most, found.fewest_after) == (2, 3, 3)
    assert found.decided_s == 15
    assert found.recovered_s == 50


def test_a_dip_shows_and_no_recovery_is_none() -> None:
    replicas = [1.0 if at <= 75 else 1.0 if at == 240 else 3.0 for at in AT_S]
    found = answer(simulated(replicas, [1.0 if at < 120 else 3.0 for at in AT_S], (70, 400)), SCENARIO)
    assert found.fewest_after == 1
    assert found.recovered_s is None


def test_the_load_of_a_study_needs_what_it_says() -> None:
    """90 per cent of 10 x 4 slots at 0.5 s are 72 requests/s; a third of them at 70 per cent are 4.3 replicas, so 5 to begin with."""
    scenario = step_scenario([0.5], 4, 30, 10, 300)
    assert scenario.stages[1] == (pytest.approx(72), 300)
    assert scenario.needed(scenario.stages[1][0]) == 9
    assert scenario.first_replicas == 5


def test_a_step_by_another_factor_begins_lower() -> None:
    """The same 72 requests/s; a sixth of them at 70 per cent are 2.1 replicas, so 3 to begin with."""
    scenario = step_scenario([0.5], 4, 30, 10, 300, times=6)
    assert [rate for rate, _ in scenario.stages] == [pytest.approx(12), pytest.approx(72), pytest.approx(12)]
    assert scenario.first_replicas == 3


def test_a_step_beyond_the_policys_own_waits_for_its_period() -> None:
    """2 x 120 + 100 s: until then no more than three times the replicas, which a step by six can't do with; made for it, nothing waits for that."""
    wide = step_study([0.5], 4).pivot(index="step", columns="policy", values="recovered_s")
    assert wide.loc[6, "wait-and-slots"] > 340
    assert wide.loc[6, MADE_FOR_IT] < 340
    assert wide.loc[3, "wait-and-slots"] == wide.loc[3, MADE_FOR_IT]


def test_half_the_service_time_needs_half_the_replicas() -> None:
    frame = saving_study({"none": [1.0], "half": [0.5]}, 4, 0.5, replicas=(20,))
    assert frame["requests/s"].tolist() == [pytest.approx(56)]
    assert frame["half"][0] == pytest.approx(frame["none"][0] / 2, abs=1)
