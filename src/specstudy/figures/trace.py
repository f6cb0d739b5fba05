"""What a decode step is made of, by kind of kernel: a figure, a table, sentences."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from specstudy.analysis.roofline import StepLimit
from specstudy.analysis.shares import Share
from specstudy.figures.limits import COLOURS
from specstudy.figures.picture import Picture, canvas
from specstudy.figures.style import legend_above
from specstudy.figures.tables import DASH, Table
from specstudy.figures.text import Text, bullets
from specstudy.records.trace import KINDS, StepTrace

MISSING = Text("*No decode step was traced in the allocations of these records; `specstudy trace` does it.*")
TOLD = Text(DASH)  # the figure above has said it
IDLE = "no kernel"
PART_COLOURS = (*COLOURS, "#bbbbbb")  # one for each kind, and grey where nothing runs
UNKNOWN = 0.02
BAR_IN = 0.42  # height of a bar with its gap


def parts_ms(trace: StepTrace) -> dict[str, float]:
    """Milliseconds a step of each kind of kernel, and without any, as far as there are some."""
    return {name: ms for name, ms in [*((kind, trace.ms_of(kind)) for kind in KINDS), (IDLE, trace.idle_ms)] if ms > 0}


def _name(trace: StepTrace) -> str:
    return f"{trace.label}, {trace.workload} c={trace.concurrency}"


def trace_figure(traces: Sequence[StepTrace]) -> Picture | Text:
    """A bar for each server, its parts on top of one another."""
    if not traces:
        return MISSING
    figure, axes = canvas(1.6 + BAR_IN * len(traces))
    names = [_name(trace) for trace in traces]
    left = [0.0] * len(traces)
    for colour, part in zip(PART_COLOURS, (*KINDS, IDLE), strict=True):
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
                "load": f"{trace.workload} c={trace.concurrency}",
                "step ms": f"{trace.untraced_step_ms:.2f}",
                "traced step ms": f"{trace.step_ms:.2f}",
                **{part: f"{parts[part]:.2f}" if part in parts else DASH for part in (*KINDS, IDLE)},
                "weights read at": DASH if rate is None else f"{rate:.0%} of the bandwidth",
            }
        )
    note = (
        "From vLLM's profiler, means over the traced steps of one server each, so without an interval; the kind is told from a kernel's name. Tracing takes "
        "time: a step is the median pause between chunks of the same server without it. No kernel: the device waits. Kernels on two streams may overlap, and "
        "then parts add up to more than the step. Weights read at: the least time to read the weights over that of the matrix products."
    )
    return Table(pd.DataFrame(rows), traces[0].evidence, note)


def trace_lines(traces: Sequence[StepTrace], found: Sequence[Share] = ()) -> Text:
    """For each server the parts by size, and what share of its limit would be left to win."""
    if not traces:
        return TOLD
    lines = []
    for trace in traces:
        parts = sorted(parts_ms(trace).items(), key=lambda pair: -pair[1])
        told = ", ".join(f"{part} {ms / trace.step_ms:.1%}" for part, ms in parts)
        reach = reachable(trace, found)
        products = "" if reach is None else f" If nothing but its products and reading the cache took time, a step would be at {reach:.0%} of its limit."
        lines.append(f"{_name(trace)}: {told} of a traced step of {trace.step_ms:.2f} ms.{products}")
    return bullets(lines)


def weights_rate(trace: StepTrace, found: Sequence[Share]) -> float | None:
    """The least time of reading the target's weights over that of the matrix products; None where `reachable` is."""
    limit = _limit_of(trace, found)
    return None if limit is None else limit.target.weights_s * 1e3 / trace.ms_of("matrix products")


def reachable(trace: StepTrace, found: Sequence[Share]) -> float | None:
    """The share of its limit that a step would reach if only its matrix products took time, and the cache its least.

    None without the limit of the same server at the same load, for a method that drafts, whose products are the draft's too, and where kernels whose
    kind isn't known take over UNKNOWN of the step: there may be products among them.
    """
    limit = _limit_of(trace, found)
    return None if limit is None else limit.total_s * 1e3 / (trace.ms_of("matrix products") + limit.target.kv_s * 1e3)


def _limit_of(trace: StepTrace, found: Sequence[Share]) -> StepLimit | None:
    if trace.method != "none" or not trace.ms_of("matrix products") or trace.ms_of("other") > UNKNOWN * trace.step_ms:
        return None
    wanted = (trace.allocation, trace.engine_variant, trace.method, trace.workload, trace.concurrency)
    for one in found:
        variant, load = one.cell.variant, one.cell.load
        if (one.cell.allocation, variant.engine_variant, variant.method, load.workload, load.concurrency) == wanted:
            return one.limit
    return None
