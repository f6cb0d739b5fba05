"""What a token costs: throughput and a GPU's price by the hour to dollars a million output tokens, and back to a break-even.

USD a million tokens = (USD an hour / 3,600) / (tokens a second) x 10^6. The whole hour is charged to the output tokens, so the
time that went into the prompts is in it, and no price is put on an input token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isnan, log

from specstudy.analysis.cells import Cell, Load
from specstudy.analysis.families import Family, family_of
from specstudy.analysis.speedup import Speedup, speedups
from specstudy.analysis.stats import Interval

SECONDS_PER_HOUR = 3600
MILLION = 1e6


def usd_per_million(tokens_per_s: float, usd_per_hour: float) -> float:
    """US dollars a million tokens. Raises ValueError unless both are above 0."""
    if tokens_per_s <= 0 or usd_per_hour <= 0:
        raise ValueError(f"a cost needs a throughput and a price above 0, not {tokens_per_s} and {usd_per_hour}")
    return usd_per_hour / SECONDS_PER_HOUR / tokens_per_s * MILLION


def break_even_tokens_per_s(usd_per_hour: float, usd_per_1m: float) -> float:
    """Output tokens a second at which an hour of hardware costs what `usd_per_1m` asks for them. Raises ValueError unless both are above 0."""
    return usd_per_million(usd_per_1m, usd_per_hour)  # the formula is its own inverse: cost and throughput trade places


def cost_interval(throughput: Interval, usd_per_hour: float) -> Interval:
    """The throughput's interval carried through, in US dollars a million tokens.

    Cost falls as throughput rises, so the ends change places and the confidence stays. The upper end is inf where the
    throughput's lower end isn't above 0; both are nan for one repeat.
    """
    low, high = throughput.low, throughput.high
    cost = usd_per_million(throughput.estimate, usd_per_hour)
    if isnan(low) or isnan(high):
        return Interval(cost, low, high, throughput.n)
    return Interval(cost, usd_per_million(high, usd_per_hour), usd_per_million(low, usd_per_hour) if low > 0 else inf, throughput.n)


def reaches(throughput: Interval, needed: float) -> str:
    """Whether a throughput lies above or below what is needed; not told apart where its interval holds it, or there is none."""
    if not throughput.excludes(needed):
        return "not told apart"
    return "above" if throughput.estimate > needed else "below"


def gpus_of(cell: Cell) -> int:
    """GPUs that the server could use, so that were paid for; 1 where the records don't name them."""
    return max(1, len(cell.records[-1].gpu_uuids or ()))


@dataclass(frozen=True)
class CellCost:
    """One cell in US dollars a million output tokens, prompts included in the time, GPU always busy."""

    cell: Cell
    usd_per_hour: float
    usd_per_1m: Interval

    def at(self, busy: float) -> Interval:
        """The same when the GPU serves during `busy` of the paid time and idles in the rest. Raises ValueError unless 0 < busy <= 1."""
        if not 0 < busy <= 1:
            raise ValueError(f"the busy share lies above 0 and up to 1, not {busy}")
        one = self.usd_per_1m
        return Interval(one.estimate / busy, one.low / busy, one.high / busy, one.n)


def cell_costs(cells: Sequence[Cell], usd_per_gpu_hour: float) -> list[CellCost]:
    """One for each cell with a throughput above 0, in the cells' order."""
    found = []
    for cell in cells:
        throughput = cell.interval("output_tokens_per_s")
        if throughput is not None and throughput.estimate > 0:
            hour = usd_per_gpu_hour * gpus_of(cell)
            found.append(CellCost(cell, hour, cost_interval(throughput, hour)))
    return found


def cheapest_k(costs: Sequence[CellCost]) -> list[CellCost]:
    """The baselines, and of each family its cheapest K at each load. The cheapest of several is a little flattered by chance."""
    best: dict[tuple[Family, str | None, Load, int | None], CellCost] = {}
    for one in costs:
        family, variant = family_of(one.cell.variant), one.cell.variant
        key = family, variant.engine_variant, one.cell.load, one.cell.gpu_number if family.method == "none" else None
        if key not in best or one.usd_per_1m.estimate < best[key].usd_per_1m.estimate:
            best[key] = one
    return list(best.values())


def input_per_output(cells: Sequence[Cell]) -> float | None:
    """Prompt tokens for each completion token over all requests of `cells`; None where they weren't counted."""
    prompts = sum(float(cell.requests["prompt_tokens"].sum()) for cell in cells)
    completions = sum(float(cell.requests["completion_tokens"].sum()) for cell in cells)
    return prompts / completions if completions else None


@dataclass(frozen=True)
class CostChange:
    """Cost of a method over its baseline's: the speedup turned over, so paired by repeat, and no price is in it."""

    speedup: Speedup

    @property
    def ratio(self) -> Interval:
        """Under 1 is cheaper."""
        one = self.speedup.ratio
        return Interval(1 / one.estimate, 1 / one.high, 1 / one.low, one.n)

    @property
    def verdict(self) -> str:
        """cheaper, dearer, no difference, or what is missing to say so."""
        return {"faster": "cheaper", "slower": "dearer"}.get(self.speedup.verdict, self.speedup.verdict)


def cost_changes(cells: Sequence[Cell]) -> list[CostChange]:
    """One for each cell with a method whose load has a baseline in the same allocation."""
    return [CostChange(one) for one in speedups(cells)]


def best_changes(changes: Sequence[CostChange]) -> list[CostChange]:
    """Of each family its lowest ratio at each load, families in order and loads rising; what `on_another_runner` holds is left out."""
    best: dict[tuple[Family, Load], CostChange] = {}
    for one in changes:
        key = family_of(one.speedup.cell.variant), one.speedup.cell.load
        if one.speedup.same_runner and (key not in best or one.ratio.estimate < best[key].ratio.estimate):
            best[key] = one
    order = list(dict.fromkeys(family for family, _ in best))
    return [best[key] for key in sorted(best, key=lambda key: (order.index(key[0]), key[1].order))]


def on_another_runner(changes: Sequence[CostChange]) -> list[Family]:
    """Families that ran on another model runner than their baseline at every load: their ratio measures the runner too."""
    compared = {family_of(one.speedup.cell.variant) for one in changes if one.speedup.same_runner}
    return [family for family in dict.fromkeys(family_of(one.speedup.cell.variant) for one in changes) if family not in compared]


def largest_change(changes: Sequence[CostChange]) -> CostChange | None:
    """The one furthest from 1 on a log scale among those that are told apart from 1; None if none is."""
    told_apart = [one for one in changes if one.verdict in ("cheaper", "dearer")]
    return max(told_apart, key=lambda one: abs(log(one.ratio.estimate)), default=None)
