"""What a step costs: its time from TPOT and acceptance length, and the part that isn't the plain target's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from specstudy.analysis.cells import Cell, Load, baseline_of
from specstudy.analysis.families import Family, at, families, family_of, loads
from specstudy.analysis.stats import CONFIDENCE, Interval, mean_interval

BEYOND_CHANCE = 0.05


@dataclass(frozen=True)
class StepTime:
    """Milliseconds of one verification step, and of it what the baseline's step at the same load doesn't take.

    step = mean TPOT x acceptance length: a step delivers that many tokens. extra = step - the baseline's mean TPOT, paired
    by repeat. Extra is drafting and the wider verification together: K + 1 positions through the target instead of one,
    sampling and bookkeeping included. TPOT also holds the pauses while other requests are prefilled, on both sides; as a step
    delivers more tokens, more prompts arrive a second and those pauses come more often, which extra then holds too.
    """

    cell: Cell
    step_ms: Interval
    extra_ms: Interval | None
    extra_by_repeat: dict[int, float]


def step_times(cells: Sequence[Cell]) -> list[StepTime]:
    """One for each cell whose method drafts in every step; the counters of the others don't see every step."""
    found = []
    for cell in cells:
        steps = _steps(cell)
        if not family_of(cell.variant).drafts_every_step or not steps:
            continue
        baseline = baseline_of(cell, cells)
        plain = {record.repeat: record.tpot_ms_mean for record in baseline.records if record.tpot_ms_mean} if baseline else {}
        extra = {repeat: step - plain[repeat] for repeat, step in steps.items() if repeat in plain}
        found.append(StepTime(cell, mean_interval(list(steps.values())), mean_interval(list(extra.values())) if extra else None, extra))
    return found


def _steps(cell: Cell) -> dict[int, float]:
    return {record.repeat: record.tpot_ms_mean * record.acceptance_length for record in cell.records if record.tpot_ms_mean and record.acceptance_length}


@dataclass(frozen=True)
class LackOfFit:
    """How much further the steps of single K lie off their line than the scatter of their repeats explains: 1 is what to expect.

    `ratio` is the root of F, mean square off the line over mean square of the repeats once each K's and each repeat's mean is taken out;
    `p` is F's. Beyond 1 the steps don't grow by a line, or something differed between the K that no interval holds: another server, another minute.
    """

    ratio: float
    p: float


@dataclass(frozen=True)
class DraftingSlope:
    """Extra milliseconds of a step for each further drafted token, and at K = 0, by least squares over K.

    The line is fitted in each repeat that has every K, and the interval is over those repeats. `off_line` needs two of them; where by it single K lie
    off the line beyond chance, at 5 % over all rows together (Bonferroni), the interval is the line's own if that is wider, from how far they do.
    `one_go`: whether the repeats of a K followed one another with no other K between, so that all of them had the same minutes.
    """

    family: Family
    load: Load
    ks: tuple[int, ...]
    per_token_ms: Interval
    fixed_ms: Interval
    off_line: LackOfFit | None
    one_go: bool
    beyond_chance: bool = False


def drafting_slopes(cells: Sequence[Cell]) -> list[DraftingSlope]:
    """One for each family and load with at least three K and a repeat that all of them share."""
    times = {(time.cell.variant, time.cell.load): time for time in step_times(cells)}
    found = []
    for family in families(cells):
        for load in loads(cells):
            measured = ((k, times.get((cell.variant, cell.load))) for k, cell in at(cells, family, load).items())
            own: dict[int, StepTime] = {k: time for k, time in measured if time is not None}
            shared = set.intersection(*(set(time.extra_by_repeat) for time in own.values())) if len(own) >= 3 else set()
            if shared:
                extra = np.array([[time.extra_by_repeat[repeat] for time in own.values()] for repeat in sorted(shared)])
                lines = [np.polyfit(list(own), repeat, 1) for repeat in extra]
                per_token, fixed = (mean_interval([float(line[part]) for line in lines]) for part in (0, 1))
                one_go = measured_in_one_go([time.cell for time in own.values()])
                of_line = line_intervals(list(own), extra.mean(axis=0), len(extra))
                found.append((DraftingSlope(family, load, tuple(own), per_token, fixed, lack_of_fit(list(own), extra), one_go), of_line))
    tested = sum(slope.off_line is not None for slope, _ in found)
    return [_widened(slope, of_line) if slope.off_line is not None and slope.off_line.p < BEYOND_CHANCE / tested else slope for slope, of_line in found]


def _widened(slope: DraftingSlope, of_line: tuple[Interval, Interval]) -> DraftingSlope:
    per_token, fixed = (max(pair, key=lambda one: one.high - one.low) for pair in zip((slope.per_token_ms, slope.fixed_ms), of_line, strict=True))
    return replace(slope, per_token_ms=per_token, fixed_ms=fixed, beyond_chance=True)


def line_intervals(ks: Sequence[int], means: np.ndarray, repeats: int) -> tuple[Interval, Interval]:
    """Slope and value at 0 of the least-squares line through one mean for each of three K or more, with Student's t intervals from its residuals."""
    line = stats.linregress(ks, means)
    t = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(ks) - 2))

    def around(estimate: float, error: float) -> Interval:
        return Interval(estimate, estimate - t * error, estimate + t * error, repeats)

    return around(float(line.slope), float(line.stderr)), around(float(line.intercept), float(line.intercept_stderr))


def lack_of_fit(ks: Sequence[int], values: np.ndarray) -> LackOfFit | None:
    """Of a straight line over `ks` through `values`, a row for each repeat; None for fewer than two repeats or three K, or where repeats agree exactly."""
    repeats, n = values.shape
    if repeats < 2 or n < 3:
        return None
    means = values.mean(axis=0)
    off = means - np.polyval(np.polyfit(ks, means, 1), ks)
    rest = values - means - values.mean(axis=1, keepdims=True) + values.mean()
    degrees = n - 2, (n - 1) * (repeats - 1)
    of_repeats = float((rest**2).sum()) / degrees[1]
    if of_repeats <= 1e-18 * float((values**2).mean()):
        return None
    f = repeats * float((off**2).sum()) / degrees[0] / of_repeats
    return LackOfFit(f**0.5, float(stats.f.sf(f, *degrees)))


def measured_in_one_go(cells: Sequence[Cell]) -> bool:
    """Whether the repeats of most of these cells followed one another, with none of the others between: then they all had the same minutes."""
    begun = sorted((record.allocation, record.started_at, number) for number, cell in enumerate(cells) for record in cell.records)
    order = [number for _, _, number in begun]
    repeated = [number for number, cell in enumerate(cells) if len(cell.records) > 1]
    whole = [number for number in repeated if set(order[order.index(number) : len(order) - order[::-1].index(number)]) == {number}]
    return len(whole) * 2 > len(repeated)
