"""Which acceptance a shape run imposes: a published acceptance length, and the acceptance by position that is put under it."""

from __future__ import annotations

from dataclasses import dataclass

from scipy.optimize import brentq

from specstudy.catalog.models import ChapterPlan, MethodSpec, Profile
from specstudy.catalog.published import published_acceptance
from specstudy.errors import ConfigError

SERVED_AS = {"eagle3.1": "eagle3"}  # a published row's method that an engine has under another name


@dataclass(frozen=True)
class Imposed:
    """An acceptance length, in tokens a step with the target's own counted, and where it comes from.

    `rates`: share of steps in which the first i drafted tokens are all accepted, i = 1 to K.
    """

    acceptance_length: float
    rates: tuple[float, ...]
    source: str


def constant_rate(acceptance_length: float, num_speculative_tokens: int) -> float:
    """The rate p at which each drafted token is accepted once all before it were, so that 1 + p + p² + … + p^K = AL.

    Where only a mean is published, this is the acceptance by position that is imposed: the first token's chance is p, the
    i-th's p^i. Real heads fall off faster with depth. Raises ConfigError for an AL outside [1, K + 1].
    """
    k = num_speculative_tokens
    if not 1 <= acceptance_length <= k + 1:
        raise ConfigError("acceptance_length", acceptance_length, f"from 1 to K + 1 = {k + 1}")
    if acceptance_length == k + 1:  # p = 1 is the interval's end, where the root finder may miss the sign
        return 1.0
    return float(brentq(lambda p: sum(p**i for i in range(k + 1)) - acceptance_length, 0.0, 1.0, xtol=1e-12))


def rates_by_position(rate: float, num_speculative_tokens: int) -> tuple[float, ...]:
    """Share of steps in which the first i drafted tokens are all accepted, i = 1 to K, at a constant rate."""
    return tuple(rate**i for i in range(1, num_speculative_tokens + 1))


def imposed(spec: MethodSpec, workload: str, num_speculative_tokens: int) -> Imposed:
    """What `spec` imposes on `workload` at this K: a published row's length, or one modelled from the row of another K.

    Modelled: the constant rate of that row, at this K. Raises ConfigError for a workload or a row that isn't there.
    """
    k = num_speculative_tokens
    if workload not in spec.imposes:
        raise ConfigError("imposes", sorted(spec.imposes) or None, f"published rows for workload {workload}: random weights accept nothing of their own")
    family = spec.imposes[workload]
    rows = {
        row.num_speculative_tokens: row
        for row in published_acceptance()
        if row.id.rpartition("/")[0] == family and SERVED_AS.get(row.method, row.method) == spec.method
    }
    of = spec.modelled.get(k, k)
    if of not in rows:
        known = ", ".join(f"k{one}" for one in sorted(one for one in rows if one is not None)) or "none"
        raise ConfigError("imposes", f"{family}/k{of}", f"a published row of method {spec.method}; there are {known}; another K can be modelled from one")
    row = rows[of]
    rate = constant_rate(row.acceptance_length, of)
    if of == k:
        by_position = row.acceptance_per_position
        if by_position is None:
            return Imposed(row.acceptance_length, rates_by_position(rate, k), f"{row.id}, at a constant rate by position")
        # What is imposed is what the positions make up, which with their rounding needn't be the published mean.
        return Imposed(round(1 + sum(by_position), 3), by_position, f"{row.id}, by position as published")
    if k in rows:
        raise ConfigError("modelled", {k: of}, f"only K without a published row; {rows[k].id} is one")
    rates = rates_by_position(rate, k)
    return Imposed(round(1 + sum(rates), 3), rates, f"modelled from {row.id} at its constant rate, {rate:.3f}")


def check_imposed(profile: Profile, shape: str | None) -> None:
    """A shape's drafting methods all impose an acceptance that is published for it, real ones none. Raises ConfigError.

    `shape` is the target's; a published row's id begins with the name of its own.
    """
    for chapter, plan in profile.chapters.items():
        for spec in plan.methods:
            field = f"chapters.{chapter}.methods.{spec.draft or spec.method}"
            if profile.evidence == "real" or spec.method == "none":
                if spec.imposes or spec.modelled:
                    raise ConfigError(f"{field}.imposes", spec.imposes or spec.modelled, "nothing: acceptance is imposed on drafts with random weights alone")
                continue
            served = _served(plan, spec)
            _nothing_left_over(spec, field, {workload for workload, _ in served}, shape)
            try:
                for workload, k in served:
                    imposed(spec, workload, k)
            except ConfigError as error:
                raise ConfigError(f"{field}.{error.field}", error.got, error.allowed) from None


def _served(plan: ChapterPlan, spec: MethodSpec) -> list[tuple[str, int]]:
    """Workloads and K that the method is measured on."""
    pairs = [(workload, k) for k in spec.num_speculative_tokens for workload in plan.workloads]
    for section in plan.sections:
        pairs += [(workload, k) for k in spec.num_speculative_tokens if section.wants(spec.method, spec.draft, k) for workload in section.workloads]
    return pairs


def _nothing_left_over(spec: MethodSpec, field: str, workloads: set[str], shape: str | None) -> None:
    """What is named is used, and is this target's: a slip of the pen would else pass unseen."""
    for workload, family in spec.imposes.items():
        if workload not in workloads:
            raise ConfigError.unknown(f"{field}.imposes", workload, workloads)
        if family.partition("/")[0] != shape:
            raise ConfigError(f"{field}.imposes.{workload}", family, f"published rows of the target's own shape: {shape}/…")
    for k in spec.modelled:
        if k not in spec.num_speculative_tokens:
            raise ConfigError(f"{field}.modelled", k, f"one of the method's K: {', '.join(map(str, spec.num_speculative_tokens))}")
