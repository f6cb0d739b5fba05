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
            "run": one.view.label + (f", full ones {one.view.slowdown:g} times as slow" if one.view.slowdown > 1 else ""),
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
        "were with every slot busy, how long a replica took to get ready, and when the autoscaler passed; nothing that is in the table."
    )
    return Table(pd.DataFrame(rows), "simulated", note)


def beside_conclusion(found: Sequence[Beside]) -> Text:
    """How near the simulation is, and where it isn't."""
    apart = [100 * abs(one.recorded.good - one.simulated.good) for one in found]
    worst = found[int(np.argmax(apart))]
    passes = [(one.view.label, _passes_apart(one)) for one in found]
    missed = ", ".join(f"{label} by {value}" if value is not None else f"{label} altogether" for label, value in passes if value != 0)
    same, most = sum(value == 0 for _, value in passes), sum(one.recorded.most == one.simulated.most for one in found)
    return bullets(
        [
            f"In {same} of {len(found)} runs the simulation scales out in the very pass in which the real autoscaler did"
            + (f"; passes apart: {missed}." if missed else "."),
            f"It asks for the same most replicas in {most} of them.",
            f"The share of requests within the SLO at 3x is {float(np.median(apart)):.1f} points apart in the median and {max(apart):.1f} at most "
            f"({worst.view.label}: {worst.recorded.good:.1%} recorded, {worst.simulated.good:.1%} simulated).",
        ]
    )


def _passes_apart(one: Beside) -> int | None:
    """Passes between the two decisions; None where one of them never came."""
    ours, theirs = one.simulated.decided_s, one.recorded.decided_s
    if ours is None or theirs is None:
        return 0 if ours is theirs else None
    return abs(round((ours - theirs) / one.view.run.sync_period_s))


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
        "doubles, or adds four, every 15 s."
    )
    return Table(pd.DataFrame(rows), "simulated", note)


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def step_conclusion(frame: pd.DataFrame) -> Text:
    """Shipped against made for the step, up to the step that the shipped one is for and beyond it."""
    wide = frame.pivot(index="step", columns="policy", values="recovered_s")
    most = frame.pivot(index="step", columns="policy", values="most_over_needed")
    within, beyond = wide.index[wide.index <= LARGEST_STEP], wide.index[wide.index > LARGEST_STEP]

    def times(steps: pd.Index, name: str) -> str:
        values = wide.loc[steps, name]
        if not np.isfinite(values).all():
            return "for all of the high load at worst"
        return f"for {values.min():.0f} s" if values.min() == values.max() else f"for {values.min():.0f} to {values.max():.0f} s"

    return bullets(
        [
            f"Up to {LARGEST_STEP}x waits are long {times(within, SHIPPED)} with the shipped policy.",
            f"Beyond that, up to {beyond.max()}x, {times(beyond, SHIPPED)}: one decision can't ask for enough, and the next has to wait for the period's "
            f"end. Made for the step it is {times(beyond, MADE_FOR_IT).removeprefix('for ')}, at up to "
            f"{most.loc[beyond, MADE_FOR_IT].max():.1f} times the needed replicas.",
        ]
    )
