"""What a profile plans for a chapter and nobody has recorded yet: a page says what it lacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specstudy.analysis import Cell
from specstudy.catalog import Profile
from specstudy.catalog.models import Arrivals, ChapterPlan, MethodSpec

# (workload, concurrency, requests per second)
Load = tuple[str, int | None, float | None]


def unrecorded(profile: Profile, chapter: str, cells: Sequence[Cell]) -> str:
    """A Markdown sentence that names the servers and loads of the plan without a record; empty when all are there."""
    plan = profile.chapters[chapter]
    have: dict[tuple[str, str | None, int | None], set[Load]] = {}
    for cell in cells:
        key = (cell.variant.method, cell.variant.draft, cell.variant.num_speculative_tokens)
        have.setdefault(key, set()).add((cell.load.workload, cell.load.concurrency, cell.load.request_rate))
    lacking = [sentence for spec in plan.methods for sentence in _of_method(plan, spec, have)]
    return f"**Planned and not recorded:** {'; '.join(lacking)}." if lacking else ""


def _of_method(plan: ChapterPlan, spec: MethodSpec, have: dict[tuple[str, str | None, int | None], set[Load]]) -> Iterator[str]:
    name, nothing = spec.draft or ("baseline" if spec.method == "none" else spec.method), []
    for k in spec.num_speculative_tokens or (None,):
        planned = list(dict.fromkeys(_loads_of(plan, spec, k)))
        missing = [load for load in planned if load not in have.get((spec.method, spec.draft, k), set())]
        if missing and len(missing) == len(planned):
            nothing.append(k)
        elif missing:
            yield f"{name}{'' if k is None else f' K={k}'} at {', '.join(_label(load) for load in missing)}"
    if nothing:
        yield name if nothing == [None] else f"{name} K={', '.join(str(k) for k in nothing)}"


def _loads_of(plan: ChapterPlan, spec: MethodSpec, k: int | None) -> Iterator[Load]:
    yield from _loads(plan.workloads, plan.arrivals)
    for section in plan.sections:
        if section.wants(spec.method, spec.draft, k):
            yield from _loads(section.workloads, section.arrivals)


def _loads(workloads: Sequence[str], arrivals: Arrivals) -> Iterator[Load]:
    for workload in workloads:
        for c in arrivals.concurrencies:
            yield workload, c, None
        for rate in arrivals.request_rates:
            yield workload, None, rate


def _label(load: Load) -> str:
    workload, concurrency, rate = load
    return f"{workload} c={concurrency}" if concurrency is not None else f"{workload} {rate:g}/s"
