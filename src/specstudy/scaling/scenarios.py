"""The policies that the study tried: the one it ships, and those that failed, each with what it was hoped to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from specstudy.errors import ConfigError
from specstudy.scaling import QUEUE_WAIT, SLOTS_IN_USE
from specstudy.scaling.policy import Direction, HpaPolicy, MetricTarget, RateLimit, check_slowdown, shipped_policy

SHIPPED, AS_IF_LINEAR = "wait-and-slots", "floor-as-if-linear"
# What the API server fills in where a manifest says nothing: up by 4 pods or 100 % in 15 s, down by anything, over the controller's 300 s.
DEFAULT_UP = Direction(window_s=0, limits=(RateLimit(kind="Percent", value=100, period_s=15), RateLimit(kind="Pods", value=4, period_s=15)))
AT_ONCE_DOWN = Direction(window_s=0, limits=(RateLimit(kind="Percent", value=100, period_s=15),))


@dataclass(frozen=True)
class Tried:
    """A policy by name. `make` takes the slots of a replica, its cold start in s and the slowdown of a full one."""

    name: str
    idea: str
    make: Callable[[int, float, float], HpaPolicy]


def _shipped(slots: int, cold_start_s: float, slowdown: float) -> HpaPolicy:
    return shipped_policy(slots, cold_start_s, slowdown=slowdown)


def _as_if_linear(slots: int, cold_start_s: float, slowdown: float) -> HpaPolicy:
    return shipped_policy(slots, cold_start_s).model_copy(update={"name": AS_IF_LINEAR})


def _wait_alone(slots: int, cold_start_s: float, slowdown: float) -> HpaPolicy:
    metrics = (MetricTarget(metric=QUEUE_WAIT, kind="Value", target=500),)
    return HpaPolicy(name="wait-alone", metrics=metrics, up=DEFAULT_UP, down=AT_ONCE_DOWN)


def _wait_alone_slow_down(slots: int, cold_start_s: float, slowdown: float) -> HpaPolicy:
    down = shipped_policy(slots, cold_start_s).down
    return _wait_alone(slots, cold_start_s, slowdown).model_copy(update={"name": "wait-alone-slow-down", "down": down})


def _no_rate_limit(slots: int, cold_start_s: float, slowdown: float) -> HpaPolicy:
    return _shipped(slots, cold_start_s, slowdown).model_copy(update={"name": "default-scale-up", "up": DEFAULT_UP})


def _short_period(slots: int, cold_start_s: float, slowdown: float) -> HpaPolicy:
    shipped = _shipped(slots, cold_start_s, slowdown)
    limits = tuple(one.model_copy(update={"period_s": one.period_s - 40}) for one in shipped.up.limits)
    return shipped.model_copy(update={"name": "short-period", "up": Direction(window_s=0, limits=limits)})


def _window_up(slots: int, cold_start_s: float, slowdown: float) -> HpaPolicy:
    shipped = _shipped(slots, cold_start_s, slowdown)
    up = Direction(window_s=shipped.down.window_s, limits=DEFAULT_UP.limits)
    return shipped.model_copy(update={"name": "scale-up-window", "up": up})


def _slots_alone(slots: int, cold_start_s: float, slowdown: float) -> HpaPolicy:
    shipped = _shipped(slots, cold_start_s, slowdown)
    metrics = tuple(one for one in shipped.metrics if one.metric == SLOTS_IN_USE)
    return shipped.model_copy(update={"name": "slots-alone", "metrics": metrics})


TRIED = {
    tried.name: tried
    for tried in (
        Tried(SHIPPED, "Queue wait to scale out, slots in use as the floor, tripling at most once in two cold starts and 100 s.", _shipped),
        Tried("wait-alone", "Queue wait alone, the API server's default rate of scaling up, down at once.", _wait_alone),
        Tried("wait-alone-slow-down", "Queue wait alone, but scaled down slowly: does patience replace the floor?", _wait_alone_slow_down),
        Tried("default-scale-up", "Both metrics, the API server's default rate of scaling up.", _no_rate_limit),
        Tried(
            "short-period",
            "The shipped policy with a period 40 s shorter: it may end while the wait's high answers are still in the window for scaling down, and "
            "Kubernetes 1.20 takes those up again if the floor asks for less; later releases don't.",
            _short_period,
        ),
        Tried("scale-up-window", "Both metrics, a stabilisation window as long as the one for scaling down instead of the rate limit.", _window_up),
        Tried(
            AS_IF_LINEAR,
            "The shipped policy with the floor at 70 % of the slots, as if a full replica's tokens came as quick as an idle one's.",
            _as_if_linear,
        ),
        Tried("slots-alone", "Slots in use alone: it can't ask for more than slots over target, 1.4 times the replicas, at a time.", _slots_alone),
    )
}


def tried_policy(name: str, slots: int, cold_start_s: float, slowdown: float = 1.0) -> HpaPolicy:
    """One of them. Raises ConfigError for a name that isn't known, or a slowdown below 1."""
    if name not in TRIED:
        raise ConfigError.unknown("policy", name, TRIED)
    check_slowdown(slowdown)
    return TRIED[name].make(slots, cold_start_s, slowdown)
