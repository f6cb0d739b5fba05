"""What the lab asks of a Kubernetes API: apply, read the autoscaler, the Deployment and the ready pods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from specstudy.errors import ConfigError
from specstudy.scaling.policy import metric_of, number

PLURALS = {
    "Deployment": "deployments",
    "HorizontalPodAutoscaler": "horizontalpodautoscalers",
    "Service": "services",
    "APIService": "apiservices",
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
}
CLUSTER_WIDE = {"APIService", "ClusterRole", "ClusterRoleBinding"}
NEW_HPA, OLD_HPA = "autoscaling/v2", "autoscaling/v2beta2"


@dataclass(frozen=True)
class HpaState:
    """An autoscaler's status. `conditions`: type to "status reason: message". `metrics`: what it saw last, an average where its target is one."""

    current: int
    desired: int
    conditions: Mapping[str, str]
    metrics: Mapping[str, float]

    def reason(self, kind: str) -> str:
        """The reason of a condition, like FailedGetExternalMetric; nothing if there is no such condition."""
        words = self.conditions.get(kind, "").split(" ", 2)
        return words[1].rstrip(":") if len(words) > 1 else ""


@dataclass(frozen=True)
class DeploymentState:
    """spec.replicas, status.replicas, status.readyReplicas."""

    wanted: int
    listed: int
    ready: int


class Cluster:
    """One namespace of one cluster. `client` makes an ApiClient."""

    def __init__(self, client: Callable[[], Any], namespace: str = "default") -> None:
        from kubernetes import client as k8s

        self.namespace = namespace
        self._api = client()
        self._any, self._core = cast("Any", k8s.CustomObjectsApi(self._api)), cast("Any", k8s.CoreV1Api(self._api))
        self.version = str(cast("Any", k8s.VersionApi(self._api)).get_code().git_version).removeprefix("v")
        versions = {
            one.version for group in cast("Any", k8s.ApisApi(self._api)).get_api_versions().groups if group.name == "autoscaling" for one in group.versions
        }
        self.hpa_version = NEW_HPA if "v2" in versions else OLD_HPA

    def apply(self, objects: Sequence[Mapping[str, Any]]) -> None:
        """Create them, or merge into what is there. An autoscaler takes the newest apiVersion that the server knows; nothing else of it changes.

        Raises ConfigError for an object that the API server refuses.
        """
        from kubernetes.client import ApiException

        for given in objects:
            body = {**given, "apiVersion": self.hpa_version} if given["kind"] == "HorizontalPodAutoscaler" else dict(given)
            try:
                self._write("create", body)
            except ApiException as error:
                if error.status != 409:
                    raise ConfigError(f"{body['kind']} {body['metadata']['name']}", error.status, f"an object that it takes ({_message(error)})") from None
                self._write("patch", body)

    def _write(self, verb: str, body: dict[str, Any]) -> None:
        name = [body["metadata"]["name"]] if verb == "patch" else []
        if body["apiVersion"] == "v1":
            getattr(self._core, f"{verb}_namespaced_service")(*name, self.namespace, body)
        elif body["kind"] in CLUSTER_WIDE:
            getattr(self._any, f"{verb}_cluster_custom_object")(*_path(body), *name, body)
        else:
            group, version, plural = _path(body)
            getattr(self._any, f"{verb}_namespaced_custom_object")(group, version, self.namespace, plural, *name, body)

    def patch(self, kind: str, api_version: str, name: str, body: Mapping[str, Any]) -> None:
        """A merge patch."""
        group, version = api_version.split("/")
        self._any.patch_namespaced_custom_object(group, version, self.namespace, PLURALS[kind], name, body)

    def hpa(self, name: str) -> HpaState:
        """The autoscaler's status as it is now."""
        version = self.hpa_version.split("/")[1]
        found = self._any.get_namespaced_custom_object("autoscaling", version, self.namespace, "horizontalpodautoscalers", name)
        status = found.get("status") or {}
        conditions = {one["type"]: f"{one['status']} {one.get('reason', '')}: {one.get('message', '')}" for one in status.get("conditions") or []}
        metrics = {}
        for one in status.get("currentMetrics") or []:
            external = one.get("external") or {}
            if external:
                current = external.get("current") or {}
                metrics[metric_of(external["metric"]["name"])] = number(str(current.get("averageValue") or current.get("value") or "0"))
        return HpaState(int(status.get("currentReplicas") or 0), int(status.get("desiredReplicas") or 0), conditions, metrics)

    def hpa_spec(self, name: str) -> dict[str, Any]:
        """The autoscaler's specification. Raises ConfigError if there is none of that name."""
        from kubernetes.client import ApiException

        group, version = self.hpa_version.split("/")
        try:
            found = self._any.get_namespaced_custom_object(group, version, self.namespace, "horizontalpodautoscalers", name)
        except ApiException as error:
            raise ConfigError("autoscaler", name, f"a HorizontalPodAutoscaler in namespace {self.namespace} ({error.reason})") from None
        return dict(found["spec"])

    def check_deployment(self, name: str) -> None:
        """Raises ConfigError if there is none of that name, or none that we may read."""
        from kubernetes.client import ApiException

        try:
            self.deployment(name)
        except ApiException as error:
            raise ConfigError("deployment", name, f"a Deployment in namespace {self.namespace} ({error.reason})") from None

    def deployment(self, name: str) -> DeploymentState:
        """The Deployment's replicas."""
        found = self._any.get_namespaced_custom_object("apps", "v1", self.namespace, "deployments", name)
        status = found.get("status") or {}
        return DeploymentState(int(found["spec"].get("replicas") or 0), int(status.get("replicas") or 0), int(status.get("readyReplicas") or 0))

    def ready_pods(self, service: str) -> list[str]:
        """Names of the pods behind a Service that take requests, from its Endpoints."""
        found = self._core.read_namespaced_endpoints(service, self.namespace)
        return [address.target_ref.name for subset in found.subsets or [] for address in subset.addresses or [] if address.target_ref is not None]

    def available(self, api_service: str) -> str:
        """The Available condition of an APIService as "status reason: message"; nothing while it has none."""
        found = self._any.get_cluster_custom_object("apiregistration.k8s.io", "v1", "apiservices", api_service)
        for one in (found.get("status") or {}).get("conditions") or []:
            if one["type"] == "Available":
                return f"{one['status']} {one.get('reason', '')}: {one.get('message', '')}"
        return ""


def _path(body: Mapping[str, Any]) -> tuple[str, str, str]:
    group, version = body["apiVersion"].split("/")
    return group, version, PLURALS[body["kind"]]


def _message(error: Any) -> str:
    return str(error.body or error.reason)[:400]


def kubeconfig_cluster(path: Path, namespace: str) -> Cluster:
    """The user's cluster. Raises ConfigError for a file that can't be used, or an API server that doesn't answer or refuses."""
    from kubernetes import client, config

    settings = client.Configuration()
    try:
        cast("Any", config).load_kube_config(str(path), client_configuration=settings)
    except Exception as error:  # the library checks little: a file of another form fails wherever it is first read
        raise ConfigError("kubeconfig", str(path), f"a kubeconfig file ({error})") from None
    try:
        return Cluster(lambda: client.ApiClient(settings), namespace)
    except Exception as error:  # also what isn't an API server may answer, and the library reads it as one
        why = f"{error.status} {error.reason}" if isinstance(error, client.ApiException) else str(error)[:300]
        raise ConfigError("kubeconfig", str(path), f"one whose API server, {settings.host}, answers it ({why})") from None
