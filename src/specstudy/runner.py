"""Carry a plan out: start servers, measure what the records lack, keep every repeat as it comes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specstudy.catalog.paths import cache_dir, project_root, recorded_dir
from specstudy.errors import ServerStartError, SpecstudyError, StoreWriteError, StudyError
from specstudy.measure import Measured, Sampling, gpu_uuids, measure, record_of, unserved
from specstudy.plan import Cell, Plan, ServerPlan, cell_facts, enough, expected_repeat_s
from specstudy.progress import Progress, Step, Ticker, duration_text
from specstudy.records import Provenance, Record, RecordStore, load_records, portable, provenance, without_port
from specstudy.serving import ENGINES, Deployment, Server, launch_together, log_facts
from specstudy.serving.logs import weights_size_gib


@dataclass(frozen=True)
class Work:
    """A server and those of its cells that still lack repeats."""

    server: ServerPlan
    cells: tuple[Cell, ...]

    @property
    def label(self) -> str:
        """The server's."""
        return self.server.deployment.label


class Ledger:
    """What is on disk for a plan, and so what is left of it.

    Only records of the same cell, server command line, packages and allocation count: others aren't comparable.
    """

    def __init__(self, plan: Plan, records_path: Path) -> None:
        self.plan = plan
        self.origin: Provenance = provenance(project_root(), gpu_uuids())
        self._records = list(load_records(records_path).records)
        self._earlier = [record for path in sorted((recorded_dir() / plan.profile.name).glob("*.jsonl")) for record in load_records(path).records]

    def add(self, record: Record) -> None:
        """One more, just measured."""
        self._records.append(record)

    def repeats(self, server: ServerPlan, cell: Cell) -> list[Record]:
        """Good repeats of this very cell on this allocation, in order."""
        facts = cell_facts(self.plan, server.deployment, cell)
        facts |= {"allocation": self.origin.allocation, "packages": dict(self.origin.packages)}
        argv = self.argv(server)
        same = [
            record
            for record in self._records
            if record.status == "ok" and all(getattr(record, key) == value for key, value in facts.items()) and without_port(record.server_argv) == argv
        ]
        return sorted(same, key=lambda record: record.repeat)

    def argv(self, server: ServerPlan) -> tuple[str, ...]:
        """The server's command line as records have it, less the port."""
        return argv_of(server.deployment, self.plan.profile.engine.name)

    def left(self) -> list[Work]:
        """Servers with cells that lack repeats, in the plan's order."""
        work = [Work(server, tuple(cell for cell in server.cells if not self._done(server, cell))) for server in self.plan.servers]
        return [one for one in work if one.cells]

    def _done(self, server: ServerPlan, cell: Cell) -> bool:
        return enough(self.plan.profile.measuring, cell.repeats, self.repeats(server, cell))

    def expected_repeats(self, server: ServerPlan, cell: Cell) -> list[float]:
        """Expected seconds of each repeat that the cell still needs at least."""
        wanted = cell.repeats or self.plan.profile.measuring.min_repeats
        max_tokens = self.plan.profile.workloads[cell.workload].max_tokens
        imposed = server.deployment.imposed_acceptance_length
        records = [record for record in (*self._earlier, *self._records) if record.status == "ok"]
        same_method = [record for record in records if _method(record) == _method(server.deployment)]
        one = expected_repeat_s(cell, max_tokens, records, self.plan.profile.measuring, imposed, same_method)
        return [one] * max(1, wanted - len(self.repeats(server, cell)))


def _method(of: Record | Deployment) -> tuple[str, str | None, int | None]:
    return of.method, of.draft, of.num_speculative_tokens


def argv_of(deployment: Deployment, engine: str) -> tuple[str, ...]:
    """A deployment's command line as records have it, less the port."""
    return without_port(portable(ENGINES[engine].argv(deployment, 0), cache_dir()))


def groups(plan: Plan, work: Sequence[Work]) -> list[tuple[Work, ...]]:
    """Servers that are started together."""
    size = plan.profile.measuring.servers_at_once
    return [tuple(work[start : start + size]) for start in range(0, len(work), size)]


def by_load(together: Sequence[Work]) -> list[tuple[Work, Cell]]:
    """The servers' cells in the order in which each is repeated once: load by load, so what is compared at a load is measured within minutes."""
    pairs = [(one, cell) for one in together for cell in one.cells]
    loads = list(dict.fromkeys(cell.label for _, cell in pairs))
    return sorted(pairs, key=lambda pair: loads.index(pair[1].label))


def expected_steps(ledger: Ledger, work: Sequence[Work]) -> list[Step]:
    """The start of a group, then each repeat that its cells still need."""
    steps: list[Step] = []
    for together in groups(ledger.plan, work):
        steps.append(Step(_names(together), "start", ledger.plan.profile.measuring.start_guess_s))
        steps += [Step((one.label, cell.label), "repeat", each) for one, cell in by_load(together) for each in ledger.expected_repeats(one.server, cell)]
    return steps


def _names(together: Sequence[Work]) -> str:
    return ", ".join(one.label for one in together)


def plan_text(ledger: Ledger) -> str:
    """Servers, cells, prompts and expected time of what is left, for somebody who is about to measure it."""
    work = ledger.left()
    if not work:
        return f"{ledger.plan.chapter}: every cell is on disk already"
    lines = [_headline(ledger, work)]
    prompts, started = 0, groups(ledger.plan, work)
    if len(started) > 1 and len(started[0]) > 1:
        lines.append("servers of two groups share no round: a ratio of two such holds what changed on the host in between; see servers_at_once")
    for number, together in enumerate(started, 1):
        if len(together) > 1:
            lines.append(f"group {number}: {len(together)} servers started together, measured in rounds: a repeat of each, then the next")
        for one in together:
            lines.append(f"  {one.label}")
            for cell in one.cells:
                repeats = ledger.expected_repeats(one.server, cell)
                prompts += (cell.num_prompts + cell.warmups) * len(repeats)
                each = f"{cell.num_prompts} prompts, {cell.warmups} to warm up"
                lines.append(f"    {cell.label}: {len(repeats)} repeats of {each}, about {duration_text(sum(repeats))}")
    lines.append(f"{prompts:,} requests in all; further repeats where an interval is still wide, and repeats measured again, come on top")
    return "\n".join(lines)


def _headline(ledger: Ledger, work: Sequence[Work]) -> str:
    expected_s = sum(step.expected_s for step in expected_steps(ledger, work))
    cells = sum(len(one.cells) for one in work)
    return f"{ledger.plan.chapter}: {len(work)} servers, {cells} cells to measure, about {duration_text(expected_s)}"


def _unsteady_text(record: Record) -> str:
    """What a line of progress adds when the engine compiled kernels while it was measured."""
    again = f", measured {record.tries_discarded + 1} times because kernels were being compiled" if record.tries_discarded else ""
    return f"{again}; NOT STEADY: {record.kernels_compiled} compiled during this one too" if record.kernels_compiled else again


@dataclass(eq=False)
class Unfinished:
    """A cell on a server that is up, and its good repeats so far."""

    work: Work
    cell: Cell
    server: Server
    done: list[Record]
    over: bool = False

    @property
    def part(self) -> tuple[str, str]:
        """What its steps of the progress belong to."""
        return self.work.label, self.cell.label


class Runner:
    """One pass over what is left of a plan."""

    def __init__(self, ledger: Ledger, store: RecordStore) -> None:
        self._ledger, self._store, self._plan = ledger, store, ledger.plan
        self._failures: list[str] = []
        self._work = ledger.left()
        self._progress = Progress(expected_steps(ledger, self._work))

    def run(self) -> None:
        """Every server with cells left. Raises StudyError at the end if any failed."""
        chapter = self._plan.chapter
        if not self._work:
            print(f"{chapter}: every cell is on disk already, in {self._store.records_path}")
            return
        print(_headline(self._ledger, self._work))
        for together in groups(self._plan, self._work):
            self._group(together)
        if self._failures:
            raise StudyError(f"{chapter}: {len(self._failures)} failed; the rest is on disk.\n" + "\n".join(self._failures))

    def _group(self, together: Sequence[Work]) -> None:
        """Start them side by side; once all are up, measure one at a time while the rest stand idle."""
        engine = self._plan.profile.engine
        wanted = [(one.server.deployment, self._log(one)) for one in together]
        labels = _names(together)
        self._progress.start()
        waiting = Ticker(f"starting {'the server' if len(together) == 1 else f'{len(together)} servers'} for {labels}")
        with launch_together(wanted, engine=engine.name, timeout_s=engine.start_timeout_s, waiting=waiting) as started:
            servers = [server for server in started if isinstance(server, Server)]
            if servers:
                slowest_s = max(server.start_s for server in servers)
                self._progress.finish(labels, f"{labels}: {'server ready' if len(together) == 1 else f'{len(servers)} servers ready'} after {slowest_s:.0f} s")
            else:
                self._progress.drop(labels)
            up: dict[str, Server] = {}
            for one, server in zip(together, started, strict=True):
                if isinstance(server, Server):
                    up[one.label] = server
                else:
                    self._not_started(one, server)
            cells = [(one, cell) for one, cell in by_load(together) if one.label in up]
            self._rounds([Unfinished(one, cell, up[one.label], self._ledger.repeats(one.server, cell)) for one, cell in cells], servers)

    def _rounds(self, cells: Sequence[Unfinished], all_servers: Sequence[Server]) -> None:
        """One repeat of each, then the next, until each has enough.

        A host is faster in one minute than in another. Repeats that were measured in one go would all have the same luck, and their interval
        wouldn't show it; those of a round share it, and differ from round to round.
        """
        left = list(cells)
        while left:
            for cell in left:
                if not cell.over:
                    self._once(cell, left, all_servers)
            left = [cell for cell in left if not cell.over]

    def _once(self, cell: Unfinished, all_cells: Sequence[Unfinished], all_servers: Sequence[Server]) -> None:
        """One repeat. A server that has died takes its other cells with it."""
        try:
            self._cell(cell, all_servers)
        except StoreWriteError:
            raise
        except SpecstudyError as error:
            self._fail(cell.work, error)
            for other in all_cells:
                if other.server is cell.server and not other.over:
                    self._end(other)

    def _end(self, cell: Unfinished) -> None:
        """No further repeat of it."""
        self._progress.drop(cell.part)
        cell.over = True

    def _fail(self, one: Work, error: SpecstudyError) -> None:
        self._failures.append(f"{one.label}: {error}")
        print(f"FAILED {one.label}: {error}", flush=True)

    def _log(self, one: Work) -> Path:
        return self._store.records_path.parent / "logs" / f"{self._plan.chapter}-{one.label}.log"

    def _not_started(self, one: Work, error: ServerStartError) -> None:
        """One failed record, for the first of its cells: what was tried and didn't run is on the page, not in a log alone."""
        cell, repeat = one.cells[0], len(self._ledger.repeats(one.server, one.cells[0]))
        measured = unserved(cell.num_prompts, cell.arrival(self._seed(repeat)), error)
        self._keep(measured, one.server, cell, repeat, self._facts(self._log(one), self._ledger.argv(one.server), one.server))
        for lost in one.cells:
            self._progress.drop((one.label, lost.label))
        self._fail(one, error)

    def _cell(self, cell: Unfinished, all_servers: Sequence[Server]) -> None:
        """One repeat of a cell. It is over once its interval is narrow enough, or when a repeat fails."""
        self._progress.start()
        neighbours = sum(other is not cell.server and other.process.poll() is None for other in all_servers)
        record = self._repeat(cell.server, cell.work.server, cell.cell, len(cell.done), neighbours)
        what = f"{cell.work.label}, {cell.cell.label}, repeat {len(cell.done) + 1}"
        if record.status == "failed":
            self._failures.append(f"{what}: {record.error}")
            self._progress.finish(cell.part, f"{what}: FAILED: {record.error}")
            self._end(cell)
            cell.server.raise_if_dead()
            return
        cell.done.append(record)
        over = enough(self._plan.profile.measuring, cell.cell.repeats, cell.done)
        mean_s = sum(record.duration_s or 0.0 for record in cell.done) / len(cell.done)
        further = Step(cell.part, "repeat", mean_s) if not over and self._progress.left(cell.part) == 1 else None
        self._progress.finish(cell.part, f"{what}: {record.output_tokens_per_s:.1f} tok/s{_unsteady_text(record)}", further)
        if over:
            self._end(cell)

    def _repeat(self, server: Server, server_plan: ServerPlan, cell: Cell, repeat: int, idle_neighbours: int) -> Record:
        plan, rules = self._plan, self._plan.profile.measuring
        spec = plan.profile.workloads[cell.workload]
        seed = self._seed(repeat)
        prompts, warmups = cell.prompts(plan.pools[cell.workload], repeat, rules.seed)
        measured = measure(
            server,
            prompts,
            warmups,
            cell.arrival(seed),
            Sampling(spec.max_tokens, spec.temperature, cell.request_seed(seed), rules.warmup_max_tokens),
            max_schedule_lag_ms=rules.max_schedule_lag_ms,
        )
        if idle_neighbours:  # NVML sees the device's memory as a whole
            measured = replace(measured, figures={**measured.figures, "gpu_memory_peak_gib": None})
        facts = {**self._facts(server.log_path, portable(server.argv, cache_dir()), server_plan), "idle_neighbours": idle_neighbours}
        return self._keep(measured, server_plan, cell, repeat, facts)

    def _seed(self, repeat: int) -> int:
        return self._plan.profile.measuring.seed + repeat

    def _keep(self, measured: Measured, server_plan: ServerPlan, cell: Cell, repeat: int, facts: dict[str, Any]) -> Record:
        which = {"repeat": repeat, "seed": self._seed(repeat)}
        record = record_of(measured, {**cell_facts(self._plan, server_plan.deployment, cell), **facts, **which})
        self._store.append(record, measured.requests)
        self._ledger.add(record)
        return record

    def _facts(self, log_path: Path, argv: tuple[str, ...], server_plan: ServerPlan) -> dict[str, Any]:
        origin, engine = self._ledger.origin, ENGINES[self._plan.profile.engine.name]
        draft = server_plan.deployment.draft_path
        return {
            **log_facts(log_path),
            "draft_weights_gib": None if draft is None else weights_size_gib(draft),
            "engine": engine.name,
            "engine_version": engine.version() or "unknown",
            "allocation": origin.allocation,
            "git_sha": origin.git_sha,
            "packages": dict(origin.packages),
            "server_argv": argv,
            "host_cpu": origin.host_cpu,
            "host_cpus": origin.host_cpus,
        }
