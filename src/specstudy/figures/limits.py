"""Measured steps beside the least time that the machine allows: a table, a figure, sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from specstudy.analysis import Interval
from specstudy.analysis.shares import Share
from specstudy.figures.picture import Picture, canvas
from specstudy.figures.style import bars, concurrency_axis, legend_above
from specstudy.figures.tables import DASH, Table, with_interval
from specstudy.figures.text import Text, bullets
from specstudy.records.machine import MachineLimits

MISSING = Text("*What the machine can do at best wasn't measured in the allocation of these records; `specstudy limits` does it.*")
# Okabe and Ito's palette again, for what isn't a method.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vPX"


def look(index: int) -> dict[str, Any]:
    """Colour and marker of the line with this number."""
    return {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)], "capsize": 3}


def machine_table(limits: Sequence[MachineLimits]) -> Table | Text:
    """Bandwidth and matrix rates of each allocation, best of the repeats."""
    if not limits:
        return MISSING
    rows = [
        {
            "device": one.device,
            "memory GiB": f"{one.memory_bytes / 2**30:.1f}",
            "reads GB/s": f"{one.read_limit / 1e9:,.0f}",
            "copies GB/s": f"{one.copy_limit / 1e9:,.0f}",
            "bf16 TFLOP/s": f"{one.bf16_limit / 1e12:,.0f}",
            "FP8 TFLOP/s": DASH if one.fp8_flop_per_s is None else f"{one.fp8_limit / 1e12:,.0f}",
            "driver": one.driver or DASH,
            "measured": f"{one.measured_at:%Y-%m-%d %H:%M} UTC",
        }
        for one in limits
    ]
    note = "The best of ten repeats each, measured in the same allocation as the records below. A copy counts its bytes twice, read and written."
    return Table(pd.DataFrame(rows), "real", note)


def share_table(found: Sequence[Share]) -> Table | Text:
    """Each cell's step, the least it could take, the share, what bounds it and where that would change."""
    if not found:
        return MISSING
    rows = [
        {
            "served": one.cell.label,
            "load": one.cell.load.label,
            "tokens a step": f"{one.limit.tokens}",
            "step ms": with_interval(one.step_ms, 2),
            "at least ms": f"{one.limit.total_s * 1e3:.2f}",
            "weights": f"{one.limit.target.weights_s * 1e3:.2f}",
            "KV cache": f"{one.limit.target.kv_s * 1e3:.2f}",
            "products": f"{one.limit.target.products_s * 1e3:.2f}",
            "draft": f"{one.limit.draft_s * 1e3:.2f}" if one.limit.draft else DASH,
            "share of the limit": share_text(one.share),
            "bound by": one.bound,
        }
        for one in found
    ]
    note = (
        "At least: bytes of weights and KV cache over the measured bandwidth, or products over the measured matrix rate, whichever takes longer, then the "
        "draft's passes. Experts of a mixture are taken to be chosen evenly and independently. Activations, logits, sampling and launches aren't in it. "
        "A dash under draft: none, or one whose sizes aren't in the catalog. A step is the median pause between chunks; overhead: less than half of the "
        "step is accounted for."
    )
    return Table(pd.DataFrame(rows), found[0].cell.records[0].evidence, note)


def two_limits_table(found: Sequence[Share]) -> Table | Text:
    """Steps of one request without speculation beside two readings of "the bandwidth limit", in ms and as shares."""
    rows = []
    for one in found:
        weights = one.cell.interval("weights_gib")
        if one.cell.variant.method != "none" or one.cell.load.concurrency != 1 or weights is None:
            continue
        copied = weights.estimate * 2**30 / one.machine.copy_limit * 1e3
        rows.append(
            {
                "served": one.cell.label,
                "step ms": with_interval(one.step_ms, 2),
                "what a step reads, at the read rate: ms": f"{one.limit.total_s * 1e3:.2f}",
                "share": share_text(one.share),
                "all weights, at the copy rate: ms": f"{copied:.2f}",
                "share ": share_text(one.of_step(copied)),
            }
        )
    if not rows:
        return MISSING
    note = (
        "One request in flight. The first reading is the stricter one and the one used elsewhere: a step doesn't read the embedding, and memory is read faster "
        "than it is copied. The second is the usual one: all weights that the server loaded, over the bandwidth of a copy."
    )
    return Table(pd.DataFrame(rows), found[0].cell.records[0].evidence, note)


def share_text(share: Interval) -> str:
    """Like 82.3 % (81.0 to 83.5)."""
    return f"{share.estimate:.1%}" + (f" ({share.low:.1%} to {share.high:.1%})" if share.n > 1 else "")


def share_figure(found: Sequence[Share]) -> Picture | Text:
    """Share of the limit over concurrency, a line for each way to serve."""
    if not found:
        return MISSING
    figure, axes = canvas(3.4)
    told = []
    for index, label in enumerate(dict.fromkeys(one.cell.label for one in found)):
        own = sorted((one for one in found if one.cell.label == label), key=lambda one: one.cell.load.concurrency or 0)
        xs, ys = [one.cell.load.concurrency or 0 for one in own], [one.share.estimate * 100 for one in own]
        axes.errorbar(xs, ys, yerr=bars([one.share for one in own]) * 100, label=label, **look(index))
        told.append(f"{label}: " + ", ".join(f"{y:.0f} % at concurrency {x}" for x, y in zip(xs, ys, strict=True)))
    concurrency_axis(axes, [one.cell.load.concurrency for one in found if one.cell.load.concurrency])
    axes.set_ylabel("share of the limit (%)")
    axes.set_ylim(0, 105)
    legend_above(axes)
    alt = f"How much of the fastest possible decode rate is reached, with 95 % intervals. {'; '.join(told)}."
    return Picture.of(figure, "How near is a decode step to what the machine allows?", alt, found[0].cell.records[0].evidence)


def limit_lines(found: Sequence[Share]) -> Text:
    """What bounds the steps of each way to serve, and where its target's pass turns from memory-bound to compute-bound."""
    if not found:
        return MISSING
    lines = []
    for label in dict.fromkeys(one.cell.label for one in found):
        own = sorted((one for one in found if one.cell.label == label), key=lambda one: one.cell.load.concurrency or 0)
        reached = ", ".join(f"{one.share.estimate:.0%} of the limit at {one.cell.load.label} (bound by {one.bound})" for one in own)
        lines.append(f"{label}: {reached}. {_turn(own[-1])}")
    return bullets(lines)


def _turn(one: Share) -> str:
    tokens_each, turn = one.server.k + 1, one.turns_at
    if turn is None:
        return f"With contexts of {one.context:,.0f} tokens the cache grows with the requests, so matrix products never become the bound."
    return (
        f"With contexts of {one.context:,.0f} tokens matrix products become the bound at {turn:,} requests in a step, "
        f"{turn * tokens_each:,} tokens with K = {one.server.k}; below that a further token of a request adds next to nothing to the limit."
    )
