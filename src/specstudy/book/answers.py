"""The first page's answers, computed from whatever is recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from specstudy.analysis import Cell, Speedup, Variant, best_k, best_per_load, decode_speedups, eagle3_and_31, inflection, of_main_workload, rivals, speedups
from specstudy.analysis.acceptance import context_ratios
from specstudy.analysis.along import along_answers
from specstudy.analysis.beside import WITHIN, beside_published
from specstudy.analysis.contest import contenders
from specstudy.analysis.elsewhere import elsewhere
from specstudy.analysis.families import family_of
from specstudy.book.chapter import cells_of, recorded_profiles
from specstudy.book.heads import shipped_heads
from specstudy.book.served_heads import other_drafts_note
from specstudy.figures import Table, Text, badge, baselines_on_two_runners, on_another_runner, ratio_text
from specstudy.figures.along import along_text, grows
from specstudy.figures.parallel_tables import end_text, over_baseline_lines
from specstudy.figures.prose import others_at_load, short_commit, some_of
from specstudy.figures.style import short_labels
from specstudy.figures.tables import DASH
from specstudy.records import load_records
from specstudy.study import results_folder

GOAL = 2.5
COMPARISON, PARALLEL = "04_eagle3", "05_peagle"


def answers(results_dir: str | None = None) -> Text:
    """One part for each profile with records: the best method by load as a table, then what qualifies it, P-EAGLE and EAGLE 3.1 in sentences."""
    folder = results_folder("recorded", results_dir)
    titles = {profile.name: profile.title for chapter in (COMPARISON, PARALLEL) for profile in recorded_profiles(chapter, folder)}
    parts = []
    for name, title in titles.items():
        compared, parallel = cells_of(COMPARISON, name, folder), cells_of(PARALLEL, name, folder)
        table = _best_table(compared or parallel)
        lines = (
            _replaced_lines(COMPARISON, compared)
            + _shape_lines(compared)
            + _along_lines(compared)
            + _replaced_lines(PARALLEL, parallel)
            + _parallel_lines(parallel, compared)
            + _beside_lines(parallel)
            + _context_lines(compared)
        )
        if table:
            evidence = (compared or parallel)[0].records[0].evidence
            parts.append("\n\n".join([f"**{title}** {badge(evidence)}", table, "\n".join(f"- {line}" for line in lines)]))
    return Text("\n\n".join(parts) or "No records yet.")


def recorded_table(results_dir: str | None = None) -> Table | Text:
    """Every results file: profile, chapter, evidence, machine, records, failures, the newest record's time and commit."""
    folder = results_folder("recorded", results_dir)
    rows = [row for path in sorted(folder.glob("*/*.jsonl")) if (row := _file_row(path)) is not None]
    return Table(pd.DataFrame(rows), None) if rows else Text("No records yet.")


def _replaced_lines(chapter: str, cells: Sequence[Cell]) -> list[str]:
    """Said for each chapter by itself: the other may have been measured with what is shipped."""
    note = other_drafts_note(cells)
    return [f"Chapter {chapter.split('_')[0]}: {note}"] if note else []


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
        "commit": short_commit(newest.git_sha),
    }


def _best_table(cells: Sequence[Cell]) -> str:
    """At each load the highest, and what it isn't told apart from; of random prompts decoding alone too."""
    main = of_main_workload(cells)
    found = speedups(main)
    best = best_per_load(found)
    if not best:
        return ""
    names = short_labels(list(dict.fromkeys(one.cell.variant for one in found)))
    decoding = {one.cell.load: one for one in best_per_load(decode_speedups(main))} if _is_shape(cells) else {}
    head = ["load", "highest", "ratio", *(["of decoding alone"] if decoding else []), "not told apart from"]
    rows = []
    for one in best:
        verdict = "" if one.verdict == "faster" else f", {one.verdict}"
        row = [one.cell.load.label, names[one.cell.variant], ratio_text(one.ratio) + verdict]
        if decoding:
            row.append(_decoding_text(decoding.get(one.cell.load), one, names))
        rows.append([*row, _rivals_text([names[r.cell.variant] for r in rivals(one, found)], found, one)])
    # As HTML: Markdown in a cell's output is read without tables.
    return Table(pd.DataFrame(rows, columns=head), None)._repr_html_()


def _rivals_text(close: Sequence[str], found: Sequence[Speedup], best: Speedup) -> str:
    others = others_at_load(best, found)
    if not others:
        return DASH
    return some_of(close, others) if close else "none"


def _decoding_text(one: Speedup | None, best: Speedup, names: Mapping[Variant, str]) -> str:
    if one is None:
        return DASH
    return ratio_text(one.ratio) + ("" if one.cell.variant == best.cell.variant else f" with {names[one.cell.variant]}")


def _is_shape(cells: Sequence[Cell]) -> bool:
    return bool(cells) and cells[0].records[0].evidence == "shape"


def _shape_lines(cells: Sequence[Cell]) -> list[str]:
    """Of random prompts, whose length is the study's choice: how much of the time goes into them says nothing about anybody's load."""
    if not _is_shape(cells):
        return []
    main = of_main_workload(cells)
    lines = [_goal_line(best_per_load(speedups(main)))]
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


def _along_lines(cells: Sequence[Cell]) -> list[str]:
    """Where acceptance is real, and grows along an answer: how much of it comes late."""
    found = [] if _is_shape(cells) else [one for one in along_answers(of_main_workload(cells)) if one.cell.variant.method != "ngram" and grows(one)]
    if not found:
        return []
    told = max(found, key=lambda one: one.parts[-1].estimate)
    return [f"Acceptance grows along an answer: {along_text(told)} ({told.max_tokens} tokens at most). Short answers gain less than these figures say."]


def _goal_line(best: Sequence[Speedup]) -> str:
    """At which loads the study's goal is reached, may be, or isn't."""
    named: dict[str, list[str]] = {"reached": [], "not excluded": [], "not reached": []}
    for one in best:
        what = "reached" if one.ratio.low >= GOAL else "not reached" if one.ratio.high < GOAL else "not excluded"
        named[what].append(f"{one.cell.load.concurrency}")
    return f"{GOAL:g} times the baseline end to end, by concurrency: " + "; ".join(f"{what} at {', '.join(at)}" for what, at in named.items() if at) + "."


def _parallel_lines(cells: Sequence[Cell], compared: Sequence[Cell]) -> list[str]:
    pair = contenders(cells)
    contests = best_k(of_main_workload(cells), *pair) if pair else []
    if not contests or pair is None:
        return []
    told = "; ".join(f"{ratio_text(one.ratio)} at {one.cell.load.label} ({one.verdict})" for one in (contests[0], contests[-1]))
    end = inflection(contests)
    lines = [f"P-EAGLE over EAGLE-3, best K against best K: {told}." + ("" if end is None else f" {end_text(end)}.")]
    lines += [" ".join(over_baseline_lines(of_main_workload(cells), pair))]
    if other := on_another_runner(cells, compared):
        lines.append(f"Bound to a model runner: {other} (chapter 04).")
    if plain := baselines_on_two_runners(compared, cells, ("in chapter 04", "in chapter 05")):
        lines.append(f"Which baseline? {plain} What speculation gains over a server on the other runner wasn't measured.")
    return lines


def _beside_lines(cells: Sequence[Cell]) -> list[str]:
    """Where published acceptance is imposed on both: what a workload's name stands for, and how many ratios are the published ones."""
    found = beside_published(cells)
    if not found:
        return []
    near = sum(abs(one.off) <= WITHIN for one in found)
    return [
        "Prompts are random, and a workload has the name of the data set whose published acceptance it imposes. "
        f"{near} of {len(found)} ratios of P-EAGLE over EAGLE-3 are within 10 % of the published ones, of another GPU"
        + ("." if near == len(found) else "; chapter 05 says why others aren't.")
    ]


def _context_lines(cells: Sequence[Cell]) -> list[str]:
    plain, newer = eagle3_and_31(cells)
    if plain is None or newer is None:
        return []
    note = shipped_heads().long_note([cell for cell in cells if family_of(cell.variant) in (plain, newer)])
    return [
        f"EAGLE 3.1 over EAGLE-3, acceptance length at {point.prompt_tokens:,.0f} prompt tokens: {ratio_text(ratio)}"
        + (", no difference." if ratio.n > 1 and not ratio.excludes(1.0) else ".")
        + (f" {note}" if note else "")
        for point, ratio in context_ratios(cells, newer, plain)[-1:]
    ]
