"""A real Kubernetes control plane on this machine: etcd, API server, controller manager, scheduler, all on loopback.

No kubelet and no network between pods: a node is what the lab's agent makes of this machine. Kubernetes 1.20 knows
autoscaling/v2 as v2beta2 and has no policy/v1; `specstudy.deploy.lab` says what that changes.
"""

from __future__ import annotations

import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast
from urllib import request
from urllib.error import HTTPError

import yaml

from specstudy.errors import ServerDiedError, ServerStartError
from specstudy.scaling.binaries import Binaries
from specstudy.scaling.certificates import Authority, Issued, signing_key
from specstudy.serving.server import Command, free_ports, log_tail, start, stop_all

LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 90.0
POLL_S = 0.2
# Kubernetes' own defaults, said here because the lab's results depend on them.
HPA_DEFAULTS = MappingProxyType(
    {
        "horizontal-pod-autoscaler-sync-period": "15s",
        "horizontal-pod-autoscaler-initial-readiness-delay": "30s",
        "horizontal-pod-autoscaler-tolerance": "0.1",
        "horizontal-pod-autoscaler-downscale-stabilization": "5m0s",
    }
)


@dataclass(frozen=True)
class ControlPlane:
    """A running control plane. `kubeconfig` belongs to an administrator; `authority` issues further certificates."""

    url: str
    folder: Path
    kubeconfig: Path
    authority: Authority
    front_proxy: Authority
    binaries: Binaries
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def log(self, name: str) -> Path:
        """The log of one of its programs, like kube-apiserver."""
        return self.folder / "logs" / f"{name}.log"

    def client(self) -> Any:
        """A new kubernetes.client.ApiClient for the administrator; a proxy in the environment is none of its business."""
        from kubernetes import client, config

        settings = client.Configuration()
        config.load_kube_config(str(self.kubeconfig), client_configuration=settings)  # type: ignore[no-untyped-call]
        settings.proxy, settings.no_proxy = None, "*"
        return client.ApiClient(settings)

    def kubeconfig_for(self, name: str, organisations: Sequence[str] = ()) -> Path:
        """A kubeconfig for another user, in these groups; RBAC says what it may do."""
        path = self.folder / "keys" / f"{name.replace(':', '-')}.kubeconfig"
        _write_kubeconfig(path, self.url, self.authority.certificate, self.authority.issue(name, organisations))
        return path

    def raise_if_dead(self) -> None:
        """Raises ServerDiedError, with its log's last lines, if one of the programs has ended."""
        for name, process in self.processes.items():
            if process.poll() is not None:
                raise ServerDiedError(f"{name} ended with status {process.returncode}", log_tail(self.log(name)))


@contextmanager
def control_plane(binaries: Binaries, folder: Path, *, controller_flags: Mapping[str, str] = MappingProxyType({})) -> Iterator[ControlPlane]:
    """A control plane for the length of the block, about 6 s to start; logs stay in `folder`/logs, keys and data don't stay.

    `controller_flags`: flags of the controller manager, without dashes, over HPA_DEFAULTS.
    Raises ServerStartError, with the log's last lines, when a program ends or isn't ready in time. On leaving, for
    whatever reason, no process of it is left; the guard sees to that even if we are killed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    etcd, peer, api, controllers, scheduler = free_ports(5)
    url = f"https://{LOOPBACK}:{api}"
    with ExitStack() as undo:
        for name in ("keys", "etcd"):
            shutil.rmtree(folder / name, ignore_errors=True)
            undo.callback(shutil.rmtree, folder / name, ignore_errors=True)
        authority, front_proxy = Authority(folder / "keys", "authority"), Authority(folder / "keys" / "front-proxy", "front-proxy")
        plane = ControlPlane(url, folder, folder / "kubeconfig", authority, front_proxy, binaries)
        undo.callback(plane.kubeconfig.unlink, missing_ok=True)
        _write_kubeconfig(plane.kubeconfig, url, authority.certificate, authority.issue("specstudy", ["system:masters"]))
        admin = authority.issue("probe")  # any certificate will do for health checks
        context = ssl.create_default_context(cafile=str(authority.certificate))
        context.load_cert_chain(admin.certificate, admin.key)

        def run(name: str, flags: Mapping[str, str], health: str, verify: ssl.SSLContext) -> None:
            argv = (binaries.path(name), *(f"--{flag}={value}" for flag, value in flags.items()))
            process = start(Command(argv, {}, 0, "", plane.log(name)))
            plane.processes[name] = process
            undo.callback(stop_all, [process])
            _await(name, process, plane.log(name), health, verify)

        key = signing_key(folder / "keys" / "service-accounts.key")
        run("etcd", _etcd(folder / "etcd", etcd, peer), f"http://{LOOPBACK}:{etcd}/health", context)
        run("kube-apiserver", _api_server(plane, key, etcd, api), f"{url}/readyz", context)
        unverified = ssl._create_unverified_context()  # each signs its own certificate; it is asked for its health alone
        flags = {**_controllers(plane, key, controllers), **HPA_DEFAULTS, **controller_flags}
        run("kube-controller-manager", flags, f"https://{LOOPBACK}:{controllers}/healthz", unverified)
        run("kube-scheduler", _scheduler(plane, scheduler), f"https://{LOOPBACK}:{scheduler}/healthz", unverified)
        _await_default_account(plane)
        yield plane


def _etcd(data: Path, port: int, peer: int) -> dict[str, str]:
    client, peers = f"http://{LOOPBACK}:{port}", f"http://{LOOPBACK}:{peer}"
    return {
        "data-dir": str(data),
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peers,
        "initial-advertise-peer-urls": peers,
        "initial-cluster": f"default={peers}",
        "unsafe-no-fsync": "true",  # nothing of it is to outlive the lab
    }


def _api_server(plane: ControlPlane, key: Path, etcd: int, port: int) -> dict[str, str]:
    server = plane.authority.issue("kube-apiserver", hosts=[LOOPBACK, "localhost", "kubernetes.default.svc"])
    proxy = plane.front_proxy.issue("aggregator")
    return {
        "etcd-servers": f"http://{LOOPBACK}:{etcd}",
        "bind-address": LOOPBACK,
        "advertise-address": LOOPBACK,
        "endpoint-reconciler-type": "none",  # a loopback address can't be an endpoint of the service `kubernetes`
        "secure-port": str(port),
        "tls-cert-file": str(server.certificate),
        "tls-private-key-file": str(server.key),
        "client-ca-file": str(plane.authority.certificate),
        "authorization-mode": "Node,RBAC",
        "service-cluster-ip-range": "10.0.0.0/24",
        "service-account-issuer": plane.url,
        "service-account-key-file": str(key),
        "service-account-signing-key-file": str(key),
        # The aggregation layer: the API server shows a metrics adapter this certificate, and names the user in these headers.
        "proxy-client-cert-file": str(proxy.certificate),
        "proxy-client-key-file": str(proxy.key),
        "requestheader-client-ca-file": str(plane.front_proxy.certificate),
        "requestheader-allowed-names": "aggregator",
        "requestheader-username-headers": "X-Remote-User",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
    }


def _controllers(plane: ControlPlane, key: Path, port: int) -> dict[str, str]:
    return {
        **_client(plane, "system:kube-controller-manager", port),
        "service-account-private-key-file": str(key),
        "root-ca-file": str(plane.authority.certificate),
        "use-service-account-credentials": "true",
    }


def _scheduler(plane: ControlPlane, port: int) -> dict[str, str]:
    return _client(plane, "system:kube-scheduler", port)


def _client(plane: ControlPlane, user: str, port: int) -> dict[str, str]:
    kubeconfig = str(plane.kubeconfig_for(user))
    secure = {"bind-address": LOOPBACK, "secure-port": str(port), "port": "0", "cert-dir": str(plane.folder / "keys" / f"{port}")}
    return {"kubeconfig": kubeconfig, "authentication-kubeconfig": kubeconfig, "authorization-kubeconfig": kubeconfig, "leader-elect": "false", **secure}


def _write_kubeconfig(path: Path, url: str, authority: Path, user: Issued) -> None:
    cluster = {"server": url, "certificate-authority": str(authority)}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lab", "cluster": cluster}],
        "users": [{"name": "lab", "user": {"client-certificate": str(user.certificate), "client-key": str(user.key)}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
        "current-context": "lab",
    }
    path.write_text(yaml.safe_dump(content, sort_keys=False))


def _await(name: str, process: subprocess.Popen[bytes], log: Path, url: str, context: ssl.SSLContext) -> None:
    began = time.monotonic()
    opener = request.build_opener(request.ProxyHandler({}), request.HTTPSHandler(context=context))
    reason = "no answer"
    while time.monotonic() - began < START_TIMEOUT_S:
        if process.poll() is not None:
            raise ServerStartError(f"{name} ended with status {process.returncode} before it was ready", log_tail(log))
        try:
            opener.open(url, timeout=5).close()
            return
        except HTTPError as error:
            reason = f"{error.code} {error.read(500).decode(errors='replace')}"
        except OSError as error:
            reason = str(error)
        time.sleep(POLL_S)
    raise ServerStartError(f"{name} wasn't ready within {START_TIMEOUT_S:.0f} s ({reason})", log_tail(log))


def _await_default_account(plane: ControlPlane) -> None:
    """A pod is refused until the controllers have made its namespace's service account and a token for it."""
    from kubernetes import client

    began = time.monotonic()
    with plane.client() as api:
        while time.monotonic() - began < START_TIMEOUT_S:
            plane.raise_if_dead()
            accounts = cast("Any", client.CoreV1Api(api)).list_namespaced_service_account("default").items
            if any(account.secrets for account in accounts):
                return
            time.sleep(POLL_S)
    raise ServerStartError(
        "the controllers made no default service account", log_tail(plane.log("kube-controller-manager")), log="the controller manager's log"
    )
