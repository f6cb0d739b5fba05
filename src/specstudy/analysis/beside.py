"""P-EAGLE over EAGLE-3 beside the published ratio, and whether steps and published acceptance lengths alone account for ours.

Where every request decodes all the time, throughput is acceptance length over step time, so a ratio of two methods is

    ratio = (length / length') x (step' / step)

The lengths are the published ones on both sides, here and there. So what is left between two ratios is the ratio of steps, as far
as the product gives ours; what it doesn't give is prompts, the begin and end of a load, and chance in the draws of acceptance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from specstudy.analysis.cells import Cell, Variant
from specstudy.analysis.contest import best_k, contenders
from specstudy.analysis.families import at, family_of
from specstudy.analysis.speedup import Speedup
from specstudy.analysis.steps import step_times
from specstudy.catalog.published import published_acceptance, published_ratios

WITHIN = 0.10  # what counts as the same ratio

Verdict = Literal["yes", "by its mean", "not by its mean", "no"]


@dataclass(frozen=True)
class Beside:
    """One published ratio and ours, best K against best K; `step_ms` are P-EAGLE's and EAGLE-3's, `lengths` the published ones at those K."""

    dataset: str
    published: float
    contest: Speedup
    step_ms: tuple[float, float]
    lengths: tuple[float, float]

    @property
    def concurrency(self) -> int:
        """Requests in flight."""
        return self.contest.cell.load.concurrency or 0

    @property
    def off(self) -> float:
        """Ours over the published one, less 1."""
        return self.contest.ratio.estimate / self.published - 1

    @property
    def within(self) -> Verdict:
        """Whether ours is within 10 % of the published one: its whole interval, its mean only, its interval only in part, or nothing of it."""
        low, high = (self.published * (1 + sign * WITHIN) for sign in (-1, 1))
        ratio = self.contest.ratio
        if low <= ratio.estimate <= high:
            return "yes" if ratio.n < 2 or (low <= ratio.low and ratio.high <= high) else "by its mean"
        return "not by its mean" if ratio.low <= high and low <= ratio.high else "no"

    @property
    def step_ratio(self) -> float:
        """P-EAGLE's step over EAGLE-3's, measured."""
        return self.step_ms[0] / self.step_ms[1]

    @property
    def published_step_ratio(self) -> float:
        """The same, as the published ratio has it if its best K were these."""
        return self.lengths[0] / self.lengths[1] / self.published

    @property
    def from_steps(self) -> float:
        """The ratio that measured steps and published lengths alone give."""
        return self.lengths[0] / self.lengths[1] / self.step_ratio

    @property
    def explained(self) -> bool:
        """Whether that is ours, within 10 %: then a difference from the published ratio is one of step times."""
        return abs(self.contest.ratio.estimate / self.from_steps - 1) <= WITHIN


def beside_published(cells: Sequence[Cell]) -> list[Beside]:
    """One for each published ratio whose data set's acceptance was imposed here at the same concurrency, in the order of the loads."""
    pair = contenders(cells)
    if pair is None:
        return []
    rows = {row.id: row for row in published_acceptance()}
    theirs = {(one.benchmark, one.concurrency): one.ratio for one in published_ratios()}
    steps = {(one.cell.variant, one.cell.load): one.step_ms.estimate for one in step_times(cells)}
    found = []
    for one in best_k(cells, *pair):
        sources = [rows.get(_source(cell)) for cell in (one.cell, one.baseline)]
        times = [steps.get((cell.variant, cell.load)) for cell in (one.cell, one.baseline)]
        ours, other = sources
        if ours is None or other is None or times[0] is None or times[1] is None:
            continue
        published = theirs.get((ours.dataset, one.cell.load.concurrency or 0))
        if published is not None:
            found.append(Beside(ours.dataset, published, one, (times[0], times[1]), (ours.acceptance_length, other.acceptance_length)))
    return found


def _source(cell: Cell) -> str:
    return (cell.records[0].acceptance_source or "").split(",")[0]


@dataclass(frozen=True)
class Untried:
    """A K that one side has on another workload alone, and by how much its steps there would make it faster here: `gain` over the side's best K."""

    variant: Variant
    dataset: str
    concurrency: int
    gain: float


def untried(cells: Sequence[Cell], found: Sequence[Beside]) -> list[Untried]:
    """Each K that would beat the best one measured at that load, with the step that it takes on another workload and its published length here.

    A step doesn't depend on the data set: prompts and answers are as long, and only which drafts are accepted differs.
    """
    rows = {row.id: row for row in published_acceptance()}
    steps = [(one.cell, one.step_ms.estimate) for one in step_times(cells)]
    told = []
    for one in found:
        for side, best in enumerate((one.contest.cell, one.contest.baseline)):
            family = family_of(best.variant)
            measured = at(cells, family, best.load)
            for cell, step in steps:
                k = cell.variant.num_speculative_tokens or 0
                row = rows.get(f"{_source(best).rpartition('/')[0]}/k{k}")
                if family_of(cell.variant) == family and k not in measured and _as_loaded(cell, best) and row is not None:
                    gain = (row.acceptance_length / step) / (one.lengths[side] / one.step_ms[side])
                    if gain > 1:
                        told.append(Untried(cell.variant, one.dataset, one.concurrency, gain))
    return told


def _as_loaded(cell: Cell, other: Cell) -> bool:
    """Whether two workloads load a server alike: as many requests in flight, answers as long."""
    one, another = cell.records[0], other.records[0]
    return (one.pattern, one.concurrency, one.max_tokens) == (another.pattern, another.concurrency, another.max_tokens)
