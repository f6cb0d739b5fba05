"""What a profile plans for a chapter and nobody has recorded yet: a page says what it lacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from specstudy.analysis import Cell, Load, Variant
from specstudy.catalog import Profile
from specstudy.catalog.models import ChapterPlan, MethodSpec, Section
from specstudy.plan import PlannedLoad, planned_loads
from specstudy.records import Method

# (workload, pattern, concurrency, requests per second); of steps and a trace the rate isn't stated, so it isn't looked at.
Key = tuple[str, str, int | None, float | None]


def unrecorded(profile: Profile, chapter: str, cells: Sequence[Cell]) -> str:
    """A Markdown sentence that names the servers and loads of the plan without a record; empty when all are there."""
    plan = profile.chapters[chapter]
    have: dict[Variant, set[Key]] = {}
    for cell in cells:
        have.setdefault(cell.variant, set()).add(load_key(cell.load))
    engines = tuple(variant.name for variant in plan.variants)
    lacking = [sentence for engine in engines or (None,) for spec in plan.methods for sentence in _of_method(plan, spec, engine, have)]
    return f"**Planned and not measured:** {'; '.join(lacking)}." if lacking else ""


def _of_method(plan: ChapterPlan, spec: MethodSpec, engine: str | None, have: Mapping[Variant, set[Key]]) -> Iterator[str]:
    name, nothing = _name(spec, engine), []
    for k in spec.num_speculative_tokens or (None,):
        found = have.get(Variant(spec.method, spec.draft, k, engine), set())
        planned = planned_loads(plan, spec.method, spec.draft, k)
        missing = [load for load in planned if load_key(load) not in found]
        if missing and len(missing) == len(planned):
            nothing.append(k)
        elif missing:
            yield f"{name}{'' if k is None else f' K={k}'} at {', '.join(map(_label, missing))}"
    if nothing:
        yield name if nothing == [None] else f"{name} K={', '.join(str(k) for k in nothing)}"


def _name(spec: MethodSpec, engine: str | None) -> str:
    if spec.method == "none":
        return engine or "baseline"
    return f"{'' if engine is None else f'{engine}, '}{spec.draft or spec.method}"


def planned_sections(plan: ChapterPlan, method: Method, draft: str | None, k: int | None) -> dict[Key, Section | None]:
    """The section that each planned load of a server comes from; None for the chapter's own loads."""
    return {load_key(load): section for load, section in planned_loads(plan, method, draft, k).items()}


def load_key(load: PlannedLoad | Load) -> Key:
    """What a planned load and a measured one have in common if they are the same."""
    return load.workload, load.pattern, load.concurrency, load.request_rate if load.pattern == "poisson" else None


def _label(load: PlannedLoad) -> str:
    if load.concurrency is not None:
        return f"{load.workload} c={load.concurrency}"
    return f"{load.workload} {load.request_rate:g}/s" if load.request_rate is not None else f"{load.workload} {load.pattern}"
