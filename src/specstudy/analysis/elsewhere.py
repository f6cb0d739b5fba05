"""The same steps at another acceptance length: what a shape's measured step times would give on the other published data sets.

A step's time doesn't depend on which of its drafted tokens are accepted, so decode throughput grows in proportion to the
acceptance length. What a request spends outside decoding, its prompt above all, stays:

    1 / throughput = 1 / decode throughput + rest,    rest being the same in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specstudy.analysis.cells import Cell, with_baseline
from specstudy.analysis.decode import decode_throughputs
from specstudy.catalog.published import PublishedAcceptance, published_acceptance


@dataclass(frozen=True)
class Elsewhere:
    """A cell's ratios to its baseline, had the length of `row` been imposed instead."""

    cell: Cell
    row: PublishedAcceptance
    decode: float
    end_to_end: float


def elsewhere(cells: Sequence[Cell]) -> list[Elsewhere]:
    """One for each cell with an imposed, published length and each data set that its head was published for at the same K, its own too."""
    rows = published_acceptance()
    rates = {id(one.cell): one.tokens_per_s.estimate for one in decode_throughputs(cells)}
    found = []
    for cell, baseline in with_baseline(cells):
        rate, plain = rates.get(id(cell)), rates.get(id(baseline))
        whole, plain_whole = cell.interval("output_tokens_per_s"), baseline.interval("output_tokens_per_s")
        counted = cell.interval("acceptance_length")
        family = _family(cell)
        if family is None or rate is None or plain is None or whole is None or plain_whole is None or counted is None:
            continue
        rest = 1 / whole.estimate - 1 / rate
        for row in rows:
            if row.id.startswith(f"{family}/") and row.num_speculative_tokens == cell.variant.num_speculative_tokens:
                decode = rate * row.acceptance_length / counted.estimate
                found.append(Elsewhere(cell, row, decode / plain, 1 / (rest + 1 / decode) / plain_whole.estimate))
    return found


def _family(cell: Cell) -> str | None:
    """Target and head of the published row, like llama-3.3-70b/specforge-eagle3; None where nothing was imposed or it was modelled from another K."""
    source = cell.records[0].acceptance_source or ""
    identity = source.split(",")[0]
    if not identity.endswith(f"/k{cell.variant.num_speculative_tokens}"):
        return None
    return identity.rsplit("/", 2)[0]
