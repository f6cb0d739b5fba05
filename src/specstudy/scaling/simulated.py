"""What the simulation says, as tables and sentences: beside the recorded runs, and for loads that rise by another factor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from specstudy.figures.tables import Table
from specstudy.figures.text import Text, bullets
from specstudy.scaling.beside import Beside
from specstudy.scaling.pictures import seconds
from specstudy.scaling.policy import LARGEST_STEP
from specstudy.scaling.scenarios import SHIPPED
from specstudy.scaling.studies import CEILING, MADE_FOR_IT, STEP_COLD_START_S

COLUMNS = "step", "policy", "recovered_s", "most_over_needed"  # of studies.step_study


def beside_table(found: Sequence[Beside]) -> Table:
    """A row a run: recorded / simulated."""
    rows = [
        {
            "run": _name(one),
            "servers": "vLLM" if one.view.run.server == "real" else "stand-ins",
            "decided": f"{seconds(one.recorded.decided_s)} / {seconds(one.simulated.decided_s)}",
            "most replicas": f"{one.recorded.most} / {one.simulated.most}",
            "within SLO at 3x": f"{one.recorded.good:.1%} / {one.simulated.good:.1%}",
            "back at minimum": f"{seconds(one.recorded.back_s)} / {seconds(one.simulated.back_s)}",
        }
        for one in found
    ]
    note = (
        "Recorded / simulated. From its run the simulation is told the arrivals, the times in a slot of the requests that found one free, how much longer they "
        "were with every slot busy, how long the first new replica took to get ready, and at which second of its period the autoscaler passes, which is read "
        "from the recorded decision: so the decisions say no more than in which pass they came."
    )
    return Table(pd.DataFrame(rows), "simulated", note)


def _name(one: Beside) -> str:
    return one.view.label + (f", full ones {one.view.slowdown:g} times as slow" if one.view.slowdown > 1 else "")


def beside_conclusion(found: Sequence[Beside]) -> Text:
    """How near the simulation is, and where it isn't."""
    return bullets([_decisions(found), _most(found), _goods(found), _backs(found)])


def _decisions(found: Sequence[Beside]) -> str:
    both = [one for one in found if one.recorded.decided_s is not None and one.simulated.decided_s is not None]
    one_only = [one for one in found if (one.recorded.decided_s is None) != (one.simulated.decided_s is None)]
    apart = [(_name(one), _passes_apart(one)) for one in both]
    same = sum(value == 0 for _, value in apart)
    missed = [f"{name}, {value} passes apart" for name, value in apart if value] + [f"{_name(one)}, in one of the two alone" for one in one_only]
    return f"The scale-out comes in the very pass in which the real autoscaler decided it in {same} of {len(found)} runs" + (
        f"; not in: {'; '.join(missed)}." if missed else "."
    )


def _most(found: Sequence[Beside]) -> str:
    other = [f"{_name(one)}, {one.recorded.most} recorded and {one.simulated.most} simulated" for one in found if one.recorded.most != one.simulated.most]
    return f"The most replicas are the same in {len(found) - len(other)}" + (f"; not in: {'; '.join(other)}." if other else ".")


def _goods(found: Sequence[Beside]) -> str:
    apart = [100 * abs(one.recorded.good - one.simulated.good) for one in found]
    worst = found[int(np.argmax(apart))]
    return (
        f"The share of requests within the SLO at 3x is {float(np.median(apart)):.1f} points apart in the median and {max(apart):.1f} at most "
        f"({_name(worst)}: {worst.recorded.good:.1%} recorded, {worst.simulated.good:.1%} simulated)."
    )


def _backs(found: Sequence[Beside]) -> str:
    apart = [abs(one.recorded.back_s - one.simulated.back_s) for one in found if one.recorded.back_s is not None and one.simulated.back_s is not None]
    return f"The minimum is back within {max(apart):.0f} s of the recorded time." if apart else ""


def _passes_apart(one: Beside) -> int:
    """Passes between the two decisions, both of which came."""
    assert one.simulated.decided_s is not None and one.recorded.decided_s is not None
    return abs(round((one.simulated.decided_s - one.recorded.decided_s) / one.view.run.sync_period_s))


def step_table(frame: pd.DataFrame) -> Table:
    """A row a step and policy: how long waits are long, and the most replicas."""
    rows = [
        {
            "the load rises to": f"{times}x",
            "policy": name,
            "waits short again": seconds(_finite(recovered_s)),
            "most / needed": f"{most:.1f}",
        }
        for times, name, recovered_s, most in zip(*(frame[column] for column in COLUMNS), strict=True)
    ]
    note = (
        f"Simulated, a cold start of {STEP_COLD_START_S:.0f} s, {CEILING} times the needed replicas allowed. {SHIPPED} may ask for {LARGEST_STEP} times as "
        f"many replicas in one period, {MADE_FOR_IT} for as many times as the load rises (deploy render's --largest-step); default-scale-up "
        "doubles, or adds four, every 15 s. A full replica is taken to be as quick as an idle one."
    )
    return Table(pd.DataFrame(rows), "simulated", note)


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def step_conclusion(frame: pd.DataFrame) -> Text:
    """Shipped against made for the step, up to the step that the shipped one is for and beyond it."""
    steps = sorted(set(frame["step"]))
    beyond = [times for times in steps if times > LARGEST_STEP]
    return bullets(
        [
            f"Up to {LARGEST_STEP}x waits are long {_long(frame, SHIPPED, [times for times in steps if times <= LARGEST_STEP])} with the shipped policy.",
            f"Beyond that, up to {beyond[-1]}x, {_long(frame, SHIPPED, beyond)}, and it asks for {_up_to(frame, SHIPPED, beyond)}: one decision isn't "
            "enough, the next has to wait for the period's end, and what has piled up by then is answered with too much.",
            f"Made for the step, waits are long {_long(frame, MADE_FOR_IT, beyond)} there, and it asks for {_up_to(frame, MADE_FOR_IT, beyond)}.",
        ]
    )


def _long(frame: pd.DataFrame, policy: str, steps: Sequence[int]) -> str:
    values = frame.loc[(frame["policy"] == policy) & frame["step"].isin(steps), "recovered_s"]
    if not np.isfinite(values).all():
        return "for all of the high load at worst"
    return f"for {values.min():.0f} s" if values.min() == values.max() else f"for {values.min():.0f} to {values.max():.0f} s"


def _up_to(frame: pd.DataFrame, policy: str, steps: Sequence[int]) -> str:
    most = frame.loc[(frame["policy"] == policy) & frame["step"].isin(steps), "most_over_needed"].max()
    return "all that it may" if most >= CEILING else f"up to {most:.1f} times the needed replicas"
