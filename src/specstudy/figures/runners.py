"""The same head and the same baseline on another of vLLM's model runners: what a chapter that is bound to one must say of the other."""

from __future__ import annotations

from collections.abc import Sequence

from specstudy.analysis import Cell, Speedup, of_main_workload, speedups
from specstudy.analysis.stats import mean_interval, unpaired_ratio
from specstudy.figures.tables import ratio_text, with_interval

EAGLE3 = "eagle3"
SWITCH = "VLLM_USE_V2_MODEL_RUNNER"


def on_another_runner(here: Sequence[Cell], there: Sequence[Cell]) -> str:
    """A sentence that sets EAGLE-3 over its baseline in `here` beside `there`, where another model runner ran; else nothing.

    The two come from two allocations, so each is a ratio to its own baseline: the same head, K and requests in flight, at
    the lowest load that both have, with the K that was fastest in `there`.
    """
    ours, theirs = _own(here), _own(there)
    both = [(mine, other) for mine in ours for other in theirs if _what(mine) == _what(other) and _on_two(_runner_of(mine.cell), _runner_of(other.cell))]
    if not both:
        return ""
    lowest = min(mine.cell.load.concurrency or 0 for mine, _ in both)
    at_lowest = [pair for pair in both if (pair[0].cell.load.concurrency or 0) == lowest]
    mine, other = max(at_lowest, key=lambda pair: pair[1].ratio.estimate)
    cell, beside = mine.cell, other.cell
    return (
        f"{cell.variant.label} at {cell.load.label} has {ratio_text(mine.ratio)} of its baseline's throughput on model runner {_runner_of(cell)}, "
        f"with answers of {_tokens(cell)} tokens; at {beside.load.label} on {_runner_of(beside)} with {_tokens(beside)} it has {ratio_text(other.ratio)}"
    )


def baselines_on_two_runners(here: Sequence[Cell], there: Sequence[Cell], places: tuple[str, str] = ("here", "there")) -> str:
    """Sentences that set the median TPOT without speculation in `here` beside `there`, where another model runner ran; else nothing. `places` names the two.

    The ratio of the two is Welch's, over repeats that share nothing. Where they come from two allocations it holds the hosts' difference too.
    """
    ours, theirs = _baselines(here), _baselines(there)
    both = [(ours[c], theirs[c]) for c in sorted(ours.keys() & theirs.keys()) if _on_two(_runner_of(ours[c]), _runner_of(theirs[c]))]
    if not both:
        return ""
    mine, other = both[0]
    compared = "; ".join(_compared(one, another) for one, another in both)
    lines = [f"Median TPOT without speculation on {_chosen(mine)} {places[0]} and on {_chosen(other)} {places[1]}: {compared}."]
    apart = "They come from two allocations, so a difference may be the hosts'" if mine.allocation != other.allocation else ""
    here_tokens, there_tokens = _tokens(mine), _tokens(other)
    if here_tokens != there_tokens:
        begun = f"{apart}; and answers" if apart else "Answers"
        apart = f"{begun} have {here_tokens} tokens {places[0]} and {there_tokens} {places[1]}: more prompts come between the tokens of shorter ones"
    return " ".join([*lines, *([f"{apart}."] if apart else [])])


def _baselines(cells: Sequence[Cell]) -> dict[int, Cell]:
    """Of the main workload, by requests in flight; of several the first."""
    found: dict[int, Cell] = {}
    for cell in of_main_workload(cells):
        if cell.variant.method == "none" and cell.load.concurrency is not None and _tpots(cell):
            found.setdefault(cell.load.concurrency, cell)
    return found


def _tpots(cell: Cell) -> list[float]:
    return [record.tpot_ms_p50 for record in cell.records if record.tpot_ms_p50]


def _runner_of(cell: Cell) -> str | None:
    return cell.records[0].model_runner


def _chosen(cell: Cell) -> str:
    """Like model runner V1, set by VLLM_USE_V2_MODEL_RUNNER."""
    by = f"set by {SWITCH}" if any(setting.startswith(f"{SWITCH}=") for setting in cell.records[0].server_env) else "vLLM's own choice"
    return f"model runner {_runner_of(cell)} ({by})"


def _compared(mine: Cell, other: Cell) -> str:
    ratio = unpaired_ratio(_tpots(other), _tpots(mine))
    sure = "" if ratio.excludes(1.0) else ", no difference" if ratio.n > 1 else ", one repeat"
    values = " and ".join(with_interval(mean_interval(_tpots(cell)), 2) for cell in (mine, other))
    return f"{values} ms at c={mine.load.concurrency}, {_runner_of(other)}'s {ratio_text(ratio)} of {_runner_of(mine)}'s{sure}"


def _own(cells: Sequence[Cell]) -> list[Speedup]:
    main = of_main_workload(cells)
    return [one for one in speedups(main) if one.cell.variant.method == EAGLE3 and one.same_runner and one.cell.load.concurrency]


def _what(one: Speedup) -> tuple[object, ...]:
    return one.cell.variant, one.cell.records[-1].draft_folder, one.cell.load.concurrency


def _on_two(one: str | None, other: str | None) -> bool:
    return None not in (one, other) and one != other


def _tokens(cell: Cell) -> int:
    return cell.records[0].max_tokens
