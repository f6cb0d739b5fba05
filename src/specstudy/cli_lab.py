"""`specstudy lab`: the one-machine control plane, and the scaling experiment on it or on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import ValidationError

from specstudy.cli_drafts import ProfileOption, ResultsOption
from specstudy.errors import ConfigError
from specstudy.progress import tell
from specstudy.scaling.scenarios import SHIPPED

app = typer.Typer(no_args_is_help=True, help="The one-machine Kubernetes control plane for the scaling chapter and the tests.")
HIGHEST_RATE, LONGEST_S, HIGHEST_SEED, SLOWEST = 1000, 4 * 3600, 2**32 - 1, 100


@app.command()
def build() -> None:
    """Build etcd, Kubernetes and Prometheus once, from Debian's packages (about 6 CPU-minutes, 5 GiB while it lasts, 0.4 GiB kept)."""
    from specstudy.scaling.binaries import build as build_once

    print(build_once(tell).folder)


@app.command()
def run(
    policy: Annotated[list[str] | None, typer.Option(help=f"a policy of the study, repeatable; {SHIPPED} by default")] = None,
    profile: ProfileOption = "cpu-smollm2",
    results_dir: ResultsOption = Path("results"),
    low_s: Annotated[float, typer.Option(min=15, max=LONGEST_S, help="seconds of 1x load before the step")] = 60,
    high_s: Annotated[float, typer.Option(min=30, max=LONGEST_S, help="seconds of 3x load")] = 180,
    after_s: Annotated[float, typer.Option(min=15, max=LONGEST_S, help="seconds of 1x load after it")] = 180,
    rate: Annotated[
        float | None,
        typer.Option(min=0.1, max=HIGHEST_RATE, help="requests/s at 1x; by default what one replica is enough for"),
    ] = None,
    sync_s: Annotated[float, typer.Option(min=1, max=LONGEST_S, help="the autoscaler's period; 15 is the controller manager's own")] = 15,
    method: Annotated[str, typer.Option(help="speculation method of the replicas, where vLLM serves")] = "none",
    draft: Annotated[str | None, typer.Option(help="a name in data/drafts")] = None,
    num_speculative_tokens: Annotated[int | None, typer.Option("--num-speculative-tokens", "-k", help="tokens drafted per step")] = None,
    server: Annotated[
        Literal["real", "stand-in"] | None,
        typer.Option(help="what serves: vLLM, or paced stand-ins; by default those for a CPU's profile, vLLM for a GPU's"),
    ] = None,
    max_replicas: Annotated[int, typer.Option(min=1, help="most replicas that the autoscaler may ask for")] = 8,
    slowdown: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=SLOWEST,
            help="a token's time in a full replica over that in one a quarter full; from the records, 1 for stand-ins, which it paces",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=HIGHEST_SEED)] = 0,
) -> None:
    """Open-loop load 1x, 3x, 1x over an autoscaled Deployment on this machine: real control plane, one record a policy."""
    from specstudy.book.lab import Wanted, run_lab

    load: dict[str, Any] = {"low_s": low_s, "high_s": high_s, "after_s": after_s, "rate": rate, "seed": seed}
    served: dict[str, Any] = {"server": server, **_speculation(method, draft, num_speculative_tokens, "lab run")}
    wanted = [Wanted(profile, name, **load, **served, sync_s=sync_s, max_replicas=max_replicas, slowdown=slowdown) for name in policy or [SHIPPED]]
    run_lab(wanted, results_dir.resolve())


@app.command()
def cluster(
    kubeconfig: Annotated[Path, typer.Option(help="of a cluster where deploy/ is applied")],
    url: Annotated[str, typer.Option(help="where requests go: the service, a gateway, or a port-forward")],
    prometheus: Annotated[str, typer.Option(help="URL of the Prometheus that records the metrics")],
    slots: Annotated[int, typer.Option(min=1, help="max_num_seqs of a replica there")],
    engine_version: Annotated[str, typer.Option(help="vLLM's there")],
    profile: ProfileOption = "h200-smollm2",
    results_dir: ResultsOption = Path("results"),
    namespace: Annotated[str, typer.Option()] = "vllm",
    deployment: Annotated[str, typer.Option(help="the Deployment that serves")] = "vllm",
    autoscaler: Annotated[str, typer.Option(help="its HorizontalPodAutoscaler, or the one that KEDA made")] = "vllm",
    rate: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            max=HIGHEST_RATE,
            help="requests/s at 1x; by default what the fewest replicas are enough for",
        ),
    ] = None,
    low_s: Annotated[float, typer.Option(min=15, max=LONGEST_S)] = 60,
    high_s: Annotated[float, typer.Option(min=30, max=LONGEST_S)] = 600,
    after_s: Annotated[float, typer.Option(min=15, max=LONGEST_S)] = 600,
    seed: Annotated[int, typer.Option(min=0, max=HIGHEST_SEED)] = 0,
    method: Annotated[str, typer.Option(help="speculation method of what is deployed there, for the record")] = "none",
    draft: Annotated[str | None, typer.Option(help="its draft, a name in data/drafts")] = None,
    num_speculative_tokens: Annotated[int | None, typer.Option("--num-speculative-tokens", "-k", help="tokens drafted per step there")] = None,
) -> None:
    """The same load over a cluster of your own; nothing there is created or changed. $SPECSTUDY_API_KEY is sent where it is set."""
    from specstudy.book.lab import Wanted
    from specstudy.book.lab_cluster import Reach, run_cluster

    served = _speculation(method, draft, num_speculative_tokens, "lab cluster")
    wanted = Wanted(profile, low_s=low_s, high_s=high_s, after_s=after_s, rate=rate, seed=seed, **served)
    run_cluster(
        wanted, Reach(kubeconfig, url, prometheus, namespace, deployment, autoscaler), results_dir.resolve(), slots=slots, engine_version=engine_version
    )


def _speculation(method: str, draft: str | None, num_speculative_tokens: int | None, command: str) -> dict[str, Any]:
    """What is served, as `Wanted` takes it. Raises ConfigError for a method that isn't known, or without the draft or K that it needs."""
    from specstudy.catalog.models import MethodSpec

    ks = () if num_speculative_tokens is None else (num_speculative_tokens,)
    try:
        chosen = MethodSpec.model_validate({"method": method, "draft": draft, "num_speculative_tokens": ks})
    except ValidationError as error:
        raise ConfigError.from_pydantic(error, command) from error
    return {"method": chosen.method, "draft": draft, "num_speculative_tokens": num_speculative_tokens}
