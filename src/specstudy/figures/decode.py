"""Decode throughput beside end-to-end throughput: what speculation speeds up, and what a user of the server gets."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from specstudy.analysis import Cell, Speedup, best_per_load, decode_speedups, decode_throughputs, speedups
from specstudy.figures.prose import OTHER_RUNNER, apart_text, left_out_text
from specstudy.figures.tables import DASH, Table, ratio_text, with_interval
from specstudy.figures.text import NO_RECORDS, NOTHING_TO_COMPARE, Text, bullets

LITTLE = 0.15  # of the time
NO_DECODE = Text("*Decode throughput needs a closed loop whose slots all decode at once for a while; there is no such cell.*")


def decode_table(cells: Sequence[Cell]) -> Table | Text:
    """Both throughputs of each closed-loop cell, each with its ratio to the baseline's."""
    found = decode_throughputs(cells)
    if not found:
        return NO_DECODE if cells else NO_RECORDS
    decoding = {id(one.cell): _ratio(one) for one in decode_speedups(cells)}
    whole = {id(one.cell): _ratio(one) for one in speedups(cells)}
    with_ratio = any(one.cell.variant.method != "none" for one in found)
    rows = []
    for one in found:
        row = {"method": one.cell.label, "load": one.cell.load.label, "decode tokens/s": with_interval(one.tokens_per_s)}
        if with_ratio:
            row["decode / baseline"] = decoding.get(id(one.cell), DASH)
        row["end-to-end tokens/s"] = with_interval(one.cell.interval("output_tokens_per_s"))
        if with_ratio:
            row["end to end / baseline"] = whole.get(id(one.cell), DASH)
        rows.append({**row, "time with every slot decoding": f"{one.share:.0%}"})
    note = (
        "Decode: tokens over time while every slot is between its first and its last token, each slot by whole steps. The ramp, every prefill and the drain "
        "are left out. "
        "End to end: all tokens of the steady window over its length, prefills included. Where every slot decoded for a small part of the time only, the first "
        "rests on little. "
        "The steady window has neither the first nor the last round of requests, decoding has: with few requests, as at c=1, they rest on different ones."
    )
    if any(not one.same_runner for one in speedups(cells)):
        note += f"{OTHER_RUNNER}: on another model runner than the baseline."
    return Table(pd.DataFrame(rows), found[0].cell.records[0].evidence, note)


def _ratio(one: Speedup) -> str:
    return f"{ratio_text(one.ratio)}{'' if one.same_runner else OTHER_RUNNER}, {one.verdict}"


def decode_conclusion(cells: Sequence[Cell]) -> Text:
    """The best decode throughput over the baseline's at each load, and what is left of it end to end."""
    whole = {id(one.cell): one for one in speedups(cells)}
    shares = {id(one.cell): one.share for one in decode_throughputs(cells)}
    lines = []
    found = decode_speedups(cells)
    for best in best_per_load(found):
        line = f"Decoding alone, the highest at {best.cell.load.label} is {best.cell.variant.label}: {ratio_text(best.ratio)} of the baseline, {best.verdict}"
        line += apart_text(best, found) + left_out_text(best, found)
        if (share := shares[id(best.cell)]) < LITTLE:
            line += f"; all its slots decoded at once {share:.0%} of the time only"
        end_to_end = whole.get(id(best.cell))
        lines.append(f"{line}; end to end {ratio_text(end_to_end.ratio)}." if end_to_end else f"{line}.")
    return bullets(lines) if lines else NOTHING_TO_COMPARE
