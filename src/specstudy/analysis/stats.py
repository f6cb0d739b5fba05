"""Intervals: Student's t for a mean, and for the ratio of two, measured on the same prompts or on others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % confidence interval; `n` repeats. low and high are nan for one repeat."""

    estimate: float
    low: float
    high: float
    n: int

    @property
    def half_width_share(self) -> float:
        """Half the interval's length over the estimate; inf for one repeat."""
        return (self.high - self.low) / 2 / abs(self.estimate) if self.n > 1 and self.estimate else float("inf")

    def excludes(self, value: float) -> bool:
        """Whether `value` lies outside; False where there is no interval."""
        return self.high < value or self.low > value

    def overlaps(self, other: Interval) -> bool:
        """Whether the two aren't told apart: they have a value in common, or one of them has no interval."""
        return not (self.high < other.low or self.low > other.high)


def mean_interval(values: Sequence[float]) -> Interval:
    """Student's t interval of a mean, unknown variance. Raises ValueError without values."""
    if not values:
        raise ValueError("an interval needs at least one value")
    mean, n = float(np.mean(values)), len(values)
    if n == 1:
        return Interval(mean, float("nan"), float("nan"), 1)
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) * stats.sem(values))
    return Interval(mean, mean - half, mean + half, n)


def paired_ratio(method: Sequence[float], baseline: Sequence[float]) -> Interval:
    """Geometric mean of method[i] / baseline[i], with the t interval of its logarithm.

    Pairs are repeats with the same prompts, so what the prompts cost cancels out. Raises ValueError when the
    lengths differ, nothing is given, or a value isn't above 0.
    """
    if len(method) != len(baseline):
        raise ValueError(f"pairs are needed: {len(method)} values against {len(baseline)}")
    if min([*method, *baseline], default=1.0) <= 0:
        raise ValueError("a ratio needs values above 0")
    of_log = mean_interval([float(np.log(a / b)) for a, b in zip(method, baseline, strict=True)])
    return Interval(float(np.exp(of_log.estimate)), float(np.exp(of_log.low)), float(np.exp(of_log.high)), of_log.n)


def unpaired_ratio(above: Sequence[float], below: Sequence[float]) -> Interval:
    """Ratio of geometric means with Welch's t interval of its logarithm: for repeats that share no prompts.

    `n` is the smaller number of repeats; with one on either side there is no interval. Raises ValueError when a side
    is empty or a value isn't above 0.
    """
    if not above or not below:
        raise ValueError("a ratio needs at least one value on both sides")
    if min([*above, *below]) <= 0:
        raise ValueError("a ratio needs values above 0")
    a, b = np.log(above), np.log(below)
    difference, n = float(a.mean() - b.mean()), min(len(a), len(b))
    if n == 1:
        return Interval(float(np.exp(difference)), float("nan"), float("nan"), 1)
    parts = np.array([a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)])
    if parts.sum() == 0:
        return Interval(float(np.exp(difference)), float(np.exp(difference)), float(np.exp(difference)), n)
    degrees = parts.sum() ** 2 / (parts**2 / (np.array([len(a), len(b)]) - 1)).sum()  # Welch and Satterthwaite
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, degrees) * np.sqrt(parts.sum()))
    return Interval(float(np.exp(difference)), float(np.exp(difference - half)), float(np.exp(difference + half)), n)
