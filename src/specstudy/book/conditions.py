"""Under what conditions a page's cells were measured, where these were not alike or not what the profile asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specstudy.analysis import Cell
from specstudy.analysis.alike import APART, alike, host_share
from specstudy.analysis.cells import with_baseline
from specstudy.book.unrecorded import load_key, planned_sections
from specstudy.catalog import Profile
from specstudy.catalog.models import Measuring
from specstudy.plan import enough


def conditions(profile: Profile, chapter: str, cells: Sequence[Cell]) -> str:
    """Markdown sentences; empty where every cell has its repeats, is known as well as the rules aim at, and was measured beside a host that was alike."""
    planned = [(cell, wanted) for cell in cells if (wanted := _planned(profile, chapter, cell)) is not None]
    parts = (_few_repeats(profile.measuring, planned), _wide(profile.measuring, planned), _host_shares(cells))
    return "\n\n".join(part for part in parts if part)


@dataclass(frozen=True)
class Wanted:
    """What the plan asks of a cell: so many repeats by its section, or None for the rules of the profile."""

    repeats: int | None


def _planned(profile: Profile, chapter: str, cell: Cell) -> Wanted | None:
    """None for a load that isn't in the plan any more."""
    variant = cell.variant
    planned = planned_sections(profile.chapters[chapter], variant.method, variant.draft, variant.num_speculative_tokens)
    key = load_key(cell.load)
    if key not in planned:
        return None
    section = planned[key]
    return Wanted(section.repeats if section is not None else None)


def _few_repeats(rules: Measuring, planned: Sequence[tuple[Cell, Wanted]]) -> str:
    short = [(cell, wanted) for cell, wanted in planned if not enough(rules, wanted.repeats, cell.records)]
    if not short:
        return ""
    under = [len(cell.records) for cell, wanted in short if len(cell.records) < (wanted.repeats or rules.min_repeats)]
    least = f" {len(under)} of them have {_span(under)}, fewer than the least." if under else ""
    return (
        f"**Short of the profile's rules:** {len(short)} of {len(planned)} cells lack a repeat or more.{least} "
        "The recording ended before, or was told another number."
    )


def _wide(rules: Measuring, planned: Sequence[tuple[Cell, Wanted]]) -> str:
    ruled = [rate for cell, wanted in planned if wanted.repeats is None and (rate := cell.interval("output_tokens_per_s")) is not None and rate.n > 1]
    wide = [rate.half_width_share for rate in ruled if rate.half_width_share > rules.target_interval]
    if not wide:
        return ""
    return (
        f"**Known less well than aimed at:** the throughput of {len(wide)} of {len(ruled)} cells is known to ± {_percent(wide)} %, not to the "
        f"{rules.target_interval * 100:.0f} % at which the rules stop: the time or the repeats that a cell may take came first."
    )


def _percent(shares: Sequence[float]) -> str:
    low, high = f"{min(shares) * 100:.0f}", f"{max(shares) * 100:.0f}"
    return low if low == high else f"{low} to {high}"


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
