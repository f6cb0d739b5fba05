"""The same head and the same baseline on another of vLLM's model runners: what a chapter that is bound to one must say of the other."""

from __future__ import annotations

from collections.abc import Sequence

from specstudy.analysis import Cell, Interval, Speedup, of_main_workload, speedups
from specstudy.figures.tables import ratio_text

EAGLE3 = "eagle3"


def on_another_runner(here: Sequence[Cell], there: Sequence[Cell]) -> str:
    """A sentence that sets EAGLE-3 over its baseline in `here` beside `there`, where another model runner ran; else nothing.

    The two come from two allocations, so each is a ratio to its own baseline: the same head, K and requests in flight, at
    the lowest load that both have, with the K that was fastest in `there`.
    """
    ours, theirs = _own(here), _own(there)
    both = [(mine, other) for mine in ours for other in theirs if _what(mine) == _what(other) and _on_two(_runner(mine), _runner(other))]
    if not both:
        return ""
    lowest = min(mine.cell.load.concurrency or 0 for mine, _ in both)
    at_lowest = [pair for pair in both if (pair[0].cell.load.concurrency or 0) == lowest]
    mine, other = max(at_lowest, key=lambda pair: pair[1].ratio.estimate)
    return (
        f"{mine.cell.variant.label} at {mine.cell.load.label} has {ratio_text(mine.ratio)} of its baseline's throughput on model runner {_runner(mine)}, "
        f"with answers of {_tokens(mine)} tokens; at {other.cell.load.label} on {_runner(other)} with {_tokens(other)} it has {ratio_text(other.ratio)}"
    )


def baselines_on_two_runners(here: Sequence[Cell], there: Sequence[Cell]) -> str:
    """Sentences that set the median TPOT without speculation in `here` beside `there`, where another model runner ran; else nothing.

    The two come from two allocations, and their answers may differ in length, so no ratio is made of them.
    """
    ours, theirs = _baselines(here), _baselines(there)
    both = [(ours[c], theirs[c]) for c in sorted(ours.keys() & theirs.keys()) if _on_two(_of(ours[c]), _of(theirs[c]))]
    if not both:
        return ""
    first, second = both[0]
    told = "; ".join(f"{_ms(_tpot(mine))} and {_ms(_tpot(other))} at c={mine.load.concurrency}" for mine, other in both)
    lines = [f"Median TPOT without speculation, here on model runner {_of(first)} and there on {_of(second)}: {told}."]
    sooner = [(mine, other) for mine, other in both if not _tpot(mine).overlaps(_tpot(other))]
    for runner, faster in (
        (_of(second), [mine for mine, other in sooner if _tpot(other).estimate < _tpot(mine).estimate]),
        (_of(first), [mine for mine, other in sooner if _tpot(mine).estimate < _tpot(other).estimate]),
    ):
        if faster:
            lines.append(f"Told apart at c={', '.join(str(mine.load.concurrency) for mine in faster)}: {runner} is the faster one.")
    if not sooner:
        lines.append("They aren't told apart at any load.")
    here_tokens, there_tokens = first.records[0].max_tokens, second.records[0].max_tokens
    lengths = "" if here_tokens == there_tokens else f" and answers have {here_tokens} tokens here, {there_tokens} there"
    return " ".join([*lines, f"The host was another{lengths}, so no ratio is made of the two."])


def _baselines(cells: Sequence[Cell]) -> dict[int, Cell]:
    """Of the main workload, by requests in flight."""
    plain = [cell for cell in of_main_workload(cells) if cell.variant.method == "none" and cell.interval("tpot_ms_p50") is not None]
    return {cell.load.concurrency: cell for cell in plain if cell.load.concurrency is not None}


def _of(cell: Cell) -> str | None:
    return cell.records[0].model_runner


def _tpot(cell: Cell) -> Interval:
    found = cell.interval("tpot_ms_p50")
    assert found is not None  # _baselines leaves the others out
    return found


def _ms(interval: Interval) -> str:
    return f"{interval.estimate:.2f} ± {(interval.high - interval.low) / 2:.2f} ms"


def _own(cells: Sequence[Cell]) -> list[Speedup]:
    main = of_main_workload(cells)
    return [one for one in speedups(main) if one.cell.variant.method == EAGLE3 and one.same_runner and one.cell.load.concurrency]


def _what(one: Speedup) -> tuple[object, ...]:
    return one.cell.variant, one.cell.records[-1].draft_folder, one.cell.load.concurrency


def _runner(one: Speedup) -> str | None:
    return one.cell.records[0].model_runner


def _on_two(one: str | None, other: str | None) -> bool:
    return None not in (one, other) and one != other


def _tokens(one: Speedup) -> int:
    return one.cell.records[0].max_tokens
