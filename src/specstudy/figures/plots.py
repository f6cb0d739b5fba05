"""Cells to pictures. Each answers one question; its alt text tells the figures to whoever can't see it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specstudy.analysis import Cell, Speedup, time_shares
from specstudy.figures.picture import Picture, canvas
from specstudy.figures.style import bars, concurrency_axis, legend_above, looks, short_labels, variants_of
from specstudy.figures.text import NO_RECORDS, NOTHING_TO_COMPARE, Text


def throughput(cells: Sequence[Cell]) -> Picture | Text:
    """Tokens/s over concurrency with 95 % intervals, a line for each variant."""
    if not cells:
        return NO_RECORDS
    figure, axes = canvas()
    variants = variants_of(cells)
    told, styles, labels = [], looks(variants), short_labels(variants)
    for variant, look in styles.items():
        own = [cell for cell in cells if cell.variant == variant and cell.load.concurrency]
        points = [(cell.load.concurrency or 0, interval) for cell in own if (interval := cell.interval("output_tokens_per_s"))]
        xs, ys = [x for x, _ in points], [i.estimate for _, i in points]
        axes.errorbar(xs, ys, yerr=bars([i for _, i in points]), label=labels[variant], **look.keywords)
        told.append(f"{variant.label}: " + ", ".join(f"{i.estimate:.0f} at concurrency {x}" for x, i in points))
    concurrency_axis(axes, [cell.load.concurrency for cell in cells if cell.load.concurrency])
    axes.set_ylabel("output tokens/s")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    alt = f"Line chart of output tokens per second over concurrency with 95 % intervals. {'; '.join(told)}."
    return Picture.of(figure, "How many tokens a second, at which concurrency?", alt, cells[0].records[0].evidence)


def speedup(found: Sequence[Speedup]) -> Picture | Text:
    """Throughput ratio to the baseline at each load, with 95 % intervals; 1 and the flag at 0.95 drawn in."""
    if not found:
        return NOTHING_TO_COMPARE
    variants = variants_of([one.cell for one in found])
    styles, labels = looks(variants), short_labels(variants)
    figure, axes = canvas(3.0 + 0.2 * ((len(styles) + 1) // 2))
    loads = list(dict.fromkeys(one.cell.load for one in found))
    told = []
    for index, (variant, look) in enumerate(styles.items()):
        own = [one for one in found if one.cell.variant == variant]
        offset = (index - (len(styles) - 1) / 2) * min(0.16, 0.8 / len(styles))
        xs = [loads.index(one.cell.load) + offset for one in own]
        ys = [one.ratio.estimate for one in own]
        axes.errorbar(xs, ys, yerr=bars([one.ratio for one in own]), label=labels[variant], **{**look.keywords, "linestyle": "none"})
        told.append(f"{variant.label}: " + ", ".join(f"{one.ratio.estimate:.2f} at {one.cell.load.label} ({one.verdict})" for one in own))
    axes.axhline(1.0, color="#444444", linewidth=1)
    axes.axhline(0.95, color="#444444", linewidth=0.8, linestyle=":")
    workloads = {load.workload for load in loads}
    if len(workloads) == 1 and all(load.concurrency for load in loads):
        axes.set_xticks(range(len(loads)), [f"{load.concurrency}" for load in loads])
        axes.set_xlabel(f"concurrency (requests in flight), workload {workloads.pop()}")
    else:
        axes.set_xticks(range(len(loads)), [load.label for load in loads])
    axes.set_xlim(-0.5, len(loads) - 0.5)
    axes.set_ylabel("throughput over baseline (ratio)")
    axes.set_ylim(bottom=0)
    legend_above(axes)
    alt = f"Throughput over the baseline's with 95 % intervals; a line marks 1, a dotted one the flag at 0.95. {'; '.join(told)}."
    return Picture.of(figure, "Does speculation pay, and at which load?", alt, found[0].cell.records[0].evidence)


def where_time_goes(cells: Sequence[Cell]) -> Picture | Text:
    """Mean request time split into wait, prefill and decode, a bar for each cell."""
    if not cells:
        return NO_RECORDS
    figure, axes = canvas()
    shares = time_shares(cells)
    alone = len({share.cell.label for share in shares}) == 1
    labels = [share.cell.load.label if alone else f"{share.cell.label}, {share.cell.load.label}" for share in shares]
    rows = np.arange(len(shares))
    parts = (("wait for a slot", "#999999", "queue_ms"), ("prefill", "#56B4E9", "prefill_ms"), ("decode", "#0072B2", "decode_ms"))
    left = np.zeros(len(shares))
    for name, colour, field in parts:
        values = np.array([getattr(share, field) for share in shares])
        axes.barh(rows, values, left=left, color=colour, label=name)
        left += values
    totals = [share.cell.interval("e2e_ms_mean") for share in shares]
    errors = [total.estimate - total.low if total and total.n > 1 else 0.0 for total in totals]
    axes.set_yticks(rows, labels)
    axes.errorbar(left, rows, xerr=errors, fmt="none", color="#000000", capsize=3)
    axes.invert_yaxis()
    axes.set_xlabel("mean request time (ms), 95 % interval")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    told = "; ".join(
        f"{label}: {share.queue_ms:.0f} ms waiting, {share.prefill_ms:.0f} ms prefill, {share.decode_ms:.0f} ms decode"
        for label, share in zip(labels, shares, strict=True)
    )
    return Picture.of(figure, "Where does a request's time go?", f"Stacked bars. {told}.", cells[0].records[0].evidence)
