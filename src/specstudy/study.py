"""What a chapter calls: run this plan, or read its records."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from specstudy.analysis import Cell as AnalysedCell
from specstudy.analysis import group
from specstudy.catalog import Profile, load_profile
from specstudy.catalog.paths import cache_dir, project_root, recorded_dir
from specstudy.errors import ConfigError, SpecstudyError, StoreWriteError, StudyError
from specstudy.measure import Sampling, gpu_identity, measure, record_of
from specstudy.plan import START_GUESS_S, Cell, Plan, ServerPlan, cell_facts, check_chapter, enough, expected_repeat_s, make_plan
from specstudy.progress import Progress, Ticker, duration_text
from specstudy.records import BadLine, Provenance, Record, RecordStore, load_records, load_requests, portable, provenance, without_port
from specstudy.serving import ENGINES, Server, check_files, engine_named, launch

LIVE_DIR = "results"


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


def open_study(chapter: str, profile: str = "cpu-smollm2", mode: str = "recorded", results_dir: str | None = None) -> Study:
    """The chapter's records; in mode "live" after measuring whatever they lack.

    `results_dir` holds a folder for each profile. By default recorded mode reads data/results of the checkout
    (or $SPECSTUDY_RESULTS) and live mode appends to ./results. Raises ConfigError before anything starts,
    StudyError when cells failed; finished cells are kept either way.
    """
    if mode not in ("recorded", "live"):
        raise ConfigError.unknown("mode", mode, ("recorded", "live"))
    found = load_profile(profile)
    check_chapter(found, chapter)
    if mode == "live":
        folder = Path(results_dir or LIVE_DIR).resolve()
        run_chapter(found, chapter, folder / found.name)
        return read_study(found, chapter, folder)
    return read_study(found, chapter, Path(results_dir).resolve() if results_dir else recorded_dir())


def read_study(profile: Profile, chapter: str, results_dir: Path) -> Study:
    """The chapter's records in `results_dir`. Raises ConfigError where there are none."""
    path = results_dir / profile.name / f"{chapter}.jsonl"
    loaded = load_records(path)
    if not loaded.records:
        raise ConfigError("results_dir", str(results_dir), f"a folder with {profile.name}/{path.name}; measure it with mode live")
    return Study(profile, chapter, loaded.records, load_requests(path.with_suffix(".requests.parquet")), loaded.skipped)


def run_chapter(profile: Profile, chapter: str, folder: Path) -> None:
    """Measure what `folder`/CHAPTER.jsonl lacks, one server at a time, the baseline first.

    A repeat is on disk before the next begins, so a run that is cut off goes on where it stopped, as long as
    it is the same boot of the same machine: other records aren't comparable and are measured anew.
    Raises StudyError at the end if any cell failed.
    """
    plan = make_plan(profile, chapter, print)
    engine = engine_named(profile.engine.name)
    if engine.version() is None:
        raise ConfigError("engine", engine.name, "an engine that is installed in this environment")
    for server_plan in plan.servers:
        check_files(server_plan.deployment)
    with RecordStore.writing(folder, chapter) as store:
        _Run(plan, store).all()


class _Run:
    """One pass over a plan; holds what its steps share."""

    def __init__(self, plan: Plan, store: RecordStore) -> None:
        identity = gpu_identity()
        self._plan, self._store = plan, store
        self._origin: Provenance = provenance(project_root(), identity.uuids if identity else ())
        self._records = list(load_records(store.records_path).records)
        self._earlier = [*load_records(recorded_dir() / plan.profile.name / f"{plan.chapter}.jsonl").records, *self._records]
        self._failures: list[str] = []
        left = [(server_plan, [cell for cell in server_plan.cells if not self._done(server_plan, cell)]) for server_plan in plan.servers]
        self._todo = [(server_plan, cells) for server_plan, cells in left if cells]
        self._progress = Progress(self._expected())

    def all(self) -> None:
        """Every server with cells left. Raises StudyError at the end if any failed."""
        chapter = self._plan.chapter
        if not self._todo:
            print(f"{chapter}: every cell is on disk already, in {self._store.records_path}")
            return
        cells = sum(len(cells) for _, cells in self._todo)
        print(f"{chapter}: {len(self._todo)} servers, {cells} cells to measure, about {duration_text(self._progress.remaining_s)}")
        for server_plan, cells_left in self._todo:
            self._server(server_plan, cells_left)
        if self._failures:
            raise StudyError(f"{chapter}: {len(self._failures)} failed; the rest is on disk.\n" + "\n".join(self._failures))

    def _server(self, server_plan: ServerPlan, cells: list[Cell]) -> None:
        deployment, engine = server_plan.deployment, self._plan.profile.engine
        log = self._store.records_path.parent / "logs" / f"{self._plan.chapter}-{deployment.label}.log"
        self._progress.start()
        try:
            with launch(
                deployment,
                log,
                engine=engine.name,
                timeout_s=engine.start_timeout_s,
                waiting=Ticker(f"starting the server for {deployment.label}"),
            ) as server:
                self._progress.finish(f"{deployment.label}: server ready after {server.start_s:.0f} s")
                for cell in cells:
                    self._cell(server, server_plan, cell)
        except StoreWriteError:
            raise
        except SpecstudyError as error:
            self._failures.append(f"{deployment.label}: {error}")
            print(f"FAILED {deployment.label}: {error}", flush=True)

    def _cell(self, server: Server, server_plan: ServerPlan, cell: Cell) -> None:
        """Repeat the cell until its interval is narrow enough. A failed repeat ends it."""
        rules = self._plan.profile.measuring
        done = self._repeats(server_plan, cell)
        while not enough(rules, done):
            self._progress.start()
            if len(done) >= rules.min_repeats:
                self._progress.insert(sum(record.duration_s or 0.0 for record in done) / len(done))
            record = self._repeat(server, server_plan, cell, len(done))
            what = f"{server_plan.deployment.label}, {cell.label}, repeat {len(done) + 1}"
            if record.status == "failed":
                self._failures.append(f"{what}: {record.error}")
                self._progress.finish(f"{what}: FAILED: {record.error}")
                server.raise_if_dead()
                return
            done.append(record)
            self._progress.finish(f"{what}: {record.output_tokens_per_s:.1f} tok/s")

    def _repeat(self, server: Server, server_plan: ServerPlan, cell: Cell, repeat: int) -> Record:
        plan, rules = self._plan, self._plan.profile.measuring
        spec = plan.profile.workloads[cell.workload]
        seed = rules.seed + repeat
        prompts, warmups = cell.prompts(plan.pools[cell.workload], repeat, rules.seed)
        measured = measure(
            server,
            prompts,
            warmups,
            cell.arrival(seed),
            Sampling(spec.max_tokens, spec.temperature, seed),
            max_schedule_lag_ms=rules.max_schedule_lag_ms,
        )
        facts = {**cell_facts(plan, server_plan.deployment, cell), **self._facts(server), "repeat": repeat, "seed": seed}
        record = record_of(measured, facts)
        self._store.append(record, measured.requests)
        self._records.append(record)
        return record

    def _facts(self, server: Server) -> dict[str, Any]:
        origin, engine = self._origin, ENGINES[self._plan.profile.engine.name]
        return {
            **log_facts(server.log_path),
            "engine": engine.name,
            "engine_version": engine.version() or "unknown",
            "allocation": origin.allocation,
            "git_sha": origin.git_sha,
            "packages": dict(origin.packages),
            "server_argv": portable(server.argv, cache_dir()),
            "host_cpu": origin.host_cpu,
            "host_cpus": origin.host_cpus,
        }

    def _repeats(self, server_plan: ServerPlan, cell: Cell) -> list[Record]:
        """Good repeats of this very cell on this allocation, in order."""
        facts = cell_facts(self._plan, server_plan.deployment, cell)
        facts |= {"allocation": self._origin.allocation, "packages": dict(self._origin.packages)}
        argv = self._argv_without_port(server_plan)
        same = [
            record
            for record in self._records
            if record.status == "ok" and all(getattr(record, key) == value for key, value in facts.items()) and without_port(record.server_argv) == argv
        ]
        return sorted(same, key=lambda record: record.repeat)

    def _argv_without_port(self, server_plan: ServerPlan) -> tuple[str, ...]:
        argv = ENGINES[self._plan.profile.engine.name].argv(server_plan.deployment, 0)
        return without_port(portable(argv, cache_dir()))

    def _done(self, server_plan: ServerPlan, cell: Cell) -> bool:
        return enough(self._plan.profile.measuring, self._repeats(server_plan, cell))

    def _expected(self) -> list[float]:
        steps: list[float] = []
        rules = self._plan.profile.measuring
        for server_plan, cells in self._todo:
            steps.append(START_GUESS_S)
            for cell in cells:
                repeats = max(1, rules.min_repeats - len(self._repeats(server_plan, cell)))
                max_tokens = self._plan.profile.workloads[cell.workload].max_tokens
                steps += [expected_repeat_s(cell, max_tokens, self._earlier)] * repeats
        return steps


def log_facts(log_path: Path) -> dict[str, Any]:
    """kv_cache_tokens, weights_gib and model_runner, as vLLM's log states them; a line that isn't there gives no key."""
    text = log_path.read_text(errors="replace")
    facts: dict[str, Any] = {}
    if cache := re.search(r"KV cache size: ([\d,]+) tokens", text):
        facts["kv_cache_tokens"] = int(cache[1].replace(",", ""))
    if weights := re.search(r"Model loading took ([\d.]+) GiB", text) or re.search(r"Checkpoint size: ([\d.]+) GiB", text):
        facts["weights_gib"] = float(weights[1])
    if "using the V1 model runner" in text:
        facts["model_runner"] = "V1"
    elif "Using V2 Model Runner" in text:
        facts["model_runner"] = "V2"
    return facts
