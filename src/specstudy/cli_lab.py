"""`specstudy lab`: run the scaling experiment, here or on a cluster, and try a policy in the simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from specstudy.cli_deploy import lab_app
from specstudy.cli_drafts import ProfileOption
from specstudy.scaling.scenarios import SHIPPED

app = lab_app


@app.command()
def run(
    policy: Annotated[list[str] | None, typer.Option(help=f"a policy of the study, repeatable; {SHIPPED} by default")] = None,
    profile: ProfileOption = "cpu-smollm2",
    results_dir: Annotated[Path, typer.Option(help="folder that holds a folder of records for each profile")] = Path("results"),
    low_s: Annotated[float, typer.Option(min=15, help="seconds of 1x load before the step")] = 60,
    high_s: Annotated[float, typer.Option(min=30, help="seconds of 3x load")] = 180,
    after_s: Annotated[float, typer.Option(min=15, help="seconds of 1x load after it")] = 180,
    rate: Annotated[float | None, typer.Option(min=0.1, help="requests/s at 1x; by default two of four slots in use")] = None,
    sync_s: Annotated[float, typer.Option(min=1, help="the autoscaler's period; 15 is the controller manager's own")] = 15,
    method: Annotated[str, typer.Option(help="speculation method of the replicas, where vLLM serves")] = "none",
    draft: Annotated[str | None, typer.Option(help="a name in data/drafts")] = None,
    num_speculative_tokens: Annotated[int | None, typer.Option("--num-speculative-tokens", "-k", help="tokens drafted per step")] = None,
    server: Annotated[
        Literal["real", "stand-in"] | None,
        typer.Option(help="what serves: vLLM, or paced stand-ins; by default those for a CPU's profile, vLLM for a GPU's"),
    ] = None,
    max_replicas: Annotated[int, typer.Option(min=1, help="most replicas that the autoscaler may ask for")] = 8,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Open-loop load 1x, 3x, 1x over an autoscaled Deployment on this machine: real control plane, one record a policy."""
    from specstudy.book.lab import Wanted, run_lab
    from specstudy.catalog.models import MethodSpec

    chosen = MethodSpec(method=method, draft=draft, num_speculative_tokens=(num_speculative_tokens,) if num_speculative_tokens else ())  # type: ignore[arg-type]
    load: dict[str, Any] = {"low_s": low_s, "high_s": high_s, "after_s": after_s, "rate": rate, "seed": seed}
    served: dict[str, Any] = {"server": server, "method": chosen.method, "draft": draft, "num_speculative_tokens": num_speculative_tokens}
    wanted = [Wanted(profile, name, **load, **served, sync_s=sync_s, max_replicas=max_replicas) for name in policy or [SHIPPED]]
    run_lab(wanted, results_dir.resolve())


@app.command()
def cluster(
    kubeconfig: Annotated[Path, typer.Option(help="of a cluster where deploy/ is applied")],
    url: Annotated[str, typer.Option(help="where requests go: the service, a gateway, or a port-forward")],
    prometheus: Annotated[str, typer.Option(help="URL of the Prometheus that records the metrics")],
    slots: Annotated[int, typer.Option(min=1, help="max_num_seqs of a replica there")],
    engine_version: Annotated[str, typer.Option(help="vLLM's there")],
    profile: ProfileOption = "h200-smollm2",
    results_dir: Annotated[Path, typer.Option(help="folder that holds a folder of records for each profile")] = Path("results"),
    namespace: Annotated[str, typer.Option()] = "vllm",
    rate: Annotated[float | None, typer.Option(min=0.1, help="requests/s at 1x")] = None,
    low_s: Annotated[float, typer.Option(min=15)] = 60,
    high_s: Annotated[float, typer.Option(min=30)] = 600,
    after_s: Annotated[float, typer.Option(min=15)] = 600,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """The same load over a cluster of your own; nothing there is created or changed. $SPECSTUDY_API_KEY is sent where it is set."""
    from specstudy.book.lab import Wanted
    from specstudy.book.lab_cluster import Reach, run_cluster

    wanted = Wanted(profile, low_s=low_s, high_s=high_s, after_s=after_s, rate=rate, seed=seed)
    run_cluster(wanted, Reach(kubeconfig, url, prometheus, namespace), results_dir.resolve(), slots=slots, engine_version=engine_version)
