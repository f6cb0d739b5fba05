"""The append-only store: CHAPTER.jsonl with one Record a line, CHAPTER.requests.parquet beside it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from filelock import FileLock, Timeout
from pydantic import BaseModel, ValidationError

from specstudy.errors import RecordError, StoreBusyError, StoreWriteError
from specstudy.records.schema import Record, RequestRow

REQUESTS_SCHEMA = pa.schema(
    [
        ("record_id", pa.string()),
        ("index", pa.int32()),
        ("prompt_id", pa.string()),
        ("scheduled_s", pa.float64()),
        ("sent_s", pa.float64()),
        ("first_token_s", pa.float64()),
        ("last_token_s", pa.float64()),
        ("prompt_tokens", pa.int32()),
        ("completion_tokens", pa.int32()),
        ("chunks", pa.int32()),
        ("chunk_tokens", pa.list_(pa.int16())),
        ("chunk_gap_us", pa.list_(pa.int32())),
        ("status", pa.string()),
        ("error", pa.string()),
        ("resent", pa.bool_()),
    ]
)

# Times are kept to the microsecond, as decimals: what is below that is the clock's noise, and half of the file's size.
TIMES = ("scheduled_s", "sent_s", "first_token_s", "last_token_s")
MICROSECONDS = pa.decimal128(16, 6)
LONGEST_S = 1e9  # what the clocks of a run give is far below
# Bytes of like weight lie together, which packs times and gaps better by a quarter than plain values do.
SPLIT = ("index", *TIMES, "prompt_tokens", "completion_tokens", "chunks", "chunk_gap_us.list.element")
AS_DICTIONARY = ("record_id", "prompt_id", "status", "error", "chunk_tokens.list.element")


@dataclass(frozen=True)
class BadLine:
    """A line of a results file that isn't a record, and why."""

    path: Path
    number: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path.name}, line {self.number}: {self.reason}"


@dataclass(frozen=True)
class Loaded:
    """What a results file holds: its records, and the lines that had to be skipped."""

    records: tuple[Record, ...]
    skipped: tuple[BadLine, ...]


def load_records(path: Path) -> Loaded:
    """Read a results file; a line that isn't a whole record is reported, not dropped in silence.

    A file that doesn't exist holds no records.
    """
    if not path.exists():
        return Loaded((), ())
    records: list[Record] = []
    skipped: list[BadLine] = []
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RecordError(f"{path} can't be read: {error.strerror}") from error
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            records.append(Record.model_validate_json(line))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            skipped.append(BadLine(path, number, f"{where}: {first['msg']}" if where else first["msg"]))
    return Loaded(tuple(records), tuple(skipped))


def write_requests(requests: pa.Table, path: Path) -> None:
    """Write requests as a Parquet file with checksums, times to the microsecond; raises OSError, and RecordError for a time that is none.

    `scheduled_s` is left empty where it equals `sent_s`, as in every closed loop.
    """
    for name in TIMES:
        if len(impossible := requests.filter(pc.invert(pc.less(pc.abs(requests[name]), LONGEST_S)))):  # nan is less than nothing
            raise RecordError(f"{path}: {name} of a request is {impossible[name][0].as_py()}; a time is a number of seconds under {LONGEST_S:g}")
    scheduled = pc.if_else(pc.equal(requests["scheduled_s"], requests["sent_s"]), None, requests["scheduled_s"])
    kept = _with(requests, "scheduled_s", scheduled)
    for name in TIMES:
        kept = _with(kept, name, pc.cast(pc.round(kept[name], MICROSECONDS.scale), MICROSECONDS, safe=False))
    pq.write_table(
        kept,
        path,
        compression="zstd",
        compression_level=9,
        use_dictionary=list(AS_DICTIONARY),
        column_encoding=dict.fromkeys(SPLIT, "BYTE_STREAM_SPLIT"),
        store_decimal_as_integer=True,
        write_page_checksum=True,
    )


def load_requests(path: Path) -> pa.Table:
    """The requests file as a table (columns: REQUESTS_SCHEMA); empty where there is none. Raises RecordError for a broken one."""
    if not path.exists():
        return REQUESTS_SCHEMA.empty_table()
    try:
        times = {field.name: field for field in pq.read_schema(path) if field.name in TIMES}
        held = pa.schema([times.get(field.name, field) for field in REQUESTS_SCHEMA])
        requests = pq.read_table(path, schema=held, page_checksum_verification=True)
        for name, field in times.items():
            if pa.types.is_decimal(field.type):
                requests = _with(requests, name, _seconds(requests[name]))
        requests = requests.cast(REQUESTS_SCHEMA)
    except (pa.ArrowException, OSError) as error:
        raise RecordError(f"{path} is no readable parquet file: {error}") from error
    return _with(requests, "scheduled_s", pc.coalesce(requests["scheduled_s"], requests["sent_s"]))


def _seconds(decimals: pa.ChunkedArray) -> pa.ChunkedArray:
    """The nearest floats, by way of whole microseconds: Arrow's own cast makes 0.09999999999999999 of 0.1."""
    whole = pc.cast(pc.multiply(decimals, pa.scalar(10**MICROSECONDS.scale, pa.decimal128(8, 0))), pa.int64(), safe=False)
    return pc.divide(pc.cast(whole, pa.float64()), 10.0**MICROSECONDS.scale)


def _with(requests: pa.Table, name: str, values: pa.ChunkedArray) -> pa.Table:
    return requests.set_column(requests.schema.get_field_index(name), name, values)


class RecordStore:
    """Writes one chapter's results; only `writing()` gives one, so the lock is always held."""

    def __init__(self, records_path: Path) -> None:
        self.records_path = records_path
        self.requests_path = records_path.with_suffix(".requests.parquet")

    @classmethod
    @contextmanager
    def writing(cls, folder: Path, chapter: str) -> Iterator[RecordStore]:
        """Hold FOLDER/CHAPTER.jsonl for one run.

        Raises StoreBusyError at once when another run holds it: two runs would also disturb
        each other's measurements.
        """
        records_path = folder / f"{chapter}.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreWriteError(f"{folder} can't be made: {error.strerror}") from None
        lock = FileLock(f"{records_path}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise StoreBusyError(f"{records_path} is being written by another run; wait for it, or give another results_dir") from None
        except OSError as error:
            raise StoreWriteError(f"{lock.lock_file} can't be written: {error.strerror}") from None
        try:
            yield cls(records_path)
        finally:
            lock.release()

    def append(self, record: Record, requests: Sequence[RequestRow]) -> None:
        """Put one record and its requests on disk.

        The requests go first: rows without a record are never read, a record without rows would be.
        Raises StoreWriteError when the disk refuses; earlier records and their requests stay as they were.
        """
        try:
            if requests:
                self._add_requests(requests)
            self._add_line(record)
        except OSError as error:
            raise StoreWriteError(f"{self.records_path}: {error.strerror or error}; earlier records are intact") from error

    def _add_requests(self, requests: Sequence[RequestRow]) -> None:
        table = pa.Table.from_pylist([row.model_dump() for row in requests], schema=REQUESTS_SCHEMA)
        whole = pa.concat_tables([load_requests(self.requests_path), table])
        fresh = self.requests_path.with_suffix(".partial")
        try:
            write_requests(whole, fresh)
            _sync(fresh)
            fresh.replace(self.requests_path)
        finally:
            fresh.unlink(missing_ok=True)

    def _add_line(self, record: BaseModel) -> None:
        line = record.model_dump_json().encode() + b"\n"
        with self.records_path.open("ab", buffering=0) as out:  # unbuffered: nothing is left to flush after a failure
            before = out.seek(0, os.SEEK_END)
            if before and not _ends_in_newline(self.records_path):
                line = b"\n" + line  # a crash cut the last line off; don't glue ours to it
            try:
                rest = memoryview(line)
                while rest:
                    rest = rest[out.write(rest) :]
                os.fsync(out.fileno())
            except OSError:
                os.ftruncate(out.fileno(), before)
                raise


def _ends_in_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
