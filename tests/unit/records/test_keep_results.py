"""scripts/keep_results.py: what is brought home is whole, and what was there stays where anything is wrong."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from specstudy.records import Record, RecordStore, RequestRow, load_records, load_requests
from specstudy.records.store import REQUESTS_SCHEMA, write_requests

SCRIPT = Path(__file__).parents[3] / "scripts" / "keep_results.py"
PROFILE, CHAPTER = "cpu-smollm2", "03_baseline"
Keep = Callable[..., Result]


@pytest.fixture
def keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Keep:
    """Run the script; what it keeps lies under home/."""
    monkeypatch.setenv("SPECSTUDY_RESULTS", str(tmp_path / "home"))
    spec = importlib.util.spec_from_file_location("keep_results", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    app = typer.Typer()
    app.command()(script.main)
    return lambda *words: CliRunner().invoke(app, [PROFILE, CHAPTER, *map(str, words)])


@pytest.fixture
def measured(tmp_path: Path, record: Callable[..., Record], row: Callable[..., RequestRow]) -> Callable[..., Path]:
    """A results folder with these records, ten requests each."""

    def make(name: str, *ids: str) -> Path:
        with RecordStore.writing(tmp_path / name / PROFILE, CHAPTER) as store:
            for repeat, one in enumerate(ids):
                store.append(record(record_id=one, repeat=repeat), [row(record_id=one, index=index) for index in range(10)])
        return tmp_path / name

    return make


def kept(tmp_path: Path) -> tuple[list[str], dict[str, int]]:
    """(ids in the records file, requests of each); no line may be broken."""
    path = tmp_path / "home" / PROFILE / f"{CHAPTER}.jsonl"
    loaded = load_records(path)
    assert loaded.skipped == ()
    counts = load_requests(path.with_suffix(".requests.parquet"))["record_id"].value_counts().to_pylist()
    return [one.record_id for one in loaded.records], {one["values"]: one["counts"] for one in counts}


def test_two_folders_become_one_though_a_last_line_lacks_its_end(keep: Keep, measured: Callable[..., Path], tmp_path: Path) -> None:
    a, b = measured("a", "a1", "a2"), measured("b", "b1")
    path = a / PROFILE / f"{CHAPTER}.jsonl"
    path.write_bytes(path.read_bytes()[:-1])
    done = keep(a, b)
    assert done.exit_code == 0, done.output
    assert kept(tmp_path) == (["a1", "a2", "b1"], {"a1": 10, "a2": 10, "b1": 10})


def test_a_record_that_lies_in_two_folders_is_kept_once(keep: Keep, measured: Callable[..., Path], tmp_path: Path) -> None:
    """As where a second machine went on from a copy of the first one's results: a repeat that counts twice narrows an interval."""
    done = keep(measured("a", "a1", "a2"), measured("b", "a1", "a2", "b1"))
    assert done.exit_code == 0, done.output
    assert "3 records, 30 requests" in done.output
    assert kept(tmp_path) == (["a1", "a2", "b1"], {"a1": 10, "a2": 10, "b1": 10})


def spoil_half_a_line(folder: Path) -> None:
    path = folder / PROFILE / f"{CHAPTER}.jsonl"
    path.write_bytes(path.read_bytes()[:-9])


def lose_requests(folder: Path) -> None:
    (folder / PROFILE / f"{CHAPTER}.requests.parquet").unlink()


def lose_some_requests(folder: Path) -> None:
    path = folder / PROFILE / f"{CHAPTER}.requests.parquet"
    write_requests(load_requests(path).slice(0, 15), path)


def lose_records(folder: Path) -> None:
    (folder / PROFILE / f"{CHAPTER}.jsonl").unlink()


@pytest.mark.parametrize(
    ("spoil", "words", "said"),
    [
        (spoil_half_a_line, (), "line 2"),
        (lose_requests, (), "record b1: 10 requests, 0 in its requests file"),
        (lose_some_requests, (), "record b2: 10 requests, 5 in its requests file"),
        (lose_records, (), "holds no record"),
        (lambda folder: None, ("--gaps-of", "chatt"), "gaps_of: got 'chatt'; known: chat"),
    ],
    ids=["half a line", "no requests", "too few requests", "no records", "no such workload"],
)
def test_what_is_not_whole_is_refused_and_what_was_kept_stays(
    spoil: Callable[[Path], None], words: tuple[str, ...], said: str, keep: Keep, measured: Callable[..., Path], tmp_path: Path
) -> None:
    a, b = measured("a", "a1"), measured("b", "b1", "b2")
    assert keep(a).exit_code == 0
    before = {path: path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file()}
    spoil(b)
    done = keep(a, b, *words)
    assert done.exit_code == 1
    assert str(done.output).startswith("not kept: ")
    assert said in str(done.output)
    assert {path: path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(("requests", "second"), [("0", False), ("2", True), ("1", False)])
def test_gaps_are_kept_of_the_repeats_that_are_asked_for(
    requests: str, second: bool, keep: Keep, tmp_path: Path, record: Callable[..., Record], row: Callable[..., RequestRow]
) -> None:
    """The first repeat, and the second where both together are no more requests than that: one each here."""
    with RecordStore.writing(tmp_path / "a" / PROFILE, CHAPTER) as store:
        for repeat, name in enumerate(("a1", "a2")):
            store.append(record(record_id=name, repeat=repeat, num_prompts=1, completed=1), [row(record_id=name)])
    assert keep(tmp_path / "a", "--gaps-of", "chat", "--gap-repeats", "1", "--gap-requests", requests).exit_code == 0
    rows = load_requests(tmp_path / "home" / PROFILE / f"{CHAPTER}.requests.parquet")
    assert rows.schema.equals(REQUESTS_SCHEMA)
    given = {one["record_id"]: one["chunk_gap_us"] for one in load_requests(tmp_path / "a" / PROFILE / f"{CHAPTER}.requests.parquet").to_pylist()}
    assert given["a1"]
    assert {one["record_id"]: one["chunk_gap_us"] for one in rows.to_pylist()} == {"a1": given["a1"], "a2": given["a2"] if second else []}
