"""Bring results home: the files of one chapter from one or several machines, as one, small enough for the repository.

    python scripts/keep_results.py h200-smollm2 04_eagle3 --gaps-of chat --gap-repeats 1 results-a results-b

Records stay as they are. Of the requests all stays but the lists of chunk gaps, which are nine tenths of the file: they are
kept on the workloads named with --gaps-of, those whose gaps the chapter reads, and there of the first --gap-repeats repeats
of a cell. A record holds its gap percentiles itself, and its decode throughput; one that is older than those fields has its
decode throughput from the gaps alone, so it is said how many lose it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc
import typer

from specstudy.catalog import recorded_dir
from specstudy.records import load_records
from specstudy.records.store import load_requests, write_requests


def main(
    profile: str,
    chapter: str,
    sources: Annotated[list[Path], typer.Argument(help="results folders, each with PROFILE/CHAPTER.jsonl")],
    gaps_of: Annotated[list[str], typer.Option(help="workload whose requests keep their chunk gaps")] = [],  # noqa: B006
    gap_repeats: Annotated[int | None, typer.Option(help="repeats of a cell that keep them; by default all", min=1)] = None,
) -> None:
    """See the module's text."""
    files = [source / profile / f"{chapter}.jsonl" for source in sources]
    loaded = [load_records(path) for path in files]
    for bad in (line for one in loaded for line in one.skipped):
        raise SystemExit(f"not kept: {bad}")
    records = [record for one in loaded for record in one.records]
    kept = {record.record_id for record in records}
    with_gaps = {record.record_id for record in records if record.workload in gaps_of and (gap_repeats is None or record.repeat < gap_repeats)}
    requests = pa.concat_tables([load_requests(path.with_suffix(".requests.parquet")) for path in files])
    requests = requests.filter(pc.is_in(requests["record_id"], pa.array(sorted(kept))))
    keeps = pc.is_in(requests["record_id"], pa.array(sorted(with_gaps), pa.string()))
    for name in ("chunk_tokens", "chunk_gap_us"):
        column = requests.schema.get_field_index(name)
        empty = pa.array([[]] * len(requests), requests.schema.field(name).type)
        requests = requests.set_column(column, requests.schema.field(name), pc.if_else(keeps, requests[name].combine_chunks(), empty))
    lost = sum(record.concurrency is not None and record.decode_tokens_per_s is None and record.record_id not in with_gaps for record in records)
    folder = recorded_dir() / profile
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(path.read_text() for path in files)
    write_requests(requests, folder / f"{chapter}.requests.parquet")
    (folder / f"{chapter}.jsonl").write_text(text)
    print(f"{folder / chapter}: {len(records)} records, {len(requests)} requests, {len(with_gaps)} records with chunk gaps")
    if lost:
        print(f"{lost} records hold no decode throughput and were kept without their gaps; name their workload with --gaps-of to keep it")


if __name__ == "__main__":
    typer.run(main)
