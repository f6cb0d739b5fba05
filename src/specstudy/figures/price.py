"""What a million tokens cost, as measured; every figure of it holds a throughput of ours and one price by the hour, named beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from specstudy.analysis import (
    Cell,
    CellCost,
    Family,
    Interval,
    Variant,
    best_changes,
    cell_costs,
    cheapest_k,
    cost_changes,
    families,
    family_of,
    on_another_runner,
)
from specstudy.catalog.prices import Charged, GpuPrice
from specstudy.figures.picture import Picture, canvas
from specstudy.figures.style import bars, concurrency_axis, family_style, legend_above, short_labels, short_names, variants_of
from specstudy.figures.tables import Table, number, ratio_text
from specstudy.figures.text import NOTHING_TO_COMPARE, Text, not_measured

BUSY_SHARES = (1.0, 0.6, 0.3)
NO_COST = not_measured("A throughput in a closed loop")
LINES = ("-", "--", ":", "-.")


def usd(value: float) -> str:
    """Dollars with three figures where they are few: 0.452, 3.61, 125."""
    return f"${value:.3f}" if value < 1 else f"${value:.2f}" if value < 100 else f"${value:,.0f}"


def usd_text(interval: Interval) -> str:
    """Like $0.448 (0.325 to 0.722); an end that the repeats don't bound is said to be open."""
    if interval.n < 2:
        return f"{usd(interval.estimate)} (one repeat)"
    high = "open" if interval.high == float("inf") else usd(interval.high)[1:]
    return f"{usd(interval.estimate)} ({usd(interval.low)[1:]} to {high})"


def price_text(price: Charged) -> str:
    """Like $4.50 an hour (Nebius, 2026-09-25), or $2.00 an hour (your own price)."""
    return f"${price.usd_per_gpu_hour:.2f} an hour ({price.whose})"


def cost_picture(cells: Sequence[Cell], price: Charged) -> Picture | Text:
    """Dollars a million output tokens over concurrency on a log scale, each method at its cheapest K, with 95 % intervals."""
    shown = cheapest_k(cell_costs([cell for cell in cells if cell.load.concurrency], price.usd_per_gpu_hour))
    if not shown:
        return NO_COST
    names = short_names(families([one.cell for one in shown]))
    figure, axes = canvas(3.2 + 0.2 * ((len(names) + 1) // 2))
    told = []
    for family, gpu, own in _lines(shown, list(names)):
        colour, marker = family_style(family)
        xs = [one.cell.load.concurrency or 0 for one in own]
        label = names[family] + (f" (GPU {gpu})" if gpu else "")
        line = LINES[((gpu or 1) - 1) % len(LINES)]
        look: dict[str, Any] = {"color": colour, "marker": marker, "linestyle": line, "capsize": 3}
        axes.errorbar(xs, [one.usd_per_1m.estimate for one in own], yerr=bars([_bounded(one.usd_per_1m) for one in own]), label=label, **look)
        told.append(f"{label}: " + ", ".join(f"{usd_text(one.usd_per_1m)} at concurrency {x}{_k(one)}" for x, one in zip(xs, own, strict=True)))
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"${value:g}")
    concurrency_axis(axes, [one.cell.load.concurrency or 1 for one in shown])
    axes.set_ylabel("USD per 1M output tokens")
    legend_above(axes)
    alt = f"Dollars a million output tokens over concurrency on a log scale, {price_text(price)}, with 95 % intervals. {'; '.join(told)}."
    return Picture.of(figure, "What do a million output tokens cost, at which load?", alt, shown[0].cell.records[0].evidence)


def _lines(shown: Sequence[CellCost], order: Sequence[Family]) -> list[tuple[Family, int | None, list[CellCost]]]:
    """(family, number of the GPU for a baseline that was measured on several, its points by concurrency)."""
    found: dict[tuple[Family, int | None], list[CellCost]] = {}
    for one in sorted(shown, key=lambda one: (order.index(family_of(one.cell.variant)), one.cell.load.concurrency or 0)):
        family = family_of(one.cell.variant)
        found.setdefault((family, one.cell.gpu_number if family.method == "none" else None), []).append(one)
    return [(family, gpu, own) for (family, gpu), own in found.items()]


def _bounded(interval: Interval) -> Interval:
    """For an error bar: an open end isn't drawn."""
    return interval if interval.high != float("inf") else Interval(interval.estimate, interval.low, interval.estimate, interval.n)


def _k(one: CellCost) -> str:
    k = one.cell.variant.num_speculative_tokens
    return f" (K={k})" if k else ""


def cost_table(cells: Sequence[Cell], offers: Sequence[GpuPrice], price: Charged) -> Table | Text:
    """By method and load: throughput, latency, and dollars a million output tokens at the price charged, the cheapest and the dearest offer, if any."""
    shown = cheapest_k(cell_costs(cells, price.usd_per_gpu_hour))
    if not shown:
        return NO_COST
    labels, ends = _labels([one.cell for one in shown]), [offers[0], offers[-1]] if offers else []
    rows = []
    for one in sorted(shown, key=_by_load):
        throughput = one.cell.interval("output_tokens_per_s")
        assert throughput is not None
        rows.append(
            {
                "load": one.cell.load.label,
                "method": _name(one.cell, labels),
                "tokens/s": _plain(throughput),
                "TPOT p50 ms": number(one.cell.percentile("tpot_ms", 50), 2),
                f"at ${price.usd_per_gpu_hour:.2f}/h": usd_text(one.usd_per_1m),
                **{f"at ${end.usd_per_gpu_hour:.2f}/h": usd(one.usd_per_1m.estimate * end.usd_per_gpu_hour / price.usd_per_gpu_hour) for end in ends},
            }
        )
    beside = f"cheapest {price_text(ends[0].charged)}, dearest {price_text(ends[1].charged)}" if ends else "no offer of this GPU is on file"
    note = (
        "USD per 1M output tokens, the GPU busy all the time. The prompts' time is inside, input tokens have no price of their own. "
        f"Prices: {price_text(price)}; {beside}. Brackets: the throughput's 95 % interval "
        "carried through; a price has none. Of several K the cheapest at that load is shown, which chance flatters a little."
    )
    return Table(pd.DataFrame(rows), shown[0].cell.records[0].evidence, note)


def _labels(cells: Sequence[Cell]) -> dict[Variant, str]:
    return short_labels(variants_of(cells))


def _name(cell: Cell, labels: Mapping[Variant, str]) -> str:
    return labels[cell.variant] + (f" (GPU {cell.gpu_number})" if cell.gpu_number else "")


def _by_load(one: CellCost) -> tuple[object, ...]:
    return *one.cell.load.order, one.cell.variant.method != "none", one.cell.label


def _plain(interval: Interval) -> str:
    return f"{interval.estimate:,.0f}" + (f" ({interval.low:,.0f} to {interval.high:,.0f})" if interval.n > 1 else "")


def utilization_table(cells: Sequence[Cell], price: Charged) -> Table | Text:
    """Dollars a million output tokens where the GPU serves this load in all, 60 % and 30 % of the paid time."""
    shown = cheapest_k(cell_costs(cells, price.usd_per_gpu_hour))
    if not shown:
        return NO_COST
    labels = _labels([one.cell for one in shown])
    rows = [
        {"load": one.cell.load.label, "method": _name(one.cell, labels), **{f"busy {share:.0%}": usd_text(one.at(share)) for share in BUSY_SHARES}}
        for one in sorted(shown, key=_by_load)
    ]
    note = (
        f"USD per 1M output tokens at {price_text(price)}. Busy: the share of the paid hours in which the GPU serves exactly this load; in the others it "
        "idles, which is kinder than a load that thins out, where fewer requests share each step."
    )
    return Table(pd.DataFrame(rows), shown[0].cell.records[0].evidence, note)


def change_table(cells: Sequence[Cell]) -> Table | Text:
    """Cost over the baseline's by method and load, each method at its best K there, paired by repeat; no price is in it."""
    changes = cost_changes(cells)
    found = best_changes(changes)
    if not found:
        return NOTHING_TO_COMPARE
    labels = _labels([one.speedup.cell for one in found])
    rows = [
        {
            "method": labels[one.speedup.cell.variant],
            "load": one.speedup.cell.load.label,
            "cost / baseline": ratio_text(one.ratio),
            "verdict": one.verdict,
            "pairs": one.ratio.n,
        }
        for one in found
    ]
    note = (
        "The throughput ratio turned over: repeats with the same prompts, 95 % interval; one that holds 1 is no difference. The hour's price cancels out. "
        "Of several K the best at that load is shown, which chance flatters a little; the other chapters have them all."
    )
    apart = on_another_runner(changes)
    if apart:
        note += f" Left out, since it ran on another model runner than the baseline: {', '.join(family.label for family in apart)}."
    return Table(pd.DataFrame(rows), found[0].speedup.cell.records[0].evidence, note)
