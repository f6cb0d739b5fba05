"""Runs at the same load, without speculation and with it, on real replicas: how many each needed, and what its users felt.

Runs may have lasted differently. Then an autoscaler that had more time has settled, and its share of good requests has more of the good time in it. So all
is compared over the same time since the step: that of the shortest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from specstudy.figures.picture import Picture
from specstudy.figures.tables import DASH, Table
from specstudy.figures.text import Text, bullets
from specstudy.scaling.outcomes import GOOD_SHARE
from specstudy.scaling.pictures import SETTLED_S, side_by_side, stages_text, verdict
from specstudy.scaling.record import ScalingRun
from specstudy.scaling.views import RunView

NO_PAIR = Text(
    "*There are no two runs of real replicas with the same policy and load, on the same machine and in the same allocation, one without speculation and one "
    "with it, so nothing measured can be compared.*"
)
AT_ONE_INSTANT_S = 1e-3


@dataclass(frozen=True)
class Ended:
    """A run's 3x until `high_s` after the step, and the last SETTLED_S of that; of its 1x before the step the first `low_s`."""

    view: RunView
    low_s: float
    high_s: float

    @property
    def name(self) -> str:
        """The method, like smollm2-135m-eagle3 K=5; none for the baseline."""
        return self.view.method

    @property
    def _end_s(self) -> float:
        return self.view.run.step_s + self.high_s

    @property
    def _begin_s(self) -> float:
        return max(self.view.run.step_s, self._end_s - SETTLED_S)

    def _samples(self, begin_s: float) -> pd.DataFrame:
        at_s = self.view.samples["at_s"]
        return self.view.samples[(at_s > begin_s) & (at_s <= self._end_s)]

    @cached_property
    def samples(self) -> pd.DataFrame:
        """Of the end."""
        return self._samples(self._begin_s)

    @property
    def sampled(self) -> bool:
        """Whether anything is known of the end."""
        return bool(self.samples["ready"].notna().any() and self.samples["slots_in_use"].notna().any())

    @property
    def replicas(self) -> float:
        """Ready, mean over the end."""
        return float(self.samples["ready"].mean())

    @property
    def steady(self) -> bool:
        """Whether that count was one and the same all the time."""
        return bool(self.samples["ready"].nunique() == 1)

    @property
    def slots(self) -> float:
        """In use over all replicas, mean over the end."""
        return float(self.samples["slots_in_use"].mean())

    @property
    def good_share(self) -> float | None:
        """Of the requests due in the end, those within the SLO."""
        return self.view.good_share(self._begin_s, self._end_s)

    @cached_property
    def first(self) -> pd.DataFrame:
        """Good requests of `low_s`, by their number in the load: served by one replica with half its slots busy."""
        rows = self.view.requests
        return rows[(rows["scheduled_s"] < self.low_s) & (rows["status"] == "ok")].set_index("index")

    @property
    def service_s(self) -> pd.Series:
        """Time of each of those from being sent to the last token."""
        return self.first["last_token_s"] - self.first["sent_s"]

    def row(self) -> dict[str, object]:
        """A line of the table."""
        run = self.view.run
        ttft_ms = self.view.ttft_of(self._begin_s, self._end_s)
        return {
            "method": self.name,
            "replicas there": f"{self.replicas:.1f}",
            "slots in use there": f"{self.slots:.1f}",
            "needed": DASH if run.replicas_needed is None else run.replicas_needed,
            "within SLO there": _percent(self.good_share),
            "within SLO since the step": _percent(self.view.good_share(run.step_s, self._end_s)),
            "most since the step": int(self._samples(run.step_s)["replicas"].max()),
            "TTFT p50 there (ms)": f"{np.percentile(ttft_ms, 50):.0f}" if len(ttft_ms) else DASH,
            "time of a request at 1x (s)": f"{self.service_s.mean():.3f}" if len(self.service_s) else DASH,
            "lost, whole run": f"{run.failed:,} of {run.num_prompts:,}",
        }


def _percent(share: float | None) -> str:
    return DASH if share is None else f"{share:.1%}"


@dataclass(frozen=True)
class Comparison:
    """`base` without speculation, `others` with it."""

    base: RunView
    others: tuple[RunView, ...]

    @property
    def views(self) -> tuple[RunView, ...]:
        """All of them, the base first."""
        return self.base, *self.others

    @cached_property
    def high_s(self) -> float:
        """How long all of them were at 3x."""
        return min(view.run.stages[1][1] for view in self.views)

    @cached_property
    def ends(self) -> tuple[Ended, ...]:
        """Each over the same times, in the order of `views`."""
        low_s = min(view.run.step_s for view in self.views)
        return tuple(Ended(view, low_s, self.high_s) for view in self.views)

    @property
    def same_stages(self) -> bool:
        """Whether all lasted equally long. With one seed the arrivals are the same then, else from the first stage of another length on they are other ones."""
        return len({view.run.stages for view in self.views}) == 1

    def ratio(self, other: Ended) -> float | None:
        """Time of a request with speculation over without, the geometric mean over the requests that both have, which are the same prompts.

        It has no interval: requests of one run share their batches and the state of the machine, and there is one run each. None without a request in common.
        """
        base = self.ends[0]
        both = base.service_s.index.intersection(other.service_s.index)
        if both.empty:
            return None
        return float(np.exp(np.mean(np.log(other.service_s[both] / base.service_s[both]))))

    def same_instants(self, other: Ended) -> bool:
        """Whether the requests that both have came at the same time."""
        base = self.ends[0]
        both = base.first.index.intersection(other.first.index)
        return bool(np.allclose(base.first["scheduled_s"][both], other.first["scheduled_s"][both], rtol=0, atol=AT_ONE_INSTANT_S))

    def picture(self) -> Picture:
        """Replicas and times to first token since the step."""
        return side_by_side(self.views, self.high_s)

    def table(self) -> Table:
        """A row a run."""
        run, window_s = self.base.run, self.base.run.slots_window_s or self.base.run.metric_window_s
        same = "with the same policy, prompts and arrivals" if self.same_stages else "with the same policy and prompts"
        shared = (
            f" All share {run.gpu or f'{run.host_cpus} processors'}, so a request takes longer the more of them work: on GPUs of their own fewer might do."
            if self.base.one_machine
            else ""
        )
        note = (
            f"One run each, at {run.stages[0][0]:g} and {run.stages[1][0]:g} requests/s, {same}. {self._lengths()} 'There' is {self._there()}. The time of a "
            f"request is from its sending to its last token, a wait for a slot in it: a mean over the first {self.ends[0].low_s:.0f} s, and one run has no "
            "interval. Needed: the fewest replicas that hold the SLO at 3x, reckoned from the time that a request is in a slot, see the records' field; the "
            f"autoscaler keeps slots free beyond that. Slots in use are means over the {window_s:.0f} s before, so what was served late of a "
            f"backlog is in them.{shared}"
        )
        return Table(pd.DataFrame([end.row() for end in self.ends]), "real", note)

    def _lengths(self) -> str:
        if self.same_stages:
            return f"3x lasted {self.high_s:.0f} s."
        stages = "; ".join(f"{end.name}: {stages_text(end.view.run)}" for end in self.ends)
        return (
            f"They lasted differently (1x, 3x, 1x in s: {stages}): from the first stage of another length on the arrivals are others at the same rate. All but "
            f"what is of the whole run is taken over the same time: 1x over its first {self.ends[0].low_s:.0f} s, 3x up to {self.high_s:.0f} s after the step."
        )

    def _there(self) -> str:
        return f"from {max(0.0, self.high_s - SETTLED_S):.0f} to {self.high_s:.0f} s after the step"

    def conclusion(self) -> Text:
        """What speculation saved here, and that one run each can't say how sure that is."""
        lines = [line for other in self.ends[1:] for line in self._told(other)]
        return bullets([*lines, self._once_only(), *self._went_on(), *self._misses(), self._by_slots()])

    def _told(self, other: Ended) -> list[str]:
        base, ratio = self.ends[0], self.ratio(other)
        where = "" if self.same_instants(other) else ", the same prompts at other instants"
        return [
            f"With {other.name} a request at 1x took {ratio:.2f} times as long as without speculation, waits included, over the requests that both "
            f"served{where} (geometric mean)."
            if ratio is not None
            else "",
            f"{_upper(self._there())} {base.replicas:.1f} replicas were ready without speculation and {other.replicas:.1f} with {other.name}, with "
            f"{base.slots:.1f} and {other.slots:.1f} slots in use: {saved(base, other)}",
            f"By the bounds of this chapter the run with {other.name} {_judged(other.view.run)}",
        ]

    def _once_only(self) -> str:
        """That the policy's rate limit was in force all the time that is compared, if it was."""
        limits = self.base.run.policy.up.limits
        period_s = min(limit.period_s for limit in limits)
        if self.high_s > period_s or any(limit.kind != "Percent" for limit in limits):
            return ""
        times = 1 + max(limit.value for limit in limits) / 100
        return (
            f"The policy allows {times:g} times as many replicas at most, once in {period_s} s, so up to {self.high_s:.0f} s after the step there was no more "
            "than that and what was taken back of it: such counts say less of the need than the settled end of a longer run."
        )

    def _went_on(self) -> list[str]:
        """How those ended that were at 3x for longer."""
        longer = [Ended(view, 0, view.run.stages[1][1]) for view in self.views if view.run.stages[1][1] > self.high_s]
        return [
            f"The run {_with(end.name)} went on at 3x to {end.high_s:.0f} s; in its last {SETTLED_S:.0f} s there {end.replicas:.1f} replicas were ready, with "
            f"{end.slots:.1f} slots in use. What the shorter would have had by then isn't known."
            for end in longer
            if end.sampled
        ]

    def _misses(self) -> list[str]:
        """Whose users weren't served as asked: a count of replicas that didn't suffice is none that was needed."""
        return [
            f"{_upper(_with(end.name))} {_percent(end.good_share)} of the requests due in that time met the SLO, fewer than {GOOD_SHARE:.0%}: those "
            "replicas didn't suffice, so their count is none that the SLO needs."
            for end in self.ends
            if end.good_share is not None and end.good_share < GOOD_SHARE
        ]

    def _by_slots(self) -> str:
        known = [(end.view.run.replicas_needed, _with(end.name)) for end in self.ends if end.view.run.replicas_needed is not None]
        told = ", ".join(f"{count} would do {how}" for count, how in known)
        return (f"By the slots alone {told}. " if told else "") + (
            "It is one run each, so no figure here has an interval; replicas are counted in wholes, and a service this small may gain one or none from the "
            "same speed-up."
        )


def _judged(run: ScalingRun) -> str:
    reached, over = verdict(run), f"over its own {run.stages[1][1]:.0f} s at 3x and {run.stages[2][1]:.0f} s after it"
    return f"holds, {over}." if reached == "holds" else f"fails, {over}: {reached}."


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _with(name: str) -> str:
    return "without speculation" if name == "none" else f"with {name}"


def saved(base: Ended, other: Ended) -> str:
    """Replicas saved, in wholes where both counts stood still; else as a mean."""
    if not (base.steady and other.steady):
        fewer = round(base.replicas - other.replicas, 1)
        what = "as many" if fewer == 0 else f"{abs(fewer):.1f} {'fewer' if fewer > 0 else 'more'}"
        return f"on average {what} with speculation, while replicas came or went."
    before, after = round(base.replicas), round(other.replicas)
    if after == before:
        return "in whole replicas it saved none."
    what, many = ("saved", before - after) if after < before else ("cost", after - before)
    return f"it {what} {many} of {before}."


def comparison_of(found: Sequence[RunView]) -> Comparison | None:
    """The newest real run with speculation that has one without it beside it, and what else has the same: policy, load, slots, target and allocation.

    Of each method, draft and K the newest; None if there is no pair. Stages may last differently. A run without a sample at the end of the time that all
    were at 3x can't be compared.
    """
    real = sorted((view for view in found if view.run.server == "real" and _sampled(view)), key=lambda view: view.run.started_at, reverse=True)
    for newest in (view for view in real if view.run.method != "none"):
        alike: dict[str, RunView] = {}
        for view in real:
            if _load(view.run) == _load(newest.run):
                alike.setdefault(view.method, view)
        base = alike.pop("none", None)
        if base is not None:
            compared = Comparison(base, tuple(sorted(alike.values(), key=lambda view: view.method)))
            if all(end.sampled for end in compared.ends):
                return compared
    return None


def _sampled(view: RunView) -> bool:
    return Ended(view, 0, view.run.stages[1][1]).sampled


def _load(run: ScalingRun) -> tuple[object, ...]:
    rates = tuple(rate for rate, _ in run.stages)
    told = run.sync_period_s, run.metric_window_s, run.slots_window_s, run.scrape_period_s
    where = run.allocation, run.gpu, run.host_cpu, run.host_cpus, run.engine_version
    return run.policy, told, rates, run.seed, run.max_tokens, run.slots, run.slo_ttft_ms, run.target, where
