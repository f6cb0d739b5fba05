"""The Kubernetes objects of one vLLM service. Every number that isn't obvious says where it comes from."""

from __future__ import annotations

import math
from typing import Any

from specstudy.analysis import comparable
from specstudy.analysis.served import other_drafts
from specstudy.deploy.wanted import MODELS, SETTLE_S, Resolved
from specstudy.serving.vllm import vllm_argv, vllm_env

Object = dict[str, Any]

NAME, NAMESPACE, PORT = "vllm", "vllm", 8000
SELECTOR = {"app.kubernetes.io/name": NAME, "app.kubernetes.io/instance": NAME}
LABELS = {**SELECTOR, "app.kubernetes.io/component": "inference", "app.kubernetes.io/part-of": "specstudy"}
METHOD_LABEL, EVIDENCE, CONFIGURATION = "specstudy/method", "specstudy/evidence", "specstudy/configuration"
OVER_BASELINE = "specstudy/throughput-over-baseline"
SECRET, SECRET_KEY = "vllm-api-key", "api-key"
DRAIN_SCRIPT = "/opt/drain/drain.py"
USER = 2000
HOME = "/home/vllm"
POD_SECURITY: Object = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY: Object = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
MODEL_VOLUME: Object = {"name": "models", "persistentVolumeClaim": {"claimName": "vllm-models"}}
# The operator's namespaces: Prometheus scrapes from one, requests come from where this label is.
MONITORING_NAMESPACE, CLIENT_LABEL = "monitoring", "specstudy/vllm-client"

STARTUP_PERIOD_S = 5  # seconds that a ready pod may stand unused
READINESS = {"periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 3}
# A server under load answers /health late, and killing it would lose its requests and load its neighbours: only after a minute of silence.
LIVENESS = {"periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 6}
IMAGE_PULL_S = 600  # the image has about 10 GB
CPUS_BESIDE_WORKERS = 3  # HTTP server, engine core, tokenisation; each worker keeps one more busy
MEMORY_BESIDE_WEIGHTS_GIB, SHM_GIB = 8, 2


def metadata(name: str, **more: Any) -> Object:
    """A name with the common labels."""
    return {"name": name, "labels": dict(LABELS), **more}


def namespace() -> Object:
    """The service's namespace; it admits only pods that keep to the restricted standard."""
    levels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": {**LABELS, **levels}}}


def service_account() -> Object:
    """vLLM never speaks to the API server."""
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(NAME), "automountServiceAccountToken": False}


def service() -> Object:
    """Where clients send requests."""
    port = {"name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP"}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata(NAME), "spec": {"type": "ClusterIP", "selector": dict(SELECTOR), "ports": [port]}}


def disruption_budget() -> Object:
    """One at a time. `minAvailable: 1` would block every node's drain while there is one replica."""
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": dict(SELECTOR)}}
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata(NAME), "spec": spec}


def network_policy(hub: bool) -> Object:
    """In: labelled clients, and Prometheus. Out: name lookups, and the hub where a model comes from it."""
    to_http = [{"port": "http", "protocol": "TCP"}]
    name = "kubernetes.io/metadata.name"
    clients = {"podSelector": {"matchLabels": {CLIENT_LABEL: "true"}}, "namespaceSelector": {}}
    scraper = {"namespaceSelector": {"matchLabels": {name: MONITORING_NAMESPACE}}, "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}}}
    lookups = {"to": [{"namespaceSelector": {"matchLabels": {name: "kube-system"}}}], "ports": [{"port": 53, "protocol": each} for each in ("UDP", "TCP")]}
    egress = [lookups, *([{"ports": [{"port": 443, "protocol": "TCP"}]}] if hub else [])]
    ingress = [{"from": [clients], "ports": to_http}, {"from": [scraper], "ports": to_http}]
    spec = {"podSelector": {"matchLabels": dict(SELECTOR)}, "policyTypes": ["Ingress", "Egress"], "ingress": ingress, "egress": egress}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata(NAME), "spec": spec}


def model_volume(found: Resolved) -> Object:
    """One volume for all replicas: target, drafts, and what the hub gives. Twice the weights, for a change of model without a new volume."""
    size = max(10, math.ceil(2 * found.weights_gib + 5))
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": f"{size}Gi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata("vllm-models"), "spec": spec}


def loader(found: Resolved) -> Object:
    """A pod that sleeps beside the model volume, for `kubectl cp`; the image has the tar that it needs."""
    container = {
        "name": "loader",
        "image": _image(found),
        "command": ["sleep", "infinity"],
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
        "securityContext": dict(CONTAINER_SECURITY),
        "volumeMounts": [{"name": "models", "mountPath": MODELS}],
    }
    spec = {
        "serviceAccountName": NAME,
        "automountServiceAccountToken": False,
        "restartPolicy": "Never",
        "securityContext": dict(POD_SECURITY),
        "containers": [container],
        "volumes": [dict(MODEL_VOLUME)],
    }
    labels = {**LABELS, "app.kubernetes.io/name": "vllm-loader", "app.kubernetes.io/component": "loader"}  # none of the Service's pods
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "loader", "namespace": NAMESPACE, "labels": labels}, "spec": spec}


def _image(found: Resolved) -> str:
    return f"vllm/vllm-openai:v{found.engine_version}"


def arguments(found: Resolved) -> list[str]:
    """The measured command line after the interpreter; the host alone differs, since a pod is reached from outside of it."""
    words = vllm_argv(found.deployment, PORT, found.engine_version)[1:]
    words[words.index("--host") + 1] = "0.0.0.0"
    return words


def environment(found: Resolved) -> list[Object]:
    """The measured environment, then what a pod adds: a home that can be written to, the key, the models' places."""
    env = {name: value for name, value in vllm_env(found.deployment).items() if name != "HF_HUB_OFFLINE"}
    env |= {"HOME": HOME, "USER": "vllm"}  # an unknown user id has no name; torch asks for one
    # Without a model of the hub the volume is mounted to be read, and what the hub's libraries write goes to the home.
    env |= {"HF_HOME": f"{MODELS}/hub"} if found.hub else {"HF_HUB_OFFLINE": "1"}
    literal: list[Object] = [{"name": name, "value": value} for name, value in env.items()]
    secrets = [("VLLM_API_KEY", SECRET, SECRET_KEY, False), *([("HF_TOKEN", "huggingface", "token", True)] if found.hub else [])]
    refs = [{"name": env, "valueFrom": {"secretKeyRef": {"name": name, "key": key, "optional": free}}} for env, name, key, free in secrets]
    return literal + refs


def deployment(found: Resolved) -> Object:
    """The workload. It states no number of replicas: that is the autoscaler's."""
    start_s = math.ceil(found.profile.engine.start_timeout_s)
    labels = {**LABELS, METHOD_LABEL: found.deployment.method}
    measured = found.evidence.summary if found.evidence else "not measured"
    # Records can't tell that another place holds the same weights: who gave it says so, and it is named.
    elsewhere = [f"{what} from {place}" for what, place in (("target", found.wanted.model_id), ("draft", found.wanted.draft_id)) if place is not None]
    if found.evidence and found.wanted.draft_id is None:
        measured += "".join(f", with other files of {draft} than are shipped now" for draft in other_drafts(comparable(found.evidence.records)))
    notes = {EVIDENCE: measured, CONFIGURATION: ", ".join([f"{found.profile.name} {found.deployment.label}", *elsewhere])}
    if found.evidence and found.evidence.gains:
        notes[OVER_BASELINE] = found.evidence.over_baseline
    spec: Object = {
        "selector": {"matchLabels": dict(SELECTOR)},
        "progressDeadlineSeconds": start_s + IMAGE_PULL_S,
        "revisionHistoryLimit": 5,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "template": {"metadata": {"labels": labels, "annotations": notes}, "spec": _pod(found)},
    }
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata(NAME, annotations=notes), "spec": spec}


def _pod(found: Resolved) -> Object:
    shm = SHM_GIB * found.gpus
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": dict(SELECTOR)}}
    return {
        "serviceAccountName": NAME,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # a Service called vllm would set VLLM_PORT, which vLLM takes for its own
        "terminationGracePeriodSeconds": found.grace_s,
        "securityContext": dict(POD_SECURITY),
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "topologySpreadConstraints": [spread],
        "containers": [_container(found, shm)],
        "volumes": [
            dict(MODEL_VOLUME),
            {"name": "drain", "configMap": {"name": "vllm-drain"}},
            {"name": "home", "emptyDir": {}},
            {"name": "tmp", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{shm}Gi"}},
        ],
    }


def _container(found: Resolved, shm_gib: int) -> Object:
    gpus = found.gpus
    health = {"httpGet": {"path": "/health", "port": "http"}}
    memory = f"{math.ceil(MEMORY_BESIDE_WEIGHTS_GIB + 2 * found.weights_gib + shm_gib)}Gi"
    drain = ["python3", DRAIN_SCRIPT, str(SETTLE_S), str(found.drain_limit_s), f"http://127.0.0.1:{PORT}"]
    return {
        "name": NAME,
        "image": _image(found),
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3"],
        "args": arguments(found),
        "env": environment(found),
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "startupProbe": {**health, "periodSeconds": STARTUP_PERIOD_S, "timeoutSeconds": 5, "failureThreshold": _startup_failures(found)},
        "readinessProbe": {**health, **READINESS},
        "livenessProbe": {**health, **LIVENESS},
        "lifecycle": {"preStop": {"exec": {"command": drain}}},
        "resources": {
            "requests": {"cpu": str(CPUS_BESIDE_WORKERS + gpus), "memory": memory, "nvidia.com/gpu": str(gpus)},
            "limits": {"memory": memory, "nvidia.com/gpu": str(gpus)},
        },
        "securityContext": dict(CONTAINER_SECURITY),
        "volumeMounts": [
            {"name": "models", "mountPath": MODELS, **({} if found.hub else {"readOnly": True})},
            {"name": "drain", "mountPath": "/opt/drain", "readOnly": True},
            {"name": "home", "mountPath": HOME},
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }


def _startup_failures(found: Resolved) -> int:
    """So many polls as the profile gives its servers to start."""
    return math.ceil(found.profile.engine.start_timeout_s / STARTUP_PERIOD_S)
