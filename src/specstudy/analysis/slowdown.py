"""How much longer a request takes in a full replica than in one that is nearly empty: what an autoscaler's floor has to allow for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean

from specstudy.records import Record


def slowdown(records: Sequence[Record], slots: int) -> float | None:
    """Mean time of a request with `slots` busy over that with a quarter of them; at least 1, None where no closed loop says it.

    records: good ones of one server. Full is the lowest concurrency measured that fills the slots, else the highest; a quarter the highest at most
    a fourth of that. Where several chapters, workloads or allocations say it, the largest counts: the one that asks for the most replicas.
    """
    times: dict[tuple[str, str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in records:
        if one.status == "ok" and one.concurrency is not None and one.e2e_ms_mean is not None:
            times[one.chapter, one.workload, one.allocation][one.concurrency].append(one.e2e_ms_mean)
    found = [ratio for by_load in times.values() if (ratio := _ratio({load: fmean(values) for load, values in by_load.items()}, slots)) is not None]
    return max(1.0, *found) if found else None


def quarter_of(full: int, loads: Iterable[int]) -> int | None:
    """The highest of `loads` that is at most a fourth of `full`; None without one."""
    return max((load for load in loads if 4 * load <= full), default=None)


def _ratio(e2e_ms: dict[int, float], slots: int) -> float | None:
    full = min((load for load in e2e_ms if load >= slots), default=max(e2e_ms))
    quarter = quarter_of(full, e2e_ms)
    return None if quarter is None else e2e_ms[full] / e2e_ms[quarter]
