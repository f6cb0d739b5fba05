"""Trace the servers of a chapter, one after the other, and keep what each one's decode step is made of."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from specstudy.catalog import Profile
from specstudy.catalog.paths import project_root
from specstudy.errors import ConfigError, SpecstudyError, StudyError
from specstudy.measure import Sampling, check_device, gpu_identity, gpu_uuids, measure
from specstudy.measure.trace import profiler_flags, raise_if_unsteady, steps_of_load, steps_to_skip, trace
from specstudy.plan import Cell, Plan, ServerPlan, cell_facts, make_plan
from specstudy.progress import Ticker, tell
from specstudy.records import RecordStore, provenance
from specstudy.records.trace import StepTrace, trace_path, write_trace
from specstudy.runner import argv_of
from specstudy.serving import ENGINES, launch

TRACED_STEPS = 24


def trace_chapter(profile: Profile, chapter: str, folder: Path, names: Sequence[str] = (), concurrency: int = 1) -> list[StepTrace]:
    """Trace each of the chapter's servers at one of its closed loads and keep the traces in `folder`.

    Raises ConfigError before anything starts, StoreBusyError while the chapter is being measured into the folder, StudyError at the end if a server
    failed; the others' traces are kept.
    """
    if profile.hardware != "gpu":
        raise ConfigError("profile", profile.name, "a profile for a GPU: on a CPU no kernel of its own takes a step's time")
    plan = make_plan(profile, chapter, tell, names)
    loads = [(server, cell) for server in plan.servers if (cell := _cell_at(server, concurrency)) is not None]
    if not loads:
        known = sorted({str(cell.concurrency) for server in plan.servers for cell in server.cells if cell.concurrency is not None}, key=int)
        raise ConfigError.unknown("concurrency", concurrency, known)
    check_device(profile.hardware)
    traces, failures = [], []
    with RecordStore.writing(folder, chapter):  # nobody measures beside a server that is being traced
        for server, cell in loads:
            try:
                traces.append(_trace_one(plan, server, cell, folder))
            except SpecstudyError as error:
                failures.append(f"{server.deployment.label}: {error}")
                print(f"FAILED {failures[-1]}", flush=True)
    if failures:
        raise StudyError(f"{chapter}: {len(failures)} of {len(loads)} servers weren't traced; the others' traces are on disk.\n" + "\n".join(failures))
    return traces


def _cell_at(server: ServerPlan, concurrency: int) -> Cell | None:
    return next((cell for cell in server.cells if cell.concurrency == concurrency), None)


def _trace_one(plan: Plan, server: ServerPlan, cell: Cell, folder: Path) -> StepTrace:
    """Start the server with the profiler at hand, measure without it, then trace."""
    profile, deployment, engine = plan.profile, server.deployment, plan.profile.engine
    spec, c = profile.workloads[cell.workload], cell.concurrency or 1
    lasting = steps_of_load(c, TRACED_STEPS) * (1 + (deployment.num_speculative_tokens or 0))
    longest = min(deployment.max_model_len - spec.max_prompt_tokens, lasting)
    prompts, warmups = cell.prompts(plan.pools[cell.workload], 0, profile.measuring.seed)
    seed, origin, identity = profile.measuring.seed, provenance(project_root(), gpu_uuids()), gpu_identity()
    log_path = folder / "logs" / f"trace-{deployment.label}.log"
    with tempfile.TemporaryDirectory(prefix="specstudy-trace-") as scratch:
        with_profiler = deployment.model_copy(update={"flags": {**deployment.flags, **profiler_flags(Path(scratch), steps_to_skip(c), TRACED_STEPS)}})
        waiting = Ticker(f"starting the server for {deployment.label}")
        with launch(with_profiler, log_path, engine=engine.name, timeout_s=engine.start_timeout_s, waiting=waiting) as running:
            plain = measure(running, prompts, warmups, cell.arrival(seed), Sampling(spec.max_tokens, spec.temperature, cell.request_seed(seed)))
            raise_if_unsteady(plain)
            found = trace(running, prompts[:c], Path(scratch), Sampling(longest, spec.temperature, cell.request_seed(seed)))
    facts = cell_facts(plan, deployment, cell)
    kept = StepTrace(
        **{name: facts[name] for name in StepTrace.model_fields.keys() & facts.keys()},
        allocation=origin.allocation,
        measured_at=datetime.now(UTC),
        engine=engine.name,
        engine_version=ENGINES[engine.name].version() or "unknown",
        tpot_ms=plain.figures["tpot_ms_p50"],
        untraced_step_ms=plain.figures["chunk_gap_ms_p50"],
        acceptance_length=plain.figures.get("acceptance_length"),
        steps=found.steps,
        step_ms=found.step_ms,
        idle_ms=found.idle_ms,
        kernels=found.kernels,
        gpu=identity.label if identity else None,
        git_sha=origin.git_sha,
        server_argv=argv_of(deployment, engine.name),
    )
    path = trace_path(folder, plan.chapter, origin.allocation, deployment.label, cell.workload, c)
    write_trace(path, kept)
    steps_told = f"step {kept.untraced_step_ms:.2f} ms, traced {kept.step_ms:.2f} ms"
    print(f"{deployment.label}, {cell.label}: TPOT {kept.tpot_ms:.2f} ms, {steps_told}, idle {kept.idle_ms:.2f} ms: {path}", flush=True)
    return kept
