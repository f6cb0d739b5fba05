"""Were two cells measured under like conditions? What else ran on the host is part of a step's time wherever the host bounds it."""

from __future__ import annotations

from specstudy.analysis.cells import Cell

# Of all processor time; of 16 processors that is more than half of one.
APART = 0.04


def host_share(cell: Cell) -> float | None:
    """Share of the host's processor time that neither the cell's server nor the load generator used, mean over repeats; None where it wasn't recorded.

    It holds other people's processes as well as ours: idle servers of the same run, and what ran beside it on another GPU.
    """
    found = cell.interval("host_other_cpu_share")
    return None if found is None else found.estimate


def alike(one: Cell, other: Cell) -> bool:
    """Whether the host did about the same beside both; True where that wasn't recorded."""
    mine, theirs = host_share(one), host_share(other)
    return mine is None or theirs is None or abs(mine - theirs) <= APART
