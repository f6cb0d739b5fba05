"""A full replica is slower: how much, by the records, and what that does to a floor of slots in use, by simulation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from specstudy.analysis import Cell, of_main_workload
from specstudy.analysis.slowdown import quarter_of, tpots
from specstudy.book.chapter import cells_of
from specstudy.book.saving import COMPARISON
from specstudy.catalog import Profile, load_profile
from specstudy.figures import Stack, Table, Text
from specstudy.figures.tables import DASH
from specstudy.scaling.scenarios import AS_IF_LINEAR, SHIPPED
from specstudy.scaling.studies import SHORT_WAIT_S, SLOW_COLD_START_S, SLOW_HIGH_S, SLOW_LOADS, SLOW_SETTLED_S, slowdown_study

NOTHING = Text("*No good records of chapter 04 have two loads of which one is four times the other, so no slowdown can be told.*")


def measured_tables(profiles: Sequence[str], results: Path) -> Stack | Text:
    """A table for each profile, a row a server: mean TPOT at a concurrency over that at a quarter of it or less."""
    found = []
    for name in profiles:
        profile = load_profile(name)
        if (table := _table(of_main_workload(cells_of(COMPARISON, name, results)), profile)) is not None:
            found.append((profile.title.rstrip("."), table))
    return Stack(tuple(found)) if found else NOTHING


def _table(cells: Sequence[Cell], profile: Profile) -> Table | None:
    times = tpots(cells)
    pairs = sorted({(full, low) for by_load in times.values() for full in by_load if (low := quarter_of(full, by_load)) is not None})
    if not pairs:
        return None
    rows = [
        {"method": label, **{f"c={full} over c={low}": _over(by_load.get(full), by_load.get(low)) for full, low in pairs}} for label, by_load in times.items()
    ]
    note = f"Mean TPOT in a closed loop over that at a quarter of the load or less; chapter {COMPARISON}, over all repeats, without an interval."
    return Table(pd.DataFrame(rows), profile.evidence, note)


def _over(full: float | None, low: float | None) -> str:
    return DASH if full is None or low is None else f"{full / low:.2f}"


def simulated_table(service_s: Sequence[float], slots: int) -> Table:
    """A row a slowdown, both floors beside each other."""
    frame = slowdown_study(service_s, slots)
    names = {AS_IF_LINEAR: "as if linear", SHIPPED: "shipped"}
    rows = []
    for slowdown, both in frame.groupby("slowdown"):
        found = {row.policy: row for row in both.itertuples()}
        row: dict[str, object] = {"slowdown": f"{slowdown:g}"}
        row |= {f"loads below the need, {said}": f"{found[name].below} of {len(SLOW_LOADS)}" for name, said in names.items()}
        row |= {f"long waits at worst, {said}": f"{found[name].late:.0%}" for name, said in names.items()}
        row |= {f"replicas, {said}": f"{found[name].replicas:.2f}" for name, said in names.items()}
        rows.append(row)
    note = (
        f"Simulated with the service times of the first run, {slots} slots and a cold start of {SLOW_COLD_START_S:.0f} s. {len(SLOW_LOADS)} loads of "
        f"{min(SLOW_LOADS):g} to {max(SLOW_LOADS):g} times what one full replica holds, {SLOW_HIGH_S / 60:.0f} min each. Below the need: fewer replicas asked "
        f"for than hold waits to {SHORT_WAIT_S:g} s for 95 % of the requests, by Erlang's formula. Long waits, over {SHORT_WAIT_S:g} s, and replicas: of the "
        f"last {SLOW_SETTLED_S / 60:.0f} min."
    )
    return Table(pd.DataFrame(rows), "simulated", note)
