"""The same experiment on the user's own cluster, where deploy/ is applied: nothing is created or changed there, only load is sent."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from specstudy.book.lab import SLOTS_WINDOW_S, WINDOW_S, Wanted, summary
from specstudy.book.lab_vllm import lab_prompts, recorded_slowdown, usual_rate
from specstudy.catalog import Profile, load_profile
from specstudy.errors import ConfigError, MetricsUnavailableError
from specstudy.measure import StreamClient
from specstudy.progress import tell
from specstudy.scaling.cluster import kubeconfig_cluster
from specstudy.scaling.experiment import LoadSpec, Place, Replica, run_load
from specstudy.scaling.policy import HpaPolicy, policy_from_spec
from specstudy.scaling.record import ScalingRun, ScalingStore
from specstudy.scaling.series import parse_answer
from specstudy.scaling.views import AS_DEPLOYED
from specstudy.serving.local import get

KEY = "SPECSTUDY_API_KEY"


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
    cluster = kubeconfig_cluster(reach.kubeconfig, reach.namespace)
    policy = policy_from_spec("cluster", cluster.hpa_spec(reach.autoscaler))
    _check(reach)
    prompts, max_tokens = lab_prompts(profile)
    load = LoadSpec(wanted.stages(wanted.rate or _cluster_rate(profile, policy, slots)), prompts, max_tokens, seed=wanted.seed)
    replica = Replica("real", profile.target, "vllm", engine_version, slots, AS_DEPLOYED, wanted.method, wanted.draft, wanted.num_speculative_tokens)

    def query(expression: str) -> list[dict[str, Any]]:
        return _query(reach.prometheus, expression)

    def client(model: str) -> StreamClient:
        return StreamClient(reach.url, model, api_key=os.environ.get(KEY))

    place = Place(cluster, reach.deployment, reach.autoscaler, query, client, wanted.sync_s, WINDOW_S, SLOTS_WINDOW_S, reach.scrape_s)
    with ScalingStore.opened(results / profile.name) as store:
        finished = run_load(place, replica, policy, load, profile=profile.name)
        store.keep(finished.run, finished.requests, finished.samples)
    tell(summary(finished.run))
    return finished.run


def _cluster_rate(profile: Profile, policy: HpaPolicy, slots: int) -> float:
    """Requests/s at which the fewest replicas that the autoscaler may keep are used as one of the lab is, by the profile's records."""
    return policy.min_replicas * usual_rate(profile, recorded_slowdown(profile, profile.engine.max_num_seqs, slots), slots)


def _check(reach: Reach) -> None:
    try:
        get(f"{reach.url.rstrip('/')}/health", timeout_s=10)
    except OSError as error:
        raise ConfigError("url", reach.url, f"a service that answers /health ({error})") from None
    try:
        _query(reach.prometheus, "1")
    except MetricsUnavailableError as error:
        raise ConfigError("prometheus", reach.prometheus, f"a Prometheus ({error})") from None


def _query(prometheus: str, expression: str) -> list[dict[str, Any]]:
    url = f"{prometheus.rstrip('/')}/api/v1/query?{urlencode({'query': expression})}"
    try:
        return parse_answer(get(url, timeout_s=5).decode(), expression, prometheus)
    except (OSError, ValueError) as error:
        raise MetricsUnavailableError(f"{url}: {error}") from None
