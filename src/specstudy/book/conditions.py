"""Under what conditions a page's cells were measured, where these were not alike or not what the profile asks for."""

from __future__ import annotations

from collections.abc import Sequence

from specstudy.analysis import Cell
from specstudy.analysis.alike import APART, alike, host_share
from specstudy.analysis.cells import with_baseline
from specstudy.book.unrecorded import load_key, planned_sections
from specstudy.catalog import Profile


def conditions(profile: Profile, chapter: str, cells: Sequence[Cell]) -> str:
    """Markdown sentences; empty where every cell has its repeats and what else ran on the host took about as much of it as beside the baseline."""
    return "\n\n".join(part for part in (_few_repeats(profile, chapter, cells), _host_shares(cells)) if part)


def _few_repeats(profile: Profile, chapter: str, cells: Sequence[Cell]) -> str:
    short: dict[int, list[int]] = {}
    for cell in cells:
        wanted = _wanted_repeats(profile, chapter, cell)
        if wanted is not None and len(cell.records) < wanted:
            short.setdefault(wanted, []).append(len(cell.records))
    told = (f"in {len(have)} of {len(cells)} cells {_span(have)}, where the profile now asks for {wanted}" for wanted, have in sorted(short.items()))
    return f"**Fewer repeats than planned:** {'; '.join(told)}." if short else ""


def _wanted_repeats(profile: Profile, chapter: str, cell: Cell) -> int | None:
    """What the chapter's section says, else the profile; None for a load that isn't in the plan any more."""
    variant = cell.variant
    planned = planned_sections(profile.chapters[chapter], variant.method, variant.draft, variant.num_speculative_tokens)
    key = load_key(cell.load)
    if key not in planned:
        return None
    section = planned[key]
    return section.repeats if section is not None and section.repeats is not None else profile.measuring.min_repeats


def _span(counts: Sequence[int]) -> str:
    return f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def _host_shares(cells: Sequence[Cell]) -> str:
    apart: dict[str, list[str]] = {}
    for cell, baseline in with_baseline(cells):
        if not alike(cell, baseline):
            apart.setdefault(cell.label, []).append(f"{cell.load.label} ({host_share(cell):.0%} against {host_share(baseline):.0%})")
    if not apart:
        return ""
    told = "; ".join(f"{label} at {', '.join(loads)}" for label, loads in apart.items())
    return (
        f"**Not alike in what else ran on the host:** its processors did at least {APART * 100:.0f} points more or less of other work, idle servers and "
        f"neighbouring runs of this study included, beside these cells than beside their baseline: {told}. Part of their ratios may be due to that."
    )
