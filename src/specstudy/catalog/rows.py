"""A table of the catalog: one CSV file of data/, one typed row a line."""

from __future__ import annotations

import csv
from collections import Counter
from typing import TypeVar

from pydantic import ValidationError

from specstudy.catalog.models import StrictModel
from specstudy.catalog.paths import data_dir
from specstudy.errors import ConfigError


class Named(StrictModel):
    """A row that other files name: its id stays."""

    id: str


Row = TypeVar("Row", bound=StrictModel)
NamedRow = TypeVar("NamedRow", bound=Named)


def read_rows(folder: str, name: str, model: type[Row]) -> list[Row]:
    """The rows of data/FOLDER/NAME.csv; an empty field is None. Raises ConfigError naming the line that doesn't fit, or for a table without one."""
    path = data_dir() / folder / f"{name}.csv"
    rows: list[Row] = []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for number, row in enumerate(csv.DictReader(file), 2):
                where = f"{path.name}, line {number}"
                if None in row:
                    raise ConfigError(where, row[None], "no more fields than the first line names")
                rows.append(model.model_validate({key: value or None for key, value in row.items()}))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(str(path), "unreadable", f"a CSV file in UTF-8 ({error})") from error
    except ValidationError as error:
        raise ConfigError.from_pydantic(error, where) from error
    if not rows:
        raise ConfigError(str(path), "no row", "a line of names, then at least one row")
    return rows


def named_rows(folder: str, name: str, model: type[NamedRow]) -> list[NamedRow]:
    """The same for rows with an id. Raises ConfigError, also where two have one id."""
    rows = read_rows(folder, name, model)
    for row_id, count in Counter(row.id for row in rows).items():
        if count > 1:
            raise ConfigError(f"{name}.csv: id", row_id, "each id once")
    return rows
