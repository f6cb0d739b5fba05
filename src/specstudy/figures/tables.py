"""Cells to tables. A figure that wasn't, or can't be, measured is shown as a dash with the reason below."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from specstudy.analysis import Cell, Interval, Speedup
from specstudy.figures.picture import Kind, badge
from specstudy.figures.text import NO_RECORDS, NOTHING_TO_COMPARE, Text
from specstudy.records.provenance import package_versions
from specstudy.records.schema import P99_NEEDS

DASH = "–"
PROCESSORS = {"engine, processors": "engine_cores", "API server, processors": "api_server_cores", "load generator, processors": "load_generator_cores"}


def with_interval(interval: Interval | None, digits: int = 1) -> str:
    """Like 241.3 ± 5.2; a dash for nothing, no ± for one repeat."""
    if interval is None:
        return DASH
    if interval.n < 2:
        return f"{interval.estimate:.{digits}f}"
    return f"{interval.estimate:.{digits}f} ± {(interval.high - interval.low) / 2:.{digits}f}"


def ratio_text(interval: Interval) -> str:
    """Like 1.32 (1.21 to 1.44)."""
    return f"{interval.estimate:.2f}" + (f" ({interval.low:.2f} to {interval.high:.2f})" if interval.n > 1 else "")


def number(value: float | None, digits: int = 1) -> str:
    """A dash for None."""
    return DASH if value is None else f"{value:.{digits}f}"


@dataclass(frozen=True)
class Table:
    """A table as the book shows it, with its evidence and a note; `words` where fields are sentences, which wrap."""

    frame: pd.DataFrame
    evidence: Kind | None
    note: str = ""
    words: bool = False

    def _repr_html_(self) -> str:
        body = self.frame.to_html(index=False, border=0, escape=True, classes="specstudy words" if self.words else "specstudy")
        note = f'<p style="font-size:0.85em;margin-top:2px">{html.escape(self.note)}</p>' if self.note else ""
        return f'<div style="overflow-x:auto">{badge(self.evidence) if self.evidence else ""}{body}{note}</div>'

    def __repr__(self) -> str:
        return self.frame.to_string(index=False) + (f"\n{self.note}" if self.note else "")


def throughput_table(cells: Sequence[Cell]) -> Table | Text:
    """Throughput with its interval, repeats and requests of each cell."""
    if not cells:
        return NO_RECORDS
    known = any(cell.interval(field) is not None for cell in cells for field in PROCESSORS.values())
    processors = PROCESSORS if known else {}
    rows = [
        {
            "method": cell.label,
            "load": cell.load.label,
            "tokens/s": with_interval(cell.interval("output_tokens_per_s")),
            "requests/s": with_interval(cell.interval("requests_per_s"), 2),
            "tokens/chunk": with_interval(cell.interval("tokens_per_chunk_mean"), 2),
            "repeats": len(cell.records),
            "requests": len(cell.requests),
            "others' CPU": _percent(cell.interval("host_other_cpu_share")),
            **{title: with_interval(cell.interval(field), 2) for title, field in processors.items()},
        }
        for cell in cells
    ]
    note = (
        "± is the half-width of the 95 % Student-t interval over repeats with other prompts. Others' CPU: processor time that neither the server nor "
        "the load generator used; a busy machine makes a figure doubtful, whatever its interval. More than one token a chunk without speculation means that "
        "chunks were merged before they were read: then trust TPOT, not the chunk gap."
    )
    if processors:
        note += (
            " Processors: processor time over time of the engine's process, of the one that answers HTTP and of the load generator; one at about 1 is busy "
            "throughout, or waits for the GPU by spinning."
        )
    return Table(pd.DataFrame(rows), cells[0].records[0].evidence, note)


def _percent(interval: Interval | None) -> str:
    return DASH if interval is None else f"{interval.estimate:.0%}"


def latency_table(cells: Sequence[Cell]) -> Table | Text:
    """p50 and p99 of TTFT, TPOT and E2E over the requests of all repeats, and of the chunk gap as the repeats' records have them."""
    if not cells:
        return NO_RECORDS
    metrics = (("TTFT", "ttft_ms", 0), ("TPOT", "tpot_ms", 1), ("E2E", "e2e_ms", 0))
    rows = []
    for cell in cells:
        row: dict[str, object] = {"method": cell.label, "load": cell.load.label}
        for title, metric, digits in metrics:
            row[f"{title} p50 ms"] = number(cell.percentile(metric, 50), digits)
            row[f"{title} p99 ms"] = number(cell.percentile(metric, 99), digits)
        for q in ("p50", "p99"):
            row[f"chunk gap {q} ms"] = with_interval(cell.interval(f"chunk_gap_ms_{q}"))
        rows.append({**row, "requests": len(cell.requests)})
    note = (
        f"Percentiles over the requests of all repeats; of the chunk gap the mean of the repeats' percentiles, ± its 95 % interval. {DASH} where a p99 "
        f"would rest on fewer than {P99_NEEDS} values."
    )
    return Table(pd.DataFrame(rows), cells[0].records[0].evidence, note)


def speedup_table(found: Sequence[Speedup]) -> Table | Text:
    """Ratio to the baseline with interval and verdict."""
    if not found:
        return NOTHING_TO_COMPARE
    rows = [
        {
            "method": one.cell.variant.label,
            "load": one.cell.load.label,
            "throughput / baseline": ratio_text(one.ratio),
            "verdict": one.verdict
            + (", flagged: under 0.95" if one.flagged else "")
            + ("" if one.same_runner else "; on another model runner than the baseline, so no fair comparison"),
            "pairs": one.ratio.n,
        }
        for one in found
    ]
    note = (
        "Ratio of repeats with the same prompts, geometric mean, 95 % interval. An interval that holds 1 is printed as no difference: neither gain "
        "nor loss is shown, and its ends say what isn't excluded."
    )
    return Table(pd.DataFrame(rows), found[0].cell.records[0].evidence, note)


def acceptance_table(cells: Sequence[Cell]) -> Table | Text:
    """Acceptance length and rate, and acceptance per position, of each cell with speculation."""
    if not cells:
        return NO_RECORDS
    rows = []
    for cell in cells:
        length = cell.interval("acceptance_length")
        if cell.variant.method == "none" or length is None:
            continue
        curves = [record.acceptance_per_position for record in cell.records if record.acceptance_per_position]
        per_position = pd.DataFrame(curves).mean().tolist() if curves else []
        rows.append(
            {
                "method": cell.label,
                "load": cell.load.label,
                "acceptance length": with_interval(length, 2),
                "acceptance rate": with_interval(cell.interval("acceptance_rate"), 3),
                "by position": " ".join(f"{share:.2f}" for share in per_position),
                "repeats": len(cell.records),
            }
        )
    note = "Acceptance length counts the bonus token. The rate falls as K grows, so compare it at one K only."
    return Table(pd.DataFrame(rows), cells[0].records[0].evidence, note)


def versions_table(python: str) -> Table:
    """Versions of what this book was built with; they describe the build, not the records."""
    rows = [{"package": name, "version": version} for name, version in {"python": python, **package_versions()}.items()]
    return Table(pd.DataFrame(rows), None)
