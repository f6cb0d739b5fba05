"""The one-machine lab: a real control plane, Prometheus, adapter and autoscaler over pods that are local processes."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specstudy.errors import ServerDiedError, ServerStartError
from specstudy.scaling import objects
from specstudy.scaling.agent import NodeAgent, node_agent
from specstudy.scaling.binaries import Binaries
from specstudy.scaling.cluster import Cluster
from specstudy.scaling.control_plane import ControlPlane, control_plane
from specstudy.scaling.policy import HpaPolicy
from specstudy.scaling.prometheus import Prometheus, prometheus
from specstudy.serving.server import Command, free_port, log_tail, start, stop

DISCOVERY_S = 0.25
ADAPTER_START_S = 40.0


@dataclass(frozen=True)
class LabSpec:
    """What the lab runs. `command` serves on port 8000 (the agent gives each pod a port of its own); times in s.

    `pre_stop`: the command that waits until nothing is in flight, run before SIGTERM. `rules`: a Prometheus rule file's content, which records
    both metrics. `sync_s`: the autoscaler's period, by default the controller manager's own. `change` alters a pod's spec before it is run.
    """

    policy: HpaPolicy
    command: tuple[str, ...]
    pre_stop: tuple[str, ...]
    rules: Mapping[str, Any]
    env: Mapping[str, str] = field(default_factory=dict)
    sync_s: float = 15
    scrape_s: float = 5
    start_s: float = 60
    change: Callable[[dict[str, Any]], dict[str, Any]] = lambda spec: spec


@dataclass
class Lab:
    """A running lab."""

    spec: LabSpec
    plane: ControlPlane
    cluster: Cluster
    prometheus: Prometheus
    agent: NodeAgent
    adapter: subprocess.Popen[bytes]
    adapter_port: int
    adapter_log: Path
    addresses: Mapping[str, str] = field(default_factory=dict)

    def ready(self) -> Mapping[str, str]:
        """Pods that take requests, as the cluster's Endpoints have them, with host:port."""
        return self.addresses

    def await_ready(self, replicas: int, timeout_s: float) -> None:
        """Wait until so many take requests. Raises ServerStartError with a pod's last log lines, at once if one ended instead of getting ready."""
        deadline = time.monotonic() + timeout_s
        while len(self.addresses) < replicas:
            pods = list(self.agent.pods.values())
            if ended := [pod for pod in pods if pod.restarts and not pod.started]:
                raise ServerStartError(f"replica {ended[0].name} ended, or gave no answer in time, before it was ready", log_tail(ended[0].log_path))
            if time.monotonic() > deadline:
                logs = "\n".join(log_tail(pod.log_path, 8) for pod in pods[:1])
                raise ServerStartError(f"{len(self.addresses)} of {replicas} replicas were ready after {timeout_s:.0f} s", logs, log="a log")
            self.raise_if_dead()
            time.sleep(0.1)

    def raise_if_dead(self) -> None:
        """Raises ServerDiedError, with its log's last lines, if a program of the control plane, Prometheus or the adapter has ended."""
        self.plane.raise_if_dead()
        for name, process, log in (("Prometheus", self.prometheus.process, self.prometheus.log_path), ("the adapter", self.adapter, self.adapter_log)):
            if process.poll() is not None:
                raise ServerDiedError(f"{name} ended with status {process.returncode}", log_tail(log))


@contextmanager
def lab(binaries: Binaries, folder: Path, spec: LabSpec) -> Iterator[Lab]:
    """Everything up, the minimum of replicas ready, for the length of the block; no process stays. Logs stay under `folder`.

    Raises ServerStartError, with a log's last lines, if a part doesn't come up.
    """
    flags = {
        "horizontal-pod-autoscaler-sync-period": f"{spec.sync_s:g}s",
        "horizontal-pod-autoscaler-initial-readiness-delay": "1s",
    }
    with ExitStack() as undo:
        plane = undo.enter_context(control_plane(binaries, folder / "plane", controller_flags=flags))
        found = undo.enter_context(
            prometheus(binaries, folder / "prometheus", [spec.rules], scrape_interval_s=spec.scrape_s, evaluation_interval_s=spec.scrape_s)
        )
        agent = undo.enter_context(node_agent(plane.client, folder, spec.change))
        cluster, port = Cluster(plane.client), free_port()
        running = Lab(spec, plane, cluster, found, agent, start_adapter(plane, found.url, folder, port), port, adapter_log(folder))
        undo.callback(lambda: stop(running.adapter))
        undo.enter_context(_discovering(running))
        cluster.apply([objects.deployment(spec.command, spec.env, spec.pre_stop, replicas=spec.policy.min_replicas, start_s=spec.start_s), objects.service()])
        running.await_ready(spec.policy.min_replicas, spec.start_s + 30)
        cluster.apply([objects.autoscaler(spec.policy)])
        yield running


def adapter_log(folder: Path) -> Path:
    """Where the adapter of a lab in `folder` writes."""
    return folder / "logs" / "adapter.log"


def start_adapter(plane: ControlPlane, prometheus_url: str, folder: Path, port: int) -> subprocess.Popen[bytes]:
    """The adapter as a process on a loopback port, registered with the API server and answering through it."""
    hosts = ["localhost", "127.0.0.1", f"{objects.ADAPTER}.default.svc"]
    served = plane.authority.issue("adapter", hosts=hosts)
    argv = [sys.executable, "-m", "specstudy.scaling.adapter", "--prometheus", prometheus_url, "--host", "127.0.0.1", "--port", str(port), "--together"]
    argv += ["--tls-cert", str(served.certificate), "--tls-key", str(served.key)]
    argv += ["--requestheader-ca", str(plane.front_proxy.certificate), "--allowed-name", "aggregator"]
    log = adapter_log(folder)
    process = start(Command(tuple(argv), {}, port, "", log))
    try:
        cluster = Cluster(plane.client)
        cluster.apply(objects.adapter_registration(plane.authority.certificate, port, "default"))
        deadline = time.monotonic() + ADAPTER_START_S
        while not (now := cluster.available(objects.API_SERVICE)).startswith("True"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise ServerStartError(f"the adapter isn't available: {now or 'no condition'}", log_tail(log))
            time.sleep(0.2)
    except BaseException:
        stop(process)
        raise
    return process


@contextmanager
def _discovering(running: Lab) -> Iterator[None]:
    """Keep the lab's addresses, and Prometheus' targets, what the Endpoints say."""
    ended = threading.Event()

    def follow() -> None:
        cluster = Cluster(running.plane.client)
        while not ended.wait(DISCOVERY_S):
            with suppress(Exception):  # the API server may be away for a moment: what was known last stays
                pods = {name: address for name in cluster.ready_pods(objects.APP) if (address := running.agent.address(name)) is not None}
                if pods != running.addresses:
                    running.addresses = pods
                    running.prometheus.set_targets(pods)

    thread = threading.Thread(target=follow, name="discovery", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
