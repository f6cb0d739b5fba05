"""The autoscaler three ways, from one policy: an HPA on external metrics, what prometheus-adapter needs to serve them, and KEDA instead of both."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from specstudy.analysis.slowdown import slowdown
from specstudy.deploy.objects import NAME, NAMESPACE, Object, metadata
from specstudy.deploy.wanted import Resolved
from specstudy.scaling.policy import HpaPolicy, shipped_policy

METRIC_LABELS = {"job": NAME}
PROMETHEUS = "http://prometheus-operated.monitoring.svc:9090"  # the Service that the Prometheus operator makes
POLLING_S = 15  # KEDA's; the HPA's own sync period


def policy_of(found: Resolved, others: Iterable[Resolved] = ()) -> HpaPolicy:
    """The study's policy for this deployment's slots and cold start.

    One autoscaler serves all overlays, so it allows for the largest slowdown of a full replica that was measured of any; 1 where none was, also where
    no record filled half of the slots.
    """
    wanted, slots = found.wanted, found.deployment.max_num_seqs
    measured = [slowdown(one.evidence.records, slots, slots) or 1.0 for one in (found, *others) if one.evidence]
    # In tenths upwards: it is no more exact than that.
    told = math.ceil(10 * max(measured, default=1.0)) / 10
    bounds = {"min_replicas": wanted.min_replicas, "max_replicas": wanted.max_replicas, "largest_step": wanted.largest_step}
    return shipped_policy(slots, wanted.cold_start_s, slowdown=told, **bounds)


def wait_target_ms(policy: HpaPolicy) -> float:
    """The target of the metric that is a time."""
    return next(one.target for one in policy.metrics if one.kind == "Value")


def hpa(policy: HpaPolicy) -> Object:
    """autoscaling/v2. Its metrics come from whatever serves external.metrics.k8s.io."""
    return {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": metadata(NAME), "spec": policy.spec(NAME, METRIC_LABELS)}


def scaled_object(policy: HpaPolicy) -> Object:
    """KEDA's object; KEDA makes an HPA of it and serves the metrics itself, so it replaces both.

    A missing series must not be read as zero, KEDA's default: then it would take pods away while nobody measures.
    """
    triggers: list[dict[str, Any]] = [
        {
            "type": "prometheus",
            "name": one.metric.replace("_", "-"),
            "metricType": one.kind,
            "metadata": {
                "serverAddress": PROMETHEUS,
                "query": f'{one.metric}{{namespace="{NAMESPACE}", job="{NAME}"}}',
                "threshold": f"{one.target:g}",
                "ignoreNullValues": "false",
            },
        }
        for one in policy.metrics
    ]
    behavior = {"scaleUp": policy.up.spec(), "scaleDown": policy.down.spec()}
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": NAME},
        "pollingInterval": POLLING_S,
        "minReplicaCount": policy.min_replicas,
        "maxReplicaCount": policy.max_replicas,
        "advanced": {"horizontalPodAutoscalerConfig": {"name": NAME, "behavior": behavior}},
        "triggers": triggers,
    }
    return {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": metadata(NAME), "spec": spec}


def adapter_values(policy: HpaPolicy) -> Object:
    """Values for prometheus-adapter's Helm chart: these external metrics and nothing else.

    `max`, as a recording rule gives one series a service: an empty result stays empty, where `sum` would be no safer.
    """
    rules = [
        {
            "seriesQuery": f'{one.metric}{{namespace!="",job!=""}}',
            "resources": {"overrides": {"namespace": {"resource": "namespace"}}},
            "name": {"matches": f"^{one.metric}$", "as": one.metric},
            "metricsQuery": "max(<<.Series>>{<<.LabelMatchers>>})",
        }
        for one in policy.metrics
    ]
    url, _, port = PROMETHEUS.rpartition(":")
    return {"prometheus": {"url": url, "port": int(port)}, "rules": {"default": False, "external": rules}}
