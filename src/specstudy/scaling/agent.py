"""A node of the lab's cluster: this machine, which runs each Pod bound to it as a local process and says how it fares.

No container, no image and no network of its own: the pod's command runs here, on a loopback port. Its pod IP is a
name for the API's sake; who wants to reach it asks `NodeAgent.address`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from specstudy.scaling.podprocess import PodProcess

NODE = "specstudy-lab"
HEARTBEAT_S = 10.0
CAPACITY = {"cpu": "64", "memory": "512Gi", "pods": "250", "nvidia.com/gpu": "64"}
WATCH_S = 5
TRIES = 10  # half a second apart
BUSY = (409, 429)  # answers that may be another one a moment later
Change = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass
class NodeAgent:
    """Use `node_agent`. `address(pod)` is host:port of a pod that runs here, None for others."""

    client: Callable[[], Any]
    folder: Path
    node: str = NODE
    change: Change = lambda spec: spec
    pods: dict[str, PodProcess] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from kubernetes import client

        self._api = cast("Any", client.CoreV1Api(self.client()))
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=run, name=f"node {run.__name__}", daemon=True) for run in (self._beat, self._follow)]
        self._namespaces: dict[str, str] = {}
        self._numbers: dict[str, int] = {}
        self._restarts: dict[str, int] = {}

    def address(self, pod: str) -> str | None:
        """host:port of a pod here."""
        found = self.pods.get(pod)
        return None if found is None else found.address

    @property
    def restarts(self) -> int:
        """Times that a pod's process ended by itself and was started again, of all pods there were."""
        return sum(self._restarts.values())

    def begin(self) -> None:
        """Register the node and follow its pods."""
        from kubernetes import client

        body = {"metadata": {"name": self.node, "labels": {"kubernetes.io/hostname": self.node}}, "spec": {}}
        with contextlib.suppress(client.ApiException):  # it is there from an earlier lab
            self._api.create_node(body)
        self._heartbeat()
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Stop every pod's process and wait for it; the API is told nothing: the cluster ends too."""
        self._stopping.set()
        with self._lock:
            pods = list(self.pods.values())
        for pod in pods:
            pod.report = lambda pod: None
            pod.delete(0.1)
        for pod in pods:
            pod.join()
        for thread in self._threads:
            thread.join(WATCH_S + 2)

    def _heartbeat(self) -> None:
        now = _stamp(datetime.now(UTC))
        condition = {
            "type": "Ready",
            "status": "True",
            "reason": "AgentReady",
            "message": "the agent runs",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        status = {"conditions": [condition], "capacity": CAPACITY, "allocatable": CAPACITY, "addresses": [{"type": "Hostname", "address": self.node}]}
        self._api.patch_node_status(self.node, {"status": status})

    def _beat(self) -> None:
        while not self._stopping.wait(HEARTBEAT_S):
            with contextlib.suppress(Exception):  # the API server may be away for a moment; the next beat tells
                self._heartbeat()

    def _follow(self) -> None:
        from kubernetes import client, watch

        api = cast("Any", client.CoreV1Api(self.client()))
        while not self._stopping.is_set():
            try:
                listed = api.list_pod_for_all_namespaces(field_selector=f"spec.nodeName={self.node}")
                for pod in listed.items:
                    raw = api.api_client.sanitize_for_serialization(pod)
                    self._take(raw)
                    running = self.pods.get(raw["metadata"]["name"])
                    if running is not None and running.ready != _listed_ready(raw):  # a report was lost
                        self._report(running)
                self._drop({pod.metadata.name for pod in listed.items})
                stream = (
                    cast("Any", watch)
                    .Watch()
                    .stream(
                        api.list_pod_for_all_namespaces,
                        field_selector=f"spec.nodeName={self.node}",
                        resource_version=listed.metadata.resource_version,
                        timeout_seconds=WATCH_S,
                    )
                )
                for event in stream:
                    if self._stopping.is_set():
                        return
                    if event["type"] in ("ADDED", "MODIFIED"):
                        self._take(event["raw_object"])
            except Exception:  # a watch may break at any time, with any of urllib3's errors; the list begins anew
                self._stopping.wait(0.5)

    def _take(self, pod: dict[str, Any]) -> None:
        """Start what is new, drain what is to go."""
        name, meta = pod["metadata"]["name"], pod["metadata"]
        with self._lock:
            running = self.pods.get(name)
            if running is None and not meta.get("deletionTimestamp") and not self._stopping.is_set():
                self._namespaces[name] = meta["namespace"]
                self._numbers.setdefault(name, len(self._numbers) + 1)
                running = self.pods[name] = PodProcess(name, self.change(pod["spec"]), self.folder / "logs" / f"{name}.log", self._report)
                self._report(running)
                running.begin()
                return
        if meta.get("deletionTimestamp") and name not in self._leaving:
            self._leaving.add(name)
            threading.Thread(target=self._drain, args=(pod,), name=f"drain {name}", daemon=True).start()

    _leaving: set[str] = field(default_factory=set, init=False)

    def _drain(self, pod: Mapping[str, Any]) -> None:
        meta = pod["metadata"]
        running = self.pods.get(meta["name"])
        if running is not None:
            running.delete(float(meta.get("deletionGracePeriodSeconds") or 30))
            running.join()
        with self._lock:
            self.pods.pop(meta["name"], None)
        if not self._stopping.is_set():
            self._forget(meta)

    def _forget(self, meta: Mapping[str, Any]) -> None:
        """Tell the API that the pod is gone for good."""
        self._tell(lambda: self._api.delete_namespaced_pod(meta["name"], meta["namespace"], grace_period_seconds=0))

    def _tell(self, say: Callable[[], object]) -> None:
        """Say it to the API, a few times while it is away or busy. What it refuses isn't said again; of a pod that is gone nothing need be."""
        from kubernetes import client
        from urllib3.exceptions import HTTPError

        for _ in range(TRIES):
            try:
                say()
                return
            except client.ApiException as error:
                if error.status is not None and 400 <= error.status < 500 and error.status not in BUSY:
                    return
            except HTTPError:  # away
                pass
            if self._stopping.wait(0.5):
                return

    def _drop(self, there: set[str]) -> None:
        """Pods that vanished from the API without a goodbye, by a forced deletion."""
        with self._lock:
            gone = [pod for name, pod in self.pods.items() if name not in there and name not in self._leaving]
        for pod in gone:
            self._leaving.add(pod.name)
            pod.delete(0.1)
            with self._lock:
                self.pods.pop(pod.name, None)

    def _report(self, pod: PodProcess) -> None:
        number, namespace = self._numbers[pod.name], self._namespaces[pod.name]
        self._restarts[pod.name] = pod.restarts
        self._tell(
            lambda: self._api.patch_namespaced_pod_status(pod.name, namespace, {"status": pod_status(pod, f"10.244.{number // 250}.{number % 250 + 1}")})
        )


def _listed_ready(pod: Mapping[str, Any]) -> bool:
    """What the API holds of a pod's readiness."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def pod_status(pod: PodProcess, pod_ip: str) -> dict[str, Any]:
    """A running pod's status."""
    container = pod.spec["containers"][0]
    ready = "True" if pod.ready else "False"
    changed = _stamp(pod.ready_since or pod.began_at)
    conditions = [
        {"type": "Initialized", "status": "True", "lastTransitionTime": _stamp(pod.began_at)},
        {"type": "Ready", "status": ready, "lastTransitionTime": changed},
        {"type": "ContainersReady", "status": ready, "lastTransitionTime": changed},
    ]
    state = {"running": {"startedAt": _stamp(pod.began_at)}}
    fixed = {"name": container["name"], "image": container.get("image", "none"), "imageID": "", "containerID": f"process://{pod.name}"}
    statuses = [{**fixed, "state": state, "ready": pod.ready, "started": pod.started, "restartCount": pod.restarts}]
    return {
        "phase": "Running",
        "startTime": _stamp(pod.began_at),
        "podIP": pod_ip,
        "podIPs": [{"ip": pod_ip}],
        "conditions": conditions,
        "containerStatuses": statuses,
    }


def _stamp(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


@contextmanager
def node_agent(client: Callable[[], Any], folder: Path, change: Change = lambda spec: spec) -> Iterator[NodeAgent]:
    """The node for the length of the block. `client` makes an ApiClient; `change` may alter a pod's spec before it is run."""
    agent = NodeAgent(client, folder, change=change)
    agent.begin()
    try:
        yield agent
    finally:
        agent.end()
