"""The policy as the API has it, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import kubernetes_validate
import pytest
from pydantic import ValidationError

from specstudy.deploy.autoscaling import scaled_object
from specstudy.errors import ConfigError
from specstudy.scaling import objects
from specstudy.scaling.policy import Direction, HpaPolicy, MetricTarget, RateLimit, policy_from_spec, quantity, shipped_policy
from specstudy.scaling.scenarios import TRIED, tried_policy


@pytest.mark.parametrize("version", ["1.31", "1.37"])
@pytest.mark.parametrize("name", TRIED)
@pytest.mark.parametrize("cold_start_s", [5, 600, 5000])
def test_every_policy_is_a_valid_autoscaler(name: str, cold_start_s: float, version: str) -> None:
    kubernetes_validate.validate(objects.autoscaler(tried_policy(name, 4, cold_start_s)), version, strict=True)


def test_a_misspelt_field_would_be_seen() -> None:
    body = objects.autoscaler(shipped_policy(4, 5))
    body["spec"]["behaviour"] = body["spec"].pop("behavior")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(body, "1.37", strict=True)


def test_the_shipped_policy_by_hand() -> None:
    """Cold start 240 s: triple at most in 2 x 240 + 100 s, keep the highest answer of 120 s; 70 per cent of 8 slots are 5.6."""
    spec = shipped_policy(8, 240).spec("vllm", {"job": "vllm"})
    targets: list[dict[str, Any]] = [one["external"] for one in spec["metrics"]]
    assert targets == [
        {"metric": {"name": "queue_wait_ms", "selector": {"matchLabels": {"job": "vllm"}}}, "target": {"type": "Value", "value": "500"}},
        {"metric": {"name": "slots_in_use", "selector": {"matchLabels": {"job": "vllm"}}}, "target": {"type": "AverageValue", "averageValue": "5600m"}},
    ]
    assert spec["behavior"]["scaleUp"]["policies"] == [{"type": "Percent", "value": 200, "periodSeconds": 580}]
    assert spec["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 120


def test_a_larger_step_is_answered_at_once() -> None:
    """Six times as many replicas are 500 per cent more, once in five cold starts of 5 s and 100 s."""
    assert shipped_policy(4, 5, largest_step=6).spec("vllm")["behavior"]["scaleUp"]["policies"] == [{"type": "Percent", "value": 500, "periodSeconds": 125}]
    with pytest.raises(ConfigError, match="largest_step: got 1"):
        shipped_policy(4, 5, largest_step=1)


@pytest.mark.parametrize(("value", "text"), [(500, "500"), (2.8, "2800m"), (0.0015, "2m"), (1, "1")])
def test_quantities(value: float, text: str) -> None:
    assert quantity(value) == text


def test_what_the_api_server_would_refuse_is_refused_here() -> None:
    up = Direction(window_s=0, limits=(RateLimit(kind="Pods", value=1, period_s=15),))
    metric = MetricTarget(metric="queue_wait_ms", kind="Value", target=1)
    with pytest.raises((ConfigError, ValidationError), match="max_replicas"):
        HpaPolicy(name="x", min_replicas=5, max_replicas=2, metrics=(metric,), up=up, down=up)
    for wrong in ({"period_s": 1801}, {"value": 0}, {"period_s": 0}):
        with pytest.raises(ValidationError):
            RateLimit(**{"kind": "Pods", "value": 1, "period_s": 15, **wrong})
    with pytest.raises(ValidationError):
        Direction(window_s=3601, limits=up.limits)


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="wait-and-slots"):
        tried_policy("hope", 4, 5)


@pytest.mark.parametrize("name", TRIED)
def test_a_policy_is_read_back_from_the_api(name: str) -> None:
    policy = tried_policy(name, 4, 30)
    assert policy_from_spec(policy.name, policy.spec("vllm", {"job": "vllm"})) == policy


def test_the_autoscaler_that_keda_makes_of_our_object_is_read_too() -> None:
    """KEDA names the metric of trigger N sN-TYPE (keda.sh, External scalers: GenerateMetricNameWithIndex), and takes targets and behaviour over."""
    policy = shipped_policy(4, 30)
    scaled = scaled_object(policy)["spec"]
    spec = policy.spec("vllm")
    for number, (trigger, one) in enumerate(zip(scaled["triggers"], spec["metrics"], strict=True)):
        assert trigger["metadata"]["query"].startswith(one["external"]["metric"]["name"])
        one["external"]["metric"]["name"] = f"s{number}-{trigger['type']}"
    assert policy_from_spec(policy.name, {**spec, "behavior": scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]}) == policy


def test_an_autoscaler_on_other_metrics_is_refused() -> None:
    spec = shipped_policy(4, 5).spec("vllm")
    with pytest.raises(ConfigError, match="External metrics"):
        policy_from_spec("x", {**spec, "metrics": [{"type": "Resource", "resource": {"name": "cpu"}}]})
    with pytest.raises(ConfigError, match="behavior"):
        policy_from_spec("x", {name: value for name, value in spec.items() if name != "behavior"})


def test_the_floor_is_divided_by_a_full_replicas_slowdown() -> None:
    """70 % of 64 slots are 44.8; at 1.6 times the time 28."""
    assert [shipped_policy(64, 60, slowdown=slowdown).floor_slots for slowdown in (1.0, 1.6)] == [44.8, 28.0]


@pytest.mark.parametrize("slowdown", [0.9, math.inf, math.nan])
def test_a_slowdown_that_is_none_is_refused(slowdown: float) -> None:
    with pytest.raises(ConfigError, match="slowdown"):
        shipped_policy(4, 5, slowdown=slowdown)
