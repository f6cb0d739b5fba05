"""External metrics from Prometheus: the API `external.metrics.k8s.io/v1beta1` that the autoscaler asks.

    python -m specstudy.scaling.adapter --prometheus http://prometheus:9090 --requestheader-ca ca.crt

Each metric is a recorded series of the same name, narrowed to the namespace and the selector's labels. Whatever is
wrong (Prometheus dead, no series, several, NaN) is an error with its reason and never a 0, so that the autoscaler
holds and its status says why.

Who may ask: the API server alone, by the client certificate of its aggregation layer. It has authenticated and
authorised the user by then (RBAC on this API group), so nothing is delegated once more.
"""

from __future__ import annotations

import argparse
import asyncio
import ssl
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import aiohttp
from aiohttp import web

from specstudy.errors import ConfigError, MetricsUnavailableError, SpecstudyError
from specstudy.progress import tell
from specstudy.scaling import QUEUE_WAIT, SLOTS_IN_USE
from specstudy.scaling.series import Sample, UnusableSelectorError, matchers, read_one

GROUP, VERSION = "external.metrics.k8s.io", "v1beta1"
ROOT = f"/apis/{GROUP}/{VERSION}"
METRICS = (QUEUE_WAIT, SLOTS_IN_USE)
AUTHENTICATION = ("kube-system", "extension-apiserver-authentication")  # where a cluster keeps its requestheader CA
Handler = Callable[[web.Request], Any]


@dataclass(frozen=True)
class Settings:
    """`together`: answer for no metric while one of them has no value.

    Kubernetes 1.20 scales down on the metrics that are left when one is missing; later releases hold by themselves.
    """

    prometheus: str
    metrics: tuple[str, ...] = METRICS
    together: bool = False
    timeout_s: float = 3.0


class Adapter:
    """The handlers. `allowed`: common names whose verified certificate may ask; None for a socket that isn't TLS, in tests alone."""

    def __init__(self, settings: Settings, allowed: frozenset[str] | None) -> None:
        self._settings, self._allowed = settings, allowed

    def app(self) -> web.Application:
        """Everything but the socket."""
        app = web.Application(middlewares=[self._guard])
        app.cleanup_ctx.append(self._session)
        app.add_routes([web.get("/healthz", self._health), web.get("/readyz", self._health)])
        app.add_routes([web.get(f"/apis/{GROUP}", self._group), web.get(ROOT, self._resources)])
        app.add_routes([web.get(ROOT + "/namespaces/{namespace}/{metric}", self._values)])
        return app

    async def _session(self, app: web.Application) -> Any:
        async with aiohttp.ClientSession() as self._http:
            yield

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Health is for everybody, the API for the aggregation layer; every refusal is a Status."""
        if request.path.startswith("/apis") and self._allowed is not None:
            name = _common_name(request)
            if name is None:
                return status(401, "Unauthorized", "a client certificate of the API server's aggregation layer is required")
            if self._allowed and name not in self._allowed:
                return status(403, "Forbidden", f"{name} is not among the names that may ask: {', '.join(sorted(self._allowed))}")
        try:
            answer: web.StreamResponse = await handler(request)
        except web.HTTPException as error:
            return status(error.status, "NotFound" if error.status == 404 else "BadRequest", f"{request.path}: {error.reason}")
        return answer

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _group(self, request: web.Request) -> web.Response:
        version = {"groupVersion": f"{GROUP}/{VERSION}", "version": VERSION}
        return web.json_response({"kind": "APIGroup", "apiVersion": "v1", "name": GROUP, "versions": [version], "preferredVersion": version})

    async def _resources(self, request: web.Request) -> web.Response:
        each = {"singularName": "", "namespaced": True, "kind": "ExternalMetricValueList", "verbs": ["get"]}
        found = [{"name": name, **each} for name in self._settings.metrics]
        return web.json_response({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{GROUP}/{VERSION}", "resources": found})

    async def _values(self, request: web.Request) -> web.Response:
        namespace, metric = request.match_info["namespace"], request.match_info["metric"]
        if metric not in self._settings.metrics:
            return status(404, "NotFound", f"no such metric: {metric}; there are {', '.join(self._settings.metrics)}")
        try:
            narrowed = matchers(namespace, request.query.get("labelSelector", ""))
            sample = await self._read(metric, narrowed)
        except UnusableSelectorError as error:
            return status(400, "BadRequest", str(error))
        except MetricsUnavailableError as error:
            return status(503, "ServiceUnavailable", str(error))
        return web.json_response(value_list(metric, sample))

    async def _read(self, metric: str, narrowed: str) -> Sample:
        names = self._settings.metrics if self._settings.together else (metric,)
        read = [read_one(self._http, self._settings.prometheus, name + narrowed, self._settings.timeout_s) for name in names]
        return (await asyncio.gather(*read))[names.index(metric)]


def value_list(metric: str, sample: Sample) -> dict[str, Any]:
    """An ExternalMetricValueList of one item; the value in thousandths, as the autoscaler reckons."""
    when = datetime.fromtimestamp(sample.at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    item = {"metricName": metric, "metricLabels": dict(sample.labels), "timestamp": when, "value": f"{round(sample.value * 1000)}m"}
    return {"kind": "ExternalMetricValueList", "apiVersion": f"{GROUP}/{VERSION}", "metadata": {}, "items": [item]}


def status(code: int, reason: str, message: str) -> web.Response:
    """An error as Kubernetes words it."""
    return web.json_response({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message, "code": code}, status=code)


def _common_name(request: web.Request) -> str | None:
    """Of the client's certificate, which TLS has verified; None without one."""
    certificate = request.transport.get_extra_info("peercert") if request.transport else None
    for part in (certificate or {}).get("subject", ()):
        for key, value in part:
            if key == "commonName":
                return str(value)
    return None


def tls_context(certificate: Path, key: Path, requestheader_ca: str) -> ssl.SSLContext:
    """TLS that verifies a client's certificate where one is shown: probes show none. `requestheader_ca` is PEM."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=requestheader_ca)
    context.load_cert_chain(certificate, key)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


def cluster_authority() -> tuple[str, list[str]]:
    """(PEM, allowed names) that the cluster keeps for servers like this one. Raises ConfigError outside a cluster."""
    import json

    from kubernetes import client, config

    try:
        cast("Any", config).load_incluster_config()
        data = cast("Any", client.CoreV1Api()).read_namespaced_config_map(AUTHENTICATION[1], AUTHENTICATION[0]).data
        return data["requestheader-client-ca-file"], json.loads(data.get("requestheader-allowed-names", "[]"))
    except (config.ConfigException, client.ApiException, KeyError) as error:
        raise ConfigError("requestheader-ca", None, f"a PEM file, or a cluster to read it from ({error})") from None


async def serve(settings: Settings, host: str, port: int, context: ssl.SSLContext, allowed: Sequence[str]) -> None:
    """Listen until cancelled."""
    runner = web.AppRunner(Adapter(settings, frozenset(allowed)).app(), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, ssl_context=context).start()
        tell(f"external metrics {', '.join(settings.metrics)} from {settings.prometheus} on port {port}")
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Serve external.metrics.k8s.io from Prometheus.")
    parser.add_argument("--prometheus", required=True, help="URL")
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=6443)
    parser.add_argument("--tls-cert", type=Path, help="PEM; by default one of its own for --service-name")
    parser.add_argument("--tls-key", type=Path)
    parser.add_argument("--service-name", default="localhost", help="DNS name in a certificate of its own")
    parser.add_argument("--requestheader-ca", type=Path, help="PEM of the aggregation layer's authority; by default the cluster's")
    parser.add_argument("--allowed-name", action="append", default=[], help="common name that may ask, repeatable; by default the cluster's, else every one")
    parser.add_argument(
        "--together", action="store_true", help="answer for no metric while one has no value, for controllers that would scale down on the rest"
    )
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    """See the module's text."""
    given = arguments(words)
    if (given.tls_cert is None) != (given.tls_key is None):
        raise ConfigError("tls-cert, tls-key", (given.tls_cert, given.tls_key), "both or neither")
    try:
        authority, allowed = (given.requestheader_ca.read_text(), given.allowed_name) if given.requestheader_ca else cluster_authority()
    except OSError as error:
        raise ConfigError("requestheader-ca", str(given.requestheader_ca), f"a readable file ({error.strerror})") from None
    with tempfile.TemporaryDirectory() as scratch:
        certificate, key = given.tls_cert, given.tls_key
        if certificate is None:
            from specstudy.scaling.certificates import Authority

            issued = Authority(Path(scratch), "adapter").issue("server", hosts=[given.service_name])
            certificate, key = issued.certificate, issued.key
        settings = Settings(given.prometheus.rstrip("/"), together=given.together)
        asyncio.run(serve(settings, given.host, given.port, tls_context(certificate, key, authority), allowed))


if __name__ == "__main__":
    try:
        main()
    except SpecstudyError as error:
        tell(f"adapter: {error}")
        raise SystemExit(error.exit_status) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
