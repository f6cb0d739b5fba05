"""One method against another: same K against same K, best K against best K, and where the advantage ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

from specstudy.analysis.alike import alike
from specstudy.analysis.cells import Cell, Load, baseline_of
from specstudy.analysis.families import Family, at, families, loads
from specstudy.analysis.speedup import Speedup, against
from specstudy.analysis.stats import CONFIDENCE

DRAWS = 20_000


def contenders(cells: Sequence[Cell]) -> tuple[Family, Family] | None:
    """The first (P-EAGLE, EAGLE-3) families of these cells that were served the same way; None without such a pair."""
    pairs = ((ours, theirs) for ours in families(cells, "peagle") for theirs in families(cells, "eagle3") if ours.engine_variant == theirs.engine_variant)
    return next(pairs, None)


def same_k(cells: Sequence[Cell], ours: Family, theirs: Family) -> list[Speedup]:
    """`ours` over `theirs` at each load and K that both were measured at."""
    found = []
    for load in loads(cells):
        mine, other = at(cells, ours, load), at(cells, theirs, load)
        contests = (against(mine[k], other[k]) for k in mine if k in other)
        found += [contest for contest in contests if contest is not None]
    return found


def best_k(cells: Sequence[Cell], ours: Family, theirs: Family) -> list[Speedup]:
    """`ours` over `theirs` at each load, each at the K with its highest mean throughput there.

    The K are chosen by the same repeats that the ratio is taken from, so a near tie between two K flatters both sides alike; and among the cells
    beside which the host did as much as beside their baseline, where there are such.
    """
    contests = (against(mine, other) for mine, other in best_cells(cells, ours, theirs))
    return [contest for contest in contests if contest is not None]


def best_cells(cells: Sequence[Cell], ours: Family, theirs: Family) -> list[tuple[Cell, Cell]]:
    """Each side's cell with its best K, at each load that both were measured at; the two may come from different GPUs."""
    sides = ((fastest(chosen_from(cells, family, load)) for family in (ours, theirs)) for load in loads(cells))
    return [(mine, other) for mine, other in sides if mine is not None and other is not None]


def chosen_from(cells: Sequence[Cell], family: Family, load: Load) -> list[Cell]:
    """A family's cells at a load that were measured under conditions like their baseline's; all where none was, or there is no baseline."""
    own = list(at(cells, family, load).values())
    like = [cell for cell in own if (baseline := baseline_of(cell, cells)) is not None and alike(cell, baseline)]
    return like or own


def fastest(cells: Sequence[Cell]) -> Cell | None:
    """The cell with the highest mean throughput; None if none has one."""
    timed = [(interval.estimate, index) for index, cell in enumerate(cells) if (interval := cell.interval("output_tokens_per_s")) is not None]
    return cells[max(timed)[1]] if timed else None


@dataclass(frozen=True)
class Inflection:
    """The concurrency at which a method's advantage over another ends; `low` and `high` are its 95 % interval.

    `concurrency` is None where there is no crossing. A bound of inf says that the ratio may never fall to 1 up to the
    highest concurrency measured, one of 0 that it may be below from the lowest on; nan that there is one repeat only.
    """

    k: int | None
    contests: tuple[Speedup, ...]
    state: Literal["crosses", "above", "below"]
    concurrency: float | None
    low: float
    high: float
    returns: bool

    @property
    def text(self) -> str:
        """Like 11.3 (6.2 to 20.1), or in words where nothing crosses."""
        first, last = (contest.cell.load.concurrency for contest in (self.contests[0], self.contests[-1]))
        said = {"above": f"none up to {last}", "below": f"below 1 from {first} on"}.get(self.state) or f"{self.concurrency:.1f}"
        again = "; above 1 again further up" if self.returns else ""
        if np.isnan(self.low):
            return f"{said}, one repeat only{again}"
        low = f"under {first}" if self.low == 0 else f"over {last}" if np.isinf(self.low) else f"{self.low:.1f}"
        high = f"over {last}" if np.isinf(self.high) else f"under {first}" if self.high == 0 else f"{self.high:.1f}"
        return f"{said} ({low} to {high})" + again if low != high else said + again


def inflections(contests: Sequence[Speedup]) -> list[Inflection]:
    """One for each K that both sides of a same-K contest were measured at over two concurrencies or more."""
    ks = sorted({contest.cell.variant.num_speculative_tokens or 0 for contest in contests})
    found = (inflection([contest for contest in contests if contest.cell.variant.num_speculative_tokens == k], k) for k in ks)
    return [one for one in found if one is not None]


def inflection(contests: Sequence[Speedup], k: int | None = None) -> Inflection | None:
    """Where the throughput ratio of these contests falls to 1 as concurrency grows; None under two concurrencies.

    They are of one workload, each concurrency once. Raises ValueError for two at one concurrency.

    The first crossing from above, by linear interpolation of the logarithm of the ratio over log2 of concurrency between
    the two cells around it. The interval is a parametric bootstrap over repeats: each cell's log ratio is drawn from its
    own Student t distribution (mean, standard error, repeats - 1 degrees of freedom), the crossing found each time, and
    the 2.5 and 97.5 percentiles taken. Drawing the few repeats themselves with replacement would make it too narrow.
    """
    closed = [contest for contest in contests if contest.cell.load.concurrency]
    by_load = {contest.cell.load.concurrency or 0: contest for contest in closed}
    if len(by_load) < len(closed):
        raise ValueError("an inflection needs the contests of one workload, one for each concurrency")
    ordered = tuple(by_load[c] for c in sorted(by_load))
    if len(ordered) < 2:
        return None
    where = np.log2([contest.cell.load.concurrency or 1 for contest in ordered])
    means = np.log([contest.ratio.estimate for contest in ordered])
    crossing = float(_crossings(where, means[None, :])[0])
    state: Literal["crosses", "above", "below"] = "above" if np.isinf(crossing) else "below" if crossing == 0 else "crosses"
    low, high = (float("nan"), float("nan")) if any(contest.ratio.n < 2 for contest in ordered) else _bounds(where, means, ordered)
    below = np.flatnonzero(means <= 0)
    returns = bool(len(below) and (means[below[0] :] > 0).any())
    return Inflection(k, ordered, state, crossing if state == "crosses" else None, low, high, returns)


def _bounds(where: np.ndarray, means: np.ndarray, contests: Sequence[Speedup]) -> tuple[float, float]:
    rng = np.random.default_rng(0)
    degrees = np.array([contest.ratio.n - 1 for contest in contests])
    halves = np.array([np.log(contest.ratio.high / contest.ratio.low) / 2 for contest in contests])
    errors = halves / stats.t.ppf((1 + CONFIDENCE) / 2, degrees)
    draws = means + errors * rng.standard_t(degrees, size=(DRAWS, len(contests)))
    crossings = np.sort(_crossings(where, draws))
    tail = (1 - CONFIDENCE) / 2
    return float(crossings[int(tail * DRAWS)]), float(crossings[int((1 - tail) * DRAWS) - 1])


def _crossings(where: np.ndarray, logs: np.ndarray) -> np.ndarray:
    """First fall to 0 of each row of `logs`, as a concurrency; inf if none, 0 if the first value isn't above 0."""
    below = logs <= 0
    first = np.where(below.any(axis=1), below.argmax(axis=1), -1)
    rows = np.arange(len(logs))
    before = np.maximum(first - 1, 0)
    drop = logs[rows, before] - logs[rows, first]
    share = np.divide(logs[rows, before], drop, out=np.zeros(len(logs)), where=(first > 0) & (drop != 0))
    crossed = 2.0 ** (where[before] + share * (where[first] - where[before]))
    return np.where(first < 0, np.inf, np.where(first == 0, 0.0, crossed))
