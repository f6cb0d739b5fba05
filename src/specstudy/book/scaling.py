"""Chapter 08: scaling runs from records, or live in the lab, and what the simulation adds from measured service times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from specstudy.book import slower
from specstudy.book.chapter import recorded_profiles
from specstudy.book.saving import COMPARISON, NOTHING, Saving, saving
from specstudy.catalog import load_profile, names_in, recorded_dir
from specstudy.figures import Picture, Stack, Table, Text, badge
from specstudy.figures.prose import short_commit
from specstudy.figures.text import NO_RECORDS, bullets
from specstudy.scaling import pictures, simulated, studies
from specstudy.scaling.beside import Beside, beside
from specstudy.scaling.compare import NO_PAIR, Comparison, comparison_of
from specstudy.scaling.record import CHAPTER, LoadedRuns, load_runs
from specstudy.scaling.scenarios import SHIPPED
from specstudy.scaling.views import RunView, every, of_policy, views
from specstudy.study import LIVE_DEFAULT, check_parameters, results_folder

FLEET_COLD_START_S = 60.0
NONE_SIMULATED, NO_TEXT = Text("*No run on file can be simulated: it takes samples before the step, a scale-out, and a replica that got ready.*"), Text("")
NO_ROWS = pd.DataFrame(), pd.DataFrame()  # of a failed run


@dataclass(frozen=True)
class Scaling:
    """What the page shows. `profile`: whose records; `results`: the folder that holds a folder for each profile.

    `beside`: runs of the CPU's profile, where that is another: its stand-ins tried the policies.
    """

    profile: str
    results: Path
    loaded: LoadedRuns
    beside: LoadedRuns | None = None

    @cached_property
    def runs(self) -> list[RunView]:
        """Good runs of the profile, the newest of each policy, method, draft and K."""
        return views(self.loaded)

    @cached_property
    def _beside(self) -> list[RunView]:
        return views(self.beside) if self.beside else []

    @cached_property
    def tried(self) -> list[RunView]:
        """Runs that tell the policies apart, all on one kind of server: the kind with most policies, the real one if they are equal."""
        kinds: dict[str, list[RunView]] = {"real": [], "stand-in": []}
        for view in [*_even(self.runs), *(view for view in _even(self._beside) if view.run.server == "stand-in")]:
            if view.run.method == "none":
                kinds[view.run.server].append(view)
        return max(kinds.values(), key=lambda found: len({view.run.policy.name for view in found}))

    @property
    def _leading(self) -> list[RunView]:
        """Runs of the profile that may lead the page; those beside it where it has none."""
        return _even(self.runs) or _even(self._beside)

    @cached_property
    def slowed(self) -> list[RunView]:
        """Runs of stand-ins that were told to be slower when full, all by as much as the newest and under its load."""
        found = [view for view in [*self._beside, *self.runs] if view.slowdown > 1]
        newest = max(found, key=lambda view: view.run.started_at, default=None)
        return [view for view in found if newest is not None and (view.slowdown, view.run.stages) == (newest.slowdown, newest.run.stages)]

    @cached_property
    def comparison(self) -> Comparison | None:
        """The runs without and with speculation at one load, among all good ones: the newest of a method may be of another machine."""
        return comparison_of(every(self.loaded))

    @cached_property
    def main(self) -> RunView | None:
        """The run of the shipped policy; where there is none, as on a cluster of one's own, the newest; one beside where all of the profile's own failed."""
        return of_policy(self._leading, SHIPPED) or of_policy(self._leading, None)

    @property
    def note(self) -> Text:
        """Where the runs come from, a paragraph for each kind of server; failed ones and lines that couldn't be read are named."""
        lines = ["*No good scaling run is on file. `specstudy lab run` makes one, or mode live.*"]
        if self.main is not None:
            own = [view for view in self._leading if view.run.server == self.main.run.server]
            lines = self._origin(own)
            if self.tried and self.tried[0].run.server != own[0].run.server:
                lines += ["Other policies were tried on other servers:", *self._origin(self.tried)]
        lines += [f"**Failed:** {RunView(one, *NO_ROWS).label}: {one.error}" for one in self.loaded.runs if one.status == "failed"]
        lines += [f"**Skipped line:** {line}" for line in self.loaded.skipped]
        return Text("\n\n".join(lines))

    @staticmethod
    def _origin(found: Sequence[RunView]) -> list[str]:
        """Two paragraphs on runs of one kind of server."""
        newest = max(found, key=lambda view: view.run.started_at)
        run = newest.run
        where = (
            f"Kubernetes {run.kubernetes_version} with its own autoscaler, Prometheus and the study's adapter on one machine "
            f"({run.gpu or f'{run.host_cpus} x {run.host_cpu}'})"
            if newest.one_machine
            else f"A cluster of Kubernetes {run.kubernetes_version} with its own autoscaler, Prometheus and metrics server, as deployed there"
        )
        what = (
            f"vLLM {run.engine_version} replicas of {run.target}"
            if run.server == "real"
            else "paced stand-ins: slots, a queue and tokens by the clock, and no model"
        )
        missed = sum(view.run.samples_missed or 0 for view in found)
        return [
            f"{badge(pictures.kind_of(run))} {where}; the replicas are {what}, {run.slots} slots each.",
            f"{Scaling._dated(found)} The load generator was late by at most {max(view.run.schedule_lag_ms_p99 or 0 for view in found):.0f} ms at p99; "
            "latencies count from the schedule, so that is in them."
            + (f" In {missed} seconds of them the cluster couldn't be asked, so its curves have gaps there." if missed else ""),
        ]

    @staticmethod
    def _dated(found: Sequence[RunView]) -> str:
        run = max(found, key=lambda view: view.run.started_at).run
        return f"{len(found)} run{'s' if len(found) > 1 else ''}, the newest of {run.started_at:%Y-%m-%d %H:%M} UTC, commit {short_commit(run.git_sha)}."

    def timeline(self) -> Picture | Text:
        """The shipped policy's run."""
        return pictures.timeline(self.main)

    def conclusion(self) -> Text:
        """What it shows."""
        return pictures.conclusion(self.main)

    def policies_figure(self) -> Picture | Text:
        """Replicas over time, a panel a policy."""
        return pictures.policies_figure(self.tried)

    def policies_table(self) -> Table | Text:
        """What each policy did."""
        return pictures.policies_table(self.tried)

    def slowdown_tables(self) -> Stack | Text:
        """How much longer a request takes in a fuller server, as chapter 04 measured it, a table for each profile."""
        return slower.measured_tables(self._profiles_compared, recorded_dir())

    def slowdown_figure(self) -> Picture | Text:
        """Replicas over time where a full replica is slower, with the floor that takes it so and with the one that doesn't."""
        return pictures.policies_figure(self.slowed, "A full replica is slower: which floor holds?")

    def slowdown_runs(self) -> Table | Text:
        """What those runs did."""
        if not self.slowed:
            return NO_RECORDS
        one = self.slowed[0]
        low, high = (rate for rate, _ in one.run.stages[:2])
        told = f" A token takes {one.slowdown:g} times as long with all slots busy as with a quarter of them; {low:g} and {high:g} requests/s. "
        told += self._dated(self.slowed)
        return pictures.policies_table(self.slowed, told)

    def slowdown_study(self) -> Table | Text:
        """The two floors over slowdowns and loads."""
        return slower.simulated_table(self._service_s, self.main.run.slots) if self.main and self._service_s else NO_RECORDS

    @property
    def _service_s(self) -> list[float]:
        return [] if self.main is None else self.main.service_s

    def beside_table(self) -> Table | Text:
        """Recorded runs and the simulation of each."""
        found = self._simulated_beside
        return simulated.beside_table(found) if found else NONE_SIMULATED

    def beside_conclusion(self) -> Text:
        """How near they are."""
        found = self._simulated_beside
        return simulated.beside_conclusion(found) if found else NO_TEXT

    @cached_property
    def _simulated_beside(self) -> list[Beside]:
        return beside([*self.runs, *self._beside])

    @cached_property
    def _cold_starts(self) -> pd.DataFrame:
        assert self.main is not None
        return studies.cold_start_study(self._service_s, self.main.run.slots)

    def cold_start_figure(self) -> Picture | Text:
        """How long waits stay long, over the cold start, a line for each policy."""
        return self._cold("recovered_s", "How long until waits are short again, if a replica starts slowly?", "waits short again after (s)")

    def overshoot_figure(self) -> Picture | Text:
        """Most replicas over needed ones, over the cold start."""
        return self._cold("most_over_needed", "How many too many?", f"most replicas / needed ({studies.CEILING} allowed)")

    def _cold(self, column: str, question: str, y: str) -> Picture | Text:
        if self.main is None or not self._service_s:
            return NO_RECORDS
        wide = self._cold_starts.pivot(index="cold_start_s", columns="policy", values=column)
        lines = [(name, [float(value) for value in wide[name]]) for name in studies.COMPARED]
        return pictures.line_figure([float(at) for at in wide.index], lines, question=question, x="cold start (s)", y=y)

    def cold_start_conclusion(self) -> Text:
        """What the cold start costs, and what a policy adds."""
        if self.main is None or not self._service_s:
            return NO_RECORDS
        frame = self._cold_starts
        own = frame[frame["policy"] == SHIPPED]
        beyond = own["recovered_s"] - own["cold_start_s"]
        others = frame[frame["policy"] != SHIPPED].groupby("policy")["most_over_needed"].max()
        told = (f"{name} for {value:.1f}" if value < studies.CEILING else f"{name} for all that it may" for name, value in others.items())
        longest = frame[frame["cold_start_s"] == frame["cold_start_s"].max()].set_index("policy")["recovered_s"]
        return bullets(
            [
                f"The load triples to what {studies.COLD_NEEDED} replicas hold at 90 %, and {studies.CEILING} times as many are allowed. "
                f"With the shipped policy waits are short again {_range(beyond.min(), beyond.max())} s after the first new replicas can be there, for every "
                f"cold start here; it asks for at most {own['most_over_needed'].max():.1f} times the replicas needed, " + ", ".join(told) + ".",
                f"At a cold start of {frame['cold_start_s'].max():.0f} s waits are long for "
                + ", ".join(
                    f"{value:,.0f} s ({name})" if np.isfinite(value) else f"all of the high load ({name})" for name, value in longest.sort_values().items()
                )
                + ".",
            ]
        )

    @cached_property
    def _steps(self) -> pd.DataFrame:
        assert self.main is not None
        return studies.step_study(self._service_s, self.main.run.slots)

    def step_table(self) -> Table | Text:
        """What becomes of a step of another size."""
        if self.main is None or not self._service_s:
            return NO_RECORDS
        return simulated.step_table(self._steps)

    def step_conclusion(self) -> Text:
        """What the shipped rate of scaling up costs beyond the step that it is made for."""
        return simulated.step_conclusion(self._steps) if self._service_s else NO_RECORDS

    def fleet_table(self) -> Table | Text:
        """The shipped policy on fleets of 3 to 1,000 replicas."""
        if self.main is None or not self._service_s:
            return NO_RECORDS
        frame = studies.fleet_study(self._service_s, self.main.run.slots, SHIPPED, FLEET_COLD_START_S)
        shown = pd.DataFrame(
            {
                "replicas needed": [f"{count:,}" for count in frame["needed"]],
                "decided": [pictures.seconds(value) for value in frame["decided_s"]],
                "waits short again": [pictures.seconds(value) for value in frame["recovered_s"]],
                "most / needed": [f"{value:.2f}" for value in frame["most_over_needed"]],
                "fewest at 3x / needed": [f"{value:.2f}" for value in frame["fewest_over_needed"]],
            }
        )
        note = (
            f"Simulated: the load triples, the autoscaler's algorithm every 15 s over a queue with the service times of the run above; cold start "
            f"{FLEET_COLD_START_S:.0f} s. "
            "A backlog stays at the replica where it arose, and those replicas are lost to new requests while it drains"
            + (
                ": small fleets triple beyond the need and don't feel it, large ones do."
                if frame["recovered_s"].iloc[-1] > 1.2 * frame["recovered_s"].iloc[0]
                else "."
            )
        )
        return Table(shown, "simulated", note)

    def measured_saving(self) -> Stack | Text:
        """Runs of real replicas at one load, without and with speculation: over time, and a row each."""
        if self.comparison is None:
            return NO_PAIR
        return Stack((("Over time", self.comparison.picture()), ("In the time that all were at 3x", self.comparison.table())))

    def measured_saving_conclusion(self) -> Text:
        """What they show."""
        return self.comparison.conclusion() if self.comparison else Text("*`specstudy lab run --server real` makes one, and with `--method` the other.*")

    @cached_property
    def _profiles_compared(self) -> list[str]:
        return [found.name for found in recorded_profiles(COMPARISON, recorded_dir())]

    @cached_property
    def _saving(self) -> Saving | None:
        """From the profile with the most telling records of chapter 04: a GPU's first."""
        names = self._profiles_compared
        return next((found for name in names if (found := saving(name, recorded_dir())) is not None), None)

    def saving_table(self) -> Table | Text:
        """Replicas needed with and without speculation at the same load and SLO."""
        return self._saving.table() if self._saving else NOTHING

    def saving_conclusion(self) -> Text:
        """What it saves."""
        return self._saving.conclusion() if self._saving else NOTHING


def _even(found: Sequence[RunView]) -> list[RunView]:
    """But for those of stand-ins that were told to be slower when full."""
    return [view for view in found if view.slowdown == 1]


def _range(low: float, high: float) -> str:
    return f"{low:.0f}" if round(low) == round(high) else f"{low:.0f} to {high:.0f}"


def open_scaling(profile: str | None = None, mode: str = "recorded", results_dir: str | None = None) -> Scaling:
    """The scaling runs of a profile; in mode "live" after a run of 3 minutes at 3x in the lab.

    `profile` None: live the CPU's, with stand-ins; else a GPU's that has runs, else the CPU's. Raises ConfigError before anything starts.
    """
    check_parameters(profile, mode, results_dir)
    folder = results_folder(mode, results_dir)
    if mode == "live":
        from specstudy.book.lab import Wanted, run_lab

        name = profile or LIVE_DEFAULT
        run_lab([Wanted(profile=name, low_s=30, high_s=180, after_s=150)], folder)
    else:
        name = profile or _recorded_profile(folder)
    chosen = load_profile(name).name
    return Scaling(chosen, folder, load_runs(folder / chosen), load_runs(folder / LIVE_DEFAULT) if chosen != LIVE_DEFAULT else None)


def _recorded_profile(folder: Path) -> str:
    """A GPU's profile that has runs, else the CPU's."""
    having = [name for name in names_in("profiles") if (folder / name / f"{CHAPTER}.jsonl").is_file()]
    return min(having, key=lambda name: (load_profile(name).hardware != "gpu", name), default=LIVE_DEFAULT)
