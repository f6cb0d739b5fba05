"""Under what conditions a page's cells were measured, where these were not alike or not what the profile asks for."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from specstudy.analysis import Cell
from specstudy.book.unrecorded import load_key, planned_sections
from specstudy.catalog import Profile

# Of all processor time. Two cells that are further apart in it may differ in speed for that alone: a step of a small model is the host's work.
APART = 0.03


def conditions(profile: Profile, chapter: str, cells: Sequence[Cell]) -> str:
    """Markdown sentences; empty where every cell has its repeats and other processes took the same share of the host."""
    return "\n\n".join(part for part in (_few_repeats(profile, chapter, cells), _host_shares(cells)) if part)


def _few_repeats(profile: Profile, chapter: str, cells: Sequence[Cell]) -> str:
    short: dict[int, list[int]] = {}
    for cell in cells:
        wanted = _wanted_repeats(profile, chapter, cell)
        if wanted is not None and len(cell.records) < wanted:
            short.setdefault(wanted, []).append(len(cell.records))
    told = (f"in {len(have)} of {len(cells)} cells {_span(have)}, where the profile asks for {wanted}" for wanted, have in sorted(short.items()))
    return f"**Fewer repeats than planned:** {'; '.join(told)}." if short else ""


def _wanted_repeats(profile: Profile, chapter: str, cell: Cell) -> int | None:
    """What the chapter's section says, else the profile; None for a load that isn't in the plan any more."""
    variant, load = cell.variant, cell.load
    planned = planned_sections(profile.chapters[chapter], variant.method, variant.draft, variant.num_speculative_tokens)
    key = load_key(load.workload, load.pattern, load.concurrency, load.request_rate)
    if key not in planned:
        return None
    section = planned[key]
    return section.repeats if section is not None and section.repeats is not None else profile.measuring.min_repeats


def _span(counts: Sequence[int]) -> str:
    return f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def _host_shares(cells: Sequence[Cell]) -> str:
    shares = {id(cell): share.estimate for cell in cells if (share := cell.interval("host_other_cpu_share")) is not None}
    if not shares:
        return ""
    usual = median(shares.values())
    apart: dict[str, list[tuple[str, float]]] = {}
    for cell in cells:
        if (own := shares.get(id(cell))) is not None and abs(own - usual) > APART:
            apart.setdefault(cell.label, []).append((cell.load.label, own))
    if not apart:
        return ""
    told = "; ".join(f"{label} at {', '.join(f'{load} ({taken:.0%})' for load, taken in loads)}" for label, loads in apart.items())
    return (
        f"**Not alike in what else ran on the host:** other processes took {usual:.0%} of its processor time beside the median cell, and at least "
        f"{APART * 100:.0f} points more or less beside these: {told}. A difference from others may be due to that."
    )
