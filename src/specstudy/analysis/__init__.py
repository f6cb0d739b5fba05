"""Records to tables: statistics, speedup, acceptance, method against method, what a step costs, what limits a server."""

from specstudy.analysis.acceptance import (
    ContextPoint,
    PositionCurve,
    WorkloadShare,
    by_context,
    context_ratios,
    deepest_curves,
    position_curve,
    workload_shares,
)
from specstudy.analysis.cells import Cell, Load, Variant, baseline_of, group, side_by_side
from specstudy.analysis.contest import Inflection, best_k, fastest, inflection, inflections, same_k
from specstudy.analysis.costs import LatencyChange, Memory, Rejection, latency_changes, memory, p99_ratio, rejections
from specstudy.analysis.families import Family, context_tokens, eagle3_and_31, families, family_of, main_workload, of_main_workload
from specstudy.analysis.limits import Scaling, TimeShares, scaling, time_shares, weight_read_gib_per_s
from specstudy.analysis.speedup import Speedup, against, best_per_load, speedups
from specstudy.analysis.stats import Interval, mean_interval, paired_ratio, unpaired_ratio
from specstudy.analysis.steps import DraftingSlope, StepTime, drafting_slopes, step_times

__all__ = [
    "Cell",
    "ContextPoint",
    "DraftingSlope",
    "Family",
    "Inflection",
    "Interval",
    "LatencyChange",
    "Load",
    "Memory",
    "PositionCurve",
    "Rejection",
    "Scaling",
    "Speedup",
    "StepTime",
    "TimeShares",
    "Variant",
    "WorkloadShare",
    "against",
    "baseline_of",
    "best_k",
    "best_per_load",
    "by_context",
    "context_ratios",
    "context_tokens",
    "deepest_curves",
    "drafting_slopes",
    "eagle3_and_31",
    "families",
    "family_of",
    "fastest",
    "group",
    "inflection",
    "inflections",
    "latency_changes",
    "main_workload",
    "mean_interval",
    "memory",
    "of_main_workload",
    "p99_ratio",
    "paired_ratio",
    "position_curve",
    "rejections",
    "same_k",
    "scaling",
    "side_by_side",
    "speedups",
    "step_times",
    "time_shares",
    "unpaired_ratio",
    "weight_read_gib_per_s",
    "workload_shares",
]
