"""Two runs at the same load, without speculation and with it, on real replicas: how many each needed, and what its users felt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from specstudy.figures.tables import DASH, Table
from specstudy.figures.text import Text, bullets
from specstudy.scaling.pictures import SETTLED_S
from specstudy.scaling.record import ScalingRun
from specstudy.scaling.views import RunView

NO_PAIR = Text(
    "*Among the newest runs of each policy and method are no two of real replicas at the same load, on the same machine and in the same allocation, one "
    "without speculation and one with it, so nothing measured can be compared.*"
)


@dataclass(frozen=True)
class Ended:
    """The last SETTLED_S of a run's high load."""

    view: RunView

    @property
    def name(self) -> str:
        """The method, like smollm2-135m-eagle3 K=5; none for the baseline."""
        run = self.view.run
        return run.method if run.num_speculative_tokens is None else f"{run.draft or run.method} K={run.num_speculative_tokens}"

    @cached_property
    def samples(self) -> pd.DataFrame:
        """Of that time."""
        at_s, fall = self.view.samples["at_s"], self.view.run.fall_s
        return self.view.samples[(at_s > fall - SETTLED_S) & (at_s <= fall)]

    @cached_property
    def ttft_ms(self) -> pd.Series:
        """Of the requests that were due in that time."""
        due, fall = self.view.requests["scheduled_s"], self.view.run.fall_s
        return self.view.ttft_ms[(due > fall - SETTLED_S) & (due <= fall)]

    @property
    def sampled(self) -> bool:
        """Whether anything is known of that time."""
        return bool(self.samples["ready"].notna().any() and self.samples["slots_in_use"].notna().any())

    @property
    def replicas(self) -> float:
        """Ready, mean over that time."""
        return float(self.samples["ready"].mean())

    @property
    def slots(self) -> float:
        """In use over all replicas, mean over that time."""
        return float(self.samples["slots_in_use"].mean())

    @cached_property
    def service_s(self) -> pd.Series:
        """Time from being sent to the last token of the first stage's good requests, by their number in the load: on one replica with half its slots busy."""
        rows = self.view.requests
        first = rows[(rows["scheduled_s"] < self.view.run.step_s) & (rows["status"] == "ok")].set_index("index")
        return first["last_token_s"] - first["sent_s"]

    def row(self) -> dict[str, object]:
        """A line of the table."""
        run = self.view.run
        known = len(self.ttft_ms) > 0
        return {
            "method": self.name,
            "time of a request at 1x (s)": f"{self.service_s.mean():.3f}" if len(self.service_s) else DASH,
            "needed by slots": run.replicas_needed,
            "most": run.replicas_max,
            "replicas at the end of 3x": f"{self.replicas:.1f}",
            "slots in use there": f"{self.slots:.1f}",
            "TTFT p50 there (ms)": f"{np.percentile(self.ttft_ms, 50):.0f}" if known else DASH,
            "within SLO there": f"{float((self.ttft_ms <= run.slo_ttft_ms).mean()):.1%}" if known else DASH,
            "within SLO, whole run": DASH if run.goodput_share is None else f"{run.goodput_share:.1%}",
            "lost": run.failed,
        }


@dataclass(frozen=True)
class Pair:
    """`base` without speculation, `other` with it."""

    base: Ended
    other: Ended

    @property
    def ratio(self) -> float | None:
        """Time of a request with speculation over without, the geometric mean over the requests that both have: the same prompts at the same instants.

        It has no interval: requests of one run share their batches and the state of the machine, and there is one run each. None without a request in common.
        """
        both = self.base.service_s.index.intersection(self.other.service_s.index)
        if both.empty:
            return None
        return float(np.exp(np.mean(np.log(self.other.service_s[both] / self.base.service_s[both]))))

    def table(self) -> Table:
        """A row a run."""
        run = self.base.view.run
        lengths = ", ".join(f"{one.view.run.stages[1][1]:.0f} s ({one.name})" for one in (self.base, self.other))
        note = (
            f"One run each, at {run.stages[0][0]:g} and {run.stages[1][0]:g} requests/s, with the same policy, prompts and arrivals; 3x lasted {lengths}. "
            f"'There' is its last {SETTLED_S:.0f} s. The time of a request is a mean; one run has no interval. Needed by slots: the fewest replicas whose "
            "slots hold 3x at the time that a request takes on one replica; the autoscaler keeps slots free beyond that. All share "
            f"{run.gpu or f'{run.host_cpus} processors'}, so a request takes longer the more of them work: on GPUs of their own fewer might do."
        )
        return Table(pd.DataFrame([self.base.row(), self.other.row()]), "real", note)

    def conclusion(self) -> Text:
        """What speculation saved here, and that one run each can't say how sure that is."""
        ratio, base, other = self.ratio, self.base, self.other
        lines = [
            f"With {other.name} a request at 1x took {ratio:.2f} times as long as without speculation, over the requests that both served (geometric mean)."
            if ratio is not None
            else "",
            f"At the end of 3x {base.replicas:.1f} replicas were ready without speculation and {other.replicas:.1f} with it, with {base.slots:.1f} and "
            f"{other.slots:.1f} slots in use; {_saved(base, other)}",
            f"By the slots alone {base.view.run.replicas_needed} and {other.view.run.replicas_needed} replicas would do. It is one run each, so "
            "no figure here has an interval; replicas are counted in wholes, and a service this small may gain one or none from the same speed-up.",
        ]
        return bullets(lines)


def _saved(base: Ended, other: Ended) -> str:
    before, after = round(base.replicas), round(other.replicas)
    if after == before:
        return "in whole replicas it saved none."
    what, many = ("saved", before - after) if after < before else ("cost", after - before)
    return f"it {what} {many} of {before}."


def pair_of(found: Sequence[RunView]) -> Pair | None:
    """The newest real run with speculation that has one without it beside it: same policy, load, slots, target and allocation. None if there is none.

    A run of whose last SETTLED_S no sample is on file can't be compared.
    """
    whole = [view for view in found if view.run.server == "real" and Ended(view).sampled]
    real = sorted(whole, key=lambda view: view.run.started_at, reverse=True)
    for other in (view for view in real if view.run.method != "none"):
        base = next((view for view in real if view.run.method == "none" and _load(view.run) == _load(other.run)), None)
        if base is not None:
            return Pair(Ended(base), Ended(other))
    return None


def _load(run: ScalingRun) -> tuple[object, ...]:
    rates = tuple(rate for rate, _ in run.stages)
    where = run.allocation, run.gpu, run.host_cpu, run.host_cpus, run.engine_version
    return run.policy, rates, run.stages[0][1], run.seed, run.max_tokens, run.slots, run.slo_ttft_ms, run.target, where
