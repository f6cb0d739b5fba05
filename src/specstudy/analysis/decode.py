"""Decode throughput: tokens per second while every slot decodes, so without the ramp, prefills and the drain.

End-to-end throughput (`output_tokens_per_s`) is what a user of the server gets: it holds the prefills of the requests that
come in. It therefore falls with the prompt's length and says little of what speculation speeds up, which is decoding alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specstudy.analysis.cells import Cell, with_baseline
from specstudy.analysis.speedup import Speedup, of_rates
from specstudy.analysis.stats import Interval, mean_interval
from specstudy.measure.metrics.decode import Decoding, decoding
from specstudy.records.schema import Record


@dataclass(frozen=True)
class Decode:
    """Decode throughput of one cell.

    `tokens_per_s`: over all slots together. `share`: of the load's time, how much was spent with every slot decoding.
    """

    cell: Cell
    tokens_per_s: Interval
    share: float
    by_repeat: dict[int, float]


def decode_throughputs(cells: Sequence[Cell]) -> list[Decode]:
    """One for each closed-loop cell; a cell whose slots never all decoded at once has none."""
    return [found for found in map(decode_throughput, cells) if found is not None]


def decode_throughput(cell: Cell) -> Decode | None:
    """The mean over the repeats that have one; None for an open loop, which has no slots, and where no repeat has one."""
    slots = cell.load.concurrency
    if slots is None:
        return None
    found = {record.repeat: one for record in cell.records if (one := _decoding(cell, record, slots)) is not None}
    if not found:
        return None
    rates = {repeat: one.tokens_per_s for repeat, one in found.items()}
    return Decode(cell, mean_interval(list(rates.values())), sum(one.share for one in found.values()) / len(found), rates)


def _decoding(cell: Cell, record: Record, slots: int) -> Decoding | None:
    """What was stored when the repeat was measured; of an older record, the same from its requests' chunk gaps, if they were kept."""
    if record.decode_tokens_per_s is not None and record.decode_share is not None:
        return Decoding(record.decode_tokens_per_s, record.decode_share)
    rows = cell.requests[cell.requests["record_id"] == record.record_id]
    return decoding(
        slots,
        sent_s=rows["sent_s"].to_list(),
        first_s=rows["first_token_s"].to_list(),
        last_s=rows["last_token_s"].to_list(),
        gaps_us=rows["chunk_gap_us"].to_list(),
        chunk_tokens=rows["chunk_tokens"].to_list(),
    )


def decode_speedups(cells: Sequence[Cell]) -> list[Speedup]:
    """Decode throughput over the baseline's, paired by repeat; one for each cell with a method and a baseline."""
    rates = {id(found.cell): found.by_repeat for found in decode_throughputs(cells)}
    found = (of_rates(cell, baseline, rates.get(id(cell), {}), rates.get(id(baseline), {})) for cell, baseline in with_baseline(cells))
    return [one for one in found if one is not None]
