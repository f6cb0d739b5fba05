"""The same head on another of vLLM's model runners: what a chapter that is bound to one must say of the other."""

from __future__ import annotations

from collections.abc import Sequence

from specstudy.analysis import Cell, Speedup, of_main_workload, speedups
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
