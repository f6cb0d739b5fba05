"""Feed the algorithm with what the real controller saw, pass by pass, and compare what each decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specstudy.scaling import QUEUE_WAIT, SLOTS_IN_USE
from specstudy.scaling.hpa import Autoscaler, Release
from specstudy.scaling.policy import HpaPolicy
from specstudy.scaling.record import Sample


@dataclass(frozen=True)
class Pass:
    """One pass of the controller, known by a change of what its status says that it saw, or of the replicas."""

    at_s: float
    before: int
    theirs: int
    ours: int


def replay(policy: HpaPolicy, samples: Sequence[Sample], release: Release, sync_s: float) -> list[Pass]:
    """Every pass that can be told apart in the samples.

    The status rounds the average of the slots up to thousandths, and a sample may be a second late, so that ready pods are those of a second
    later; passes are taken to lie whole periods of `sync_s` apart. Where a decision stands on such an edge the two may differ.
    """
    ours, before, found, first = Autoscaler(policy, release), samples[0], list[Pass](), 0.0
    for sample in samples[1:]:
        seen = (sample.seen_wait_ms, sample.seen_slots_average)
        if (*seen, sample.replicas) != (before.seen_wait_ms, before.seen_slots_average, before.replicas) and any(one is not None for one in seen):
            values: dict[str, float | None] = {QUEUE_WAIT: sample.seen_wait_ms}
            values[SLOTS_IN_USE] = None if sample.seen_slots_average is None else sample.seen_slots_average * before.listed
            first = first if found else sample.at_s
            decision = ours.sync(round((sample.at_s - first) / sync_s) * sync_s, values, current=before.replicas, ready=before.ready, listed=before.listed)
            found.append(Pass(sample.at_s, before.replicas, sample.replicas, decision.desired))
            before = sample
        before = replace(before, ready=sample.ready, listed=sample.listed)
    return found
