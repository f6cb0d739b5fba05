"""`specstudy drafts`: pack, unpack, check, measure and show a draft head."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from specstudy.catalog import Draft, Profile, load_draft, load_profile, load_target, project_root
from specstudy.catalog.models import PackedSource
from specstudy.catalog.paths import check_writable
from specstudy.cli_train import DEFAULT_TARGET, TargetOption, regenerate, train
from specstudy.errors import ConfigError, StoreWriteError
from specstudy.progress import tell

if TYPE_CHECKING:  # these bring torch, which takes seconds
    from specstudy.drafts.card import Card
    from specstudy.drafts.check import Finding
    from specstudy.serving import Deployment
    from specstudy.workloads import Prompt

app = typer.Typer(no_args_is_help=True, help="Train, pack, check and measure draft heads.")
app.command()(train)
app.command()(regenerate)
DEFAULT_PROFILE = "cpu-smollm2"
STYLE = {"ok": "green", "fail": "bold red", "not checked": "yellow"}

HeadArgument = Annotated[str, typer.Argument(help="a name in data/drafts, or a head's folder")]
ProfileOption = Annotated[str, typer.Option(help="a name in data/profiles, or the path of a YAML file")]
ResultsOption = Annotated[Path, typer.Option(help="folder that holds a folder of records for each profile")]


@app.command()
def pack(
    folder: Annotated[Path, typer.Argument(help="the trained head: config.json, model.safetensors and perhaps card.json")],
    out: Annotated[Path, typer.Argument(help="where to write, like data/drafts/NAME")],
    target: TargetOption = DEFAULT_TARGET,
    mlp_bits: Annotated[int, typer.Option(help="4, 8, or 16 for none")] = 4,
    attention_bits: Annotated[int, typer.Option(help="attention and fc: 8, or 16 for none")] = 8,
    replace: Annotated[bool, typer.Option("--replace", help="put it in the place of a head that is packed there; what that one's card says is lost")] = False,
) -> None:
    """Store a trained bf16 head in 8 and 4 bits."""
    from specstudy.catalog.materialise import target_folder
    from specstudy.drafts.pack import pack_head

    wide: Literal[8, 16] = 8 if _one_of("attention_bits", attention_bits, (8, 16)) == 8 else 16
    narrow: Literal[4, 8, 16] = 4 if _one_of("mlp_bits", mlp_bits, (4, 8, 16)) == 4 else 8 if mlp_bits == 8 else 16
    packing = pack_head(folder, out, target_folder(load_target(target), tell), mlp_bits=narrow, attention_bits=wide, replace=replace)
    print(f"{out}: {packing.bytes / 1e6:.2f} MB ({', '.join(f'{group} {bits} bits' for group, bits in packing.bits.items())})")


def _one_of(field: str, given: int, allowed: tuple[int, ...]) -> int:
    if given not in allowed:
        raise ConfigError(field, given, f"one of {', '.join(map(str, allowed))}")
    return given


@app.command()
def unpack(
    draft: HeadArgument,
    out: Annotated[Path | None, typer.Argument(help="a new folder; by default it stays in the cache")] = None,
) -> None:
    """Print the bf16 folder of a packed head that vLLM loads, made on first use."""
    from specstudy.catalog.materialise import draft_folder

    if out is not None and out.exists():
        raise ConfigError("out", str(out), "a folder that isn't there yet")
    folder = draft_folder(load_draft(draft), tell)
    if out is not None:
        try:
            shutil.copytree(folder, out)
        except OSError as error:
            raise ConfigError.unwritable("out", out, error) from error
    print(out or folder)


@app.command()
def card(draft: HeadArgument) -> None:
    """Print a head's card."""
    from specstudy.drafts.card import card_text, read_card

    print(card_text(read_card(_card_folder(draft))), end="")


def _card_folder(draft: str) -> Path:
    if Path(draft).is_dir():
        return Path(draft)
    source = load_draft(draft).source
    if not isinstance(source, PackedSource):
        raise ConfigError("draft", draft, "a head with a card: one that the checkout keeps packed, or a folder")
    return project_root() / source.path


@dataclass(frozen=True)
class _Named:
    """A head that is to be checked."""

    label: str
    folder: Path
    target: str
    card: Card | None


def _named(draft: str, target: str) -> _Named:
    from specstudy.catalog.materialise import draft_folder
    from specstudy.drafts.card import read_card

    known: Draft | None = None if Path(draft).is_dir() else load_draft(draft)
    folder = Path(draft).resolve() if known is None else draft_folder(known, tell)
    beside = folder if known is None or not isinstance(known.source, PackedSource) else project_root() / known.source.path
    label = folder.name if known is None else known.name
    return _Named(label, folder, target if known is None else known.target, read_card(beside) if (beside / "card.json").is_file() else None)


@app.command()
def check(
    draft: HeadArgument,
    profile: ProfileOption = DEFAULT_PROFILE,
    live: Annotated[bool, typer.Option("--live/--no-live", help="serve the head and measure its acceptance against its card")] = False,
    live_prompts: Annotated[int, typer.Option(min=1, help="requests of the measurement")] = 24,
    live_tokens: Annotated[int, typer.Option(min=8, help="tokens of each answer")] = 128,
) -> None:
    """Is a head what its card says? Ends with status 1 if a check fails."""
    from specstudy.catalog.materialise import target_folder
    from specstudy.drafts.check import check_head, failures

    found = load_profile(profile)
    head = _named(draft, found.target)
    if live and head.target != found.target:
        raise ConfigError("profile", profile, f"a profile of the head's target, {head.target}")
    findings = check_head(head.folder, target_folder(load_target(head.target), tell), head.card)
    if live and not any(failures(findings)):
        findings.append(_live(head, found, live_prompts, live_tokens))
    elif live:
        tell("acceptance isn't measured: what failed would explain it")
    _print(head.label, findings)
    if any(failures(findings)):
        raise typer.Exit(1)


def _live(head: _Named, profile: Profile, prompts: int, tokens: int) -> Finding:
    from specstudy.drafts.live import check_acceptance, claim_of

    if head.card is None:
        raise ConfigError("draft", head.label, "a head with a card.json: acceptance is measured against it")
    claim = claim_of(head.card, list(profile.workloads))
    deployment = _deployment(head, head.folder, profile, claim.num_speculative_tokens)
    log = Path("results") / profile.name / "logs" / f"check-{deployment.label}.log"
    tell(f"measuring {deployment.label} on {prompts} prompts of {claim.workload}; log: {log}")
    drawn = _prompts(profile, head.target, claim.workload, prompts, tokens)
    return check_acceptance(deployment, drawn, claim, log, max_tokens=tokens, timeout_s=profile.engine.start_timeout_s)


def _deployment(head: _Named, folder: Path, profile: Profile, k: int) -> Deployment:
    from specstudy.catalog.materialise import target_folder
    from specstudy.plan import deployment_of

    method = "peagle" if head.card is not None and head.card.method == "peagle" else "eagle3"
    target = str(target_folder(load_target(head.target), tell))
    return deployment_of(profile, target, method=method, draft=head.label, draft_path=str(folder), num_speculative_tokens=k)


def _prompts(profile: Profile, target: str, workload: str, count: int, tokens: int) -> list[Prompt]:
    from specstudy.catalog.materialise import target_folder
    from specstudy.workloads import build_pool, dataset, kept_token_counter

    if workload not in profile.workloads:
        raise ConfigError.unknown("workload", workload, profile.workloads)
    spec = profile.workloads[workload]
    with kept_token_counter(target_folder(load_target(target), tell)) as count_tokens:
        pool = build_pool(
            workload,
            dataset(spec.dataset, spec.path, tell),
            count_tokens=count_tokens,
            min_tokens=spec.min_prompt_tokens,
            max_tokens=min(spec.max_prompt_tokens, profile.engine.max_model_len - tokens),
        )
    return pool.draw(min(count, len(pool.prompts)), seed=profile.measuring.seed)


@app.command()
def measure(
    draft: Annotated[str, typer.Argument(help="a name in data/drafts: a packed head with a card")],
    profile: ProfileOption = DEFAULT_PROFILE,
    workload: Annotated[list[str], typer.Option(help="workloads of the profile; may be given several times")] = ["chat"],  # noqa: B006
    num_speculative_tokens: Annotated[int, typer.Option("--num-speculative-tokens", "-k", min=1, help="tokens drafted per step")] = 5,
    concurrency: Annotated[int, typer.Option(min=1)] = 4,
    prompts: Annotated[int, typer.Option(min=4, help="requests for each workload")] = 40,
    tokens: Annotated[int, typer.Option(min=8, help="tokens of each answer")] = 128,
    unpacked: Annotated[Path | None, typer.Option(help="the head before packing: measured too, on the first workload")] = None,
) -> None:
    """Measure what a head accepts, and write it into its card."""
    from specstudy.drafts.card import card_text, write_card
    from specstudy.drafts.live import measured_entries, with_acceptance
    from specstudy.serving import check_files

    found, folder = load_profile(profile), _card_folder(draft)
    check_writable("draft", folder / "card.json")
    head = _named(draft, found.target)
    if head.card is None or head.target != found.target:
        raise ConfigError("draft", draft, f"a head with a card, for the profile's target, {found.target}")
    packing = head.card.packing
    if unpacked is not None and packing is None:
        raise ConfigError("unpacked", str(unpacked), "nothing: by its card this head wasn't packed")
    served = [_deployment(head, at, found, num_speculative_tokens) for at in (head.folder, unpacked) if at is not None]
    for deployment in served:
        check_files(deployment)
    drawn = {name: _prompts(found, head.target, name, prompts, tokens) for name in workload}
    rest = {"concurrency": concurrency, "max_tokens": tokens}
    log = Path("results") / found.name / "logs" / f"measure-{head.label}.log"
    tell(f"measuring {head.label} at K = {num_speculative_tokens} on {', '.join(drawn)}; log: {log}")
    entries = measured_entries(served[0], drawn, log, timeout_s=found.engine.start_timeout_s, **rest)
    card = with_acceptance(head.card, entries)
    if unpacked is not None and packing is not None:
        first = {workload[0]: drawn[workload[0]]}
        whole = measured_entries(served[1], first, log, timeout_s=found.engine.start_timeout_s, **rest)
        lengths = {"acceptance_length_packed": entries[0].acceptance_length, "acceptance_length_unpacked": whole[0].acceptance_length}
        card = card.model_copy(update={"packing": packing.model_copy(update=lengths)})
    print(card_text(card), end="")  # first: a card that can't be written costs no measurement
    try:
        write_card(card, folder)
    except OSError as error:
        raise StoreWriteError(f"{folder / 'card.json'} can't be written: {error.strerror or error}; what was measured is above") from error


def _print(label: str, findings: list[Finding]) -> None:
    table = RichTable("check", "verdict", "found", "allowed", title=label)
    for one in findings:
        table.add_row(one.check, f"[{STYLE[one.verdict]}]{one.verdict}[/]", escape(one.found), escape(one.allowed))
    Console(width=None if sys.stdout.isatty() else 150).print(table)
