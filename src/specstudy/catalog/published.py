"""Other people's figures, each with its source: read from data/published/*.csv, one typed row a line."""

from __future__ import annotations

import csv
from typing import Annotated, TypeVar

from pydantic import Field, ValidationError

from specstudy.catalog.models import StrictModel
from specstudy.catalog.paths import data_dir
from specstudy.errors import ConfigError

Source = Annotated[str, Field(pattern=r"^https://\S+$", description="where the figure was read")]
Ratio = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class PublishedRatio(StrictModel):
    """Throughput of one method over another's, at the best K of each."""

    benchmark: str
    concurrency: int = Field(ge=1, description="requests in flight")
    ratio: Ratio
    method: str
    over: str
    setup: str
    source: Source


class PublishedAcceptance(StrictModel):
    """An acceptance length, in tokens a step with the target's own counted, and the throughput ratio if one was given with it."""

    target: str
    head: str | None
    method: str
    dataset: str
    num_speculative_tokens: int | None = Field(ge=1, description="K; none for drafts in trees")
    acceptance_length: float = Field(ge=1, allow_inf_nan=False)
    speedup: Ratio | None
    setup: str
    source: Source


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


Row = TypeVar("Row", bound=StrictModel)


def _rows(name: str, model: type[Row]) -> list[Row]:
    path = data_dir() / "published" / f"{name}.csv"
    rows: list[Row] = []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for number, row in enumerate(csv.DictReader(file), 2):
                where = f"{path.name}, line {number}"
                rows.append(model.model_validate({key: value or None for key, value in row.items()}))
    except OSError as error:
        raise ConfigError(str(path), "unreadable", f"a CSV file ({error.strerror})") from error
    except ValidationError as error:
        raise ConfigError.from_pydantic(error, where) from error
    return rows


def published_ratios() -> list[PublishedRatio]:
    """P-EAGLE over EAGLE-3 by concurrency. Raises ConfigError for a bad row."""
    return _rows("peagle_over_eagle3", PublishedRatio)


def published_acceptance() -> list[PublishedAcceptance]:
    """Acceptance lengths of published heads. Raises ConfigError for a bad row."""
    return _rows("acceptance", PublishedAcceptance)


def published_heads() -> list[PublishedHead]:
    """Heads that can be had, with the switches in their configuration. Raises ConfigError for a bad row."""
    return _rows("heads", PublishedHead)


def silent_killers() -> list[SilentKiller]:
    """What to check before any claim about a draft. Raises ConfigError for a bad row."""
    return _rows("silent_killers", SilentKiller)
