"""The same experiment on the user's own cluster, where deploy/ is applied: nothing is created or changed there, only load is sent."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from specstudy.book.lab import SLOTS_WINDOW_S, WINDOW_S, Wanted, check_draft, summary
from specstudy.book.lab_vllm import lab_prompts, recorded_slowdown, usual_rate
from specstudy.catalog import Profile, load_profile
from specstudy.errors import ConfigError, MetricsUnavailableError
from specstudy.measure import StreamClient, run_async
from specstudy.measure.load import drive
from specstudy.progress import tell
from specstudy.scaling.cluster import kubeconfig_cluster
from specstudy.scaling.experiment import LoadSpec, Place, Replica, run_load
from specstudy.scaling.policy import HpaPolicy, policy_from_spec
from specstudy.scaling.record import ScalingRun, ScalingStore
from specstudy.scaling.series import parse_answer
from specstudy.scaling.views import AS_DEPLOYED
from specstudy.serving.local import get
from specstudy.workloads.arrivals import Closed
from specstudy.workloads.prompts import Prompt

KEY = "SPECSTUDY_API_KEY"
VERSION = re.compile(r"\d+(\.\d+)+[.\w+-]*")  # with what builds add, like 0.26.0rc1 or 0.26.0+cu129


@dataclass(frozen=True)
class Reach:
    """How to reach it: kubeconfig, the service's URL for requests, Prometheus' URL (a port-forward will do), names in the cluster."""

    kubeconfig: Path
    url: str
    prometheus: str
    namespace: str = "vllm"
    deployment: str = "vllm"
    autoscaler: str = "vllm"
    scrape_s: float = 5


def run_cluster(wanted: Wanted, reach: Reach, results: Path, *, slots: int, engine_version: str) -> ScalingRun:
    """Drive the load, sample the cluster, keep the record; what the profile says is served must be what is deployed there.

    `slots`: max_num_seqs of a replica there. $SPECSTUDY_API_KEY is sent where it is set. Raises ConfigError before the load begins.
    """
    profile = load_profile(wanted.profile)
    if not VERSION.fullmatch(engine_version):
        raise ConfigError("engine_version", engine_version, "vLLM's, like 0.26.0")
    check_draft(wanted, profile.target)
    cluster = kubeconfig_cluster(reach.kubeconfig, reach.namespace)
    policy = policy_from_spec("cluster", cluster.hpa_spec(reach.autoscaler))
    cluster.check_deployment(reach.deployment)
    prompts, max_tokens = lab_prompts(profile)
    load = LoadSpec(wanted.stages(wanted.rate or _cluster_rate(profile, policy, slots)), prompts, max_tokens, seed=wanted.seed)
    replica = Replica("real", profile.target, "vllm", engine_version, slots, AS_DEPLOYED, wanted.method, wanted.draft, wanted.num_speculative_tokens)

    def query(expression: str) -> list[dict[str, Any]]:
        return _query(reach.prometheus, expression)

    def client(model: str) -> StreamClient:
        return StreamClient(reach.url, model, api_key=os.environ.get(KEY))

    _check(reach, client(profile.target), profile.target, prompts[0])
    place = Place(cluster, reach.deployment, reach.autoscaler, query, client, wanted.sync_s, WINDOW_S, SLOTS_WINDOW_S, reach.scrape_s)
    with ScalingStore.opened(results / profile.name) as store:
        finished = run_load(place, replica, policy, load, profile=profile.name)
        store.keep(finished.run, finished.requests, finished.samples)
    tell(summary(finished.run))
    return finished.run


def _cluster_rate(profile: Profile, policy: HpaPolicy, slots: int) -> float:
    """Requests/s at which the fewest replicas that the autoscaler may keep are used as one of the lab is, by the profile's records."""
    return policy.min_replicas * usual_rate(profile, recorded_slowdown(profile, profile.engine.max_num_seqs, slots), slots)


def _check(reach: Reach, client: StreamClient, model: str, prompt: Prompt) -> None:
    """One request and one query, as the run sends them. Raises ConfigError."""
    for name in ("url", "prometheus"):
        if not getattr(reach, name).startswith(("http://", "https://")):
            raise ConfigError(name, getattr(reach, name), "a URL that begins with http:// or https://")
    try:
        get(f"{reach.url.rstrip('/')}/health", timeout_s=10)
    except (OSError, ValueError, HTTPException) as error:
        raise ConfigError("url", reach.url, f"a service that answers /health ({error})") from None
    if (error_there := run_async(_try(client, prompt))) is not None:
        raise ConfigError("url", reach.url, f"a service that completes a prompt with {model}, asked with ${KEY} where it is set ({error_there})")
    try:
        _query(reach.prometheus, "1")
    except MetricsUnavailableError as error:
        raise ConfigError("prometheus", reach.prometheus, f"a Prometheus ({error})") from None


async def _try(client: StreamClient, prompt: Prompt) -> str | None:
    """What was wrong with one short answer; None if nothing."""
    async with client:
        load = await drive(client, [client.body(prompt, max_tokens=2, temperature=0, seed=0)], Closed(1))
    return load.outcomes[0].error


def _query(prometheus: str, expression: str) -> list[dict[str, Any]]:
    url = f"{prometheus.rstrip('/')}/api/v1/query?{urlencode({'query': expression})}"
    try:
        return parse_answer(get(url, timeout_s=5).decode(), expression, prometheus)
    except (OSError, ValueError, HTTPException) as error:
        raise MetricsUnavailableError(f"{url}: {error}") from None
