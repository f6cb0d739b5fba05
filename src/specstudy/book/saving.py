"""With and without speculation: how many replicas each needs, by simulation from measured request times."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from specstudy.analysis import Speedup, best_per_load, of_main_workload, speedups
from specstudy.book.served_heads import other_drafts_note
from specstudy.catalog import load_profile
from specstudy.errors import ConfigError, StudyError
from specstudy.figures import Table, Text, ratio_text
from specstudy.figures.text import bullets
from specstudy.scaling.studies import saving_study
from specstudy.study import read_study

COMPARISON = "04_eagle3"
WAIT_P99_S = 0.5  # as the policy's target
NOTHING = Text("*Chapter 04 of this profile holds no method beside a baseline, so there is nothing to compare.*")


@dataclass(frozen=True)
class Saving:
    """`best`: the method with the highest throughput at the middle one of the measured concurrencies, which is taken as a replica's slots."""

    profile: str
    best: Speedup
    slots: int
    frame: pd.DataFrame

    @property
    def _names(self) -> tuple[str, str]:
        return self.best.baseline.variant.label, self.best.cell.variant.label

    def table(self) -> Table:
        """A row a load."""
        base, best = self._names
        saved = [f"{(before - after) / before:.0%}" for before, after in zip(self.frame[base], self.frame[best], strict=True)]
        columns = {"requests/s": [f"{rate:.1f}" for rate in self.frame["requests/s"]], f"replicas, {base}": self.frame[base]}
        note = (
            f"Simulated from the request times that chapter {COMPARISON} measured under {self.profile} at concurrency {self.slots}, which is taken as a "
            f"replica's slots: the fewest replicas with a p99 queue wait of at most {WAIT_P99_S:g} s, at "
            "the Poisson loads that fill the baseline's 1, 3, 10, 30 and 100 replicas to 70 %."
        )
        return Table(pd.DataFrame({**columns, f"replicas, {best}": self.frame[best], "saved": saved}), "simulated", note)

    def conclusion(self) -> Text:
        """What it saves, and whether that is more than the noise."""
        base, best = self._names
        ratio, large, small = self.best.ratio, self.frame.iloc[-1], self.frame.iloc[0]
        counts = f"{large[base]:.0f} replicas without, {large[best]:.0f} with"
        told = {
            "faster": f"so at the same load and the same bound on the wait a large fleet needs fewer: {counts}.",
            "slower": f"so at this many slots speculation costs replicas: {counts}.",
            "no difference": f"which is within the noise, and so is any difference between {counts}.",
        }.get(self.best.verdict, f"from one repeat alone, so nothing can be said of the difference between {counts}.")
        other = other_drafts_note([self.best.cell])
        return bullets(
            [
                f"With {self.slots} requests in flight {best}, the best measured there, has {ratio_text(ratio)} of the baseline's throughput: "
                f"{self.best.verdict}, {told}",
                f"A small service counts in whole replicas: {small[base]:.0f} without, {small[best]:.0f} with at {small['requests/s']:.1f} requests/s.",
                "An autoscaler keeps slots busy, and speculation gains least when all are: compare at the concurrency that it will hold, not at one request.",
                *([other] if other else []),
            ]
        )


def saving(profile: str, results: Path) -> Saving | None:
    """From chapter 04's records of the profile; None where there are none to compare."""
    try:
        found = best_per_load(speedups(of_main_workload(read_study(load_profile(profile), COMPARISON, results).cells)))
    except (ConfigError, StudyError):
        return None
    closed = sorted((one for one in found if one.cell.load.concurrency), key=lambda one: one.cell.load.concurrency or 0)
    if not closed:
        return None
    best = closed[len(closed) // 2]
    slots = best.cell.load.concurrency or 1
    times = {cell.variant.label: (cell.pooled["e2e_ms"].dropna() / 1e3).tolist() for cell in (best.baseline, best.cell)}
    return Saving(profile, best, slots, saving_study(times, slots, WAIT_P99_S))
