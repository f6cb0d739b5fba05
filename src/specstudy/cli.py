"""The study from a shell. Wrong input ends with status 2, a failed run with 1, Ctrl-C with 130."""

from __future__ import annotations

import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Column
from rich.table import Table as RichTable

from specstudy import __version__
from specstudy.catalog import Profile, cache_dir, load_draft, load_profile, load_target, names_in, project_root
from specstudy.catalog.paths import check_writable
from specstudy.cli_deploy import app as deploy_app
from specstudy.cli_drafts import DEFAULT_PROFILE, ProfileOption, ResultsOption
from specstudy.cli_drafts import app as drafts_app
from specstudy.cli_lab import app as lab_app
from specstudy.cli_shapes import app as shapes_app
from specstudy.errors import ConfigError, SpecstudyError, StudyError
from specstudy.progress import tell

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Measure speculative decoding on live vLLM servers.", pretty_exceptions_enable=False)
app.add_typer(drafts_app, name="drafts")
app.add_typer(shapes_app, name="shapes")
app.add_typer(deploy_app, name="deploy")
app.add_typer(lab_app, name="lab")


@app.command()
def profiles() -> None:
    """List the profiles and what they measure."""
    others = ("target", "evidence", "hardware", "chapters")
    table = RichTable(Column("profile", no_wrap=True), *(Column(name, overflow="fold") for name in others))
    for name in names_in("profiles"):
        found = load_profile(name)
        table.add_row(name, found.target, found.evidence, found.hardware, ", ".join(found.chapters))
    Console().print(table)


@app.command()
def serve(
    profile: ProfileOption = DEFAULT_PROFILE,
    method: Annotated[str, typer.Option(help="none, ngram, suffix, draft_model, eagle3, peagle, dflash")] = "none",
    draft: Annotated[str | None, typer.Option(help="a name in data/drafts, or a folder")] = None,
    num_speculative_tokens: Annotated[int | None, typer.Option("--num-speculative-tokens", "-k", help="tokens drafted per step")] = None,
    prompt_lookup_min: Annotated[int | None, typer.Option(help="ngram only")] = None,
    prompt_lookup_max: Annotated[int | None, typer.Option(help="ngram only")] = None,
    port: Annotated[int | None, typer.Option(help="loopback port; a free one by default")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the command line and environment, start nothing")] = False,
) -> None:
    """Serve a profile's target with one method until Ctrl-C, as a chapter would."""
    from specstudy.catalog.materialise import target_folder
    from specstudy.measure import check_device
    from specstudy.plan import deployment_of
    from specstudy.serving import check_files, engine_named, launch
    from specstudy.serving.server import check_port, free_port

    found = load_profile(profile)
    chosen = None if port is None else check_port(port)
    draft_path = None if draft is None else _draft_path(draft, method, found.target)
    folder = target_folder(load_target(found.target), tell)
    deployment = deployment_of(
        found,
        str(folder),
        method=method,
        draft=draft,
        draft_path=draft_path,
        num_speculative_tokens=num_speculative_tokens,
        prompt_lookup_min=prompt_lookup_min,
        prompt_lookup_max=prompt_lookup_max,
    )
    check_files(deployment)
    if deployment.random_weights and method != "none":
        tell("a chapter would impose an acceptance; here none is, and of random weights next to no drafted token is accepted")
    engine = engine_named(found.engine.name)
    if dry_run:
        for name, value in engine.env(deployment).items():
            print(f"{name}={shlex.quote(value)} \\")
        print(shlex.join(engine.argv(deployment, chosen or free_port())))
        return
    check_device(found.hardware)
    log = Path("results") / found.name / "logs" / f"serve-{deployment.label}.log"
    tell(f"starting {deployment.label}; log: {log}")
    with launch(deployment, log, engine=engine.name, port=chosen, timeout_s=found.engine.start_timeout_s) as server:
        print(f"{server.base_url} serves {server.model}; Ctrl-C stops it", flush=True)
        server.process.wait()
        server.raise_if_dead()


def _draft_path(draft: str, method: str, target: str) -> str:
    from specstudy.catalog.materialise import draft_folder

    if Path(draft).is_dir():
        return str(Path(draft).resolve())
    known = load_draft(draft)
    if (known.method, known.target) != (method, target):
        raise ConfigError("draft", draft, f"a draft for {method} of {target}; this one is for {known.method} of {known.target}")
    return str(draft_folder(known, tell))


@app.command()
def materialise(profile: ProfileOption = DEFAULT_PROFILE) -> None:
    """Bring a profile's models and datasets into the user's cache."""
    from specstudy.plan import make_plan

    found = load_profile(profile)
    for chapter in found.chapters:
        make_plan(found, chapter, tell)
    print(cache_dir())


@app.command()
def measure(
    chapter: Annotated[str, typer.Argument(help="like 03_baseline")],
    profile: ProfileOption = DEFAULT_PROFILE,
    results_dir: ResultsOption = Path("results"),
    cell_budget_s: Annotated[float | None, typer.Option(min=1, help="seconds a cell may spend on repeats beyond the minimum, instead of the profile's")] = None,
    repeats: Annotated[int | None, typer.Option(min=2, help="exactly so many repeats of each cell, instead of the profile's rules")] = None,
    only: Annotated[list[str] | None, typer.Option(help="a method, draft or server like NAME-k3, to measure that part and the baseline; repeatable")] = None,
    concurrency: Annotated[list[int] | None, typer.Option(help="one of the chapter's closed loads, to measure that part; repeatable")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="say what would be measured and how long it would take, start nothing")] = False,
) -> None:
    """Measure one chapter's cells; a rerun goes on where an earlier one stopped."""
    from specstudy.plan import at_concurrencies, with_repeats
    from specstudy.study import describe_chapter, run_chapter

    found = load_profile(profile)
    if cell_budget_s is not None and repeats is not None:
        raise ConfigError("repeats", repeats, "without --cell-budget-s: exactly so many, whatever they take")
    if cell_budget_s is not None:
        found = _with_budget(found, cell_budget_s)
    if repeats is not None:
        found = with_repeats(found, chapter, repeats)
    if concurrency:
        found = at_concurrencies(found, chapter, concurrency)
    folder = results_dir.resolve() / found.name
    if plan:
        print(describe_chapter(found, chapter, folder, only or ()))
        return
    run_chapter(found, chapter, folder, only or ())
    _print_summary(found, results_dir, [chapter])


def _with_budget(profile: Profile, cell_budget_s: float) -> Profile:
    return profile.model_copy(update={"measuring": profile.measuring.model_copy(update={"cell_budget_s": cell_budget_s})})


@app.command()
def study(
    profile: ProfileOption = DEFAULT_PROFILE,
    results_dir: ResultsOption = Path("results"),
    fresh: Annotated[bool, typer.Option("--fresh", help="set earlier results of this profile aside and measure anew")] = False,
) -> None:
    """Run every chapter of a profile live with papermill, build the book from the records, print a summary."""
    from specstudy.whole import build_book, run_chapters, set_aside

    found = load_profile(profile)
    results_dir = results_dir.resolve()
    if fresh:
        set_aside(results_dir / found.name)
    run_chapters(found, profile, results_dir)
    page = build_book(results_dir)
    _print_summary(found, results_dir, list(found.chapters))
    print(page)


@app.command()
def summary(profile: ProfileOption = DEFAULT_PROFILE, results_dir: ResultsOption = Path("results")) -> None:
    """Print what the records of a profile say. Ends with status 1 if a chapter has failed records alone."""
    found = load_profile(profile)
    _print_summary(found, results_dir, list(found.chapters))


def _print_summary(profile: Profile, results_dir: Path, chapters: list[str]) -> None:
    from specstudy.analysis import speedups
    from specstudy.figures import ratio_text, with_interval
    from specstudy.figures.tables import number
    from specstudy.study import read_study

    table = RichTable("chapter", "method", "load", "tokens/s", "TTFT p50 ms", "TPOT p50 ms", "acceptance length", "over baseline", "repeats")
    evidence: set[str] = set()
    nothing_good: list[str] = []
    for chapter in chapters:
        try:
            found = read_study(profile, chapter, results_dir.resolve())
            cells = found.cells
        except ConfigError:
            print(f"{chapter}: no records in {results_dir}")
            continue
        except StudyError as error:
            nothing_good.append(str(error))
            continue
        for line in found.skipped:
            print(f"skipped: {line}", file=sys.stderr)
        ratios = {id(one.cell): one for one in speedups(cells)}
        for cell in cells:
            evidence |= {record.evidence for record in cell.records}
            one = ratios.get(id(cell))
            row = [chapter, cell.label, cell.load.label, with_interval(cell.interval("output_tokens_per_s"))]
            row += [number(cell.percentile("ttft_ms", 50), 0), number(cell.percentile("tpot_ms", 50), 1), with_interval(cell.interval("acceptance_length"), 2)]
            table.add_row(*row, "" if one is None else f"{ratio_text(one.ratio)} {one.verdict}", str(len(cell.records)))
    if evidence:
        Console(width=None if sys.stdout.isatty() else 150).print(table)
        print(f"Evidence: {', '.join(sorted(evidence))}. Intervals are 95 %, over repeats with other prompts.")
    if nothing_good:
        raise StudyError("\n".join(nothing_good))
    if not evidence:
        raise ConfigError("results_dir", str(results_dir), f"a folder with records of {profile.name}; the recorded ones are in data/results")


@app.command()
def limits(profile: ProfileOption = DEFAULT_PROFILE, results_dir: ResultsOption = Path("results")) -> None:
    """Measure what this machine can do at best, bandwidth and matrix rates, and keep it beside the profile's records."""
    from specstudy.measure import gpu_uuids
    from specstudy.measure.machine import measure_limits
    from specstudy.records import provenance
    from specstudy.records.machine import write_limits

    found = load_profile(profile)
    place = results_dir.resolve() / found.name
    check_writable("results_dir", place / "limits.json")
    origin = provenance(project_root(), gpu_uuids())
    measured = measure_limits(origin, found.hardware)
    path = write_limits(place, measured)
    table = RichTable("limit", "best", "unit", title=measured.device)
    table.add_row("reading memory", f"{measured.read_limit / 1e9:,.0f}", "GB/s")
    table.add_row("copying memory, both ways", f"{measured.copy_limit / 1e9:,.0f}", "GB/s")
    table.add_row("bfloat16 products", f"{measured.bf16_limit / 1e12:,.1f}", "TFLOP/s")
    if measured.fp8_flop_per_s is not None:
        table.add_row("FP8 products", f"{measured.fp8_limit / 1e12:,.1f}", "TFLOP/s")
    Console().print(table)
    print(path)


@app.command()
def trace(
    chapter: Annotated[str, typer.Argument(help="like 03_baseline")],
    profile: ProfileOption = DEFAULT_PROFILE,
    results_dir: ResultsOption = Path("results"),
    only: Annotated[list[str] | None, typer.Option(help="a variant, method, draft or server, with its baseline; repeatable")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="one of the chapter's closed loads")] = 1,
) -> None:
    """Say which kernels a decode step of each of a chapter's servers is made of, by vLLM's profiler; kept beside the profile's records."""
    from specstudy.records.trace import KINDS
    from specstudy.tracing import trace_chapter

    found = load_profile(profile)
    folder = results_dir.resolve() / found.name
    check_writable("results_dir", folder / "trace.json")
    traces = trace_chapter(found, chapter, folder, only or (), concurrency)
    table = RichTable("server", "step ms", "traced step ms", "idle ms", *KINDS, title=f"{chapter}, ms a step at {concurrency} in flight")
    for one in traces:
        table.add_row(one.label, f"{one.untraced_step_ms:.2f}", f"{one.step_ms:.2f}", f"{one.idle_ms:.2f}", *(f"{one.ms_of(kind):.2f}" for kind in KINDS))
    Console(width=None if sys.stdout.isatty() else 150).print(table)


@app.command()
def quantize(
    target: Annotated[str, typer.Argument(help="a name in data/targets, with real weights")],
    recipe: Annotated[list[str] | None, typer.Option(help="fp8 or awq; repeatable, both by default")] = None,
    out: Annotated[Path | None, typer.Option(help="the record; by default data/quality/TARGET.json")] = None,
    texts: Annotated[int, typer.Option(min=2, help="texts to score")] = 100,
) -> None:
    """Quantize a target with llm-compressor; record perplexity and greedy agreement before and after. Needs the extra quantize."""
    from specstudy.quantize.recipes import RECIPES, recipe_named
    from specstudy.quantize.run import quantize_and_score
    from specstudy.records.quality import write_quality

    found = load_target(target)
    recipes = [recipe_named(name) for name in recipe or RECIPES]
    path = out or project_root() / "data" / "quality" / f"{found.name}.json"
    if path.is_dir():
        raise ConfigError("out", str(path), "a file's path; this is a folder")
    check_writable("out", path)
    write_quality(path, quantize_and_score(found, recipes, tell, texts=texts))
    print(path)


@app.command()
def fields() -> None:
    """Print the page that lists every field of a record with its unit."""
    from specstudy.records.page import fields_page

    print(fields_page(), end="")


@app.command()
def version() -> None:
    """Print the package's version."""
    print(__version__)


def _terminate(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def main() -> None:
    """Entry point; the only place that turns errors into an exit status."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        status = app(standalone_mode=False)
        if isinstance(status, int) and status == 130:  # typer's way to say Ctrl-C
            raise KeyboardInterrupt
        sys.exit(status if isinstance(status, int) else 0)
    except SpecstudyError as error:
        print(f"specstudy: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
    except typer.Exit as exit_:
        sys.exit(exit_.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        print("specstudy: stopped; what is finished is on disk, and a measurement goes on from there when it is run again", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # click's own usage errors
            print(f"specstudy: {error.format_message()}", file=sys.stderr)
            sys.exit(2)
        raise
