"""A recorded run and the simulation of it, side by side: does the simulated fleet and autoscaler do what the real ones did?

The simulation gets what the run can't choose, all of it measured in that run: the arrivals (one seed), the service times of the requests that found a slot
free, how much longer they were with every slot busy, how long a replica took to get ready, and at which second of its period the autoscaler passes. What it
has to find by itself is what the chapter is about: in which pass the scale-out is decided, how many replicas are asked for, how many requests are late, and
when the minimum is back. The service times were measured with a slot or two busy, so they hold a little of the slowdown that is put on top of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from specstudy.scaling.hpa import Release
from specstudy.scaling.simulate import Scenario, Simulated, simulate
from specstudy.scaling.views import RunView


@dataclass(frozen=True)
class Outcome:
    """What came of a load. Times in s from the step, the last from its end; None for never. `good`: share of the requests due at 3x within the SLO."""

    decided_s: float | None
    most: int
    good: float
    back_s: float | None


@dataclass(frozen=True)
class Beside:
    """One run, recorded and simulated."""

    view: RunView
    recorded: Outcome
    simulated: Outcome


def beside(found: Sequence[RunView]) -> list[Beside]:
    """Those of the runs that can be simulated: with samples before the step, a replica that got ready after a scale-out, and a pass before the step."""
    return [one for view in found if (one := _beside(view)) is not None]


def _beside(view: RunView) -> Beside | None:
    run, scenario = view.run, scenario_of(view)
    good = view.good_share(run.step_s, run.fall_s)
    if scenario is None or good is None or run.replicas_max is None:
        return None
    release: Release = "v1_20" if run.kubernetes_version.startswith("1.20") else "current"
    recorded = Outcome(run.decided_s, run.replicas_max, good, run.back_to_min_s)
    return Beside(view, recorded, _outcome(simulate(run.policy, scenario, release), view, scenario))


def scenario_of(view: RunView) -> Scenario | None:
    """What the simulation is told of a run; None where the run doesn't say it."""
    run, samples = view.run, view.samples
    if run.slots_window_s is None:  # of an earlier rule
        return None
    before = samples.loc[samples["at_s"] <= run.step_s, "replicas"]
    cold_s = cold_start_s(samples)
    first_sync_s = _first_sync_s(samples, run.sync_period_s, run.scrape_period_s)
    if before.empty or cold_s is None or not view.service_s or first_sync_s > run.step_s:
        return None
    told = run.service_full_s_mean is not None and run.service_s_mean is not None
    slower = max(1.0, (run.service_full_s_mean or 0) / (run.service_s_mean or np.inf)) if told else view.slowdown
    return Scenario(
        run.stages,
        tuple(view.service_s),
        run.slots,
        cold_s,
        int(before.iloc[0]),
        window_s=run.metric_window_s,
        slots_window_s=run.slots_window_s,
        scrape_s=round(run.scrape_period_s),
        sync_s=run.sync_period_s,
        first_sync_s=first_sync_s,
        seed=run.seed,
        slowdown=slower,
    )


def cold_start_s(samples: pd.DataFrame) -> float | None:
    """From the first scale-out until a further replica was ready; None where none came."""
    rose = samples.loc[samples["replicas"].diff() > 0, "at_s"]
    if rose.empty:
        return None
    ready = samples.loc[(samples["ready"].diff() > 0) & (samples["at_s"] > rose.iloc[0]), "at_s"]
    return None if ready.empty else float(ready.iloc[0] - rose.iloc[0])


def _first_sync_s(samples: pd.DataFrame, sync_s: float, scrape_s: float) -> float:
    """When the autoscaler first passed with something to see, in whole seconds: passes lie `sync_s` apart, and one of them changed the replicas."""
    changed = samples.loc[samples["replicas"].diff().fillna(0) != 0, "at_s"]
    phase = float(changed.iloc[0]) % sync_s if len(changed) else 0.0
    return float(round(phase if phase > 2 * scrape_s else phase + sync_s))  # a rate needs two readings


def _outcome(found: Simulated, view: RunView, scenario: Scenario) -> Outcome:
    run, at_s, asked = view.run, found.at_s, found.asked
    high, after = (at_s > run.step_s) & (at_s <= run.fall_s), at_s > run.fall_s
    rose, back = at_s[high & (asked > found.replicas[at_s <= run.step_s][-1])], at_s[after & (asked <= run.policy.min_replicas)]
    # A first token comes the prefill after the slot.
    waits = found.between(run.step_s, run.fall_s) + view.prefill_s
    return Outcome(
        float(rose[0] - run.step_s) if len(rose) else None,
        int(found.replicas.max()),
        float(np.mean(waits <= run.slo_ttft_ms / 1e3)),
        float(back[0] - run.fall_s) if len(back) else None,
    )
