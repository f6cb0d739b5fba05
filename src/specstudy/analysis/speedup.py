"""Is it faster? A method against the baseline, or another method, of the same allocation, with an interval and a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from specstudy.analysis.alike import alike
from specstudy.analysis.cells import Cell, Load, with_baseline
from specstudy.analysis.stats import Interval, paired_ratio

FLAG_BELOW = 0.95


@dataclass(frozen=True)
class Speedup:
    """Throughput of `cell` over its baseline's, paired by repeat: the same prompts on both sides.

    The baseline is the server without speculation, or the method that `cell` is compared with. `rates`: (ours, its) in tokens/s, by repeat.
    """

    cell: Cell
    baseline: Cell
    rates: Mapping[int, tuple[float, float]]

    @cached_property
    def ratio(self) -> Interval:
        """Geometric mean of the repeats' ratios with its interval."""
        return self.over(self.rates.keys())

    def over(self, repeats: Iterable[int]) -> Interval:
        """The ratio on these repeats alone. Raises ValueError for none."""
        kept = [self.rates[repeat] for repeat in sorted(repeats)]
        return paired_ratio([ours for ours, _ in kept], [theirs for _, theirs in kept])

    @property
    def verdict(self) -> str:
        """faster, slower, no difference, or what is missing to say so."""
        if self.ratio.n < 2:
            return "one repeat only"
        if not self.ratio.excludes(1.0):
            return "no difference"
        return "faster" if self.ratio.estimate > 1 else "slower"

    @property
    def same_runner(self) -> bool:
        """Whether both ran on the same of vLLM's model runners; otherwise the ratio measures the runner too."""
        return {record.model_runner for record in self.cell.records} == {record.model_runner for record in self.baseline.records}

    @property
    def alike(self) -> bool:
        """Whether the host did about the same beside both; otherwise part of the ratio may be due to that."""
        return alike(self.cell, self.baseline)

    @property
    def flagged(self) -> bool:
        """Under 0.95 of the baseline: speculation costs throughput here."""
        return self.ratio.estimate < FLAG_BELOW


def speedups(cells: Sequence[Cell]) -> list[Speedup]:
    """One for each cell with a method whose load has a baseline in the same allocation."""
    found = (against(cell, baseline) for cell, baseline in with_baseline(cells))
    return [speedup for speedup in found if speedup is not None]


def against(cell: Cell, baseline: Cell) -> Speedup | None:
    """`cell` over `baseline`, on the repeats that both have; None if they share none, or come from two GPUs."""
    if cell.allocation != baseline.allocation:
        return None
    return of_rates(cell, baseline, _by_repeat(cell, "output_tokens_per_s"), _by_repeat(baseline, "output_tokens_per_s"))


def of_rates(cell: Cell, baseline: Cell, ours: Mapping[int, float], theirs: Mapping[int, float]) -> Speedup | None:
    """On the repeats that both have; None if there is none."""
    shared = {repeat: (ours[repeat], theirs[repeat]) for repeat in sorted(ours.keys() & theirs.keys())}
    return Speedup(cell, baseline, shared) if shared else None


def paired(cell: Cell, other: Cell, field: str) -> tuple[list[float], list[float]] | None:
    """Values of a record's field on both sides, repeat by repeat; None where no repeat has both above 0."""
    ours, theirs = _by_repeat(cell, field), _by_repeat(other, field)
    shared = sorted(ours.keys() & theirs.keys())
    return ([ours[repeat] for repeat in shared], [theirs[repeat] for repeat in shared]) if shared else None


def ratio_of(cell: Cell, other: Cell, field: str) -> Interval | None:
    """A record's field over the other cell's, paired by repeat; None where no repeat has both above 0."""
    pairs = paired(cell, other, field)
    return paired_ratio(*pairs) if pairs else None


def _by_repeat(cell: Cell, field: str) -> dict[int, float]:
    return {record.repeat: float(value) for record in cell.records if (value := getattr(record, field))}


def rivals(best: Speedup, found: Sequence[Speedup]) -> list[Speedup]:
    """Those at the same load that aren't told apart from the best, by the ratio of the two, paired by repeat: two ratios share the baseline's noise.

    Of two GPUs the repeats aren't paired; there their intervals overlap. Those on another model runner than their baseline aren't among them.
    """
    same_load = [one for one in found if one.cell.load == best.cell.load and one.cell.variant != best.cell.variant and one.same_runner]
    return [one for one in same_load if _close(best, one)]


def _close(best: Speedup, one: Speedup) -> bool:
    if one.cell.allocation != best.cell.allocation:
        return best.ratio.overlaps(one.ratio)
    direct = of_rates(best.cell, one.cell, _own_rates(best), _own_rates(one))
    return direct is None or not direct.ratio.excludes(1.0)


def _own_rates(one: Speedup) -> dict[int, float]:
    return {repeat: ours for repeat, (ours, _) in one.rates.items()}


def choosable(found: Sequence[Speedup]) -> list[Speedup]:
    """Those that a best one may be chosen from: measured under conditions like the baseline's, or all of a load where none was."""
    like = {one.cell.load for one in found if one.alike}
    return [one for one in found if one.alike or one.cell.load not in like]


def best_per_load(found: Sequence[Speedup]) -> list[Speedup]:
    """The highest ratio at each load of those that are `choosable`, in the order of the loads; see `highest`."""
    by_load: dict[Load, list[Speedup]] = {}
    for speedup in choosable(found):
        by_load.setdefault(speedup.cell.load, []).append(speedup)
    return [highest(by_load[load]) for load in sorted(by_load, key=lambda load: load.order)]


def highest(found: Sequence[Speedup]) -> Speedup:
    """The one with the highest ratio over the repeats that all have, where they have two in common: a repeat that one lacks was slow or fast for the rest."""
    shared = set.intersection(*(set(one.rates) for one in found))
    return max(found, key=lambda one: (one.over(shared) if len(shared) > 1 else one.ratio).estimate)
