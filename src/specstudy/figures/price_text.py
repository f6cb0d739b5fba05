"""Sentences on cost: the cheapest cell, what speculation changes, and what may stand beside a list price."""

from __future__ import annotations

from collections.abc import Sequence

from specstudy.analysis import (
    Cell,
    CellCost,
    CostChange,
    against,
    best_changes,
    break_even_tokens_per_s,
    cell_costs,
    cheapest_k,
    cost_changes,
    families,
    family_of,
    input_per_output,
    largest_change,
    on_another_runner,
    reaches,
)
from specstudy.catalog.prices import Charged, TokenPrice, hosted_weights_of, token_prices
from specstudy.figures.price import price_text, usd_text
from specstudy.figures.prose import some_of
from specstudy.figures.tables import ratio_text
from specstudy.figures.text import NO_RECORDS, Text, bullets

# The list prices that the study's question names: the current Sonnet and GPT-5.4.
ASKED_ABOUT = ("anthropic/sonnet-5.5", "openai/gpt-5.4")


def cost_lines(cells: Sequence[Cell], price: Charged, target: str) -> Text:
    """What the records and the price say together, as a list."""
    costs = cell_costs(cells, price.usd_per_gpu_hour)
    if not costs:
        return NO_RECORDS
    paired = cost_changes(cells)
    changes = best_changes(paired)
    by_family = [[one for one in changes if family_of(one.speedup.cell.variant) == family] for family in families([one.speedup.cell for one in changes])]
    return bullets([_cheapest(costs, price), _spread(costs, changes), *map(_changed, by_family), _left_out(paired), *_beside_lists(costs, target)])


def _edge(best: CellCost, costs: Sequence[CellCost]) -> str:
    return ", the highest load" if best.cell.load.concurrency == max(one.cell.load.concurrency or 0 for one in costs) else ""


def _cheapest(costs: Sequence[CellCost], price: Charged) -> str:
    best = min(costs, key=lambda one: one.usd_per_1m.estimate)
    return (
        f"Of the loads measured, the cheapest output tokens come from {best.cell.label} at {best.cell.load.label}{_edge(best, costs)}: "
        f"{usd_text(best.usd_per_1m)} a million at {price_text(price)} with the GPU always busy, "
        f"{usd_text(best.at(0.3))} if it serves in 30 % of the paid time{_near(best, costs)}."
    )


def _near(best: CellCost, costs: Sequence[CellCost]) -> str:
    """What isn't told apart from the cheapest at its load, by the ratio of the two, paired by repeat."""
    others = [one.cell for one in costs if one.cell.load == best.cell.load and one.cell is not best.cell]
    close = [cell.label for cell in others if (direct := against(best.cell, cell)) is None or not direct.ratio.excludes(1.0)]
    return f"; not told apart there from {some_of(close, len(others))}" if close else ""


def _spread(costs: Sequence[CellCost], changes: Sequence[CostChange]) -> str:
    """How much the load changes the baseline's cost, beside the largest change by a method."""
    plain = sorted((one for one in costs if one.cell.variant.method == "none" and one.cell.load.concurrency), key=lambda one: one.cell.load.concurrency or 0)
    if len(plain) < 2 or plain[0].cell.load == plain[-1].cell.load or not changes:
        return ""
    first, last = plain[0], plain[-1]
    most = largest_change(changes)
    told = (
        f"The largest change by a method at one load is {most.speedup.cell.variant.label} at {most.speedup.cell.load.label}: {ratio_text(most.ratio)} of its "
        f"baseline's cost, {most.verdict}."
        if most
        else "No method's change at any load is told apart from none."
    )
    return (
        f"Without speculation a million costs {usd_text(first.usd_per_1m)} at {first.cell.load.label} and {usd_text(last.usd_per_1m)} at "
        f"{last.cell.load.label}, {first.usd_per_1m.estimate / last.usd_per_1m.estimate:.1f} times less. {told}"
    )


def _changed(own: Sequence[CostChange]) -> str:
    """One method's cost over its baseline's at each load."""
    told = []
    for verdict in dict.fromkeys(one.verdict for one in own):
        named = [f"{ratio_text(one.ratio)} at {one.speedup.cell.load.label}{_k(one)}" for one in own if one.verdict == verdict]
        told.append(f"{verdict}: {', '.join(named)}")
    return f"{family_of(own[0].speedup.cell.variant).label}, cost over its own baseline's: {'; '.join(told)}."


def _left_out(paired: Sequence[CostChange]) -> str:
    """What best_changes drops, so that a method's absence above isn't taken for no effect."""
    apart = ", ".join(family.label for family in on_another_runner(paired))
    return f"Not compared with the baseline, since it ran on another model runner: {apart}." if apart else ""


def _k(one: CostChange) -> str:
    k = one.speedup.cell.variant.num_speculative_tokens
    return f" (K={k})" if k else ""


def _beside_lists(costs: Sequence[CellCost], target: str) -> list[str]:
    """A line for each list price that this target may stand beside: its own weights, hosted, first; none if nobody sells them."""
    hosted = hosted_weights_of(target)
    if not hosted:
        return [
            f"No list price on file sells tokens of {target}, so none stands beside its cost: a larger model's token is another product. The cost shows how "
            "one GPU's hour is shared out, and what a method changes about that."
        ]
    asked = [row for row in token_prices() if row.id in ASKED_ABOUT]
    return [_beside(costs, row) for row in [*hosted, *asked]]


def _beside(costs: Sequence[CellCost], row: TokenPrice) -> str:
    prompts = input_per_output([one.cell for one in costs])
    bill = row.bill_per_1m_output(prompts or 0.0)
    charged = f" with the {prompts:.2f} million of prompts before them" if prompts else ", prompts not charged"
    needed = {one.usd_per_hour: break_even_tokens_per_s(one.usd_per_hour, bill) for one in costs}
    found: dict[str, list[int]] = {}
    for c, one in sorted(_best_by_concurrency(costs).items()):
        throughput = one.cell.interval("output_tokens_per_s")
        assert throughput is not None
        found.setdefault(reaches(throughput, needed[one.usd_per_hour]), []).append(c)
    told = "; ".join(f"{verdict} at concurrency {', '.join(map(str, cs))}" for verdict, cs in found.items())
    own = "the same weights" if costs[0].cell.records[0].evidence == "real" else "the model whose shape this is; measured with random weights"
    same = own if row.same_weights_as else "another model, whose answers this study doesn't compare"
    return (
        f"Break-even with {row.provider}'s {row.model} at ${bill:.2f} a million output tokens{charged} ({same}), is at "
        f"{' or '.join(f'{value:,.0f}' for value in needed.values())} tokens/s. Measured throughput, each load's best method, GPU always busy: {told}."
    )


def _best_by_concurrency(costs: Sequence[CellCost]) -> dict[int, CellCost]:
    best: dict[int, CellCost] = {}
    for one in cheapest_k(costs):
        c = one.cell.load.concurrency
        if c and (c not in best or one.usd_per_1m.estimate < best[c].usd_per_1m.estimate):
            best[c] = one
    return best
