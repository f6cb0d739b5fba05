"""A full disk, a line that was cut off, two runs at once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.standin.world import CHAPTER, PROFILE, World, await_true, start_study

from specstudy.errors import ConfigError, SpecstudyError, StoreBusyError, StoreWriteError
from specstudy.records import RecordStore, load_records, load_requests
from specstudy.study import open_study

Run = Callable[[], SpecstudyError | None]


# Appends copies of the last record with its requests until the disk refuses, then says how many went in.
FILL = """
import sys
from pathlib import Path
from specstudy.errors import StoreWriteError
from specstudy.records import RecordStore, RequestRow, load_records, load_requests
folder = Path(sys.argv[1])
with RecordStore.writing(folder, "03_baseline") as store:
    record = load_records(store.records_path).records[-1]
    row = load_requests(store.requests_path).to_pylist()[-1]
    for number in range(10_000):
        copy = record.model_copy(update={"record_id": f"copy-{number}"})
        rows = [RequestRow.model_validate({**row, "record_id": copy.record_id, "index": i}) for i in range(ROWS)]
        try:
            store.append(copy, rows)
        except StoreWriteError as error:
            print(f"{number} {error}")
            sys.exit(error.exit_status)
"""
# The records grow faster than the requests, or the requests faster than the records.
RECORDS_FILL_UP, REQUESTS_FILL_UP = FILL.replace("ROWS", "1"), FILL.replace("ROWS", "400")


def limited(code: str, bytes_allowed: int) -> str:
    return f"import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, ({bytes_allowed}, {bytes_allowed}))\n{code}"


def check_full_disk(folder: Path, code: str, before: list[bytes], reason: str) -> None:
    """Run `code` until the disk refuses: all that went in before is there, whole, and the error says so."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code, str(folder)], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    went_in, says = done.stdout.split(maxsplit=1)
    assert reason in says
    assert "earlier records are intact" in says
    path = folder / f"{CHAPTER}.jsonl"
    lines = path.read_bytes().splitlines()
    assert lines[: len(before)] == before
    loaded = load_records(path)
    assert loaded.skipped == ()
    assert [record.record_id for record in loaded.records[len(before) :]] == [f"copy-{i}" for i in range(int(went_in))]
    rows = set(load_requests(path.with_suffix(".requests.parquet")).column("record_id").to_pylist())
    assert {record.record_id for record in loaded.records} <= rows
    assert not list(folder.glob("*.partial"))


@pytest.mark.parametrize("code", [RECORDS_FILL_UP, REQUESTS_FILL_UP], ids=["records", "requests"])
def test_a_file_that_may_not_grow(measured: World, code: str) -> None:
    before = measured.lines()
    room = max(path.stat().st_size for path in measured.records_path.parent.iterdir() if path.is_file()) + 15_000
    check_full_disk(measured.records_path.parent, limited(code, room), before, "File too large")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB; only root can mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = os.geteuid() == 0 and shutil.which("mount") is not None
    mounted = mounted and subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)], capture_output=True).returncode == 0
    if not mounted:
        pytest.skip("no right to mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("code", [RECORDS_FILL_UP, REQUESTS_FILL_UP], ids=["records", "requests"])
def test_a_full_disk(measured: World, small_disk: Path, code: str) -> None:
    for path in measured.records_path.parent.glob(f"{CHAPTER}.*"):
        shutil.copy(path, small_disk)
    check_full_disk(small_disk, code, measured.lines(), "No space left on device")


def test_a_run_on_a_full_disk_ends_and_says_so(world: World, run: Run) -> None:
    """The limit lets about three records in; what is there stays, and a rerun with room goes on from it."""
    study = start_study(world, max_file_bytes=8_000)
    assert study.end() == 1
    assert "StoreWriteError" in study.text()
    assert "earlier records are intact" in study.text()
    kept = world.lines()
    assert 0 < len(kept) < 8
    assert len(world.records()) == len(kept)
    assert run() is None
    assert world.lines()[: len(kept)] == kept
    assert len(world.records()) == 8


@pytest.mark.parametrize("cut", [1, 40, -1], ids=["after its first byte", "in its middle", "before its last byte"])
def test_a_line_that_was_cut_off_is_reported_skipped_and_not_glued_to(measured: World, run: Run, cut: int) -> None:
    *whole, last = measured.lines()
    measured.records_path.write_bytes(b"\n".join(whole) + b"\n" + last[:cut])
    loaded = load_records(measured.records_path)
    assert len(loaded.records) == 7
    assert [bad.number for bad in loaded.skipped] == [8]
    assert f"{CHAPTER}.jsonl, line 8" in str(loaded.skipped[0])
    assert run() is None  # measures the lost repeat anew
    after = load_records(measured.records_path)
    assert len(after.records) == 8
    assert measured.lines()[7] == last[:cut]
    assert [bad.number for bad in after.skipped] == [8]
    study = open_study(CHAPTER, PROFILE, "recorded", str(measured.root / "results"))
    assert [bad.number for bad in study.skipped] == [8]


def test_a_second_run_is_refused_at_once_and_the_first_is_unharmed(world: World) -> None:
    world.behave(chunk_delay_s=0.05)
    first = start_study(world)
    await_true(lambda: len(world.lines()) >= 1, 120)
    with pytest.raises(StoreBusyError, match=r"03_baseline\.jsonl is being written by another run"):
        open_study(CHAPTER, PROFILE, "live", str(world.root / "results"))
    assert first.end() == 0, first.text()
    assert len(world.records()) == 8
    assert world.requests_served() == 48


def test_a_run_that_was_killed_leaves_no_lock(world: World, run: Run) -> None:
    world.behave(chunk_delay_s=0.05)
    first = start_study(world)
    await_true(lambda: len(world.lines()) >= 1, 120)
    first.process.kill()
    first.end()
    assert run() is None
    assert len(world.records()) == 8


def test_the_store_is_free_again_after_an_error(measured: World) -> None:
    folder = measured.records_path.parent
    with pytest.raises(StoreWriteError), RecordStore.writing(folder, CHAPTER):
        raise StoreWriteError("as if")
    with RecordStore.writing(folder, CHAPTER) as store:
        assert store.records_path == measured.records_path


def test_a_file_without_one_readable_line_says_what_is_wrong_with_its_first(tmp_path: Path) -> None:
    path = tmp_path / "cpu-smollm2" / "03_baseline.jsonl"
    path.parent.mkdir()
    path.write_text('{"chapter": "03_bas\n')
    with pytest.raises(ConfigError, match=r"no line is a record: 03_baseline\.jsonl, line 1: "):
        open_study("03_baseline", "cpu-smollm2", results_dir=str(tmp_path))
