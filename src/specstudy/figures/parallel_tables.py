"""Parallel drafting against drafting token by token: tables and sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from specstudy.analysis import (
    Cell,
    Family,
    Inflection,
    Interval,
    Speedup,
    best_k,
    drafting_slopes,
    family_of,
    inflection,
    inflections,
    same_k,
    speedups,
    step_times,
)
from specstudy.analysis.alike import APART
from specstudy.analysis.contest import best_cells, contenders
from specstudy.analysis.families import family_labels
from specstudy.figures.costs import change_text
from specstudy.figures.parallel import fastest_over_baseline
from specstudy.figures.tables import DASH, Table, ratio_text, with_interval
from specstudy.figures.text import Text, bullets, not_measured

MARK = " †"


def best_k_table(cells: Sequence[Cell]) -> Table | Text:
    """At each load: the best K of each side, its throughput and acceptance length, and the ratio."""
    pair = contenders(cells)
    contests = best_k(cells, *pair) if pair else []
    if not contests:
        return not_measured("P-EAGLE beside EAGLE-3")
    rows = []
    for one in contests:
        row: dict[str, object] = {"load": one.cell.load.label}
        for name, cell in (("P-EAGLE", one.cell), ("EAGLE-3", one.baseline)):
            row[f"{name} K"] = cell.variant.num_speculative_tokens
            row[f"{name} tokens/s"] = with_interval(cell.interval("output_tokens_per_s"))
            row[f"{name} AL"] = with_interval(cell.interval("acceptance_length"), 2)
        rows.append({**row, "P-EAGLE / EAGLE-3": change_text(one.ratio), "verdict": one.verdict + ("" if one.same_runner else "; model runners differ")})
    note = (
        "The best K has the highest mean throughput of those measured under conditions like their baseline's. Ratio of repeats with the same prompts, 95 % "
        "interval; one that holds 1 is no difference."
    )
    if len(contests) > 1:
        note += f" At 95 % one of twenty ratios is told from 1 by chance; here there are {len(contests)}."
    if pair and (apart := on_two_gpus(cells, *pair)):
        note += f" Not compared, since the two best K ran on different GPUs: {', '.join(apart)}."
    return Table(pd.DataFrame(rows), contests[0].cell.records[0].evidence, note)


def same_k_table(cells: Sequence[Cell]) -> Table | Text:
    """P-EAGLE over EAGLE-3 at the same K: a row for each K, a column for each concurrency."""
    pair = contenders(cells)
    contests = same_k(cells, *pair) if pair else []
    if not contests:
        return not_measured("P-EAGLE and EAGLE-3 at one K and one load")
    table: dict[int, dict[str, str]] = {}
    for one in contests:
        sure = one.verdict in ("faster", "slower") or one.ratio.n < 2
        table.setdefault(one.cell.variant.num_speculative_tokens or 0, {})[f"c={one.cell.load.concurrency}"] = (
            ratio_text(one.ratio) if sure else "no difference"
        ) + ("" if one.alike else MARK)
    rows = [{"K": k, **table[k]} for k in sorted(table)]
    note = "Throughput over EAGLE-3's, 95 % interval over paired repeats; no difference where it holds 1."
    if not all(one.alike for one in contests):
        note += f" {MARK.strip()}: the host did at least {APART * 100:.0f} points more or less beside one of the two."
    if any(slope.beyond_chance for slope in drafting_slopes(cells)):
        note += " Single cells scatter by more than these intervals say, as the last section explains."
    return Table(pd.DataFrame(rows).fillna(DASH), contests[0].cell.records[0].evidence, note)


def inflection_table(cells: Sequence[Cell]) -> Table | Text:
    """At which concurrency P-EAGLE's advantage over EAGLE-3 ends, for each K and for best K against best K."""
    pair = contenders(cells)
    found = inflections(same_k(cells, *pair)) if pair else []
    overall = inflection(best_k(cells, *pair)) if pair else None
    everything = [(str(one.k), one) for one in found] + ([("best against best", overall)] if overall is not None else [])
    if not everything:
        return not_measured("P-EAGLE beside EAGLE-3 at two concurrencies or more")
    rows = [
        {
            "K": name + ("" if all(contest.alike for contest in one.contests) else MARK),
            "advantage ends at concurrency": one.text,
            "ratio at the lowest": f"{one.contests[0].ratio.estimate:.2f} at {one.contests[0].cell.load.concurrency}",
            "at the highest": f"{one.contests[-1].ratio.estimate:.2f} at {one.contests[-1].cell.load.concurrency}",
        }
        for name, one in everything
    ]
    note = (
        "Where the throughput ratio first falls to 1, interpolated in log2 of concurrency between two measured loads. In brackets the 95 % interval: "
        "the ratios are drawn from their t distributions, and the crossing is found each time."
    )
    if any(not contest.alike for _, one in everything for contest in one.contests):
        note += f" {MARK.strip()}: at some of its loads the host did at least {APART * 100:.0f} points more or less beside one of the two."
    return Table(pd.DataFrame(rows), everything[0][1].contests[0].cell.records[0].evidence, note)


def drafting_table(cells: Sequence[Cell]) -> Table | Text:
    """Extra milliseconds of a step beside the baseline's, its growth with each drafted token, at each load."""
    slopes = drafting_slopes(cells)
    if not slopes:
        return not_measured("Three K or more beside a baseline")
    labels = family_labels(slope.family for slope in slopes)
    rows = [
        {
            "method": labels[slope.family],
            "load": slope.load.label,
            "K": f"{slope.ks[0]} to {slope.ks[-1]}",
            "ms for each drafted token": _signed(slope.per_token_ms),
            "fixed ms": _signed(slope.fixed_ms),
            **{f"extra ms at K={k}": with_interval(_extra(cells, slope.family, slope.load, k), 2) for k in (slope.ks[0], slope.ks[-1])},
            "off the line": DASH if slope.off_line is None else f"{slope.off_line.ratio:.1f}x" + (", beyond chance" if slope.beyond_chance else ""),
        }
        for slope in slopes
    ]
    note = (
        "A step is mean TPOT times acceptance length; extra is what it takes beyond the baseline's TPOT at the same load, paired by repeat. It holds "
        "drafting and the wider verification together (K + 1 positions through the target), not drafting alone. Least squares over K in each repeat; "
        "± over repeats or, where single K lie off the line beyond chance, from how far they do. Off the line: how much further they lie off it "
        "than repeats scatter, 1 expected; beyond chance by an F test at 5 % over all rows together."
    )
    return Table(pd.DataFrame(rows).fillna(DASH), cells[0].records[0].evidence, note)


def between_cells_line(cells: Sequence[Cell]) -> str:
    """Whether steps differ between cells by more than their repeats explain, and what that means for a comparison of two cells."""
    slopes = drafting_slopes(cells)
    beyond = [(slope.off_line, slope) for slope in slopes if slope.off_line is not None and slope.beyond_chance]
    if not beyond:
        return ""
    labels = family_labels(slope.family for slope in slopes)
    worst, where = max(beyond, key=lambda pair: pair[0].ratio)
    if all(slope.one_go for _, slope in beyond):
        why = (
            "Either steps don't grow by a line, or the host's pace differed: the repeats of a K were measured in one go, one K after the other, so what "
            "changes from minute to minute is in no interval here, and the loads of one server, measured one after the other too, share it"
        )
    else:
        why = "Either steps don't grow by a line, or servers differ, or the host's pace did between those K that weren't measured in the same rounds"
    return (
        f"Single cells differ by more than their intervals say: for {len(beyond)} of {sum(slope.off_line is not None for slope in slopes)} pairs of a method "
        f"and a load the steps of single K lie further off their line than their repeats explain, up to {worst.ratio:.1f} times as far "
        f"({labels[where.family]} at {where.load.label}). {why}. A verdict on two cells is weaker than its interval makes it look."
    )


def _signed(interval: Interval) -> str:
    told = with_interval(interval, 3)
    return told if _differs(interval) else f"{told}, no difference from 0"


def _differs(interval: Interval) -> bool:
    return interval.n < 2 or interval.excludes(0.0)


def _extra(cells: Sequence[Cell], family: object, load: object, k: int) -> Interval | None:
    own = (time for time in step_times(cells) if family_of(time.cell.variant) == family and time.cell.load == load)
    return next((time.extra_ms for time in own if time.cell.variant.num_speculative_tokens == k), None)


def parallel_conclusion(cells: Sequence[Cell]) -> Text:
    """Which of the two to deploy, at which load, and what a step costs."""
    pair = contenders(cells)
    contests = best_k(cells, *pair) if pair else []
    if not contests or pair is None:
        return not_measured("P-EAGLE beside EAGLE-3")
    lines = [_runner_line(contests[0].same_runner)]
    for verdict, said in (("faster", "P-EAGLE is faster, best K against best K"), ("slower", "EAGLE-3 is faster"), ("no difference", "There is no difference")):
        own = [one for one in contests if one.verdict == verdict]
        if own:
            few = verdict != "no difference" and len(contests) > 1
            count = f" ({len(own)} of {len(contests)} loads, each side's best K chosen by the same repeats)" if few else ""
            lines.append(f"{said}{count}, at " + "; ".join(f"{one.cell.load.label}: {ratio_text(one.ratio)}" for one in own) + ".")
    overall = inflection(contests)
    if overall is not None:
        lines.append(f"Best K against best K, {end_text(overall)}.")
    if apart := on_two_gpus(cells, *pair):
        lines.append(f"Not compared at {', '.join(apart)}: the two best K ran on different GPUs there.")
    at_same_k = same_k(cells, *pair)
    lines.append(_inflection_line(inflections(at_same_k)))
    lines.append(_not_alike_line(at_same_k))
    lines += _slope_lines(cells)
    lines.append(between_cells_line(cells))
    lines += over_baseline_lines(cells, pair)
    lines.append(_flagged_line(speedups(cells)))
    return bullets(lines)


def on_two_gpus(cells: Sequence[Cell], ours: Family, theirs: Family) -> list[str]:
    """Loads at which both were measured, but each side's best K on another GPU, so that no ratio can be taken."""
    return [mine.load.label for mine, other in best_cells(cells, ours, theirs) if mine.records[0].allocation != other.records[0].allocation]


def end_text(end: Inflection) -> str:
    """Where P-EAGLE's advantage ends, as a part of a sentence."""
    first, last = (contest.cell.load.concurrency for contest in (end.contests[0], end.contests[-1]))
    if end.state == "crosses":
        return f"P-EAGLE's advantage ends at a concurrency of {end.text}"
    if end.state == "above":
        unsure = "" if not math.isfinite(end.low) else "; none isn't excluded" if end.low == 0 else f"; an end from {end.low:.1f} on isn't excluded"
        return f"P-EAGLE's ratio stays above 1 up to {last} requests in flight, the highest load{unsure}"
    if end.returns:
        lowest, rest = end.contests[0], end.contests[1:]
        at = f"P-EAGLE's ratio is {_side(lowest)} at a concurrency of {first}, the lowest load compared"
        return f"{at}, and further up at most {max(one.ratio.estimate for one in rest):.2f}, {_told_apart(rest)}"
    bound = "the highest load" if math.isinf(end.high) else f"{end.high:.1f} requests"
    open_to = "" if math.isnan(end.high) or end.high == 0 else f"; an advantage up to {bound} isn't excluded"
    return f"P-EAGLE has no advantage to lose: its ratio is below 1 at a concurrency of {first}, the lowest load compared{open_to}"


def _side(contest: Speedup) -> str:
    return f"{contest.ratio.estimate:.2f}" + (" (no difference)" if contest.verdict == "no difference" else "")


def _told_apart(contests: Sequence[Speedup]) -> str:
    sure = [str(one.cell.load.concurrency) for one in contests if one.verdict == "faster"]
    return f"above 1 beyond its interval at {', '.join(sure)}" if sure else "nowhere above 1 beyond its interval"


def over_baseline_lines(cells: Sequence[Cell], pair: tuple[Family, Family]) -> list[str]:
    """Whether either of the two pays at all: each at its best K over the baseline, the loads grouped by verdict."""
    lines: list[str] = []
    verdicts: set[str] = set()
    found = speedups(cells)
    for name, family in zip(("P-EAGLE", "EAGLE-3"), pair, strict=True):
        best = fastest_over_baseline(found, family)
        if not best:
            continue
        groups: dict[str, list[Speedup]] = {}
        for one in best:
            groups.setdefault(one.verdict, []).append(one)
        told = "; ".join(f"{verdict} at c={', '.join(str(one.cell.load.concurrency) for one in group)}" for verdict, group in groups.items())
        ratios = [one.ratio.estimate for one in best]
        lines.append(f"{name} at its best K has {min(ratios):.2f} to {max(ratios):.2f} of the baseline's throughput: {told}.")
        verdicts |= set(groups)
    if len(lines) == len(pair) and "faster" not in verdicts:
        slower = verdicts == {"slower"}
        lines.append(f"So neither {'pays' if slower else 'is shown to pay'} here at any load" + (": the comparison says which costs less." if slower else "."))
    return lines


def _flagged_line(found: Sequence[Speedup]) -> str:
    """The flagged cells, or where they are most, the others."""
    flagged, others = [one for one in found if one.flagged], [one for one in found if not one.flagged]
    if not flagged:
        return ""
    few, but = (others, " all but ") if len(flagged) > len(others) else (flagged, " ")
    named = "; ".join(f"{one.cell.variant.label} at {one.cell.load.label} ({one.ratio.estimate:.2f})" for one in few)
    return (
        f"Flagged, under 0.95 of the baseline, {len(flagged)} of {len(found)} cells:{but}{named}."
        if named
        else "Flagged, under 0.95 of the baseline: every cell."
    )


def _runner_line(same: bool) -> str:
    return "" if same else "The two ran on different model runners, so the ratio measures the runner too."


def _not_alike_line(contests: Sequence[Speedup]) -> str:
    """The same-K ratios of which the host did more or less beside one side."""
    apart: dict[int, list[str]] = {}
    for one in contests:
        if not one.alike:
            apart.setdefault(one.cell.variant.num_speculative_tokens or 0, []).append(str(one.cell.load.concurrency))
    if not apart:
        return ""
    named = "; ".join(f"K={k} at c={', '.join(loads)}" for k, loads in sorted(apart.items()))
    return (
        f"Not under like conditions: {named}. The host did at least {APART * 100:.0f} points more or less beside one of the two there, so these ratios, "
        "and where an advantage is said to end by them, aren't the methods' alone. A best K is chosen among those measured like their baseline."
    )


def _inflection_line(found: Sequence[Inflection]) -> str:
    if not found:
        return ""
    return "At the same K it ends at: " + "; ".join(f"K={one.k}, {one.text}" for one in found) + "."


def _slope_lines(cells: Sequence[Cell]) -> list[str]:
    slopes = drafting_slopes(cells)
    lowest = [slope for slope in slopes if slope.load == slopes[0].load] if slopes else []
    labels = family_labels(slope.family for slope in lowest)
    return [
        f"{labels[slope.family]} at {slope.load.label}: each further drafted token adds {with_interval(slope.per_token_ms, 3)} ms to a step"
        f"{'' if _differs(slope.per_token_ms) else ', no difference from 0'}, drafting and wider verification together."
        for slope in lowest
    ]
