"""PodMonitor, PrometheusRule and ScaledObject against what their operators' API references allow; Kubernetes' own schemas don't know them.

Field names from prometheus-operator.dev's API reference (monitoring.coreos.com/v1) and keda.sh's ScaledObject specification.
"""

from __future__ import annotations

import copy
import json
from typing import Annotated, Any, Literal

import pytest
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specstudy.deploy.autoscaling import adapter_values, policy_of
from specstudy.deploy.dashboard import PANELS, dashboard
from specstudy.deploy.render import shipped_overlays
from specstudy.deploy.rules import rule_groups
from specstudy.deploy.wanted import resolve

Duration = Annotated[str, Field(pattern=r"^(0|(\d+(ms|s|m|h|d|w|y))+)$")]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Meta(Strict):
    name: str
    labels: dict[str, str]


class Selector(Strict):
    matchLabels: dict[str, str]  # noqa: N815


class Relabeling(Strict):
    sourceLabels: list[str]  # noqa: N815
    action: Literal["keep", "drop", "replace"]
    regex: str


class Endpoint(Strict):
    port: str
    path: str
    interval: Duration
    scrapeTimeout: Duration  # noqa: N815
    relabelings: list[Relabeling]


class MonitorSpec(Strict):
    jobLabel: str  # noqa: N815
    selector: Selector
    podMetricsEndpoints: list[Endpoint]  # noqa: N815


class PodMonitor(Strict):
    apiVersion: Literal["monitoring.coreos.com/v1"]  # noqa: N815
    kind: Literal["PodMonitor"]
    metadata: Meta
    spec: MonitorSpec


class Recording(Strict):
    record: Annotated[str, Field(pattern=r"^[a-zA-Z_:][a-zA-Z0-9_:]*$")]
    expr: str


class Alerting(Strict):
    alert: str
    expr: str
    wait: Annotated[Duration, Field(alias="for")]
    labels: dict[str, str]
    annotations: dict[str, str]


class Group(Strict):
    name: str
    interval: Duration
    rules: list[Recording | Alerting]


class Groups(Strict):
    groups: list[Group]


class PrometheusRule(Strict):
    apiVersion: Literal["monitoring.coreos.com/v1"]  # noqa: N815
    kind: Literal["PrometheusRule"]
    metadata: Meta
    spec: Groups


class Target(Strict):
    apiVersion: str  # noqa: N815
    kind: str
    name: str


class PrometheusTrigger(Strict):
    """KEDA's trigger values are text, numbers and booleans too."""

    serverAddress: str  # noqa: N815
    query: str
    threshold: Annotated[str, Field(pattern=r"^\d+(\.\d+)?$")]
    ignoreNullValues: Literal["true", "false"]  # noqa: N815


class Trigger(Strict):
    type: Literal["prometheus"]
    name: str
    metricType: Literal["AverageValue", "Value"]  # noqa: N815
    metadata: PrometheusTrigger


class ScaledSpec(Strict):
    scaleTargetRef: Target  # noqa: N815
    pollingInterval: int  # noqa: N815
    minReplicaCount: Annotated[int, Field(ge=1)]  # noqa: N815
    maxReplicaCount: int  # noqa: N815
    advanced: dict[str, Any]
    triggers: list[Trigger]


class ScaledObject(Strict):
    apiVersion: Literal["keda.sh/v1alpha1"]  # noqa: N815
    kind: Literal["ScaledObject"]
    metadata: Meta
    spec: ScaledSpec


CUSTOM: dict[str, type[Strict]] = {
    "components/monitoring/podmonitor.yaml": PodMonitor,
    "components/monitoring/prometheusrule.yaml": PrometheusRule,
    "components/keda/scaledobject.yaml": ScaledObject,
}


@pytest.mark.parametrize("path", CUSTOM)
def test_a_custom_resource_has_known_fields_of_the_right_types(manifests: dict[str, dict[str, Any]], path: str) -> None:
    CUSTOM[path].model_validate(manifests[path])


@pytest.mark.parametrize("path", CUSTOM)
def test_an_unknown_field_would_be_noticed(manifests: dict[str, dict[str, Any]], path: str) -> None:
    wrong = copy.deepcopy(manifests[path])
    wrong["spec"]["colour"] = "blue"
    with pytest.raises(ValidationError):
        CUSTOM[path].model_validate(wrong)


def test_hpa_and_keda_are_told_the_same(manifests: dict[str, dict[str, Any]]) -> None:
    hpa, keda = manifests["components/hpa/hpa.yaml"]["spec"], manifests["components/keda/scaledobject.yaml"]["spec"]
    assert (keda["minReplicaCount"], keda["maxReplicaCount"]) == (hpa["minReplicas"], hpa["maxReplicas"])
    assert keda["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == hpa["behavior"]
    ours = [(one["external"]["metric"]["name"], one["external"]["target"]["type"]) for one in hpa["metrics"]]
    assert ours == [(trigger["metadata"]["query"].partition("{")[0], trigger["metricType"]) for trigger in keda["triggers"]]
    for one, trigger in zip(hpa["metrics"], keda["triggers"], strict=True):
        target = one["external"]["target"]
        (value,) = (target[key] for key in ("value", "averageValue") if key in target)
        number = float(value[:-1]) / 1000 if value.endswith("m") else float(value)
        assert number == float(trigger["metadata"]["threshold"])


def test_hpa_and_keda_are_never_in_one_overlay(tree: dict[str, str]) -> None:
    overlays = [content for path, content in tree.items() if path.startswith("overlays/") and path.endswith("kustomization.yaml")]
    assert overlays
    assert all("components/hpa" in content and "components/keda" not in content for content in overlays)


def test_a_missing_series_is_no_zero_for_keda(manifests: dict[str, dict[str, Any]]) -> None:
    """ignoreNullValues is true by default, and an empty result then counts as 0."""
    triggers = manifests["components/keda/scaledobject.yaml"]["spec"]["triggers"]
    assert {trigger["metadata"]["ignoreNullValues"] for trigger in triggers} == {"false"}


def test_what_reads_a_metric_reads_one_that_is_recorded(manifests: dict[str, dict[str, Any]]) -> None:
    recorded = {rule["record"] for group in rule_groups(500)["groups"] for rule in group["rules"] if "record" in rule}
    read = {one["external"]["metric"]["name"] for one in manifests["components/hpa/hpa.yaml"]["spec"]["metrics"]}
    values = adapter_values(policy_of(resolve(shipped_overlays()["none"])))
    assert {rule["name"]["as"] for rule in values["rules"]["external"]} == read
    shown = {query for _, _, queries, _ in PANELS for _, query in queries if "{" not in query}
    assert read <= recorded and shown <= recorded


def test_the_dashboard_asks_a_question_in_each_panel_with_a_unit() -> None:
    board = json.loads(json.dumps(dashboard()))
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"]) == 6
    for panel in board["panels"]:
        assert panel["title"].endswith("?") and panel["fieldConfig"]["defaults"]["unit"] and panel["description"]
        assert all("$namespace" in target["expr"] for target in panel["targets"])
    boxes = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
    assert len(set(boxes)) == len(boxes)


def test_a_changed_dashboard_replaces_the_one_before(tree: dict[str, str]) -> None:
    """A name with a hash would leave the old one in the cluster, with the same uid."""
    (generator,) = yaml.safe_load(tree["components/monitoring/kustomization.yaml"])["configMapGenerator"]
    assert generator["options"]["disableNameSuffixHash"] is True
    (script,) = yaml.safe_load(tree["base/kustomization.yaml"])["configMapGenerator"]
    assert "disableNameSuffixHash" not in script["options"]  # a changed hook must start new pods
