"""The first page's answers, computed from whatever is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from specstudy.analysis import Cell, Inflection, Speedup, best_k, best_per_load, decode_speedups, eagle3_and_31, inflection, of_main_workload, speedups
from specstudy.analysis.acceptance import context_ratios
from specstudy.analysis.elsewhere import elsewhere
from specstudy.analysis.families import families
from specstudy.book.chapter import recorded_profiles
from specstudy.book.limits import results_folder
from specstudy.errors import ConfigError, StudyError
from specstudy.figures import Table, Text, badge, ratio_text
from specstudy.figures.prose import apart_text
from specstudy.records import load_records
from specstudy.study import read_study

GOAL = 2.5
COMPARISON, PARALLEL = "04_eagle3", "05_peagle"


def answers(results_dir: str | None = None) -> Text:
    """One part for each profile with records: best method by load, P-EAGLE against EAGLE-3, 3.1 against 3."""
    folder = results_folder("recorded", results_dir)
    titles = {profile.name: profile.title for chapter in (COMPARISON, PARALLEL) for profile in recorded_profiles(chapter, folder)}
    parts = []
    for name, title in titles.items():
        compared, parallel = _cells(folder, name, COMPARISON), _cells(folder, name, PARALLEL)
        lines = _best_lines(compared or parallel) + _decode_lines(compared) + _parallel_lines(parallel) + _context_lines(compared)
        if lines:
            evidence = (compared or parallel)[0].records[0].evidence
            parts.append(f"**{title}** {badge(evidence)}\n\n" + "\n".join(f"- {line}" for line in lines))
    return Text("\n\n".join(parts) or "No records yet.")


def recorded_table(results_dir: str | None = None) -> Table | Text:
    """Every results file: profile, chapter, evidence, machine, records, failures, the newest record's time and commit."""
    folder = results_folder("recorded", results_dir)
    rows = [row for path in sorted(folder.glob("*/*.jsonl")) if (row := _file_row(path)) is not None]
    return Table(pd.DataFrame(rows), None) if rows else Text("No records yet.")


def _file_row(path: Path) -> dict[str, object] | None:
    records = load_records(path).records
    if not records:
        return None
    newest = max(records, key=lambda record: record.started_at)
    return {
        "profile": path.parent.name,
        "chapter": path.stem,
        "evidence": newest.evidence,
        "machine": newest.gpu or f"{newest.host_cpus} x {newest.host_cpu}",
        "engine": f"{newest.engine} {newest.engine_version}",
        "records": len(records),
        "failed": sum(record.status == "failed" for record in records),
        "newest": f"{newest.started_at:%Y-%m-%d %H:%M} UTC",
        "commit": newest.git_sha,
    }


def _cells(folder: Path, profile: str, chapter: str) -> list[Cell]:
    found = next((one for one in recorded_profiles(chapter, folder) if one.name == profile), None)
    try:
        return read_study(found, chapter, folder).cells if found is not None else []
    except (ConfigError, StudyError):
        return []


def _best_lines(cells: Sequence[Cell]) -> list[str]:
    found = speedups(of_main_workload(cells))
    return [
        f"At {one.cell.load.label} the highest is {one.cell.variant.label}: {ratio_text(one.ratio)} of the baseline's throughput, "
        f"{one.verdict}{apart_text(one, found)}."
        for one in best_per_load(found)
    ]


def _decode_lines(cells: Sequence[Cell]) -> list[str]:
    """Of random prompts, whose length is the study's choice: how much of the time goes into them says nothing about anybody's load."""
    if not cells or cells[0].records[0].evidence != "shape":
        return []
    main = of_main_workload(cells)
    best = best_per_load(decode_speedups(main))
    told = "; ".join(f"{ratio_text(one.ratio)} at {one.cell.load.label} ({one.cell.variant.label})" for one in best)
    lines = [_goal_line(best_per_load(speedups(main)))]
    if told:
        lines.append(f"Decoding alone, prompts left out: {told}.")
    published = elsewhere(main)
    imposed = [one.row for one in published if (one.cell.records[0].acceptance_source or "").startswith(one.row.id)]
    if imposed:
        own = imposed[-1]
        lengths = [one.row.acceptance_length for one in published if one.row.num_speculative_tokens == own.num_speculative_tokens]
        lines.append(
            f"Acceptance is imposed: {own.acceptance_length:.2f} on {own.dataset} at K = {own.num_speculative_tokens}; for the same head {min(lengths):.2f} to "
            f"{max(lengths):.2f} were published over {len(set(lengths))} data sets, and chapter 04 shows what each would give."
        )
    return lines


def _goal_line(best: Sequence[Speedup]) -> str:
    """At which loads the study's goal is reached, may be, or isn't."""
    named: dict[str, list[str]] = {"reached": [], "not excluded": [], "not reached": []}
    for one in best:
        what = "reached" if one.ratio.low >= GOAL else "not reached" if one.ratio.high < GOAL else "not excluded"
        named[what].append(f"{one.cell.load.concurrency}")
    return f"{GOAL:g} times the baseline end to end, by concurrency: " + "; ".join(f"{what} at {', '.join(at)}" for what, at in named.items() if at) + "."


def _parallel_lines(cells: Sequence[Cell]) -> list[str]:
    parallel, serial = families(cells, "peagle"), families(cells, "eagle3")
    contests = best_k(of_main_workload(cells), parallel[0], serial[0]) if parallel and serial else []
    if not contests:
        return []
    told = "; ".join(f"{ratio_text(one.ratio)} at {one.cell.load.label} ({one.verdict})" for one in (contests[0], contests[-1]))
    end = inflection(contests)
    return [f"P-EAGLE over EAGLE-3, best K against best K: {told}.{_end_text(end)}"]


def _end_text(end: Inflection | None) -> str:
    return "" if end is None else f" Concurrency at which its advantage ends: {end.text}."


def _context_lines(cells: Sequence[Cell]) -> list[str]:
    plain, newer = eagle3_and_31(cells)
    found = context_ratios(cells, newer, plain) if plain is not None and newer is not None else []
    return [
        f"EAGLE 3.1 over EAGLE-3, acceptance length at {point.prompt_tokens:,.0f} prompt tokens: {ratio_text(ratio)}"
        + (", no difference." if ratio.n > 1 and not ratio.excludes(1.0) else ".")
        for point, ratio in found[-1:]
    ]
