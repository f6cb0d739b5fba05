"""Prices, each with its date and source: of a GPU by the hour, and of a provider's tokens. Read from data/prices/*.csv.

A price is an input of a cost, not a measurement: list prices without tax, storage, egress and discounts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from urllib.parse import urlsplit

from pydantic import Field

from specstudy.catalog.models import Positive
from specstudy.catalog.published import Source
from specstudy.catalog.rows import Named, named_rows
from specstudy.errors import ConfigError

FOLDER = "prices"
COUNT = re.compile(r"^\d+ x ")


class Price(Named):
    """What both kinds of price say about themselves: `source` is where it was read, `price_page` the seller's own page."""

    id: str = Field(pattern=r"^[a-z0-9.-]+/[a-z0-9.-]+$")
    provider: str
    price_page: Source
    read_on: date = Field(description="when the price held, as the source dates it; else the day on which it was read")
    source: Source
    note: str | None

    @property
    def second_hand(self) -> bool:
        """Whether it was read in somebody else's copy of the seller's list, not on the seller's own site."""
        return urlsplit(self.source).hostname != urlsplit(self.price_page).hostname


@dataclass(frozen=True)
class Charged:
    """What a page charges for an hour of one GPU, in US dollars, and whose price that is: a seller's on a day, or the reader's own."""

    usd_per_gpu_hour: float
    whose: str


class GpuPrice(Price):
    """The hire of one GPU with its share of the host, in US dollars an hour."""

    gpu: str = Field(pattern=r"^[A-Z]+[0-9]+$", description="like H200")
    card: str = Field(description="its whole name as the driver prints it: a PCIe or an NVL card is another one, let at another price")
    offer: str
    usd_per_gpu_hour: Positive
    min_gpus: int = Field(ge=1, description="GPUs that are let together")
    commitment: str

    @property
    def charged(self) -> Charged:
        """The offer as what a page charges."""
        return Charged(self.usd_per_gpu_hour, f"{self.provider}, {self.read_on}")


class TokenPrice(Price):
    """List prices of a hosted model, in US dollars a million tokens of its own tokenizer."""

    model: str
    released: date | None
    usd_per_1m_input: Positive
    usd_per_1m_cached_input: Positive | None
    usd_per_1m_output: Positive
    same_weights_as: str | None = Field(description="the target whose weights these are; none for a closed model")
    tokenizer: str

    def bill_per_1m_output(self, input_per_output: float) -> float:
        """US dollars for a million output tokens together with the uncached prompts that lead to them."""
        return self.usd_per_1m_output + input_per_output * self.usd_per_1m_input


def gpu_prices(gpu_name: str | None = None) -> list[GpuPrice]:
    """Offers of one GPU, cheapest first; `gpu_name` is a record's, like "2 x NVIDIA H200", an offer's, like H200, or none for every offer.

    Raises ConfigError for a bad row.
    """
    rows = named_rows(FOLDER, "gpu_hours", GpuPrice)
    name = None if gpu_name is None else COUNT.sub("", gpu_name)
    return sorted((row for row in rows if name is None or name in (row.gpu, row.card)), key=lambda row: (row.gpu, row.usd_per_gpu_hour, row.id))


def middle_offer(prices: list[GpuPrice]) -> GpuPrice:
    """The offer in the middle of the list, the dearer of two. Raises ConfigError without one."""
    if not prices:
        raise ConfigError("gpu", None, f"a GPU with a price in data/{FOLDER}/gpu_hours.csv")
    return sorted(prices, key=lambda row: (row.usd_per_gpu_hour, row.id))[len(prices) // 2]


def own_price(usd_per_gpu_hour: float) -> Charged:
    """The reader's own price for a GPU, whether an offer of it is on file or not. Raises ConfigError unless it is a number above 0."""
    number = isinstance(usd_per_gpu_hour, int | float) and not isinstance(usd_per_gpu_hour, bool)
    if not number or not 0 < usd_per_gpu_hour < float("inf"):
        raise ConfigError("usd_per_gpu_hour", usd_per_gpu_hour, "a price above 0, like 2.5")
    return Charged(usd_per_gpu_hour, "your own price")


def token_prices() -> list[TokenPrice]:
    """List prices of hosted models, in the file's order. Raises ConfigError for a bad row."""
    return named_rows(FOLDER, "tokens", TokenPrice)


def hosted_weights_of(target: str) -> list[TokenPrice]:
    """List prices of a target's own weights, or of those whose shape it is, hosted by somebody; none for a target that nobody sells.

    A fine-tune isn't its base: NAME and NAME-…-shape are NAME's, another name that begins like it isn't.
    """
    return [
        row
        for row in token_prices()
        if row.same_weights_as and re.fullmatch(rf"{re.escape(row.same_weights_as)}(-.*)?-shape|{re.escape(row.same_weights_as)}", target)
    ]
