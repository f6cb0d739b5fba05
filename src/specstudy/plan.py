"""A profile and a chapter become servers to start and cells to measure on each."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from specstudy.analysis.stats import mean_interval
from specstudy.catalog import MethodSpec, Profile, load_draft, load_target
from specstudy.catalog.assets import Say
from specstudy.catalog.imposed import imposed
from specstudy.catalog.materialise import draft_folder, target_folder
from specstudy.catalog.models import TOKEN_DATASETS, Arrivals, ChapterPlan, EngineVariant, Measuring, Section
from specstudy.errors import ConfigError
from specstudy.records import Method, Pattern, Record
from specstudy.serving import Deployment, deploy
from specstudy.serving.checks import read_config
from specstudy.workloads import Arrival, Closed, Open, Pool, Prompt, TokenCounter, build_pool, dataset, kept_token_counter, poisson, random_pool, steps, trace


@dataclass(frozen=True)
class Cell:
    """One workload at one load; `repeats` where there are to be exactly so many, `acceptance_source` where acceptance is imposed."""

    workload: str
    pattern: Pattern
    concurrency: int | None
    request_rate: float | None
    num_prompts: int
    warmups: int
    schedule: Open | None = None
    repeats: int | None = None
    acceptance_source: str | None = None

    @property
    def label(self) -> str:
        """Like chat c=8 or chat poisson 2/s."""
        return f"{self.workload} c={self.concurrency}" if self.concurrency is not None else f"{self.workload} {self.pattern} {self.request_rate:.3g}/s"

    def arrival(self, seed: int) -> Arrival:
        """Its arrivals. Poisson ones are drawn anew for each `seed`; steps and a trace are the same in each repeat."""
        if self.concurrency is not None:
            return Closed(self.concurrency)
        if self.schedule is not None:
            return self.schedule
        assert self.request_rate is not None
        return poisson(self.request_rate, self.num_prompts, seed)

    def request_seed(self, seed: int) -> int:
        """Seed of a repeat's first request; the others count up from it. No other repeat or load has the same, each method has.

        vLLM's model runner V2 draws an imposed acceptance from a request's seed and the token's position alone: repeats that shared seeds would draw
        the same and agree far better than they should.
        """
        return zlib.crc32(f"{self.label} {seed}".encode()) << 20

    def prompts(self, pool: Pool, repeat: int, seed: int) -> tuple[list[Prompt], list[Prompt]]:
        """(measured, warm-up) prompts of one repeat: other ones in each repeat, the same ones for each method."""
        measured = pool.draw(self.num_prompts, seed=seed, start=self.warmups + repeat * self.num_prompts)
        return measured, pool.draw(self.warmups, seed=seed)


@dataclass(frozen=True)
class ServerPlan:
    """One server and the cells that it serves."""

    deployment: Deployment
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Plan:
    """All that a chapter measures live."""

    profile: Profile
    chapter: str
    servers: tuple[ServerPlan, ...]
    pools: dict[str, Pool]


def check_chapter(profile: Profile, chapter: str) -> None:
    """Raises ConfigError for a chapter that the profile doesn't measure."""
    if chapter not in profile.chapters:
        raise ConfigError.unknown("chapter", chapter, profile.chapters)


def make_plan(profile: Profile, chapter: str, say: Say, names: Sequence[str] = ()) -> Plan:
    """Materialise what the chapter needs and lay out its servers, the baseline first.

    With `names` only the servers whose engine variant, method, draft or label is among them, and their baseline: what is measured
    apart from its baseline can't be compared. Raises ConfigError or AssetError; nothing is started.
    """
    check_chapter(profile, chapter)
    wanted = profile.chapters[chapter]
    folder = target_folder(load_target(profile.target), say)
    methods = sorted(wanted.methods, key=lambda spec: spec.method != "none")
    engines = [_as_served(profile, variant, folder, say) for variant in wanted.variants or (None,)]
    deployments = [one for served in engines for spec in methods for one in _deployments(*served, spec, wanted, say)]
    servers = tuple(ServerPlan(deployment, _cells_of(profile, wanted, deployment)) for deployment in _only(deployments, names))
    cells = dict.fromkeys(cell for server in servers for cell in server.cells)
    with kept_token_counter(folder) as count_tokens:
        read = cache(lambda name, path: tuple(dataset(name, path, say)))  # several workloads may draw from one dataset
        pools = {name: _pool(profile, folder, name, read, count_tokens, say) for name in dict.fromkeys(cell.workload for cell in cells)}
    for cell in cells:
        pool = pools[cell.workload]
        cell.prompts(pool, 0, profile.measuring.seed)  # too few prompts: refused now, not in mid-run
        if cell.warmups + (cell.repeats or profile.measuring.min_repeats) * cell.num_prompts > len(pool.prompts):
            say(f"{cell.label}: {len(pool.prompts)} prompts are too few for repeats that share none; some will be measured more than once")
    return Plan(profile, chapter, servers, pools)


def _only(deployments: Sequence[Deployment], names: Sequence[str]) -> list[Deployment]:
    known = {name for deployment in deployments for name in _names(deployment)}
    for name in names:
        if name not in known:
            raise ConfigError.unknown("only", name, known)
    chosen = [one for one in deployments if not names or _names(one) & set(names)]
    served = {one.engine_variant for one in chosen}
    return [one for one in deployments if one in chosen or (one.method == "none" and one.engine_variant in served)]


def _names(deployment: Deployment) -> set[str]:
    return {name for name in (deployment.engine_variant, deployment.method, deployment.draft, deployment.label) if name is not None}


def at_concurrencies(profile: Profile, chapter: str, wanted: Sequence[int]) -> Profile:
    """The profile with these closed loads of the chapter alone, and no open one: parts of a grid may then be measured side by side.

    A load has its baseline beside it where the whole chapter has. Raises ConfigError for a concurrency at which the chapter measures nothing.
    """
    check_chapter(profile, chapter)
    plan = profile.chapters[chapter]
    known = {load for arrivals in (plan.arrivals, *(section.arrivals for section in plan.sections)) for load in arrivals.concurrencies}
    for load in wanted:
        if load not in known:
            raise ConfigError.unknown("concurrency", load, [str(one) for one in sorted(known)])

    def kept(arrivals: Arrivals) -> Arrivals:
        left = tuple(load for load in arrivals.concurrencies if load in wanted)
        return arrivals.model_copy(update={"pattern": "closed", "concurrencies": left})

    sections = tuple(section.model_copy(update={"arrivals": kept(section.arrivals)}) for section in plan.sections)
    part = plan.model_copy(update={"arrivals": kept(plan.arrivals), "sections": sections})
    return profile.model_copy(update={"chapters": {**profile.chapters, chapter: part}})


def with_repeats(profile: Profile, chapter: str, repeats: int) -> Profile:
    """The profile with exactly so many repeats of every cell of the chapter, whatever its rules and sections say."""
    check_chapter(profile, chapter)
    rules = profile.measuring.model_copy(update={"min_repeats": repeats, "max_repeats": repeats})
    plan = profile.chapters[chapter]
    part = plan.model_copy(update={"sections": tuple(section.model_copy(update={"repeats": None}) for section in plan.sections)})
    return profile.model_copy(update={"measuring": rules, "chapters": {**profile.chapters, chapter: part}})


@dataclass(frozen=True)
class PlannedLoad:
    """One workload at one load, as a chapter states it; the fields are those of `Arrivals`, with one concurrency and one rate."""

    workload: str
    pattern: Pattern
    concurrency: int | None = None
    request_rate: float | None = None
    stages: tuple[tuple[float, float], ...] = ()
    trace: str = ""
    requests: int = field(default=0, compare=False)


def planned_loads(chapter: ChapterPlan, method: Method, draft: str | None, k: int | None) -> dict[PlannedLoad, Section | None]:
    """Each load of one server once, with the first section that names it; None for the chapter's own, which come first. No file is read."""
    parts: list[tuple[Section | None, Sequence[str], Arrivals]] = [(None, chapter.workloads, chapter.arrivals)]
    parts += [(section, section.workloads, section.arrivals) for section in chapter.sections if section.wants(method, draft, k)]
    loads: dict[PlannedLoad, Section | None] = {}
    for section, workloads, arrivals in parts:
        for load in (load for workload in workloads for load in _loads(workload, arrivals)):
            loads.setdefault(load, section)
    return loads


def _loads(workload: str, arrivals: Arrivals) -> list[PlannedLoad]:
    """`Arrivals` holds what belongs to its own pattern and nothing else."""
    if arrivals.pattern == "closed":
        return [PlannedLoad(workload, "closed", concurrency=c) for c in arrivals.concurrencies]
    if arrivals.pattern == "poisson":
        return [PlannedLoad(workload, "poisson", request_rate=rate, requests=arrivals.requests) for rate in arrivals.request_rates]
    return [PlannedLoad(workload, arrivals.pattern, stages=arrivals.stages, trace=arrivals.trace)]


def _cells_of(profile: Profile, chapter: ChapterPlan, deployment: Deployment) -> tuple[Cell, ...]:
    """The loads of one server; one that imposes an acceptance gets the workloads that it is published for."""
    loads = planned_loads(chapter, deployment.method, deployment.draft, deployment.num_speculative_tokens)
    cells = [_cell(profile.measuring, load, section) for load, section in loads.items()]
    if deployment.imposed_acceptance_length is None:
        return tuple(cells)
    sources = {cell.workload: _imposed_by(deployment, chapter, cell.workload) for cell in cells}
    return tuple(replace(cell, acceptance_source=source) for cell in cells if (source := sources[cell.workload]) is not None)


def _imposed_by(deployment: Deployment, chapter: ChapterPlan, workload: str) -> str | None:
    """Where the workload's acceptance comes from, if this server imposes it."""
    k = deployment.num_speculative_tokens
    for spec in chapter.methods:
        if k is not None and (spec.method, spec.draft) == (deployment.method, deployment.draft) and k in spec.num_speculative_tokens:
            wanted = imposed(spec, workload, k)
            if wanted.rates == deployment.imposed_acceptance_rates:
                return wanted.source
    return None


def _cell(rules: Measuring, load: PlannedLoad, section: Section | None) -> Cell:
    per_slot, repeats = rules.prompts_per_slot, None
    if section is not None:
        per_slot, repeats = section.prompts_per_slot or per_slot, section.repeats
    if (c := load.concurrency) is not None:
        return Cell(load.workload, load.pattern, c, None, per_slot * c, rules.warmups_per_slot * c, repeats=repeats)
    warmups = 2 * rules.warmups_per_slot
    if load.request_rate is not None:
        return Cell(load.workload, load.pattern, None, load.request_rate, load.requests, warmups, repeats=repeats)
    schedule = steps(load.stages, rules.seed) if load.stages else trace(Path(load.trace).expanduser())
    return Cell(load.workload, load.pattern, None, schedule.rate, len(schedule.times_s), warmups, schedule, repeats)


def _as_served(profile: Profile, variant: EngineVariant | None, folder: Path, say: Say) -> tuple[Profile, Path, str | None]:
    """(the profile with the variant's engine, the folder of the target, the variant's name)."""
    if variant is None:
        return profile, folder, None
    engine = profile.engine.model_copy(
        update={
            "quantization": variant.quantization,
            "max_model_len": variant.max_model_len or profile.engine.max_model_len,
            "flags": {**profile.engine.flags, **variant.flags},
            "env": {**profile.engine.env, **variant.env},
        }
    )
    if variant.target is None:
        return profile.model_copy(update={"engine": engine}), folder, variant.name
    other = load_target(variant.target)
    return profile.model_copy(update={"engine": engine, "target": other.name}), target_folder(other, say), variant.name


def _deployments(profile: Profile, folder: Path, name: str | None, spec: MethodSpec, chapter: ChapterPlan, say: Say) -> Iterator[Deployment]:
    """One for each K; where acceptance is imposed, one for each that the method's workloads have at that K."""
    draft_path = None if spec.draft is None else str(draft_folder(load_draft(spec.draft), say))
    for k in spec.num_speculative_tokens or (None,):
        for acceptance in _acceptances(spec, k):
            yield deployment_of(
                profile,
                str(folder),
                chapter_env=chapter.env,
                engine_variant=name,
                method=spec.method,
                draft=spec.draft,
                draft_path=draft_path,
                num_speculative_tokens=k,
                prompt_lookup_min=spec.prompt_lookup_min,
                prompt_lookup_max=spec.prompt_lookup_max,
                **acceptance,
            )


def _acceptances(spec: MethodSpec, k: int | None) -> list[dict[str, object]]:
    """The deployment's fields for each acceptance that `spec` imposes at this K, in the order of its workloads; one without any if none is."""
    if k is None or not spec.imposes:
        return [{}]
    wanted = {one.rates: one.acceptance_length for one in (imposed(spec, workload, k) for workload in spec.imposes)}
    return [{"imposed_acceptance_length": length, "imposed_acceptance_rates": rates} for rates, length in wanted.items()]


def deployment_of(profile: Profile, target_path: str, *, chapter_env: Mapping[str, str] = MappingProxyType({}), **method: object) -> Deployment:
    """The profile's target and engine with one method. Raises ConfigError."""
    engine = profile.engine
    return deploy(
        target=profile.target,
        target_path=target_path,
        hardware=profile.hardware,
        dtype=profile.dtype,
        quantization=engine.quantization,
        kv_cache_dtype=engine.kv_cache_dtype,
        max_model_len=engine.max_model_len,
        max_num_seqs=engine.max_num_seqs,
        random_weights=profile.evidence == "shape",
        flags=engine.flags,
        env={**engine.env, **chapter_env},
        **method,
    )


def _pool(profile: Profile, folder: Path, name: str, read: Callable[[str, str | None], Sequence[Prompt]], count_tokens: TokenCounter, say: Say) -> Pool:
    spec = profile.workloads[name]
    if spec.max_prompt_tokens + spec.max_tokens > profile.engine.max_model_len:
        raise ConfigError(
            f"workloads.{name}.max_prompt_tokens", spec.max_prompt_tokens, f"with max_tokens at most max_model_len, {profile.engine.max_model_len}"
        )
    if spec.dataset in TOKEN_DATASETS:
        pool = random_pool(name, spec, read_config(str(folder), "target")["vocab_size"])
        say(f"workload {name}: {len(pool.prompts):,} prompts of random token ids")
        return pool
    pool = build_pool(
        name,
        read(spec.dataset, spec.path),
        count_tokens=count_tokens,
        min_tokens=spec.min_prompt_tokens,
        max_tokens=spec.max_prompt_tokens,
    )
    say(f"workload {name}: {len(pool.prompts):,} prompts of {pool.read:,} ({pool.duplicates:,} duplicates, {pool.out_of_length:,} of another length)")
    return pool


def cell_facts(plan: Plan, deployment: Deployment, cell: Cell) -> dict[str, Any]:
    """The fields of a record that say what was measured; two records that agree in them are repeats of one cell."""
    profile, spec = plan.profile, plan.profile.workloads[cell.workload]
    return {
        "profile": profile.name,
        "chapter": plan.chapter,
        "evidence": profile.evidence,
        "target": deployment.target,
        "quantization": deployment.quantization,
        "dtype": deployment.dtype,
        "kv_cache_dtype": deployment.kv_cache_dtype,
        "engine_variant": deployment.engine_variant,
        "server_env": tuple(sorted(f"{name}={value}" for name, value in deployment.env.items())),
        "method": deployment.method,
        "draft": deployment.draft,
        "num_speculative_tokens": deployment.num_speculative_tokens,
        "imposed_acceptance_length": deployment.imposed_acceptance_length,
        "acceptance_source": cell.acceptance_source,
        "workload": cell.workload,
        "pattern": cell.pattern,
        "concurrency": cell.concurrency,
        "request_rate": cell.request_rate,
        "num_prompts": cell.num_prompts,
        "max_tokens": spec.max_tokens,
        "temperature": spec.temperature,
        "dataset_sha256": plan.pools[cell.workload].sha256,
    }


def enough(rules: Measuring, wanted: int | None, repeats: Sequence[Record]) -> bool:
    """Whether a cell needs no further repeat.

    As many as are `wanted` of it, if its section says a number. Otherwise at least min_repeats; then until the 95 % interval
    of throughput is narrow enough, max_repeats are done, or one more would pass the cell's time budget. It looks
    at records alone, so a rerun decides as the run did.
    """
    n = len(repeats)
    if wanted is not None:
        return n >= wanted
    if n < rules.min_repeats:
        return False
    if n >= rules.max_repeats or mean_interval([record.output_tokens_per_s or 0.0 for record in repeats]).half_width_share <= rules.target_interval:
        return True
    spent_s = sum(record.duration_s or 0.0 for record in repeats)
    return rules.cell_budget_s is not None and spent_s * (n + 1) / n > rules.cell_budget_s


# A step that drafts takes longer than one that doesn't: of the tokens that it delivers, this share is gained.
GAINED = 0.8


def expected_repeat_s(
    cell: Cell, max_tokens: int, earlier: Sequence[Record], rules: Measuring, acceptance_length: float | None = None, same_method: Sequence[Record] = ()
) -> float:
    """Expected seconds of one repeat with its warm-up: what this load took before, with `same_method` rather than with another; else what its like
    took a token; else the profile's guess.

    The guess is of a server without drafts; `acceptance_length`, where it is imposed, shortens it.
    """
    shorter = min(1.0, rules.warmup_max_tokens / max_tokens) if rules.warmup_max_tokens else 1.0
    share = 1 + shorter * cell.warmups / cell.num_prompts
    load = (cell.workload, cell.concurrency, cell.request_rate, cell.num_prompts)
    for known in (same_method, earlier):
        same = [r.duration_s for r in known if r.duration_s and (r.workload, r.concurrency, r.request_rate, r.num_prompts, r.max_tokens) == (*load, max_tokens)]
        if same:
            return share * sum(same) / len(same)
    if cell.request_rate:
        return share * cell.num_prompts / cell.request_rate
    closed = [r for r in earlier if r.duration_s and r.concurrency]
    like = [r for r in closed if r.concurrency == cell.concurrency] or closed
    slot_token_s = [(r.duration_s or 0.0) * (r.concurrency or 1) / (r.num_prompts * r.max_tokens) for r in like]
    each_s = sum(slot_token_s) / len(slot_token_s) if slot_token_s else rules.tpot_guess_ms / 1e3 / max(1.0, GAINED * (acceptance_length or 1.0))
    return share * cell.num_prompts / (cell.concurrency or 1) * max_tokens * each_s
