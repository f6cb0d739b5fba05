"""The adapter over TLS: who may ask, what is answered, and that nothing but a measured number is ever a value."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import kubernetes_validate
import pytest
import yaml
from aiohttp import web

from specstudy.measure import run_async
from specstudy.scaling.adapter import ROOT, Adapter, Settings, tls_context
from specstudy.scaling.certificates import Authority, Issued
from specstudy.scaling.series import UnusableSelectorError, matchers

DEPLOY = Path(__file__).parents[3] / "deploy" / "components" / "adapter"
ASK = f"{ROOT}/namespaces/vllm/queue_wait_ms"
Answers = dict[str, Any]


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> tuple[Authority, Authority]:
    """(the server's, the aggregation layer's)."""
    folder = tmp_path_factory.mktemp("keys")
    return Authority(folder / "a", "authority"), Authority(folder / "b", "front-proxy")


def vector(*values: str) -> dict[str, Any]:
    """Prometheus' answer with a series for each value."""
    result = [{"metric": {"__name__": "queue_wait_ms", "pod": str(i)}, "value": [1_700_000_000.5, value]} for i, value in enumerate(values)]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


def ask(
    authorities: tuple[Authority, Authority],
    answers: Answers,
    path: str = ASK,
    *,
    client: Issued | None = None,
    together: bool = False,
    allowed: frozenset[str] = frozenset({"aggregator"}),
) -> tuple[int, dict[str, Any], list[str]]:
    """(status, body, the queries that were made) of one request to an adapter whose Prometheus gives `answers` by the metric's name.

    A number for an answer is its HTTP status; no answers at all: nobody listens there.
    """
    server, proxy = authorities
    shown = client or proxy.issue("aggregator")
    queries: list[str] = []

    async def query(request: web.Request) -> web.Response:
        queries.append(request.query["query"])
        answer = answers[queries[-1].split("{")[0]]
        return web.Response(status=answer, text="no") if isinstance(answer, int) else web.json_response(answer)

    async def talk() -> tuple[int, dict[str, Any]]:
        backend = web.Application()
        backend.add_routes([web.get("/api/v1/query", query)])
        async with running(backend, None) as url:
            settings = Settings(url if answers else "http://127.0.0.1:1", together=together, timeout_s=30)
            issued = server.issue("adapter", hosts=["localhost"])
            context = tls_context(issued.certificate, issued.key, proxy.certificate.read_text())
            async with running(Adapter(settings, allowed).app(), context) as base, aiohttp.ClientSession() as session:
                mine = ssl.create_default_context(cafile=str(server.certificate))
                if client is not NOBODY:
                    mine.load_cert_chain(shown.certificate, shown.key)
                async with session.get(base.replace("127.0.0.1", "localhost") + path, ssl=mine) as answer:
                    text = await answer.text()
                    return answer.status, json.loads(text) if text.startswith("{") else {"text": text}

    status, body = run_async(talk())
    return status, body, queries


NOBODY = Issued(Path(), Path())


class running:  # noqa: N801 - used like a function
    """An aiohttp application on a free loopback port; gives its URL."""

    def __init__(self, app: web.Application, context: ssl.SSLContext | None) -> None:
        self._runner, self._context = web.AppRunner(app), context

    async def __aenter__(self) -> str:
        await self._runner.setup()
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        await web.SockSite(self._runner, listener, ssl_context=self._context).start()
        return f"{'https' if self._context else 'http'}://127.0.0.1:{listener.getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()


Both = tuple[Authority, Authority]


def test_a_value_comes_in_thousandths(authorities: Both) -> None:
    status, body, queries = ask(authorities, {"queue_wait_ms": vector("12.3456")}, ASK + "?labelSelector=job%3Dvllm")
    assert status == 200
    assert (body["kind"], body["apiVersion"]) == ("ExternalMetricValueList", "external.metrics.k8s.io/v1beta1")
    assert body["items"] == [{"metricName": "queue_wait_ms", "metricLabels": {"pod": "0"}, "timestamp": "2023-11-14T22:13:20Z", "value": "12346m"}]
    assert queries == ['queue_wait_ms{namespace="vllm",job="vllm"}']


def test_a_measured_zero_is_a_zero(authorities: Both) -> None:
    assert ask(authorities, {"queue_wait_ms": vector("0")})[1]["items"][0]["value"] == "0m"


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ({}, "doesn't answer"),
        ({"queue_wait_ms": vector()}, "no value for queue_wait_ms"),
        ({"queue_wait_ms": vector("1", "2")}, "2 series, which can't be added up"),
        ({"queue_wait_ms": vector("NaN")}, "no measurement"),
        ({"queue_wait_ms": vector("+Inf")}, "no measurement"),
        ({"queue_wait_ms": vector("-1")}, "no measurement"),
        ({"queue_wait_ms": 500}, "is it Prometheus?"),
        ({"queue_wait_ms": {"status": "error", "error": "parse error"}}, "refused"),
        ({"queue_wait_ms": []}, "is it Prometheus?"),
    ],
    ids=["dead", "missing", "several", "nan", "infinite", "negative", "http-500", "refused", "not-prometheus"],
)
def test_whatever_is_wrong_is_an_error_with_its_reason(authorities: Both, answers: Answers, says: str) -> None:
    status, body, _ = ask(authorities, answers)
    assert status == 503
    assert (body["kind"], body["status"], body["code"]) == ("Status", "Failure", 503)
    assert says in body["message"]
    assert "items" not in body


def test_a_hanging_prometheus_is_an_error_in_time(authorities: Both) -> None:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    with listener:
        settings = Settings(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_s=0.3)

        async def talk() -> dict[str, Any]:
            async with running(Adapter(settings, None).app(), None) as base, aiohttp.ClientSession() as session, session.get(base + ASK) as answer:
                body: dict[str, Any] = await answer.json()
                return body

        assert "doesn't answer" in run_async(asyncio.wait_for(talk(), 60))["message"]


def test_together_one_missing_metric_takes_the_other_along(authorities: Both) -> None:
    answers = {"queue_wait_ms": vector(), "slots_in_use": vector("3")}
    path = f"{ROOT}/namespaces/vllm/slots_in_use"
    assert ask(authorities, answers, path)[0] == 200
    status, body, _ = ask(authorities, answers, path, together=True)
    assert status == 503
    assert "no value for queue_wait_ms" in body["message"]


def test_only_the_aggregation_layer_may_ask(authorities: Both) -> None:
    answers = {"queue_wait_ms": vector("1")}
    assert ask(authorities, answers, client=NOBODY)[0] == 401
    assert ask(authorities, answers, client=authorities[1].issue("somebody"))[0] == 403
    assert ask(authorities, answers, client=authorities[1].issue("somebody"), allowed=frozenset())[0] == 200
    with pytest.raises(aiohttp.ClientError):  # of another authority: TLS itself refuses
        ask(authorities, answers, client=authorities[0].issue("aggregator"))


def test_health_needs_no_certificate(authorities: Both) -> None:
    assert ask(authorities, {"queue_wait_ms": vector("1")}, "/readyz", client=NOBODY)[0] == 200


def test_discovery(authorities: Both) -> None:
    answers = {"queue_wait_ms": vector("1")}
    body = ask(authorities, answers, ROOT)[1]
    assert [(one["name"], one["namespaced"]) for one in body["resources"]] == [("queue_wait_ms", True), ("slots_in_use", True)]
    assert ask(authorities, answers, "/apis/external.metrics.k8s.io")[1]["preferredVersion"]["version"] == "v1beta1"


@pytest.mark.parametrize(("path", "status"), [(f"{ROOT}/namespaces/vllm/nonsense", 404), (f"{ROOT}/nonsense", 404), (f"{ASK}?labelSelector=a%3Eb", 400)])
def test_what_isnt_there_is_a_status(authorities: Both, path: str, status: int) -> None:
    found, body, queries = ask(authorities, {"queue_wait_ms": vector("1")}, path)
    assert (found, body["kind"], queries) == (status, "Status", [])


@pytest.mark.parametrize(
    ("selector", "wanted"),
    [
        ("", '{namespace="n"}'),
        ("a=b", '{namespace="n",a="b"}'),
        ("a==b,c!=d", '{namespace="n",a="b",c!="d"}'),
        ("a in (x,y.z),b notin (w)", '{namespace="n",a=~"x|y\\\\.z",b!~"w"}'),
    ],
)
def test_selectors(selector: str, wanted: str) -> None:
    assert matchers("n", selector) == wanted


@pytest.mark.parametrize("selector", ["a", "!a", 'a="b"', 'a=b"} or vector(0)', "a.b/c=d", "a>1"])
def test_a_selector_that_cant_be_put_into_promql_is_refused(selector: str) -> None:
    with pytest.raises(UnusableSelectorError):
        matchers("n", selector)


@pytest.mark.parametrize(
    "words", [["--prometheus", "http://x", "--tls-cert", "a"], ["--prometheus", "http://x", "--requestheader-ca", "/nowhere"], ["--prometheus", "http://x"]]
)
def test_the_command_refuses_what_it_cant_use(words: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "specstudy.scaling.adapter", *words], capture_output=True, text=True)
    assert done.returncode == 2
    assert "adapter: " in done.stderr


@pytest.mark.parametrize("version", ["1.31", "1.37"])
@pytest.mark.parametrize("name", ["adapter", "rbac"])
def test_the_manifests_are_valid(name: str, version: str) -> None:
    for body in yaml.safe_load_all((DEPLOY / f"{name}.yaml").read_text()):
        kubernetes_validate.validate(body, version, strict=True)


def test_the_manifests_start_this_adapter() -> None:
    """The command line is one that it takes, the metrics are those that it serves, and the autoscaler's permission names them."""
    from specstudy.scaling.adapter import METRICS, arguments

    documents = [body for name in ("adapter", "rbac") for body in yaml.safe_load_all((DEPLOY / f"{name}.yaml").read_text())]
    container = next(body for body in documents if body["kind"] == "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert arguments(container["args"]).port == container["ports"][0]["containerPort"]
    assert set(next(body for body in documents if body["kind"] == "ClusterRole")["rules"][0]["resources"]) == set(METRICS)
    registered = yaml.safe_load((DEPLOY / "registration.yaml").read_text())
    assert registered["spec"]["service"]["name"] == next(body for body in documents if body["kind"] == "Service")["metadata"]["name"]
