"""Price lists and what they imply, as published: no measurement of ours is in any figure here but counts of a workload's tokens, where said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from specstudy.analysis import break_even_tokens_per_s
from specstudy.catalog.prices import GpuPrice, Price, TokenPrice, gpu_prices, token_prices
from specstudy.figures.picture import Picture, canvas
from specstudy.figures.published import short_source
from specstudy.figures.style import legend_above
from specstudy.figures.tables import Table

PRICE_TICKS = (0.1, 1, 10, 100)
SELLERS = {"Anthropic": ("#D55E00", "o"), "OpenAI": ("#0072B2", "s"), "open weights": ("#009E73", "^")}


def gpu_price_table(gpus: Sequence[str]) -> Table:
    """Offers of these GPUs by the hour, cheapest first, with date and source."""
    rows = [
        {
            "offer": f"{row.provider}: {row.offer}" + (f"; {row.note}" if row.note else ""),
            "USD per GPU-hour": f"{row.usd_per_gpu_hour:.2f}",
            "dated": str(row.read_on),
            "source": short_source(row.source),
        }
        for gpu in gpus
        for row in gpu_prices(gpu)
    ]
    read = _read([row for gpu in gpus for row in gpu_prices(gpu)])
    note = (
        "On demand, list prices without tax, storage, egress or discounts. Dated: the day the source gives, else that of reading. "
        f"{read} "
        "Full addresses, and the sellers' own pages: data/prices/gpu_hours.csv."
    )
    return Table(pd.DataFrame(rows), "published", note, words=True)


def token_price_table() -> Table:
    """List prices of hosted models, with date and source."""
    rows = [
        {
            "model": f"{row.model}, {row.provider}",
            "input": f"{row.usd_per_1m_input:.2f}",
            "output": f"{row.usd_per_1m_output:.2f}",
            "dated": str(row.read_on),
            "remarks": "; ".join(filter(None, (f"tokenizer {row.tokenizer}", row.note))),
            "source": short_source(row.source),
        }
        for row in token_prices()
    ]
    note = (
        "USD per 1M tokens, standard tier, each in the model's own tokenizer. Dated: the day the source gives for the price, else the day it was read. "
        f"{_read(token_prices())} "
        "Prices of cached input, full addresses, and the sellers' own pages: data/prices/tokens.csv."
    )
    return Table(pd.DataFrame(rows), "published", note, words=True)


def _read(prices: Sequence[Price]) -> str:
    """Where they were read; a copy of a list may have a slip that the list hasn't."""
    copied = sum(price.second_hand for price in prices)
    if 0 < copied == len(prices):
        return f"All {copied} were read in somebody else's copy of the seller's list."
    return f"{copied} of {len(prices)} were read in somebody else's copy of the seller's list, the others on the seller's own site."


def token_price_picture() -> Picture:
    """Output list prices on a log scale, dearest first; a marker for each kind of seller."""
    rows = sorted(token_prices(), key=lambda row: row.usd_per_1m_output)
    figure, axes = canvas(1.5 + 0.26 * len(rows))
    for seller, (colour, marker) in SELLERS.items():
        own = [(row.usd_per_1m_output, at) for at, row in enumerate(rows) if _seller(row) == seller]
        axes.plot([price for price, _ in own], [at for _, at in own], color=colour, marker=marker, linestyle="none", markersize=7, label=seller)
    for at, row in enumerate(rows):
        axes.annotate(f"${row.usd_per_1m_output:.2f}", (row.usd_per_1m_output, at), xytext=(7, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set_yticks(range(len(rows)), [row.model for row in rows])
    axes.set_xscale("log")
    axes.set_xlim(rows[0].usd_per_1m_output / 2, rows[-1].usd_per_1m_output * 5)
    axes.set_xticks(PRICE_TICKS, [f"${tick:g}" for tick in PRICE_TICKS])
    axes.minorticks_off()
    axes.set_xlabel("USD per 1M output tokens")
    legend_above(axes)  # inside, its markers would read as prices
    told = "; ".join(f"{row.model} ({row.provider}) ${row.usd_per_1m_output:.2f}" for row in reversed(rows))
    return Picture.of(figure, "What do sellers ask for a million output tokens?", f"List prices on a log scale. {told}.", "published")


def _seller(row: TokenPrice) -> str:
    return "open weights" if row.same_weights_as else row.provider


def bill_table(input_per_output: Mapping[str, float]) -> Table:
    """What the list prices make of a million output tokens with the prompts that lead to them; a column for each workload.

    `input_per_output` holds prompt tokens for each output token by the workload's name, counted with its target's tokenizer.
    """
    rows = [
        {
            "model": row.model,
            "output alone": f"${row.usd_per_1m_output:.2f}",
            **{f"{name}, {ratio:.2f} in : 1 out": f"${row.bill_per_1m_output(ratio):.2f}" for name, ratio in input_per_output.items()},
        }
        for row in token_prices()
    ]
    note = (
        "USD for 1M output tokens: the output price plus the uncached input price times the workload's input : output ratio. The prices are published; the "
        "ratio is a count of the workload's tokens, not a measurement of speed, and another tokenizer would count somewhat otherwise."
    )
    return Table(pd.DataFrame(rows), "published", note)


def break_even_table(gpu: str) -> Table:
    """Output tokens a second that one GPU must deliver for its hour to cost what each list price asks; a column for each of three offers."""
    offers = gpu_prices(gpu)
    chosen = [offers[0], offers[len(offers) // 2], offers[-1]]
    prices: dict[float, list[str]] = {}
    for row in sorted(token_prices(), key=lambda row: -row.usd_per_1m_output):
        prices.setdefault(row.usd_per_1m_output, []).append(row.model)
    rows = [
        {
            "output price": f"${price:.2f}",
            **{_heading(offer): f"{break_even_tokens_per_s(offer.usd_per_gpu_hour, price):,.0f}" for offer in chosen},
            "asked for": ", ".join(models),
        }
        for price, models in prices.items()
    ]
    note = (
        f"Tokens/s per {gpu}, always busy: (USD an hour / 3,600) / (USD per 1M) x 10^6. Twice the output price halves it, half the busy time doubles it. "
        "The sellers also charge for the prompts; with those the break-even lies lower still."
    )
    return Table(pd.DataFrame(rows), "published", note, words=True)


def _heading(offer: GpuPrice) -> str:
    return f"at ${offer.usd_per_gpu_hour:.2f}/h, {offer.provider}"
