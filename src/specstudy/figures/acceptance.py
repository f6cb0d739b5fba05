"""How good are the guesses: by position, by workload, by context length."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from specstudy.analysis import (
    Cell,
    Interval,
    Speedup,
    by_context,
    context_ratios,
    context_tokens,
    deepest_curves,
    eagle3_and_31,
    families,
    of_main_workload,
    position_curve,
    same_k,
    workload_shares,
)
from specstudy.analysis.speedup import ratio_of
from specstudy.figures.picture import Picture, canvas
from specstudy.figures.style import bars, family_style, legend_above, looks, short_labels, variants_of
from specstudy.figures.tables import DASH, Table, ratio_text, with_interval
from specstudy.figures.text import NOTHING_TO_COMPARE, Text, not_measured


def acceptance_by_position(cells: Sequence[Cell]) -> Picture | Text:
    """Share of drafts accepted at each position with its 95 % interval: each head at its largest K and lowest load."""
    curves = deepest_curves(cells)
    if not curves:
        return NOTHING_TO_COMPARE
    figure, axes = canvas(3.0 + 0.2 * ((len(curves) + 1) // 2))
    variants = [curve.cell.variant for curve in curves]
    told, styles, labels = [], looks(variants), short_labels(variants)
    for curve in curves:
        variant, means = curve.cell.variant, [one.estimate for one in curve.rate]
        axes.errorbar(range(1, len(means) + 1), means, yerr=bars(curve.rate), label=labels[variant], **styles[variant].keywords)
        told.append(f"{variant.label} at {curve.cell.load.label}: " + ", ".join(f"{share:.2f}" for share in means))
    axes.set_xticks(range(1, max(len(curve.rate) for curve in curves) + 1))
    axes.set_xlabel("position in the draft (tokens)")
    axes.set_ylabel("accepted (fraction of drafts)")
    axes.set_ylim(0, 1)
    legend_above(axes)
    alt = f"Share of drafts accepted at each position, with 95 % intervals over repeats. {'; '.join(told)}."
    return Picture.of(figure, "How far into a draft does the target agree?", alt, cells[0].records[0].evidence)


def position_table(cells: Sequence[Cell]) -> Table | Text:
    """Accepted at each position over drafts, and over the drafts accepted so far, at each head's largest K."""
    curves = deepest_curves(cells)
    if not curves:
        return NOTHING_TO_COMPARE
    depth = max(len(curve.rate) for curve in curves)
    rows = []
    for curve in curves:
        for name, values in (("of drafts", curve.rate), ("of those accepted so far", curve.conditional)):
            cell = curve.cell
            shares = {f"{i + 1}": with_interval(values[i], 3) if i < len(values) else DASH for i in range(depth)}
            rows.append({"method": cell.variant.label, "load": cell.load.label, "accepted": name, **shares})
    note = "± is the half-width of the 95 % interval over repeats. A head that guesses as well at depth as at the start has a level second row."
    return Table(pd.DataFrame(rows), curves[0].cell.records[0].evidence, note)


def _with_workloads(cells: Sequence[Cell]) -> list[Cell]:
    """Cells of the workloads that are compared with chat, and chat at the same concurrency, of heads with a curve."""
    shares = workload_shares([cell for cell in cells if position_curve(cell) is not None])
    keys = {(cell.variant, cell.load) for share in shares for cell in (share.reference, share.cell)}
    compared = [cell for cell in cells if (cell.variant, cell.load) in keys]
    deepest = {curve.cell.variant for curve in deepest_curves(compared)}
    return [cell for cell in compared if cell.variant in deepest]


def acceptance_by_workload(cells: Sequence[Cell]) -> Picture | Text:
    """Acceptance length on each workload, each head at the largest K that other workloads were measured with, with 95 % intervals."""
    own = _with_workloads(cells)
    if not own:
        return not_measured("Acceptance on other workloads")
    names = list(dict.fromkeys(cell.load.workload for cell in own))
    styles, labels = looks(variants_of(own)), short_labels(variants_of(own))
    figure, axes = canvas(3.0 + 0.2 * ((len(styles) + 1) // 2))
    told = []
    for index, (variant, look) in enumerate(styles.items()):
        mine = {cell.load.workload: cell.interval("acceptance_length") for cell in own if cell.variant == variant}
        points = [(names.index(name), interval) for name, interval in mine.items() if interval is not None]
        offset = (index - (len(styles) - 1) / 2) * min(0.14, 0.8 / len(styles))
        xs, ys = [x + offset for x, _ in points], [interval.estimate for _, interval in points]
        axes.errorbar(xs, ys, yerr=bars([interval for _, interval in points]), label=labels[variant], **{**look.keywords, "linestyle": "none"})
        told.append(f"{variant.label}: " + ", ".join(f"{interval.estimate:.2f} on {names[x]}" for x, interval in points))
    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_ylim(bottom=1)
    axes.set_ylabel("acceptance length (tokens/step)")
    legend_above(axes)
    alt = f"Acceptance length by workload with 95 % intervals. {'; '.join(told)}."
    return Picture.of(figure, "Does a head guess as well outside chat?", alt, own[0].records[0].evidence)


def workload_table(cells: Sequence[Cell]) -> Table | Text:
    """Acceptance length on each workload and its share of chat's, same head, K and concurrency."""
    shares = workload_shares([cell for cell in cells if position_curve(cell) is not None])
    if not shares:
        return not_measured("Acceptance on other workloads")
    rows = [
        {
            "method": share.cell.variant.label,
            "workload": share.cell.load.label,
            "acceptance length": with_interval(share.cell.interval("acceptance_length"), 2),
            f"on {share.reference.load.label}": with_interval(share.reference.interval("acceptance_length"), 2),
            "share of chat's": share_text(share.ratio.estimate, share.ratio.low, share.ratio.high, share.ratio.n),
        }
        for share in shares
    ]
    note = "The share's 95 % interval is Welch's: the prompts differ, so repeats aren't paired."
    return Table(pd.DataFrame(rows).fillna(DASH), shares[0].cell.records[0].evidence, note)


def share_text(estimate: float, low: float, high: float, n: int) -> str:
    """Like 0.93 (0.90 to 0.96); no difference where 1 lies inside."""
    told = f"{estimate:.2f}" + (f" ({low:.2f} to {high:.2f})" if n > 1 else "")
    return f"{told}, no difference" if n > 1 and low <= 1 <= high else told


def acceptance_by_context(cells: Sequence[Cell]) -> Picture | Text:
    """Acceptance length over prompt length with 95 % intervals, a line for each head measured in two bands or more."""
    lines = [(family, points) for family in families(cells) if len(points := by_context(cells, family)) > 1]
    if not lines:
        return not_measured("Acceptance by context length")
    figure, axes = canvas(3.4)
    told, labels = [], short_labels([points[0].cell.variant for _, points in lines])
    for family, points in lines:
        colour, marker = family_style(family)
        xs, ys = [point.prompt_tokens for point in points], [point.length.estimate for point in points]
        label = labels[points[0].cell.variant]
        axes.errorbar(xs, ys, yerr=bars([point.length for point in points]), color=colour, marker=marker, capsize=3, label=label)
        told.append(f"{label}: " + ", ".join(f"{point.length.estimate:.2f} at {point.prompt_tokens:,.0f} tokens" for point in points))
    bands = {point.band_tokens: point.prompt_tokens for _, points in lines for point in points}
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(bands.values()), [f"{band // 1024}k" if band >= 1024 else str(band) for band in bands])
    axes.minorticks_off()
    axes.set_xlabel("band of prompt lengths (tokens), at its mean")
    axes.set_ylabel("acceptance length (tokens/step)")
    axes.set_ylim(bottom=1)
    legend_above(axes)
    alt = f"Acceptance length over prompt length, one request at a time, with 95 % intervals. {'; '.join(told)}."
    return Picture.of(figure, "Do guesses get worse as the context grows?", alt, lines[0][1][0].cell.records[0].evidence)


def context_table(cells: Sequence[Cell]) -> Table | Text:
    """Acceptance length in each band of prompt lengths, for the EAGLE-3 and the 3.1 head, and their ratio."""
    plain, newer = eagle3_and_31(cells)
    measured = {family: {point.band_tokens: point for point in by_context(cells, family)} for family in (plain, newer) if family is not None}
    if not any(measured.values()):
        return not_measured("Acceptance by context length")
    ratios = {point.band_tokens: ratio for point, ratio in context_ratios(cells, newer, plain)} if plain is not None and newer is not None else {}
    rows = []
    for band in sorted({band for points in measured.values() for band in points}):
        lengths = {family.label: with_interval(points[band].length, 2) if band in points else DASH for family, points in measured.items()}
        tokens = next(points[band].prompt_tokens for points in measured.values() if band in points)
        ratio = ratios.get(band)
        verdict = DASH if ratio is None else share_text(ratio.estimate, ratio.low, ratio.high, ratio.n)
        rows.append({"band": f"{band:,}", "prompt tokens, mean": f"{tokens:,.0f}", **lengths, "3.1 over 3": verdict})
    one = next(point.cell for points in measured.values() for point in points.values())
    note = f"One request at a time, K = {one.variant.num_speculative_tokens}. The ratio is paired by repeat: the same prompts on both sides."
    return Table(pd.DataFrame(rows), one.records[0].evidence, note)


def drift_conclusion(cells: Sequence[Cell]) -> Text:
    """What the main workload, the bands and the positions say about these two heads and attention drift."""
    plain, newer = eagle3_and_31(cells)
    lines = []
    for family in (plain, newer):
        points = by_context(cells, family) if family is not None else []
        if family is not None and len(points) > 1:
            first, last = points[0], points[-1]
            lines.append(
                f"{family.label}: acceptance length {with_interval(first.length, 2)} at {first.prompt_tokens:,.0f} prompt tokens and "
                f"{with_interval(last.length, 2)} at {last.prompt_tokens:,.0f}, {last.length.estimate / first.length.estimate:.0%} of it."
            )
    if plain is not None and newer is not None:
        lines += heads_lines(same_k(of_main_workload(cells), newer, plain))
        for point, ratio in context_ratios(cells, newer, plain)[-2:]:
            told = "higher" if ratio.estimate > 1 else "lower"
            sure = told if ratio.excludes(1.0) else "no difference" if ratio.n > 1 else "one repeat, so not told apart"
            lines.append(f"3.1 over 3 in the band of {point.band_tokens:,} tokens: {ratio_text(ratio)}, {sure}.")
    for curve in deepest_curves([cell for cell in cells if context_tokens(cell.load.workload) is None]):
        if curve.cell.variant.method == "eagle3" and curve.hold is not None:
            lines.append(
                f"{curve.cell.variant.label} at {curve.cell.load.label}: of the drafts accepted so far, {curve.conditional[0].estimate:.0%} are accepted at "
                f"position 1 and {curve.conditional[-1].estimate:.0%} at position {len(curve.conditional)}."
            )
    if newer is None:
        lines.append("An EAGLE 3.1 head wasn't measured under this profile.")
    return Text("\n".join(f"- {line}" for line in lines))


def heads_lines(contests: Sequence[Speedup]) -> list[str]:
    """EAGLE 3.1 over EAGLE-3 at the same K and load: acceptance, and what is left of it in throughput."""
    if not contests:
        return []
    lengths = [ratio for one in contests if (ratio := ratio_of(one.cell, one.baseline, "acceptance_length")) is not None]
    rates = [one.ratio for one in contests]
    extremes = [min(contests, key=lambda one: one.ratio.estimate), max(contests, key=lambda one: one.ratio.estimate)]
    named = " and ".join(f"{ratio_text(one.ratio)} with K={one.cell.variant.num_speculative_tokens} at {one.cell.load.label}" for one in extremes)
    return [
        f"3.1 over 3 on {contests[0].cell.load.workload}, K and load alike: acceptance length {_told_apart(lengths)}; throughput {_told_apart(rates)}, from "
        f"{named}. Each K of each head was one server, and what differs from server to server is in no interval."
    ]


def _told_apart(ratios: Sequence[Interval]) -> str:
    """Like higher in 9 of 9 cells, or higher in 1 and lower in 2 of 9 cells, the others not told apart."""
    higher, lower = (sum(one.excludes(1.0) and (one.estimate > 1) is side for one in ratios) for side in (True, False))
    said = " and ".join(f"{word} in {count}" for word, count in (("higher", higher), ("lower", lower)) if count)
    if not said:
        return f"not told apart in any of {len(ratios)} cells"
    return f"{said} of {len(ratios)} cells" + ("" if higher + lower == len(ratios) else ", the others not told apart")
