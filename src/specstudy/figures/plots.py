"""Cells to pictures. Each answers one question; its alt text tells the figures to whoever can't see it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from specstudy.analysis import Cell, Speedup, Variant, time_shares
from specstudy.figures.picture import STYLE, Picture, canvas
from specstudy.figures.text import NOTHING_TO_COMPARE, Text


def _variants(cells: Sequence[Cell]) -> list[Variant]:
    return list(dict.fromkeys(cell.variant for cell in cells))


def _concurrency_axis(axes: Axes, cells: Sequence[Cell]) -> None:
    ticks = sorted({cell.load.concurrency for cell in cells if cell.load.concurrency})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("concurrency (requests in flight)")


def throughput(cells: Sequence[Cell]) -> Picture:
    """Tokens/s over concurrency with 95 % intervals, a line for each variant."""
    figure, axes = canvas()
    told = []
    for variant in _variants(cells):
        own = [cell for cell in cells if cell.variant == variant and cell.load.concurrency]
        points = [(cell.load.concurrency or 0, interval) for cell in own if (interval := cell.interval("output_tokens_per_s"))]
        colour, marker = STYLE[variant.method]
        xs, ys = [x for x, _ in points], [i.estimate for _, i in points]
        errors = [i.estimate - i.low if i.n > 1 else 0.0 for _, i in points]
        axes.errorbar(xs, ys, yerr=errors, color=colour, marker=marker, capsize=3, label=variant.label)
        told.append(f"{variant.label}: " + ", ".join(f"{i.estimate:.0f} at concurrency {x}" for x, i in points))
    _concurrency_axis(axes, cells)
    axes.set_ylabel("output tokens/s")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    alt = f"Line chart of output tokens per second over concurrency with 95 % intervals. {'; '.join(told)}."
    return Picture.of(figure, "How many tokens a second, at which concurrency?", alt, cells[0].records[0].evidence)


def speedup(found: Sequence[Speedup]) -> Picture | Text:
    """Throughput ratio to the baseline at each load, with 95 % intervals; 1 and the flag at 0.95 drawn in."""
    if not found:
        return NOTHING_TO_COMPARE
    figure, axes = canvas()
    loads = list(dict.fromkeys(one.cell.load for one in found))
    variants = _variants([one.cell for one in found])
    told = []
    for index, variant in enumerate(variants):
        colour, marker = STYLE[variant.method]
        own = [one for one in found if one.cell.variant == variant]
        offset = (index - (len(variants) - 1) / 2) * 0.16
        xs = [loads.index(one.cell.load) + offset for one in own]
        ys = [one.ratio.estimate for one in own]
        errors = np.array([[one.ratio.estimate - one.ratio.low, one.ratio.high - one.ratio.estimate] for one in own]).T
        axes.errorbar(xs, ys, yerr=np.nan_to_num(errors), color=colour, marker=marker, linestyle="none", capsize=3, label=variant.label)
        told.append(f"{variant.label}: " + ", ".join(f"{one.ratio.estimate:.2f} at {one.cell.load.label} ({one.verdict})" for one in own))
    axes.axhline(1.0, color="#444444", linewidth=1)
    axes.axhline(0.95, color="#444444", linewidth=0.8, linestyle=":")
    axes.set_xticks(range(len(loads)), [load.label for load in loads])
    axes.set_xlim(-0.5, len(loads) - 0.5)
    axes.set_ylabel("throughput over baseline (ratio)")
    axes.set_ylim(bottom=0)
    axes.legend(loc="best", frameon=False)
    alt = f"Throughput over the baseline's with 95 % intervals; a line marks 1, a dotted one the flag at 0.95. {'; '.join(told)}."
    return Picture.of(figure, "Does speculation pay, and at which load?", alt, found[0].cell.records[0].evidence)


def acceptance_by_position(cells: Sequence[Cell]) -> Picture | Text:
    """Share of drafts in which position i was accepted, mean over repeats, at each variant's lowest load."""
    if not any(cell.records[0].acceptance_per_position for cell in cells):
        return NOTHING_TO_COMPARE
    figure, axes = canvas()
    told, longest = [], 1
    for variant in _variants(cells):
        own = [cell for cell in cells if cell.variant == variant and cell.records[0].acceptance_per_position]
        if not own:
            continue
        curves = np.array([record.acceptance_per_position for record in own[0].records])
        mean, spread = curves.mean(axis=0), curves.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros(curves.shape[1])
        colour, marker = STYLE[variant.method]
        positions = range(1, len(mean) + 1)
        longest = max(longest, len(mean))
        axes.errorbar(positions, mean, yerr=spread, color=colour, marker=marker, capsize=3, label=variant.label)
        told.append(f"{variant.label} at {own[0].load.label}: " + ", ".join(f"{share:.2f}" for share in mean))
    axes.set_xticks(range(1, longest + 1))
    axes.set_xlabel("position in the draft (tokens)")
    axes.set_ylabel("accepted (fraction of drafts)")
    axes.set_ylim(0, 1)
    axes.legend(frameon=False)
    alt = f"Share of drafts accepted at each position, bars one standard deviation over repeats. {'; '.join(told)}."
    return Picture.of(figure, "How far into a draft does the target agree?", alt, cells[0].records[0].evidence)


def where_time_goes(cells: Sequence[Cell]) -> Picture:
    """Mean request time split into wait, prefill and decode, a bar for each load."""
    figure, axes = canvas()
    shares = time_shares(cells)
    labels = [share.cell.load.label for share in shares]
    parts = (("wait for a slot", "#999999", "queue_ms"), ("prefill", "#56B4E9", "prefill_ms"), ("decode", "#0072B2", "decode_ms"))
    left = np.zeros(len(shares))
    for name, colour, field in parts:
        values = np.array([getattr(share, field) for share in shares])
        axes.barh(labels, values, left=left, color=colour, label=name)
        left += values
    totals = [share.cell.interval("e2e_ms_mean") for share in shares]
    errors = [total.estimate - total.low if total and total.n > 1 else 0.0 for total in totals]
    axes.errorbar(left, range(len(shares)), xerr=errors, fmt="none", color="#000000", capsize=3)
    axes.invert_yaxis()
    axes.set_xlabel("mean request time (ms), 95 % interval")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    told = "; ".join(
        f"{share.cell.load.label}: {share.queue_ms:.0f} ms waiting, {share.prefill_ms:.0f} ms prefill, {share.decode_ms:.0f} ms decode" for share in shares
    )
    return Picture.of(figure, "Where does a request's time go?", f"Stacked bars. {told}.", cells[0].records[0].evidence)
