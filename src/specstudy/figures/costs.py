"""What speculation costs elsewhere, as tables: memory, the first token, the tail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from specstudy.analysis import Cell, Interval, LatencyChange, family_of, latency_changes, memory, rejections
from specstudy.analysis.costs import Memory
from specstudy.analysis.families import Family, family_labels, loads
from specstudy.figures.prose import in_bursts
from specstudy.figures.tables import DASH, Table, number, ratio_text, with_interval
from specstudy.figures.text import NOTHING_TO_COMPARE, Text, bullets, not_measured
from specstudy.records.schema import P99_NEEDS


def change_text(ratio: Interval | None) -> str:
    """Like 1.32 (1.21 to 1.44); no difference where 1 lies inside; a dash for nothing."""
    if ratio is None:
        return DASH
    return ratio_text(ratio) + (", no difference" if ratio.n > 1 and not ratio.excludes(1.0) else "")


def memory_table(cells: Sequence[Cell]) -> Table | Text:
    """Weights and KV cache of each method against the baseline, in GiB, tokens and per cent."""
    found = memory(cells)
    if not found:
        return not_measured("Memory")
    rows = [
        {
            "method": one.cell.variant.label,
            "weights GiB": f"{one.weights_gib:.2f}",
            "of it the draft GiB": number(one.draft_gib if _has_draft(one) else None, 2),
            "draft's files GiB": number(one.draft_files_gib, 3),
            "draft, % of target": f"{one.draft_share:.1%}" if _has_draft(one) else DASH,
            "KV cache tokens": DASH if one.kv_tokens is None else f"{one.kv_tokens:,}",
            "baseline's": DASH if one.baseline_kv_tokens is None else f"{one.baseline_kv_tokens:,}",
            "KV cache lost": DASH if one.kv_share_lost is None else f"{one.kv_share_lost:.1%}",
            "draft's KV GiB": number(one.draft_kv_gib, 2),
        }
        for one in found
    ]
    note = (
        "From the servers' logs; a log states weights to 0.01 GiB. "
        + (
            f"Every server was given a KV cache of {found[0].cache_gib:.0f} GiB, so what is lost in tokens is the room of the draft's own keys and values."
            if found[0].cache_gib is not None
            else "The server gives the KV cache all memory that is left, so all that a draft takes shows as tokens lost."
        )
        + _baselines_apart(found)
        + f" {DASH}: no draft, not stated, or not this server's alone."
    )
    return Table(pd.DataFrame(rows), found[0].cell.records[0].evidence, note)


def _baselines_apart(found: Sequence[Memory]) -> str:
    """What the baselines of several GPUs differ by: no more than that is told by two methods that were measured on two of them."""
    caches = {one.baseline_kv_tokens for one in found if one.baseline_kv_tokens}
    if len(caches) < 2:
        return ""
    return f" The caches of the GPUs' baselines differ by {1 - min(caches) / max(caches):.1%}: a smaller difference between methods of two GPUs says nothing."


def latency_change_table(cells: Sequence[Cell]) -> Table | Text:
    """First token and 99th percentiles over the baseline's, with intervals."""
    found = latency_changes(cells)
    if not found:
        return NOTHING_TO_COMPARE
    rows = [
        {
            "method": one.cell.variant.label,
            "load": one.cell.load.label,
            "TTFT p50, change ms": with_interval(one.ttft_ms),
            "TTFT p50": change_text(one.ttft_p50),
            "TPOT p99": change_text(one.tpot_p99),
            "E2E p99": change_text(one.e2e_p99),
            "chunk gap p99": change_text(one.chunk_gap_p99),
        }
        for one in found
    ]
    note = (
        "Ratios to the baseline at the same load; under 1 is better. TTFT and chunk gap: paired by repeat. TPOT and E2E p99: the requests of all repeats, "
        f"interval over repeats, by leaving out one at a time; {DASH} under {P99_NEEDS} of them, and for a chunk gap where the baseline's chunks were "
        "merged on the way, so that the pause between them is no step's. An interval that holds 1 is no difference."
    )
    return Table(pd.DataFrame(rows), found[0].cell.records[0].evidence, note)


def rejection_table(cells: Sequence[Cell]) -> Table | Text:
    """Chunks with one token, the pause before them and before fuller ones, and the p99 of both kinds of pause."""
    found = rejections(cells)
    if not found:
        return not_measured("A tail of pauses (300 chunks or more)")
    rows = [
        {
            "method": one.cell.label,
            "load": one.cell.load.label,
            "tokens/chunk": with_interval(one.cell.interval("tokens_per_chunk_mean"), 2),
            "chunks of one token": f"{one.single:.0%}",
            "pause before them, p50 ms": number(one.single_gap_p50, 2),
            "before fuller ones": number(one.fuller_gap_p50, 2),
            "pause p99 ms": number(one.gap_p99, 2),
            "pause per token p99 ms": number(one.per_token_p99, 2),
            "from repeats": f"{one.repeats} of {len(one.cell.records)}",
        }
        for one in found
    ]
    note = (
        "Chunks after the first of each answer, of the repeats whose chunks were kept: one alone says little of the tail, which differs from repeat to "
        "repeat, see the next table. With a draft in every step a chunk of one token is a step whose drafts were all rejected. "
        "Chunks that were merged on the way count as one."
    )
    return Table(pd.DataFrame(rows), found[0].cell.records[0].evidence, note)


def cost_conclusion(cells: Sequence[Cell]) -> Text:
    """Memory that each draft takes, and at which loads its first token comes later or earlier."""
    lines = list(_memory_lines(cells))
    changes = [one for one in latency_changes(cells) if one.ttft_p50 is not None and one.ttft_p50.n > 1]
    by_load = {load: [one for one in changes if one.cell.load == load] for load in loads([one.cell for one in changes])}
    bursts = [load for load, here in by_load.items() if in_bursts([one.cell for one in here])]
    if bursts:
        lines.append(
            f"Median first tokens aren't compared at {', '.join(load.label for load in bursts)}: all answers there are equally long, so without speculation "
            "requests end together and the next prompts wait for each other. For the same reason the baseline's prompts interrupt few answers, and the pauses "
            "between chunks aren't comparable either: with speculation they hold other requests' prompts."
        )
    for load, here in by_load.items():
        if load in bursts:
            continue
        moved = [f"{one.cell.variant.label} {_moved(one)}" for one in here if _shown(one.ttft_p50)]
        same = [one.cell.variant.label for one in here if not _shown(one.ttft_p50)]
        lines.append(
            f"Median first token at {load.label}, against the baseline's: "
            + "; ".join(moved + ([f"no difference for {', '.join(same)}"] if same else []))
            + "."
        )
    return bullets(lines) if lines else NOTHING_TO_COMPARE


def _memory_lines(cells: Sequence[Cell]) -> Iterator[str]:
    families: dict[Family, list[Memory]] = {}
    for one in memory(cells):
        if family_of(one.cell.variant).draft is not None:
            families.setdefault(family_of(one.cell.variant), []).append(one)
    labels = family_labels(families)
    for family, found in families.items():
        one = found[0]  # K changes nothing in the weights
        lost = {each.cell.variant.num_speculative_tokens: each.kv_share_lost for each in found if each.kv_share_lost is not None}
        cache = ", ".join(f"{abs(share):.1%} {'smaller' if share >= 0 else 'larger'} at K={k}" for k, share in lost.items())
        size = one.draft_gib if one.draft_files_gib is None else one.draft_files_gib
        kept = f"; the KV cache is {cache}" if cache else ""
        yield f"{labels[family]}: the draft's weights take {size:.3f} GiB, {one.draft_share:.1%} of the target's{kept}."


def _has_draft(one: Memory) -> bool:
    """Of a lookup the difference of two rounded weights would be shown, which is nothing."""
    return one.cell.variant.draft is not None


def _shown(ratio: Interval | None) -> bool:
    return ratio is not None and ratio.excludes(1.0)


def _moved(one: LatencyChange) -> str:
    assert one.ttft_ms is not None and one.ttft_p50 is not None
    return f"{abs(one.ttft_ms.estimate):.1f} ms {'later' if one.ttft_ms.estimate > 0 else 'earlier'}, {ratio_text(one.ttft_p50)}"
