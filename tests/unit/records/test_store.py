from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specstudy.errors import RecordError, StoreBusyError, StoreWriteError
from specstudy.records import BadLine, Loaded, Record, RecordStore, RequestRow, load_records, load_requests
from specstudy.records.store import REQUESTS_SCHEMA

MakeRecord = Callable[..., Record]
MakeRow = Callable[..., RequestRow]
MICROSECOND_MS = 1e-3  # a difference of two times that are each kept to the nearest microsecond


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the store of chapter c lies."""
    return tmp_path / "c.jsonl"


def append(folder: Path, record: Record, requests: list[RequestRow] | None = None) -> None:
    """One run that adds one record."""
    with RecordStore.writing(folder, "c") as store:
        store.append(record, requests or [])


def test_what_is_appended_is_read_in_order(record: MakeRecord, path: Path) -> None:
    records = [record(record_id=f"r{i}", repeat=i, ttft_ms_mean=i / 3) for i in range(3)]
    with RecordStore.writing(path.parent, "c") as store:
        store.append(records[0], [])
        store.append(records[1], [])
        assert load_records(path).records == tuple(records[:2]), "a repeat is on disk before the next begins"
    append(path.parent, records[2])
    assert load_records(path) == Loaded(tuple(records), ())
    assert path.read_bytes().count(b"\n") == 3


def test_no_file_holds_no_records_and_no_requests(tmp_path: Path) -> None:
    assert load_records(tmp_path / "gone.jsonl") == Loaded((), ())
    empty = load_requests(tmp_path / "gone.requests.parquet")
    assert empty.num_rows == 0
    assert empty.column_names == list(RequestRow.model_fields)


def test_a_folder_is_made_where_there_is_none(record: MakeRecord, tmp_path: Path) -> None:
    append(tmp_path / "results" / "p", record())
    assert len(load_records(tmp_path / "results" / "p" / "c.jsonl").records) == 1


@pytest.mark.parametrize("cut", [-1, -2, 40, 1])
def test_a_line_that_a_crash_cut_off_is_reported_and_the_next_is_not_glued_to_it(record: MakeRecord, path: Path, cut: int) -> None:
    append(path.parent, record(record_id="first"))
    whole = record(record_id="second").model_dump_json().encode()
    with path.open("ab") as out:
        out.write(whole[:cut])
    loaded = load_records(path)
    assert [found.record_id for found in loaded.records] == ["first"]
    (bad,) = loaded.skipped
    assert (bad.path, bad.number) == (path, 2)
    assert "JSON" in bad.reason
    assert str(bad).startswith("c.jsonl, line 2: ")

    append(path.parent, record(record_id="third"))
    loaded = load_records(path)
    assert [found.record_id for found in loaded.records] == ["first", "third"]
    assert [bad.number for bad in loaded.skipped] == [2]


def test_a_whole_line_without_its_newline_is_a_record_and_stays_one(record: MakeRecord, path: Path) -> None:
    path.write_bytes(record(record_id="first").model_dump_json().encode())
    append(path.parent, record(record_id="second"))
    assert [found.record_id for found in load_records(path).records] == ["first", "second"]
    assert load_records(path).skipped == ()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda line: line.replace(b'"repeat":0', b'"repeat":"zero"'), "repeat: "),
        (lambda line: line.replace(b'"method":"none"', b'"method":"medusa"'), "method: "),
        (lambda line: line.replace(b'"repeat":0', b'"repeat":0,"ttft":1'), "ttft: Extra inputs"),
        (lambda line: line.replace(b'"completed":10,', b""), "completed: Field required"),
        (lambda line: b"[]", "object"),
        (lambda line: b"\xff\xfe", "JSON"),
    ],
)
def test_a_line_that_is_no_record_is_reported_with_number_and_field(record: MakeRecord, path: Path, spoil: Callable[[bytes], bytes], reason: str) -> None:
    line = record().model_dump_json().encode()
    assert spoil(line) != line
    path.write_bytes(b"\n".join([line, spoil(line), b"", line, b""]))
    loaded = load_records(path)
    assert len(loaded.records) == 2
    assert [(type(bad), bad.number) for bad in loaded.skipped] == [(BadLine, 2)]
    assert reason in loaded.skipped[0].reason


def test_a_second_writer_is_refused_at_once_and_another_chapter_is_free(record: MakeRecord, path: Path) -> None:
    with RecordStore.writing(path.parent, "c") as store:
        with pytest.raises(StoreBusyError, match=r"c\.jsonl is being written by another run"), RecordStore.writing(path.parent, "c"):
            pytest.fail("two writers")
        with RecordStore.writing(path.parent, "d"):
            pass
        store.append(record(), [])
    append(path.parent, record())
    assert len(load_records(path).records) == 2


WRITER = """
import sys
from pathlib import Path
from specstudy.errors import StoreBusyError
from specstudy.records import RecordStore
try:
    with RecordStore.writing(Path(sys.argv[1]), "c"):
        print("writing", flush=True)
        sys.stdin.read()
except StoreBusyError:
    print("busy")
"""


def test_a_second_process_is_refused_until_the_first_has_gone(path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(path.parent)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "writing\n"
        with pytest.raises(StoreBusyError), RecordStore.writing(path.parent, "c"):
            pytest.fail("two writers")
        first.kill()
    with RecordStore.writing(path.parent, "c"):
        pass


def test_a_failed_block_gives_the_file_back(path: Path) -> None:
    with pytest.raises(KeyError), RecordStore.writing(path.parent, "c"):
        raise KeyError
    with RecordStore.writing(path.parent, "c"):
        pass


def lines_of(count: int, make: MakeRow, record_id: str, seed: int) -> list[RequestRow]:
    """`count` requests with random times, in which every chunk carries one token."""
    rng = np.random.default_rng(seed)
    rows = []
    for index in range(count):
        sent = float(rng.uniform(0, 10))
        gaps_us = tuple(int(gap) for gap in rng.integers(1_000, 90_000, size=8))
        first = sent + float(rng.uniform(0.01, 0.5))
        rows.append(
            make(
                record_id=record_id,
                index=index,
                scheduled_s=sent,
                sent_s=sent,
                first_token_s=first,
                last_token_s=first + sum(gaps_us) / 1e6,
                completion_tokens=len(gaps_us) + 1,
                chunks=len(gaps_us) + 1,
                chunk_tokens=(1,) * (len(gaps_us) + 1),
                chunk_gap_us=gaps_us,
            )
        )
    return rows


def linear_percentile(values: list[float], percent: int) -> float:
    """By the standard library, as numpy's default: `inclusive` interpolates between order statistics."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def figures_of(requests: list[RequestRow]) -> dict[str, float]:
    """Latencies as the design defines them, from the rows."""
    kinds: dict[str, list[float]] = {"ttft": [], "tpot": [], "e2e": [], "chunk_gap": []}
    for request in requests:
        assert request.first_token_s is not None and request.last_token_s is not None and request.completion_tokens is not None
        kinds["ttft"].append((request.first_token_s - request.scheduled_s) * 1000)
        kinds["e2e"].append((request.last_token_s - request.scheduled_s) * 1000)
        kinds["tpot"].append((request.last_token_s - request.first_token_s) * 1000 / (request.completion_tokens - 1))
        kinds["chunk_gap"] += [gap / 1000 for gap in request.chunk_gap_us]
    return {
        f"{kind}_ms_{part}": statistics.fmean(values) if part == "mean" else linear_percentile(values, int(part[1:]))
        for kind, values in kinds.items()
        for part in ("mean", "p50", "p90", "p99")
    }


def test_requests_join_by_record_and_give_the_records_percentiles_again(record: MakeRecord, row: MakeRow, path: Path) -> None:
    for seed, name in enumerate(("first", "second")):
        requests = lines_of(300, row, name, seed)
        append(path.parent, record(record_id=name, num_prompts=300, completed=300, **figures_of(requests)), requests)
    requests = load_requests(path.with_suffix(".requests.parquet")).to_pandas()
    assert len(requests) == 600
    for one in load_records(path).records:
        mine = requests[requests["record_id"] == one.record_id]
        assert list(mine["index"]) == list(range(300))
        ttft_ms = (mine["first_token_s"] - mine["scheduled_s"]) * 1e3
        tpot_ms = (mine["last_token_s"] - mine["first_token_s"]) * 1e3 / (mine["completion_tokens"] - 1)
        e2e_ms = (mine["last_token_s"] - mine["scheduled_s"]) * 1e3
        gap_ms = np.concatenate(list(mine["chunk_gap_us"])) / 1e3
        for kind, values in {"ttft": ttft_ms, "tpot": tpot_ms, "e2e": e2e_ms, "chunk_gap": gap_ms}.items():
            assert getattr(one, f"{kind}_ms_mean") == pytest.approx(np.mean(values), rel=0, abs=MICROSECOND_MS)
            for percent in (50, 90, 99):
                assert getattr(one, f"{kind}_ms_p{percent}") == pytest.approx(np.percentile(values, percent), rel=0, abs=MICROSECOND_MS)


def test_times_are_kept_to_the_microsecond_and_no_further(record: MakeRecord, row: MakeRow, path: Path) -> None:
    append(path.parent, record(), [row(scheduled_s=12.3456784, sent_s=12.3456786, first_token_s=3600.0000004, last_token_s=0.1 + 0.2)])
    (found,) = load_requests(path.with_suffix(".requests.parquet")).to_pylist()
    assert [found[name] for name in ("scheduled_s", "sent_s", "first_token_s", "last_token_s")] == [12.345678, 12.345679, 3600.0, 0.3]


@pytest.mark.parametrize("time_s", [float("nan"), float("inf"), -float("inf"), 1e9, 2e10])
def test_a_time_that_is_none_is_refused_and_what_was_there_stays(record: MakeRecord, row: MakeRow, path: Path, time_s: float) -> None:
    append(path.parent, record(), [row()])
    with pytest.raises(RecordError, match="first_token_s of a request is"):
        append(path.parent, record(record_id="later"), [row(first_token_s=time_s)])
    assert load_requests(path.with_suffix(".requests.parquet")).num_rows == 1
    assert len(load_records(path).records) == 1


def test_requests_of_an_older_file_whose_times_are_floats_are_read_and_gone_on_with(record: MakeRecord, row: MakeRow, path: Path) -> None:
    requests = path.with_suffix(".requests.parquet")
    older = row(scheduled_s=12.3456784, sent_s=12.3456786)
    pq.write_table(pa.Table.from_pylist([older.model_dump()], schema=REQUESTS_SCHEMA), requests)
    assert [RequestRow.model_validate(found) for found in load_requests(requests).to_pylist()] == [older]
    append(path.parent, record(), [row(index=1)])
    assert [found["index"] for found in load_requests(requests).to_pylist()] == [0, 1]


def test_a_request_comes_back_from_the_parquet_as_it_was(record: MakeRecord, row: MakeRow, path: Path) -> None:
    nothing_came = {"first_token_s": None, "last_token_s": None, "prompt_tokens": None, "completion_tokens": None}
    requests = [row(), row(index=1, status="failed", error="HTTP 500", chunks=0, chunk_tokens=(), chunk_gap_us=(), **nothing_came)]
    append(path.parent, record(), requests)
    table = load_requests(path.with_suffix(".requests.parquet"))
    assert [RequestRow.model_validate(found) for found in table.to_pylist()] == requests


def test_without_requests_there_is_no_requests_file(record: MakeRecord, path: Path) -> None:
    append(path.parent, record())
    assert sorted(file.name for file in path.parent.iterdir() if file.suffix != ".lock") == ["c.jsonl"]


def test_nothing_half_written_is_left(record: MakeRecord, row: MakeRow, path: Path) -> None:
    append(path.parent, record(), [row()])
    assert sorted(file.name for file in path.parent.iterdir() if file.suffix != ".lock") == ["c.jsonl", "c.requests.parquet"]


LIMITED = """
import resource, signal, sys
from pathlib import Path
from specstudy.errors import StoreWriteError
from specstudy.records import Record, RecordStore

folder, limit_bytes, line = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with RecordStore.writing(folder, "c") as store:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
    try:
        store.append(Record.model_validate_json(line), [])
    except StoreWriteError as error:
        print(error)
"""


def test_a_full_disk_is_a_write_error_and_what_was_there_stays(record: MakeRecord, row: MakeRow, path: Path) -> None:
    """In a process of its own, whose limit on the size of files stands in for the disk."""
    append(path.parent, record(record_id="first"), [row(record_id="first")])
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    limit_bytes = len(before["c.jsonl"]) + 10
    command = [sys.executable, "-c", LIMITED, str(path.parent), str(limit_bytes), record(record_id="second").model_dump_json()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert "File too large; earlier records are intact" in done.stdout, done.stderr
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before
    append(path.parent, record(record_id="third"))
    assert [found.record_id for found in load_records(path).records] == ["first", "third"]


def test_a_folder_in_the_way_of_the_requests_is_a_write_error_and_no_record_is_added(record: MakeRecord, row: MakeRow, path: Path) -> None:
    path.with_suffix(".requests.partial").mkdir(parents=True)
    with pytest.raises(StoreWriteError):
        append(path.parent, record(), [row()])
    assert load_records(path) == Loaded((), ())


@pytest.mark.parametrize("changes", [{"chunk_gap_us": (2**31,)}, {"chunk_tokens": (2**15,)}])
def test_a_request_that_does_not_fit_its_column_is_refused_in_our_own_words(record: MakeRecord, row: MakeRow, path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises((StoreWriteError, ValueError)) as refused:
        append(path.parent, record(), [row(**changes)])
    assert not isinstance(refused.value, pa.ArrowInvalid)


def test_a_broken_requests_file_is_a_record_error(tmp_path: Path) -> None:
    path = tmp_path / "c.requests.parquet"
    pq.write_table(pa.table({"record_id": ["r"]}), path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(RecordError):
        load_requests(path)


def test_a_schedule_that_is_the_send_is_kept_once_and_read_back(row: MakeRow, record: MakeRecord, path: Path) -> None:
    sends = [0.1, 0.3, 0.333333]
    closed = [row(record_id="r", index=i, scheduled_s=sent, sent_s=sent) for i, sent in enumerate(sends)]
    late = [row(record_id="r", index=3, scheduled_s=0.5, sent_s=0.500001)]
    append(path.parent, record(record_id="r"), closed + late)
    file = path.with_suffix(".requests.parquet")
    assert pq.read_table(file)["scheduled_s"].to_pylist() == [None, None, None, 0.5]
    assert load_requests(file)["scheduled_s"].to_pylist() == [*sends, 0.5]
    append(path.parent, record(record_id="s"), [row(record_id="s", index=0, scheduled_s=2.0, sent_s=2.0)])
    assert load_requests(file)["scheduled_s"].to_pylist() == [*sends, 0.5, 2.0]


def test_a_file_with_every_schedule_written_out_is_read_as_it_is(row: MakeRow, path: Path) -> None:
    """As all files were before."""
    rows = [row(record_id="r", index=i, scheduled_s=i / 3, sent_s=i / 3) for i in range(3)]
    file = path.with_suffix(".requests.parquet")
    pq.write_table(pa.Table.from_pylist([one.model_dump() for one in rows], schema=load_requests(file).schema), file)
    assert load_requests(file).to_pylist() == [{**one.model_dump(), "chunk_tokens": [*one.chunk_tokens], "chunk_gap_us": [*one.chunk_gap_us]} for one in rows]


def damaged(path: Path, at: int, length: int) -> None:
    """Turn the bits of some bytes over; `at` from the end if negative."""
    content = bytearray(path.read_bytes())
    start = at % len(content)
    content[start : start + length] = bytes(255 - byte for byte in content[start : start + length])
    path.write_bytes(content)


@pytest.mark.parametrize("where", ["pages", "footer", "magic"])
def test_a_damaged_requests_file_is_an_error_of_the_store_and_never_read_as_it_is(row: MakeRow, record: MakeRecord, path: Path, where: str) -> None:
    append(path.parent, record(), [row(index=i, first_token_s=0.1 + i / 7) for i in range(300)])
    requests = path.with_suffix(".requests.parquet")
    whole = load_requests(requests)
    column = pq.ParquetFile(requests).metadata.row_group(0).column(whole.column_names.index("first_token_s"))
    assert column.total_compressed_size > 200
    middle = column.data_page_offset + column.total_compressed_size // 2
    damaged(requests, *{"pages": (middle, 4), "footer": (-200, 100), "magic": (-4, 4)}[where])
    with pytest.raises(RecordError, match="no readable parquet file"):
        load_requests(requests)
    before = path.read_bytes()
    with pytest.raises(RecordError, match="no readable parquet file"):
        append(path.parent, record(record_id="next"), [row()])
    assert path.read_bytes() == before


def test_a_lock_that_cannot_be_made_is_an_error_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl.lock").mkdir()
    with pytest.raises(StoreWriteError, match=r"c\.jsonl\.lock can't be written"), RecordStore.writing(tmp_path, "c"):
        pass
