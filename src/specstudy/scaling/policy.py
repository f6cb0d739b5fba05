"""What the HorizontalPodAutoscaler is told: one typed object, from which manifests, simulation and lab are made.

Queue wait alone flaps: once there are enough replicas nobody waits, and the ratio of wait to target asks for one
replica. So there are two metrics, and the autoscaler takes the larger answer. `queue_wait_ms` says that there are too
few replicas; `slots_in_use`, whose sum is arrivals times service time (Little's law), says how many must stay.

The service time isn't the same at any number of replicas: in a full one a request is slower than in one that is nearly
empty, and a draft that is cheap beside few requests may cost much beside many. So slots in use understate what fewer replicas would have to hold, and the
floor's target is divided by that slowdown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, cast

from pydantic import Field, ValidationError, model_validator

from specstudy.catalog.models import StrictModel
from specstudy.errors import ConfigError
from specstudy.scaling import QUEUE_WAIT, SLOTS_IN_USE

UTILISATION = 0.7  # of the slots of full replicas
LARGEST_STEP = 3  # of the load, that one scale-out answers
LONGEST_PERIOD_S, LONGEST_WINDOW_S = 1800, 3600  # the API server refuses more
BEYOND_COLD_STARTS_S = 100  # of the period of scaling up, see shipped_policy
# KEDA names a trigger's metric by its place and kind; these are the places that deploy/'s ScaledObject gives them.
KEDA_NAMES = {"s0-prometheus": QUEUE_WAIT, "s1-prometheus": SLOTS_IN_USE}


class MetricTarget(StrictModel):
    """One External metric. Value: the ratio metric/target multiplies the ready pods. AverageValue: metric/target is the pods' number."""

    metric: Literal["queue_wait_ms", "slots_in_use"]
    kind: Literal["Value", "AverageValue"]
    target: float = Field(gt=0, description="ms for the wait, slots a replica for the slots")


class RateLimit(StrictModel):
    """At most `value` pods, or per cent of the pods there were at its begin, within any `period_s` seconds."""

    kind: Literal["Pods", "Percent"]
    value: int = Field(gt=0)
    period_s: int = Field(gt=0, le=LONGEST_PERIOD_S)


class Direction(StrictModel):
    """Scaling up or down: the window over which the most cautious recommendation counts, and the rate limits."""

    window_s: int = Field(ge=0, le=LONGEST_WINDOW_S, description="stabilizationWindowSeconds")
    limits: tuple[RateLimit, ...] = Field(min_length=1)
    select: Literal["Max", "Min"] = "Max"

    def spec(self) -> dict[str, Any]:
        """As the API has it."""
        limits = [{"type": one.kind, "value": one.value, "periodSeconds": one.period_s} for one in self.limits]
        return {"stabilizationWindowSeconds": self.window_s, "selectPolicy": self.select, "policies": limits}


class HpaPolicy(StrictModel):
    """The whole specification but for the target's name."""

    name: str
    min_replicas: int = Field(default=1, ge=1)
    max_replicas: int = Field(default=8, ge=1)
    metrics: tuple[MetricTarget, ...] = Field(min_length=1)
    up: Direction
    down: Direction

    @model_validator(mode="after")
    def _bounds(self) -> HpaPolicy:
        self.with_at_most(self.max_replicas)
        return self

    @property
    def floor_slots(self) -> float | None:
        """Slots in use for each replica that must stay; None for a policy without that floor."""
        return next((one.target for one in self.metrics if one.metric == SLOTS_IN_USE), None)

    def with_at_most(self, replicas: int) -> HpaPolicy:
        """The same policy with another maximum. Raises ConfigError for one below the minimum."""
        if replicas < self.min_replicas:
            raise ConfigError("max_replicas", replicas, f"at least min_replicas, {self.min_replicas}")
        return self.model_copy(update={"max_replicas": replicas})

    def spec(self, deployment: str, labels: dict[str, str] | None = None) -> dict[str, Any]:
        """The `spec` of an autoscaling/v2 HorizontalPodAutoscaler of a Deployment; `labels` select the metric's series."""
        return {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": deployment},
            "minReplicas": self.min_replicas,
            "maxReplicas": self.max_replicas,
            "metrics": [self._metric(one, labels) for one in self.metrics],
            "behavior": {"scaleUp": self.up.spec(), "scaleDown": self.down.spec()},
        }

    @staticmethod
    def _metric(one: MetricTarget, labels: dict[str, str] | None) -> dict[str, Any]:
        name: dict[str, Any] = {"name": one.metric}
        if labels:
            name["selector"] = {"matchLabels": labels}
        field = "value" if one.kind == "Value" else "averageValue"
        return {"type": "External", "external": {"metric": name, "target": {"type": one.kind, field: quantity(one.target)}}}


def policy_from_spec(name: str, spec: Mapping[str, Any]) -> HpaPolicy:
    """A policy from an autoscaler's `spec`, the inverse of HpaPolicy.spec. Raises ConfigError for one that isn't of this form."""
    try:
        metrics = [one["external"] for one in spec["metrics"]]
        ways = {way: spec["behavior"][field] for way, field in (("up", "scaleUp"), ("down", "scaleDown"))}
        return HpaPolicy.model_validate(
            {
                "name": name,
                "min_replicas": spec.get("minReplicas", 1),
                "max_replicas": spec["maxReplicas"],
                "metrics": [_target(one) for one in metrics],
                **{way: _direction(found) for way, found in ways.items()},
            }
        )
    except ValidationError as error:
        raise ConfigError.from_pydantic(error, "autoscaler") from error
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError("autoscaler", str(error), "one with External metrics and a behavior for both directions") from None


def metric_of(name: str) -> str:
    """An external metric's name in an autoscaler that we wrote, or that KEDA made of our ScaledObject, to the study's; any other stays."""
    return KEDA_NAMES.get(name, name)


def _target(external: Mapping[str, Any]) -> dict[str, Any]:
    target = external["target"]
    value = number(str(target.get("value") or target["averageValue"]))
    return {"metric": metric_of(external["metric"]["name"]), "kind": target["type"], "target": value}


def number(text: str) -> float:
    """A Kubernetes quantity, like 1500m or 2k."""
    from kubernetes.utils.quantity import parse_quantity

    return float(cast("Any", parse_quantity)(text))


def _direction(found: Mapping[str, Any]) -> dict[str, Any]:
    limits = [{"kind": one["type"], "value": one["value"], "period_s": one["periodSeconds"]} for one in found["policies"]]
    return {"window_s": found["stabilizationWindowSeconds"], "select": found.get("selectPolicy", "Max"), "limits": limits}


def quantity(value: float) -> str:
    """A number as Kubernetes writes it, in thousandths where it isn't whole."""
    return str(int(value)) if value == int(value) else f"{round(value * 1000)}m"


def check_slowdown(slowdown: float) -> None:
    """Raises ConfigError for one below 1, or none at all."""
    if not 1 <= slowdown < math.inf:
        raise ConfigError("slowdown", slowdown, "at least 1: a full replica's tokens don't come quicker than an idle one's")


def shipped_policy(
    slots: int,
    cold_start_s: float,
    *,
    slowdown: float = 1.0,
    min_replicas: int = 1,
    max_replicas: int = 8,
    wait_target_ms: float = 500,
    utilisation: float = UTILISATION,
    largest_step: int = LARGEST_STEP,
) -> HpaPolicy:
    """The policy that the study recommends; chapter 08 says why and shows what failed.

    slots: requests that a replica runs at once (vLLM's max_num_seqs). cold_start_s: from a pod's creation to its
    readiness. slowdown: time of a token where all slots are busy over that where a quarter of them is; a floor so
    divided keeps more replicas than needed where many are full anyway. largest_step: how many times as many replicas one
    decision may ask for; a load that rises by more waits for a second one, a period later. Raises ConfigError for a
    slowdown below 1, or a step below 2.

    Scaling up may do that within a period and no more: the wait stays high until new replicas are ready and the backlog
    is gone, and would be answered anew at each sync. The period outlasts that time and the window for scaling down
    after it, since old controllers (1.20) take an answer of that window up again once a limit allows it. The backlog
    grows with the step: while one replica's worth is served, largest_step - 1 are put off, and they are its own to serve.
    """
    check_slowdown(slowdown)
    if largest_step < 2:
        raise ConfigError("largest_step", largest_step, "at least 2: with less nothing is ever added")
    period_s = min(LONGEST_PERIOD_S, math.ceil((largest_step - 1) * cold_start_s + BEYOND_COLD_STARTS_S))
    window_s = min(LONGEST_WINDOW_S, math.ceil(max(60.0, cold_start_s / 2)))
    return HpaPolicy(
        name="wait-and-slots",
        min_replicas=min_replicas,
        max_replicas=max_replicas,
        metrics=(
            MetricTarget(metric=QUEUE_WAIT, kind="Value", target=wait_target_ms),
            MetricTarget(metric=SLOTS_IN_USE, kind="AverageValue", target=round(slots * utilisation / slowdown, 3)),
        ),
        up=Direction(window_s=0, limits=(RateLimit(kind="Percent", value=100 * (largest_step - 1), period_s=period_s),)),
        down=Direction(window_s=window_s, limits=(RateLimit(kind="Percent", value=50, period_s=60), RateLimit(kind="Pods", value=1, period_s=60))),
    )
