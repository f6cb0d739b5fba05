"""The Kubernetes objects of the one-machine lab: Deployment, Service, autoscaler, and the adapter's registration."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specstudy.scaling.policy import HpaPolicy

APP, ADAPTER = "vllm", "queue-wait-adapter"
PORT = 8000
LABELS = {"app.kubernetes.io/name": APP}
API_SERVICE = "v1beta1.external.metrics.k8s.io"


def deployment(command: Sequence[str], env: Mapping[str, str], pre_stop: Sequence[str], *, replicas: int, start_s: float, grace_s: int = 120) -> dict[str, Any]:
    """One container that serves on PORT. `start_s`: how long it may take until it is healthy. `pre_stop`: waits until nothing is in flight."""
    get = {"httpGet": {"path": "/health", "port": PORT}}
    container = {
        "name": APP,
        "image": "vllm",
        "command": list(command),
        "env": [{"name": name, "value": value} for name, value in env.items()],
        "ports": [{"containerPort": PORT, "name": "http"}],
        "startupProbe": {**get, "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": max(3, round(start_s))},
        # Every second, that a ready pod is seen at once; as patient as the shipped one, since a busy vLLM answers late.
        "readinessProbe": {**get, "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 3},
        "lifecycle": {"preStop": {"exec": {"command": list(pre_stop)}}},
    }
    template = {"metadata": {"labels": LABELS}, "spec": {"terminationGracePeriodSeconds": grace_s, "containers": [container]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": APP, "labels": LABELS},
        "spec": {"replicas": replicas, "selector": {"matchLabels": LABELS}, "template": template},
    }


def service() -> dict[str, Any]:
    """The Service whose Endpoints are the ready pods."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": APP, "labels": LABELS},
        "spec": {"selector": LABELS, "ports": [{"name": "http", "port": PORT, "targetPort": PORT}]},
    }


def autoscaler(policy: HpaPolicy) -> dict[str, Any]:
    """The autoscaling/v2 object."""
    return {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": APP}, "spec": policy.spec(APP, {"job": APP})}


def adapter_registration(authority: Path, port: int, namespace: str) -> list[dict[str, Any]]:
    """APIService, Service and the autoscaler's permission for an adapter on this machine: without kube-proxy an ExternalName leads to it."""
    backend = {"name": ADAPTER, "namespace": namespace, "port": port}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ADAPTER}
    return [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": ADAPTER},
            "rules": [{"apiGroups": ["external.metrics.k8s.io"], "resources": ["*"], "verbs": ["get", "list"]}],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": ADAPTER},
            "roleRef": role,
            "subjects": [{"kind": "ServiceAccount", "name": "horizontal-pod-autoscaler", "namespace": "kube-system"}],
        },
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": ADAPTER}, "spec": {"type": "ExternalName", "externalName": "localhost"}},
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": API_SERVICE},
            "spec": {
                "group": "external.metrics.k8s.io",
                "version": "v1beta1",
                "service": backend,
                "caBundle": base64.b64encode(authority.read_bytes()).decode(),
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
            },
        },
    ]
