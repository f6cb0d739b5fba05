"""Intervals: Student's t for a mean, and for the ratio of two measured on the same prompts."""

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
