"""Bring results home: the files of one chapter from one or several machines, as one, small enough for the repository.

    python scripts/keep_results.py h200-smollm2 04_eagle3 --gaps-of chat --gap-repeats 1 results-a results-b

Records stay as they are; one that lies in two of the folders is kept once. Of the requests all stays but the lists of chunk
gaps, which are nine tenths of the file: they are kept on the workloads named with --gaps-of, those whose gaps the chapter
reads, and there of the first --gap-repeats repeats of a cell, and of further ones while these are at most --gap-requests
requests: one request at a time takes little room and needs many repeats. A record holds its gap percentiles itself, and its decode
throughput; one that is older than those fields has its decode throughput from the gaps alone, so it is said how many lose it.

What was kept before stays as it was if anything is wrong: a folder without the chapter, a line that is no record, a record
without its requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc
import typer

from specstudy.catalog import load_profile, recorded_dir
from specstudy.errors import SpecstudyError
from specstudy.records import Record, load_records
from specstudy.records.store import load_requests, write_requests


def main(
    profile: str,
    chapter: str,
    sources: Annotated[list[Path], typer.Argument(help="results folders, each with PROFILE/CHAPTER.jsonl")],
    gaps_of: Annotated[list[str], typer.Option(help="workload whose requests keep their chunk gaps")] = [],  # noqa: B006
    gap_repeats: Annotated[int | None, typer.Option(help="repeats of a cell that keep them; by default all", min=1)] = None,
    gap_requests: Annotated[int, typer.Option(help="further repeats keep them as long as these are so many requests together", min=0)] = 0,
) -> None:
    """See the module's text."""
    try:
        load_profile(profile)
        records, lines, requests = gathered([source / profile / f"{chapter}.jsonl" for source in sources])
    except SpecstudyError as error:
        raise SystemExit(f"not kept: {error}") from None
    if unknown := sorted(set(gaps_of) - {record.workload for record in records}):
        raise SystemExit(f"not kept: gaps_of: got {unknown[0]!r}; known: {', '.join(sorted({record.workload for record in records}))}")
    with_gaps = {
        record.record_id
        for record in records
        if record.workload in gaps_of and (gap_repeats is None or record.repeat < gap_repeats or (record.repeat + 1) * record.num_prompts <= gap_requests)
    }
    lost = sum(record.concurrency is not None and record.decode_tokens_per_s is None and record.record_id not in with_gaps for record in records)
    place = recorded_dir() / profile / chapter
    smaller = without_gaps(requests, with_gaps)
    try:
        replace(
            {
                place.with_name(f"{chapter}.requests.parquet"): lambda path: write_requests(smaller, path),
                place.with_name(f"{chapter}.jsonl"): lambda path: path.write_bytes(b"".join(line + b"\n" for line in lines)),
            }
        )
    except OSError as error:
        raise SystemExit(f"not kept: {place.parent} can't be written: {error.strerror or error}") from None
    print(f"{place}: {len(records)} records, {len(requests)} requests, {len(with_gaps)} records with chunk gaps")
    if lost:
        print(f"{lost} records hold no decode throughput and were kept without their gaps; name their workload with --gaps-of to keep it")


def gathered(files: Sequence[Path]) -> tuple[list[Record], list[bytes], pa.Table]:
    """Records, their lines and their requests, each record once.

    Raises SystemExit for a file without records, a line that is none, and a record without its requests; RecordError.
    """
    records: dict[str, Record] = {}
    lines: dict[str, bytes] = {}
    requests: list[pa.Table] = []
    for path in files:
        loaded = load_records(path)
        if loaded.skipped:
            raise SystemExit(f"not kept: {loaded.skipped[0]}")
        if not loaded.records:
            raise SystemExit(f"not kept: {path} holds no record")
        raw = [line for line in path.read_bytes().split(b"\n") if line.strip()]
        found = {one.record_id: (one, line) for one, line in zip(loaded.records, raw, strict=True) if one.record_id not in records}
        rows = load_requests(path.with_suffix(".requests.parquet"))
        rows = rows.filter(pc.is_in(rows["record_id"], pa.array(list(found), pa.string())))
        _check_whole([one for one, _ in found.values()], rows, path)
        requests.append(rows)
        for name, (one, line) in found.items():
            records[name], lines[name] = one, line
    return list(records.values()), list(lines.values()), pa.concat_tables(requests)


def _check_whole(records: Sequence[Record], rows: pa.Table, path: Path) -> None:
    counts = Counter(rows["record_id"].to_pylist())
    for one in records:
        if counts[one.record_id] != one.completed + one.failed:
            raise SystemExit(f"not kept: {path}, record {one.record_id}: {one.completed + one.failed} requests, {counts[one.record_id]} in its requests file")


def without_gaps(requests: pa.Table, but: set[str]) -> pa.Table:
    """The requests with empty lists of chunk gaps, but for the records named."""
    keeps = pc.is_in(requests["record_id"], pa.array(sorted(but), pa.string()))
    for name in ("chunk_tokens", "chunk_gap_us"):
        column = requests.schema.get_field_index(name)
        empty = pa.array([[]] * len(requests), requests.schema.field(name).type)
        requests = requests.set_column(column, requests.schema.field(name), pc.if_else(keeps, requests[name].combine_chunks(), empty))
    return requests


def replace(files: Mapping[Path, Callable[[Path], object]]) -> None:
    """Write files, and put them in place only when all are written. Raises OSError."""
    partials = {path: path.with_name(f".{path.name}.partial") for path in files}
    try:
        for path, write in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write(partials[path])
        for path, partial in partials.items():
            partial.replace(path)
    finally:
        for partial in partials.values():
            partial.unlink(missing_ok=True)


if __name__ == "__main__":
    typer.run(main)
