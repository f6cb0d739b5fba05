"""How good are the guesses: by position, by workload, by context length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specstudy.analysis.cells import Cell
from specstudy.analysis.families import MAIN_WORKLOAD, Family, at, context_tokens, families, family_of
from specstudy.analysis.speedup import ratio_of
from specstudy.analysis.stats import Interval, mean_interval, unpaired_ratio


@dataclass(frozen=True)
class PositionCurve:
    """Acceptance at each position of a draft, i = 1 to K, fractions with 95 % intervals over repeats.

    `rate`: accepted at i over drafts, so it can only fall. `conditional`: of the drafts accepted up to i - 1, the share
    accepted at i too: a draft that stays as good at depth has a level curve. It is shorter where nothing was accepted.
    """

    cell: Cell
    rate: tuple[Interval, ...]
    conditional: tuple[Interval, ...]

    @property
    def hold(self) -> float | None:
        """Last conditional rate over the first: 1 says that depth costs nothing; None for K = 1."""
        return self.conditional[-1].estimate / self.conditional[0].estimate if len(self.conditional) > 1 else None


def position_curve(cell: Cell) -> PositionCurve | None:
    """The curve of one cell; None where no repeat has one."""
    curves = [record.acceptance_per_position for record in cell.records if record.acceptance_per_position]
    if not curves:
        return None
    rate = tuple(mean_interval(values) for values in zip(*curves, strict=True))
    conditional: list[Interval] = []
    for position in range(len(curves[0])):
        before = [1.0 if position == 0 else curve[position - 1] for curve in curves]
        kept = [curve[position] / share for curve, share in zip(curves, before, strict=True) if share > 0]
        if not kept:
            break
        conditional.append(mean_interval(kept))
    return PositionCurve(cell, rate, tuple(conditional))


@dataclass(frozen=True)
class WorkloadShare:
    """Acceptance length on one workload over that on the reference, same head, K and concurrency; other prompts."""

    cell: Cell
    reference: Cell
    ratio: Interval


def workload_shares(cells: Sequence[Cell], reference: str = MAIN_WORKLOAD) -> list[WorkloadShare]:
    """One for each cell of another workload, context bands left out, that has the reference at the same concurrency."""
    found = []
    for cell in cells:
        if cell.load.workload == reference or context_tokens(cell.load.workload) is not None:
            continue
        same = (other for other in cells if other.variant == cell.variant and other.load.workload == reference and _amount(other) == _amount(cell))
        other = next(same, None)
        if other is None:
            continue
        ours, theirs = _lengths(cell), _lengths(other)
        if ours and theirs:
            found.append(WorkloadShare(cell, other, unpaired_ratio(ours, theirs)))
    return found


def _amount(cell: Cell) -> tuple[int | None, float | None]:
    return cell.load.concurrency, cell.load.request_rate


def _lengths(cell: Cell) -> list[float]:
    return [record.acceptance_length for record in cell.records if record.acceptance_length]


@dataclass(frozen=True)
class ContextPoint:
    """Acceptance length in one band of prompt lengths; `prompt_tokens` is the mean that was really sent."""

    cell: Cell
    band_tokens: int
    prompt_tokens: float
    length: Interval


def by_context(cells: Sequence[Cell], family: Family) -> list[ContextPoint]:
    """One point for each band that the family was measured in, at its largest K, shortest prompts first."""
    own = [cell for cell in cells if family_of(cell.variant) == family and context_tokens(cell.load.workload) is not None]
    deepest = max((cell.variant.num_speculative_tokens or 0 for cell in own), default=0)
    points = []
    for cell in own:
        band, length = context_tokens(cell.load.workload), cell.interval("acceptance_length")
        if cell.variant.num_speculative_tokens == deepest and band is not None and length is not None:
            points.append(ContextPoint(cell, band, float(cell.requests["prompt_tokens"].mean()), length))
    return sorted(points, key=lambda point: point.band_tokens)


def context_ratios(cells: Sequence[Cell], ours: Family, theirs: Family) -> list[tuple[ContextPoint, Interval]]:
    """Acceptance length of `ours` over `theirs` in each band, paired by repeat, which have the same prompts."""
    other = {(point.band_tokens, point.cell.variant.num_speculative_tokens): point.cell for point in by_context(cells, theirs)}
    found = []
    for point in by_context(cells, ours):
        cell = other.get((point.band_tokens, point.cell.variant.num_speculative_tokens))
        ratio = ratio_of(point.cell, cell, "acceptance_length") if cell is not None else None
        if ratio is not None:
            found.append((point, ratio))
    return found


def deepest_curves(cells: Sequence[Cell]) -> list[PositionCurve]:
    """The curve of each family that drafts, at its largest K and its lowest load among `cells`."""
    found = []
    for family in families(cells):
        own = [cell for cell in cells if family_of(cell.variant) == family and cell.variant.method != "none"]
        if own:
            first = min(own, key=lambda cell: cell.load.order)
            curve = position_curve(list(at(cells, family, first.load).values())[-1])
            if curve is not None:
                found.append(curve)
    return found
