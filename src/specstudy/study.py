"""What a chapter calls: run this plan, or read its records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from specstudy.analysis import Cell as AnalysedCell
from specstudy.analysis import group
from specstudy.catalog import Profile, load_profile
from specstudy.catalog.paths import recorded_dir
from specstudy.errors import ConfigError, StudyError
from specstudy.measure import check_device
from specstudy.plan import Plan, check_chapter, make_plan
from specstudy.records import BadLine, Record, RecordStore, load_records, load_requests
from specstudy.runner import Ledger, Runner, plan_text
from specstudy.serving import check_files, engine_named

MODES = ("recorded", "live")
LIVE_DEFAULT, LIVE_DIR = "cpu-smollm2", "results"


@dataclass(frozen=True)
class Study:
    """The records of one chapter under one profile."""

    profile: Profile
    chapter: str
    records: tuple[Record, ...]
    requests: pa.Table
    skipped: tuple[BadLine, ...]

    @cached_property
    def cells(self) -> list[AnalysedCell]:
        """The good repeats of the newest allocation, grouped; the baseline first. Raises StudyError if there are none."""
        cells = group(self.records, self.requests)
        if not cells:
            raise StudyError(f"{self.chapter}: no good record; the newest says: {self.records[-1].error}")
        return cells


def check_parameters(profile: object = None, mode: object = "recorded", results_dir: object = None) -> None:
    """Raises ConfigError for a mode that isn't one, and for a profile or a folder that isn't text.

    Papermill makes numbers and truth values of what looks like one: `-p results_dir 2026` gives a number.
    """
    for field, value in (("profile", profile), ("results_dir", results_dir)):
        if value is not None and not isinstance(value, str):
            raise ConfigError(field, value, "text, or None; papermill keeps it as text with -r in place of -p")
    if mode not in MODES:
        raise ConfigError.unknown("mode", mode, MODES)


def results_folder(mode: str, results_dir: str | None) -> Path:
    """Where records lie: data/results in recorded mode, ./results in live mode, unless said otherwise.

    Raises ConfigError for a folder to read from that isn't there.
    """
    if results_dir:
        folder = Path(results_dir).resolve()
        if mode == "recorded" and not folder.is_dir():
            raise ConfigError("results_dir", results_dir, "a folder that exists; mode live makes it")
        return folder
    return recorded_dir() if mode == "recorded" else Path(LIVE_DIR).resolve()


def open_study(chapter: str, profile: str = LIVE_DEFAULT, mode: str = "recorded", results_dir: str | None = None) -> Study:
    """The chapter's records; in mode "live" after measuring whatever they lack.

    `results_dir` holds a folder for each profile. By default recorded mode reads data/results of the checkout
    (or $SPECSTUDY_RESULTS) and live mode appends to ./results. Raises ConfigError before anything starts,
    StudyError when cells failed; finished cells are kept either way.
    """
    check_parameters(profile, mode, results_dir)
    found = load_profile(profile)
    check_chapter(found, chapter)
    folder = results_folder(mode, results_dir)
    if mode == "live":
        run_chapter(found, chapter, folder / found.name)
    return read_study(found, chapter, folder)


def read_study(profile: Profile, chapter: str, results_dir: Path) -> Study:
    """The chapter's records in `results_dir`. Raises ConfigError where there are none."""
    path = results_dir / profile.name / f"{chapter}.jsonl"
    loaded = load_records(path)
    if not loaded.records:
        unreadable = f"; of the one there no line is a record: {loaded.skipped[0]}" if loaded.skipped else "; measure it with mode live"
        raise ConfigError("results_dir", str(results_dir), f"a folder with {profile.name}/{path.name}{unreadable}")
    return Study(profile, chapter, loaded.records, load_requests(path.with_suffix(".requests.parquet")), loaded.skipped)


def run_chapter(profile: Profile, chapter: str, folder: Path, names: Sequence[str] = ()) -> None:
    """Measure what `folder`/CHAPTER.jsonl lacks, the baseline first; with `names` only that part of it, see `make_plan`.

    A repeat is on disk before the next begins, so a run that is cut off goes on where it stopped, as long as
    it is the same boot of the same machine: other records aren't comparable and are measured anew.
    Raises StudyError at the end if any cell failed.
    """
    check_device(profile.hardware)
    plan = _checked_plan(profile, chapter, names)
    with RecordStore.writing(folder, chapter) as store:
        Runner(Ledger(plan, store.records_path), store).run()


def describe_chapter(profile: Profile, chapter: str, folder: Path, names: Sequence[str] = ()) -> str:
    """What `run_chapter` would do, without doing it."""
    return plan_text(Ledger(_checked_plan(profile, chapter, names), folder / f"{chapter}.jsonl"))


def _checked_plan(profile: Profile, chapter: str, names: Sequence[str]) -> Plan:
    plan = make_plan(profile, chapter, print, names)
    engine = engine_named(profile.engine.name)
    if engine.version() is None:
        raise ConfigError("engine", engine.name, "an engine that is installed in this environment")
    for server_plan in plan.servers:
        check_files(server_plan.deployment)
    return plan
