"""Percentiles of a list, with the study's rule for p99."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specstudy.records.schema import P99_NEEDS


def summary(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """`name`_{mean,p50,p90,p99}: numpy's linear percentiles; p99 is None under 300 values, all are None without any."""
    if not values:
        return {f"{name}_{part}": None for part in ("mean", "p50", "p90", "p99")}
    p50, p90, p99 = (float(p) for p in np.percentile(values, [50, 90, 99]))
    return {
        f"{name}_mean": float(np.mean(values)),
        f"{name}_p50": p50,
        f"{name}_p90": p90,
        f"{name}_p99": p99 if len(values) >= P99_NEEDS else None,
    }
