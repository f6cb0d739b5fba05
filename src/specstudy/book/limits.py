"""The limits of the machines that a page's records come from."""

from __future__ import annotations

from collections.abc import Sequence

from specstudy.analysis import Cell
from specstudy.analysis.shares import Share, shares
from specstudy.records.machine import MachineLimits, read_limits
from specstudy.records.trace import StepTrace, read_traces
from specstudy.study import results_folder


def machine_limits(cells: Sequence[Cell], mode: str = "recorded", results_dir: str | None = None) -> dict[str, MachineLimits]:
    """The limits measured in the cells' allocations, by allocation; nothing where nobody ran `specstudy limits` there.

    Raises RecordError for a file that is something else.
    """
    folder = results_folder(mode, results_dir)
    wanted = dict.fromkeys((cell.records[0].profile, cell.allocation) for cell in cells)
    found = {allocation: read_limits(folder / profile, allocation) for profile, allocation in wanted}
    return {allocation: limits for allocation, limits in found.items() if limits is not None}


def step_traces(cells: Sequence[Cell], mode: str = "recorded", results_dir: str | None = None) -> list[StepTrace]:
    """The decode steps of the cells' chapter that were traced in their allocations, by the time of tracing; nothing where nobody ran `specstudy trace`.

    Raises RecordError for a file that is something else.
    """
    folder, allocations = results_folder(mode, results_dir), frozenset(cell.allocation for cell in cells)
    found = dict.fromkeys((cell.records[0].profile, cell.records[0].chapter) for cell in cells)
    return [trace for profile, chapter in found for trace in read_traces(folder / profile, chapter, allocations)]


def cell_shares(cells: Sequence[Cell], mode: str = "recorded", results_dir: str | None = None) -> list[Share]:
    """Each cell's step beside the limit of its machine, for `figures.share_table` and its like; nothing where no limits were measured."""
    return shares(cells, machine_limits(cells, mode, results_dir))
