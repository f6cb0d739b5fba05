"""Other people's figures, each with its source: read from data/published/*.csv, one typed row a line."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from specstudy.catalog.models import Positive, StrictModel
from specstudy.catalog.rows import Named, named_rows, read_rows
from specstudy.errors import ConfigError

FOLDER = "published"
ACCEPTANCE_ID = r"^[a-z0-9.-]+(/[a-z0-9.-]+){2}/(k[0-9]+|tree)$"
# Shares are published in whole per cent, and a mean over domains isn't the mean over tokens: MiniMax-M3's differ by 0.05.
POSITIONS_AGREE_WITHIN = 0.06
Source = Annotated[str, Field(pattern=r"^https://\S+$", description="where the figure was read")]
Share = Annotated[float, Field(ge=0, le=1)]


class PublishedRatio(StrictModel):
    """Throughput of one method over another's, at the best K of each."""

    benchmark: str
    concurrency: int = Field(ge=1, description="requests in flight")
    ratio: Positive
    method: str
    over: str
    setup: str
    source: Source


class PublishedAcceptance(Named):
    """An acceptance length, in tokens a step with the target's own counted, and the throughput ratio if one was given with it.

    `id` names the row for good: target/head/dataset/kK, or tree where drafts are trees; a profile names its
    imposed acceptance by it.
    """

    id: str = Field(pattern=ACCEPTANCE_ID)
    target: str
    head: str | None
    method: str
    dataset: str
    num_speculative_tokens: int | None = Field(ge=1, description="K; none for drafts in trees")
    acceptance_length: float = Field(ge=1, allow_inf_nan=False)
    acceptance_per_position: tuple[Share, ...] | None = Field(description="accepted at position i over drafts, i = 1 to K, where published")
    speedup: Positive | None
    setup: str
    source: Source

    @field_validator("acceptance_per_position", mode="before")
    @classmethod
    def _by_semicolons(cls, value: Any) -> Any:
        return tuple(value.split(";")) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _consistent(self) -> PublishedAcceptance:
        k, length, shares = self.num_speculative_tokens, self.acceptance_length, self.acceptance_per_position
        if self.id.rsplit("/", 1)[1] != ("tree" if k is None else f"k{k}"):
            raise ConfigError("id", self.id, f"must end with the row's K, {k}")
        if k is not None and length > k + 1:
            raise ConfigError("acceptance_length", length, f"at most K + 1 = {k + 1}")
        if shares is not None:
            falling = len(shares) == k and all(a >= b for a, b in pairwise(shares))
            if not falling or abs(1 + sum(shares) - length) > POSITIONS_AGREE_WITHIN:
                raise ConfigError("acceptance_per_position", shares, f"{k} shares that don't rise and sum to {length - 1:.2f}")
        return self


class PublishedHead(StrictModel):
    """A head that somebody offers; what isn't stated in the source is none."""

    repo_id: str = Field(pattern=r"^[^/\s]+/[^/\s]+$")
    method: str
    target: str
    num_speculative_tokens_trained: int | None
    layers: int | None
    config: str
    source: Source


class SilentKiller(StrictModel):
    """Something that lowers acceptance without an error."""

    what: str
    noticed_by: str
    check: str
    reference: str
    source: Source


def published_ratios() -> list[PublishedRatio]:
    """P-EAGLE over EAGLE-3 by concurrency. Raises ConfigError for a bad row."""
    return read_rows(FOLDER, "peagle_over_eagle3", PublishedRatio)


def published_acceptance() -> list[PublishedAcceptance]:
    """Acceptance lengths of published heads. Raises ConfigError for a bad row, or an id that two have."""
    return named_rows(FOLDER, "acceptance", PublishedAcceptance)


def published_heads() -> list[PublishedHead]:
    """Heads that can be had, with the switches in their configuration. Raises ConfigError for a bad row."""
    return read_rows(FOLDER, "heads", PublishedHead)


def silent_killers() -> list[SilentKiller]:
    """What to check before any claim about a draft. Raises ConfigError for a bad row."""
    return read_rows(FOLDER, "silent_killers", SilentKiller)
