"""Records to tables: statistics, speedup, acceptance, what limits a server."""

from specstudy.analysis.cells import Cell, Load, Variant, baseline_of, group
from specstudy.analysis.limits import Scaling, TimeShares, scaling, time_shares, weight_read_gib_per_s
from specstudy.analysis.speedup import Speedup, best_per_load, speedups
from specstudy.analysis.stats import Interval, mean_interval, paired_ratio

__all__ = [
    "Cell",
    "Interval",
    "Load",
    "Scaling",
    "Speedup",
    "TimeShares",
    "Variant",
    "baseline_of",
    "best_per_load",
    "group",
    "mean_interval",
    "paired_ratio",
    "scaling",
    "speedups",
    "time_shares",
    "weight_read_gib_per_s",
]
