"""How much slower tokens come from a full server than from one a quarter full: what an autoscaler's floor has to allow for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from specstudy.analysis.cells import Cell, group
from specstudy.analysis.families import of_main_workload
from specstudy.records import Record
from specstudy.records.store import REQUESTS_SCHEMA


def slowdown(records: Sequence[Record], slots: int, held: int) -> float | None:
    """Mean TPOT with `slots` requests in flight over that with a quarter of them; at least 1, None where no chapter says it.

    records: of one profile, any chapters; each chapter's main workload in a closed loop counts, by its newest allocation. held: requests that the
    measured servers ran at once; with more in flight some of them waited. Full is the lowest load that fills the slots, else the highest that fills
    half of them; a quarter the highest at most a fourth of that. Where several servers or chapters say it the largest counts, which noise makes larger.
    """
    chapters = dict.fromkeys(record.chapter for record in records)
    cells = [of_main_workload(group([one for one in records if one.chapter == chapter], REQUESTS_SCHEMA.empty_table())) for chapter in chapters]
    found = [ratio for own in cells for tpot_ms in tpots(own).values() if (ratio := _ratio(tpot_ms, slots, held)) is not None]
    return max(1.0, *found) if found else None


def tpots(cells: Sequence[Cell]) -> dict[str, dict[int, float]]:
    """Mean TPOT in ms over the repeats, by server and concurrency; closed loops alone."""
    found: dict[str, dict[int, float]] = {}
    for cell in cells:
        values = [record.tpot_ms_mean for record in cell.records if record.tpot_ms_mean is not None]
        if cell.load.concurrency is not None and values:
            found.setdefault(cell.label, {})[cell.load.concurrency] = fmean(values)
    return found


def quarter_of(full: int, loads: Iterable[int]) -> int | None:
    """The highest of `loads` that is at most a fourth of `full`; None without one."""
    return max((load for load in loads if 4 * load <= full), default=None)


def _ratio(tpot_ms: dict[int, float], slots: int, held: int) -> float | None:
    loads = [load for load in tpot_ms if load <= held]
    full = min((load for load in loads if load >= slots), default=max((load for load in loads if 2 * load >= slots), default=None))
    quarter = None if full is None else quarter_of(full, loads)
    return None if full is None or quarter is None else tpot_ms[full] / tpot_ms[quarter]
