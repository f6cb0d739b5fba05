"""What a decode step is made of, by kind of kernel: a figure, a table, sentences."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from specstudy.analysis.shares import Share
from specstudy.figures.picture import Picture, canvas
from specstudy.figures.style import legend_above
from specstudy.figures.tables import DASH, Table
from specstudy.figures.text import Text, bullets
from specstudy.records.trace import KINDS, StepTrace

MISSING = Text("*No decode step was traced in the allocations of these records; `specstudy trace` does it.*")
TOLD = Text(DASH)  # the figure above has said it
IDLE = "no kernel"
COLOURS = ("#0072B2", "#D55E00", "#CC79A7", "#E69F00", "#009E73", "#56B4E9", "#000000", "#bbbbbb")
BAR_IN = 0.42  # height of a bar with its gap


def parts_ms(trace: StepTrace) -> dict[str, float]:
    """Milliseconds a step of each kind of kernel, and without any, as far as there are some."""
    return {name: ms for name, ms in [*((kind, trace.ms_of(kind)) for kind in KINDS), (IDLE, trace.idle_ms)] if ms > 0}


def _name(trace: StepTrace) -> str:
    return f"{trace.label}, c={trace.concurrency}"


def trace_figure(traces: Sequence[StepTrace]) -> Picture | Text:
    """A bar for each server, its parts on top of one another."""
    if not traces:
        return MISSING
    figure, axes = canvas(1.6 + BAR_IN * len(traces))
    names = [_name(trace) for trace in traces]
    left = [0.0] * len(traces)
    for colour, part in zip(COLOURS, (*KINDS, IDLE), strict=True):
        widths = [parts_ms(trace).get(part, 0.0) for trace in traces]
        if any(widths):
            axes.barh(names, widths, left=left, color=colour, label=part)
            left = [before + width for before, width in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("time of a decode step, traced (ms)")
    legend_above(axes)
    told = "; ".join(f"{_name(trace)}: " + ", ".join(f"{part} {ms:.2f} ms" for part, ms in parts_ms(trace).items()) for trace in traces)
    return Picture.of(figure, "What takes a step's time?", f"Milliseconds of a decode step by kind of kernel. {told}.", traces[0].evidence)


def trace_table(traces: Sequence[StepTrace], found: Sequence[Share] = ()) -> Table | Text:
    """Milliseconds by kind, and how fast the products read the weights, where `found` holds the server's limit at that load."""
    if not traces:
        return TOLD
    rows = []
    for trace in traces:
        rate = weights_rate(trace, found)
        parts = parts_ms(trace)
        rows.append(
            {
                "served": trace.label,
                "c": trace.concurrency,
                "TPOT ms": f"{trace.tpot_ms:.2f}",
                "traced step ms": f"{trace.step_ms:.2f}",
                **{part: f"{parts[part]:.2f}" if part in parts else DASH for part in (*KINDS, IDLE)},
                "weights read at": DASH if rate is None else f"{rate:.0%} of the bandwidth",
            }
        )
    note = (
        "From vLLM's profiler, means over the traced steps of one server each, so without an interval; the kind is told from a kernel's name. Tracing takes "
        "time: TPOT is the median of the same server without it. No kernel: the device waits. Weights read at: the least time to read the weights over that "
        "of the matrix products."
    )
    return Table(pd.DataFrame(rows), traces[0].evidence, note)


def trace_lines(traces: Sequence[StepTrace], found: Sequence[Share] = ()) -> Text:
    """For each server the parts by size, and what share of its limit it would reach if the products alone took time."""
    if not traces:
        return TOLD
    lines = []
    for trace in traces:
        parts = sorted(parts_ms(trace).items(), key=lambda pair: -pair[1])
        told = ", ".join(f"{part} {ms / trace.step_ms:.1%}" for part, ms in parts)
        rate = weights_rate(trace, found)
        products = (
            ""
            if rate is None
            else f" The products alone read the weights at {rate:.0%} of the measured bandwidth: no other saving brings a step nearer to its limit than that."
        )
        lines.append(f"{_name(trace)}: {told} of a traced step of {trace.step_ms:.2f} ms.{products}")
    return bullets(lines)


def weights_rate(trace: StepTrace, found: Sequence[Share]) -> float | None:
    """The least time of reading the target's weights over that of the matrix products; None for a method that drafts, whose products are the draft's too."""
    own = (one for one in found if one.cell.variant.engine_variant == trace.engine_variant and one.cell.allocation == trace.allocation)
    at = (trace.method, trace.workload, trace.concurrency)
    same = (one for one in own if (one.cell.variant.method, one.cell.load.workload, one.cell.load.concurrency) == at)
    one, products_ms = next(same, None), trace.ms_of("matrix products")
    if one is None or trace.method != "none" or not products_ms:
        return None
    return one.limit.target.weights_s * 1e3 / products_ms
