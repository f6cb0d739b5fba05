from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.standin.synthetic import chapter_04, chapter_05, write

from specstudy.analysis import Cell, group
from specstudy.records import Record, RequestRow, load_records, load_requests

Made = Iterator[tuple[Record, list[RequestRow]]]


def read(folder: Path, made: Made) -> list[Cell]:
    """The cells of records made by rule, by way of the disk."""
    write(folder, made)
    (path,) = folder.rglob("*.jsonl")
    return group(load_records(path).records, load_requests(path.with_suffix(".requests.parquet")))


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> list[Cell]:
    """Chapter 04, whole."""
    return read(tmp_path_factory.mktemp("compared"), chapter_04())


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> list[Cell]:
    """Chapter 04 as a small profile measures it: no 3.1 head, no domains, no context bands, two loads."""
    return read(tmp_path_factory.mktemp("small"), chapter_04(small=True))


@pytest.fixture(scope="session")
def parallel(tmp_path_factory: pytest.TempPathFactory) -> list[Cell]:
    """Chapter 05, whole."""
    return read(tmp_path_factory.mktemp("parallel"), chapter_05())
