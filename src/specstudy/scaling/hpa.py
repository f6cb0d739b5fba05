"""The HorizontalPodAutoscaler's algorithm, for External metrics with a `behavior`, as Kubernetes' source has it.

Written from pkg/controller/podautoscaler/{horizontal,replica_calculator}.go. Two releases differ where it matters:

- `current`: a missing metric forbids scaling down; the stabilised answer lies between now and the newest
  recommendation's side; a rate limit's period counts what was added and what was taken away.
- `v1_20`, which the one-machine lab runs: a missing metric is left out as long as another is there; each direction
  has its window alone, so a high recommendation that a rate limit cut short is taken up again when demand falls; a
  rate limit counts its own direction only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from specstudy.scaling.policy import Direction, HpaPolicy, MetricTarget

TOLERANCE = 0.1  # the controller manager's default
Release = Literal["v1_20", "current"]


@dataclass(frozen=True)
class Decision:
    """What one sync came to. `recommended`: the metrics' answer, before windows and limits; None where it held for want of a metric."""

    desired: int
    recommended: int | None
    reason: str


@dataclass(frozen=True)
class Event:
    """A change of the replicas' number, or a recommendation, at `at_s`."""

    at_s: float
    replicas: int


def recommend(one: MetricTarget, value: float, *, current: int, ready: int, listed: int, tolerance: float = TOLERANCE) -> int:
    """Replicas that one metric asks for.

    current: the Deployment's spec.replicas. ready: its ready pods. listed: its status.replicas, ready or not.
    A Value target multiplies the ready pods by metric/target; an AverageValue target divides the metric by the target.
    """
    milli, target = round(value * 1000), round(one.target * 1000)
    if one.kind == "Value":
        ratio = milli / target
        if current == 0:
            return math.ceil(ratio)
        return current if abs(1 - ratio) <= tolerance else math.ceil(ratio * ready)
    ratio = milli / (target * listed) if listed else math.inf
    return listed if abs(1 - ratio) <= tolerance else math.ceil(milli / target)


def up_limit(way: Direction, current: int, added: Sequence[Event], removed: Sequence[Event], now_s: float) -> int:
    """Most replicas that the rate limits of scaling up allow now."""
    proposals = []
    for limit in way.limits:
        start = current - _change(added, now_s - limit.period_s) + _change(removed, now_s - limit.period_s)
        proposals.append(start + limit.value if limit.kind == "Pods" else math.ceil(start * (1 + limit.value / 100)))
    return max(current, max(proposals) if way.select == "Max" else min(proposals))


def down_limit(way: Direction, current: int, added: Sequence[Event], removed: Sequence[Event], now_s: float) -> int:
    """Fewest replicas that the rate limits of scaling down allow now; a share is cut to whole replicas, so that it always moves."""
    proposals = []
    for limit in way.limits:
        start = current - _change(added, now_s - limit.period_s) + _change(removed, now_s - limit.period_s)
        proposals.append(start - limit.value if limit.kind == "Pods" else int(start * (1 - limit.value / 100)))
    return min(current, min(proposals) if way.select == "Max" else max(proposals))


def _change(events: Sequence[Event], after_s: float) -> int:
    return sum(event.replicas for event in events if event.at_s > after_s)


@dataclass
class Autoscaler:
    """The controller for one object, with what it remembers between syncs."""

    policy: HpaPolicy
    release: Release = "current"
    tolerance: float = TOLERANCE
    recommendations: list[Event] = field(default_factory=list)
    added: list[Event] = field(default_factory=list)
    removed: list[Event] = field(default_factory=list)

    def sync(self, now_s: float, values: Mapping[str, float | None], *, current: int, ready: int, listed: int | None = None) -> Decision:
        """One pass at `now_s`; `values` holds each metric's value, None or no key where the adapter answered with an error.

        The caller gives the next sync's `current` as this one's `desired`.
        """
        if not self.recommendations:
            self.recommendations.append(Event(now_s, current))
        low, high = self.policy.min_replicas, self.policy.max_replicas
        if current == 0:
            return Decision(0, None, "ScalingDisabled")
        if not low <= current <= high:
            return self._settle(now_s, current, Decision(max(low, min(high, current)), None, "OutOfBounds"))
        asked = self._recommended(values, current, ready, current if listed is None else listed)
        if asked is None:
            return Decision(current, None, "FailedGetExternalMetric")
        steady = self._stabilised(now_s, asked, current)
        self.recommendations.append(Event(now_s, asked))
        desired, reason = self._limited(now_s, steady, current)
        return self._settle(now_s, current, Decision(desired, asked, reason))

    def _recommended(self, values: Mapping[str, float | None], current: int, ready: int, listed: int) -> int | None:
        asked, missing = [], 0
        for one in self.policy.metrics:
            value = values.get(one.metric)
            if value is None:
                missing += 1
            else:
                asked.append(recommend(one, value, current=current, ready=ready, listed=listed, tolerance=self.tolerance))
        if not asked or (missing and self.release == "current" and max(asked) < current):
            return None
        return max(asked)

    def _stabilised(self, now_s: float, asked: int, current: int) -> int:
        up = min([asked, *self._since(now_s - self.policy.up.window_s)])
        down = max([asked, *self._since(now_s - self.policy.down.window_s)])
        if self.release == "v1_20":
            return up if asked >= current else down
        return max(up, min(down, current))

    def _since(self, after_s: float) -> list[int]:
        return [event.replicas for event in self.recommendations if event.at_s > after_s]

    def _limited(self, now_s: float, steady: int, current: int) -> tuple[int, str]:
        """The rate limits and the bounds, with the reason that the status gives."""
        old = self.release == "v1_20"
        if steady > current:
            allowed = up_limit(self.policy.up, current, self.added, [] if old else self.removed, now_s)
            if steady > min(allowed, self.policy.max_replicas):
                return (allowed, "ScaleUpLimit") if allowed < self.policy.max_replicas else (self.policy.max_replicas, "TooManyReplicas")
        if steady < current:
            allowed = down_limit(self.policy.down, current, [] if old else self.added, self.removed, now_s)
            if steady < max(allowed, self.policy.min_replicas):
                return (allowed, "ScaleDownLimit") if allowed > self.policy.min_replicas else (self.policy.min_replicas, "TooFewReplicas")
        return steady, "DesiredWithinRange"

    def _settle(self, now_s: float, current: int, decision: Decision) -> Decision:
        change = decision.desired - current
        if change > 0:
            self.added.append(Event(now_s, change))
        if change < 0:
            self.removed.append(Event(now_s, -change))
        self._forget(now_s)
        return decision

    def _forget(self, now_s: float) -> None:
        window_s = max(self.policy.up.window_s, self.policy.down.window_s)
        self.recommendations = [event for event in self.recommendations if event.at_s > now_s - window_s] or self.recommendations[-1:]
        for events in (self.added, self.removed):
            period_s = max(limit.period_s for way in (self.policy.up, self.policy.down) for limit in way.limits)
            events[:] = [event for event in events if event.at_s > now_s - period_s]
