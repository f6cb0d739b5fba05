"""Scaling runs as series over time, for the figures: nothing is drawn here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from specstudy.records.schema import P99_NEEDS
from specstudy.scaling.hpa import TOLERANCE
from specstudy.scaling.outcomes import recovery
from specstudy.scaling.record import LoadedRuns, ScalingRun

BIN_S = 5.0
PACE = "--slowdown"  # the stand-in's flag
AS_DEPLOYED = ("as deployed",)  # the command line in the record of a cluster of one's own


@dataclass(frozen=True)
class RunView:
    """One run with its rows. Times in s from the load's begin."""

    run: ScalingRun
    requests: pd.DataFrame
    samples: pd.DataFrame
    variant: str = ""

    @property
    def label(self) -> str:
        """The policy's name, with the speculation method if there is one."""
        method = "" if self.run.method == "none" else f", {self.method}"
        return self.run.policy.name + (f", {self.variant}" if self.variant else "") + method

    @property
    def method(self) -> str:
        """Like smollm2-135m-eagle3 K=5; none without speculation."""
        name, k = self.run.draft or self.run.method, self.run.num_speculative_tokens
        return name if k is None else f"{name} K={k}"

    @property
    def slowdown(self) -> float:
        """How much slower a full stand-in was told to be; 1 where it wasn't, and for real servers."""
        argv = self.run.server_argv
        return float(argv[argv.index(PACE) + 1]) if self.run.server == "stand-in" and PACE in argv else 1.0

    @property
    def one_machine(self) -> bool:
        """Whether replicas and control plane ran where the load came from; a cluster's record states the load generator's machine, and no other."""
        return self.run.server_argv != AS_DEPLOYED

    @cached_property
    def _free(self) -> pd.DataFrame:
        """Of the good requests of the first stage the half with the soonest first token, which found a slot free; see `outcomes.service_time_s`."""
        first = self.requests[(self.requests["scheduled_s"] < self.run.step_s) & (self.requests["status"] == "ok")]
        return first.loc[(first["first_token_s"] - first["sent_s"]).nsmallest(max(1, len(first) // 2)).index]

    @property
    def service_s(self) -> list[float]:
        """Their times in a slot, in s."""
        return [float(value) for value in self._free["last_token_s"] - self._free["sent_s"]]

    @property
    def prefill_s(self) -> float:
        """Their median time to first token, in s."""
        return float((self._free["first_token_s"] - self._free["sent_s"]).median())

    def scale_downs(self, begin_s: float, end_s: float) -> int:
        """Times that fewer replicas were asked for in (begin, end]."""
        fewer = self.samples["replicas"].diff() < 0
        return int((fewer & (self.samples["at_s"] > begin_s) & (self.samples["at_s"] <= end_s)).sum())

    @cached_property
    def crossed_s(self) -> float | None:
        """From the step to the first sample at 3x at which a metric asked for more replicas than there were before it; None without one."""
        rows = self.samples[(self.samples["at_s"] > self.run.step_s) & (self.samples["at_s"] <= self.run.fall_s)]
        before = self.samples.loc[self.samples["at_s"] <= self.run.step_s, "replicas"]
        if before.empty:
            return None
        past = pd.Series(False, index=rows.index)
        for one in self.run.policy.metrics:
            past |= rows[one.metric] > (1 + TOLERANCE) * one.target * (before.iloc[-1] if one.kind == "AverageValue" else 1)
        return float(rows.loc[past, "at_s"].iloc[0]) - self.run.step_s if past.any() else None

    @cached_property
    def recovered_s(self) -> float | None:
        """The record's field by today's rule, from the requests."""
        run = self.run
        enough = run.step_s + (run.enough_ready_s or 0)
        found = recovery(self.requests["scheduled_s"].to_numpy(), (self.ttft_ms <= run.slo_ttft_ms).to_numpy(), run.step_s, run.fall_s, enough)
        return None if found is None else found - run.step_s

    @cached_property
    def ttft_ms(self) -> pd.Series:
        """Time to first token of each request, from its scheduled arrival; a lost request's is infinite, whatever came of it before."""
        taken = (self.requests["first_token_s"] - self.requests["scheduled_s"]) * 1e3
        return taken.where(self.requests["status"] == "ok", np.inf).fillna(np.inf)

    def ttft_of(self, begin_s: float, end_s: float) -> pd.Series:
        """`ttft_ms` of the requests that were due in [begin, end)."""
        due = self.requests["scheduled_s"]
        return self.ttft_ms[(due >= begin_s) & (due < end_s)]

    def good_share(self, begin_s: float, end_s: float) -> float | None:
        """Of the requests that were due in [begin, end), those within the SLO; None without one."""
        found = self.ttft_of(begin_s, end_s)
        return float((found <= self.run.slo_ttft_ms).mean()) if len(found) else None

    def decode_s(self, begin_s: float, end_s: float) -> float | None:
        """Median time from the first to the last token, in s, of the good requests that were due in [begin, end); None without one."""
        rows = self.requests[(self.requests["scheduled_s"] >= begin_s) & (self.requests["scheduled_s"] < end_s) & (self.requests["status"] == "ok")]
        return float((rows["last_token_s"] - rows["first_token_s"]).median()) if len(rows) else None

    def ttft_percentile(self, percent: float) -> tuple[np.ndarray, np.ndarray]:
        """(time, TTFT in ms) of that percentile over windows of 300 consecutive arrivals, the fewest that a p99 may rest on, a third apart."""
        order = self.requests["scheduled_s"].to_numpy().argsort()
        times, values = self.requests["scheduled_s"].to_numpy()[order], self.ttft_ms.to_numpy()[order]
        starts = range(0, max(0, len(values) - P99_NEEDS) + 1, P99_NEEDS // 3)
        windows = [slice(start, start + P99_NEEDS) for start in starts if start + P99_NEEDS <= len(values)]
        return np.array([times[one].mean() for one in windows]), np.array([_percentile(values[one], percent) for one in windows])

    def ttft_median(self) -> tuple[np.ndarray, np.ndarray]:
        """(time, median TTFT in ms) by arrival, in bins of BIN_S that hold a request."""
        edges = self._edges()
        which = np.digitize(self.requests["scheduled_s"], edges) - 1
        medians = self.ttft_ms.groupby(which).median()
        return (edges[medians.index] + BIN_S / 2), medians.to_numpy()

    def _edges(self) -> np.ndarray:
        return np.arange(0, sum(length for _, length in self.run.stages) + BIN_S, BIN_S)

    def goodput(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(time, requests/s that arrived, requests/s of those within the SLO), by arrival, in bins of BIN_S."""
        edges = self._edges()
        arrived, _ = np.histogram(self.requests["scheduled_s"], edges)
        good, _ = np.histogram(self.requests["scheduled_s"][self.ttft_ms <= self.run.slo_ttft_ms], edges)
        return (edges[:-1] + edges[1:]) / 2, arrived / BIN_S, good / BIN_S


def _percentile(values: np.ndarray, percent: float) -> float:
    """Between two infinite ones nothing can be interpolated: then the upper one."""
    return float(np.percentile(values, percent, method="linear" if np.isfinite(values).all() else "higher"))


def every(loaded: LoadedRuns) -> list[RunView]:
    """Good runs, oldest first."""
    good = sorted((run for run in loaded.runs if run.status == "ok"), key=lambda run: run.started_at)
    requests, samples = loaded.requests.to_pandas(), loaded.samples.to_pandas()
    return [RunView(run, requests[requests["record_id"] == run.record_id], samples[samples["record_id"] == run.record_id]) for run in good]


def views(loaded: LoadedRuns) -> list[RunView]:
    """Good runs, oldest first; of several with one policy, window, server, method, draft and K the newest alone."""
    newest: dict[tuple[object, ...], RunView] = {}
    for view in every(loaded):
        run = view.run
        key = (run.policy, run.slots_window_s, run.server, view.slowdown, run.method, run.draft, run.num_speculative_tokens)
        newest.pop(key, None)
        newest[key] = view
    last = {_family(view): view.run for view in newest.values()}
    return [replace(view, variant=_variant(view.run, last[_family(view)])) for view in newest.values()]


def _family(view: RunView) -> tuple[object, ...]:
    """What runs share whose policies' names alone would tell them apart."""
    run = view.run
    return run.policy.name, run.server, view.slowdown, run.method, run.draft, run.num_speculative_tokens


def _variant(run: ScalingRun, last: ScalingRun) -> str:
    """In what an earlier run of a policy of that name differs from the newest one."""
    parts = []
    if run.policy.up != last.policy.up:
        parts.append(f"period {run.policy.up.limits[0].period_s} s")
    if run.policy.floor_slots != last.policy.floor_slots:
        parts.append(f"floor of {run.policy.floor_slots or 0:g} slots")
    if run.slots_window_s != last.slots_window_s:
        parts.append("an earlier slots rule" if run.slots_window_s is None else f"slots over {run.slots_window_s:g} s")
    return ", ".join(parts)


def of_policy(found: Sequence[RunView], name: str | None) -> RunView | None:
    """The newest run of that policy, or of any; real servers before stand-ins, without speculation before with it."""
    own = [view for view in reversed(found) if name in (None, view.run.policy.name)]
    return min(own, key=lambda view: (view.run.server != "real", view.run.method != "none"), default=None)
