"""Parallel drafting against drafting token by token: pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import TwoSlopeNorm

from specstudy.analysis import Cell, Family, Speedup, best_k, best_per_load, families, family_of, same_k, speedups, step_times
from specstudy.analysis.contest import contenders
from specstudy.analysis.families import family_labels
from specstudy.catalog.published import published_ratios
from specstudy.figures.picture import Panels, Picture, canvas
from specstudy.figures.style import bars, concurrency_axis, family_style, legend_above, short_names
from specstudy.figures.text import NOTHING_TO_COMPARE, Text, not_measured

STYLE_OURS = family_style(Family("peagle", None))[0]
PUBLISHED_STYLE = (("#0072B2", "o", "-"), ("#D55E00", "s", "--"), ("#009E73", "^", ":"))


def best_speedup(cells: Sequence[Cell]) -> Picture | Text:
    """Throughput over the baseline's at each concurrency, each method at its best K there, with 95 % intervals."""
    found = speedups(cells)
    if not found:
        return NOTHING_TO_COMPARE
    figure, axes = canvas()
    shown = families([one.cell for one in found])
    told, names, labels = [], short_names(shown), family_labels(shown)
    for family in shown:
        own = fastest_over_baseline(found, family)
        colour, marker = family_style(family)
        xs, ys = [one.cell.load.concurrency or 0 for one in own], [one.ratio.estimate for one in own]
        axes.errorbar(xs, ys, yerr=bars([one.ratio for one in own]), color=colour, marker=marker, capsize=3, label=names[family])
        points = ", ".join(f"{one.ratio.estimate:.2f} at {x} (K={one.cell.variant.num_speculative_tokens})" for x, one in zip(xs, own, strict=True))
        told.append(f"{labels[family]}: {points}")
    axes.axhline(1.0, color="#444444", linewidth=1)
    concurrency_axis(axes, [one.cell.load.concurrency or 1 for one in found])
    axes.set_ylabel("throughput over baseline (ratio)")
    axes.set_ylim(bottom=0)
    legend_above(axes)
    alt = f"Throughput over the baseline's by concurrency, each method at its best K, with 95 % intervals. {'; '.join(told)}."
    return Picture.of(figure, "What does each method gain at its best K?", alt, found[0].cell.records[0].evidence)


def fastest_over_baseline(found: Sequence[Speedup], family: Family) -> list[Speedup]:
    """A family's best ratio at each closed load, in rising order."""
    return best_per_load([one for one in found if one.cell.load.concurrency and family_of(one.cell.variant) == family])


def ratio_map(cells: Sequence[Cell]) -> Picture | Text:
    """P-EAGLE's throughput over EAGLE-3's, a field for each K and concurrency; in brackets where there is no difference."""
    pair = contenders(cells)
    contests = same_k(cells, *pair) if pair else []
    if not contests:
        return not_measured("P-EAGLE and EAGLE-3 at one K and one load")
    ks = sorted({one.cell.variant.num_speculative_tokens or 0 for one in contests})
    concurrencies = sorted({one.cell.load.concurrency or 0 for one in contests})
    field = np.full((len(ks), len(concurrencies)), np.nan)
    figure, axes = canvas(1.3 + 0.34 * len(ks))
    told = []
    for one in contests:
        row, column = ks.index(one.cell.variant.num_speculative_tokens or 0), concurrencies.index(one.cell.load.concurrency or 0)
        sure = one.verdict in ("faster", "slower")
        field[row, column] = one.ratio.estimate if sure else 1.0  # no colour for what isn't shown to differ
        axes.text(column, row, f"{one.ratio.estimate:.2f}" if sure else f"({one.ratio.estimate:.2f})", ha="center", va="center", fontsize=9)
        told.append(f"K={ks[row]} at {concurrencies[column]}: {one.ratio.estimate:.2f} ({one.verdict})")
    widest = max(0.1, float(np.nanmax(np.abs(np.log2(field)))))
    # Purple to orange: told apart by colour-blind readers; pale enough for black figures on it.
    colours = matplotlib.colormaps["PuOr_r"].resampled(256)
    axes.imshow(np.log2(field), cmap=colours, norm=TwoSlopeNorm(0, -2.2 * widest, 2.2 * widest), aspect="auto")
    axes.set_xticks(range(len(concurrencies)), [str(c) for c in concurrencies])
    axes.set_yticks(range(len(ks)), [str(k) for k in ks])
    axes.grid(visible=False)
    axes.set_xlabel("concurrency (requests in flight)")
    axes.set_ylabel("K (drafted tokens)")
    alt = f"Throughput of P-EAGLE over EAGLE-3 at the same K; brackets mark no difference. {'; '.join(told)}."
    return Picture.of(figure, "At the same K, which is faster? (over 1: P-EAGLE; brackets: no difference)", alt, contests[0].cell.records[0].evidence)


def best_k_ratio(cells: Sequence[Cell]) -> Panels:
    """P-EAGLE over EAGLE-3, each at its best K, over concurrency; beside it the published curve, of another model and GPU."""
    own = _measured_ratio(cells)
    return Panels((own, published_ratio()) if own is not None else (published_ratio(),))


def _measured_ratio(cells: Sequence[Cell]) -> Picture | None:
    pair = contenders(cells)
    contests = best_k(cells, *pair) if pair else []
    if not contests:
        return None
    figure, axes = canvas()
    xs = [one.cell.load.concurrency or 0 for one in contests]
    axes.errorbar(xs, [one.ratio.estimate for one in contests], yerr=bars([one.ratio for one in contests]), color=STYLE_OURS, marker="P", capsize=3)
    axes.axhline(1.0, color="#444444", linewidth=1)
    concurrency_axis(axes, xs)
    axes.set_ylabel("P-EAGLE / EAGLE-3, best K (ratio)")
    axes.set_ylim(0.4, 1.8)
    told = ", ".join(
        f"{one.ratio.estimate:.2f} at {x} (K={one.cell.variant.num_speculative_tokens} against {one.baseline.variant.num_speculative_tokens}, {one.verdict})"
        for x, one in zip(xs, contests, strict=True)
    )
    alt = f"Throughput of P-EAGLE over EAGLE-3, each at its best K, by concurrency, with 95 % intervals: {told}."
    return Picture.of(figure, "Which is faster at its best K, measured here?", alt, contests[0].cell.records[0].evidence)


def published_ratio() -> Picture:
    """The published curve: P-EAGLE over EAGLE-3 for GPT-OSS-20B on one B200, best K on each side, no intervals given."""
    rows = published_ratios()
    figure, axes = canvas()
    told = []
    for benchmark, (colour, marker, line) in zip(dict.fromkeys(row.benchmark for row in rows), PUBLISHED_STYLE, strict=True):
        own = [row for row in rows if row.benchmark == benchmark]
        axes.plot([row.concurrency for row in own], [row.ratio for row in own], color=colour, marker=marker, linestyle=line, label=benchmark)
        told.append(f"{benchmark}: " + ", ".join(f"{row.ratio:.2f} at {row.concurrency}" for row in own))
    axes.axhline(1.0, color="#444444", linewidth=1)
    concurrency_axis(axes, [row.concurrency for row in rows])
    axes.set_ylabel("P-EAGLE / EAGLE-3, best K (ratio)")
    axes.set_ylim(0.4, 1.8)
    axes.legend(loc="lower left", frameon=False)
    alt = f"Published throughput of P-EAGLE over EAGLE-3 for GPT-OSS-20B on one B200, without intervals. {'; '.join(told)}."
    return Picture.of(figure, "And as published, for GPT-OSS-20B on one B200?", alt, "published")


def step_time(cells: Sequence[Cell]) -> Picture | Text:
    """Milliseconds of a step over K at the lowest and the highest concurrency, with 95 % intervals; the baseline's step drawn in."""
    times = [time for time in step_times(cells) if time.cell.load.concurrency]
    if not times:
        return not_measured("A method that drafts in every step")
    concurrencies = sorted({time.cell.load.concurrency or 0 for time in times})
    ends = [(concurrencies[0], "-", False)] + ([(concurrencies[-1], "--", True)] if len(concurrencies) > 1 else [])
    shown = families([time.cell for time in times])
    figure, axes = canvas(3.0 + 0.2 * len(shown))
    told, names, labels = [], short_names(shown), family_labels(shown)
    for c, line, hollow in ends:
        for family in shown:
            own = sorted(
                (time for time in times if family_of(time.cell.variant) == family and time.cell.load.concurrency == c),
                key=lambda time: time.cell.variant.num_speculative_tokens or 0,
            )
            if not own:
                continue
            colour, marker = family_style(family)
            xs, ys = [time.cell.variant.num_speculative_tokens or 0 for time in own], [time.step_ms.estimate for time in own]
            look: dict[str, Any] = {"color": colour, "marker": marker, "linestyle": line, "markerfacecolor": "#ffffff" if hollow else colour}
            axes.errorbar(xs, ys, yerr=bars([time.step_ms for time in own]), capsize=3, label=f"{names[family]} c={c}", **look)
            told.append(f"{labels[family]} at concurrency {c}: " + ", ".join(f"{y:.2f} ms at K={x}" for x, y in zip(xs, ys, strict=True)))
        plain = next((cell.interval("tpot_ms_mean") for cell in cells if cell.variant.method == "none" and cell.load.concurrency == c), None)
        if plain is not None:
            axes.axhline(plain.estimate, color="#000000", linestyle=line, linewidth=1, label=f"baseline c={c}")
            told.append(f"baseline at concurrency {c}: {plain.estimate:.2f} ms")
    axes.set_xticks(sorted({time.cell.variant.num_speculative_tokens or 0 for time in times}))
    axes.set_xlabel("K (drafted tokens)")
    axes.set_ylabel("time of a step (ms)")
    axes.set_ylim(bottom=0)
    legend_above(axes)
    alt = f"Time of one step over K, with 95 % intervals. {'; '.join(told)}."
    return Picture.of(figure, "What does a step cost as K grows?", alt, times[0].cell.records[0].evidence)
