"""`specstudy deploy`: manifests for a cluster."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import ValidationError

from specstudy.cli_drafts import ProfileOption
from specstudy.errors import ConfigError
from specstudy.progress import tell

if TYPE_CHECKING:
    from specstudy.deploy.wanted import Wanted

app = typer.Typer(no_args_is_help=True, help="Manifests for a cluster, from what was measured.")


@app.command()
def render(
    out: Annotated[Path, typer.Option(help="folder of the kustomize tree")],
    profile: ProfileOption = "h200-smollm2",
    method: Annotated[str, typer.Option(help="none, ngram, suffix, draft_model, eagle3, peagle, dflash")] = "none",
    draft: Annotated[str | None, typer.Option(help="a name in data/drafts")] = None,
    num_speculative_tokens: Annotated[int | None, typer.Option("--num-speculative-tokens", "-k", help="tokens drafted per step")] = None,
    prompt_lookup_min: Annotated[int | None, typer.Option(help="ngram only; by default the profile's")] = None,
    prompt_lookup_max: Annotated[int | None, typer.Option(help="ngram only; by default the profile's")] = None,
    tensor_parallel_size: Annotated[int | None, typer.Option(help="GPUs of one replica; by default as the profile's flags say")] = None,
    model_id: Annotated[str | None, typer.Option(help="hub id of the target, instead of a folder on the model volume")] = None,
    draft_id: Annotated[str | None, typer.Option(help="hub id of the draft")] = None,
    engine_version: Annotated[str | None, typer.Option(help="vLLM's; by default the measured one")] = None,
    longest_request_s: Annotated[float | None, typer.Option(help="by default from the records")] = None,
    weights_gib: Annotated[float | None, typer.Option(help="of target and draft together; by default from the records")] = None,
    cold_start_s: Annotated[float, typer.Option(help="from a pod's creation to its readiness")] = 120,
    largest_step: Annotated[int, typer.Option(help="times that the load may rise at once and be answered by one scale-out")] = 3,
    min_replicas: Annotated[int, typer.Option()] = 1,
    max_replicas: Annotated[int, typer.Option()] = 8,
    results_dir: Annotated[Path | None, typer.Option(help="folder that holds a folder of records for each profile; by default the recorded ones")] = None,
    unmeasured: Annotated[bool, typer.Option("--unmeasured", help="render even what no record measured")] = False,
) -> None:
    """Write a kustomize tree for one way to serve; its overlay is named by the method."""
    from specstudy.deploy.wanted import Wanted

    try:
        one = Wanted(
            profile=profile,
            method=method,  # type: ignore[arg-type]  # pydantic checks it
            draft=draft,
            num_speculative_tokens=num_speculative_tokens,
            prompt_lookup_min=prompt_lookup_min,
            prompt_lookup_max=prompt_lookup_max,
            tensor_parallel_size=tensor_parallel_size,
            model_id=model_id,
            draft_id=draft_id,
            engine_version=engine_version,
            unmeasured=unmeasured,
            longest_request_s=longest_request_s,
            weights_gib=weights_gib,
            cold_start_s=cold_start_s,
            largest_step=largest_step,
            min_replicas=min_replicas,
            max_replicas=max_replicas,
        )
    except ValidationError as error:
        raise ConfigError.from_pydantic(error, "deploy render") from error
    _write({method: one}, results_dir, out)


@app.command()
def shipped(out: Annotated[Path, typer.Option(help="folder of the kustomize tree; the checkout's own is deploy")]) -> None:
    """Write the kustomize tree of all overlays in data/deploy.yaml."""
    from specstudy.deploy.render import shipped_overlays

    _write(shipped_overlays(), None, out)


def _write(wanted: Mapping[str, Wanted], results_dir: Path | None, out: Path) -> None:
    from specstudy.deploy.render import resolved, slower, tree, write

    found = resolved(wanted, results_dir)
    write(tree(found), out)
    for sentence in slower(found):
        tell(sentence)
    for name in wanted:
        print(f"kubectl apply -k {shlex.quote(str(out / 'overlays' / name))}")
