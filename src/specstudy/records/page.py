"""The book's page on the record format, made from the schema."""

from __future__ import annotations

from pydantic import BaseModel

from specstudy.records.schema import Record, RequestRow, units_of


def fields_page() -> str:
    """Markdown: every field of a record and of a request, with unit and meaning."""
    return "\n".join(
        [
            "# Fields of a record",
            "",
            "This page is made from the schema by `specstudy fields`; a test fails when it is stale.",
            "",
            "## One record: a line of `CHAPTER.jsonl`",
            "",
            *_table(Record),
            "",
            "## One request: a row of `CHAPTER.requests.parquet`",
            "",
            *_table(RequestRow),
            "",
        ]
    )


def _table(model: type[BaseModel]) -> list[str]:
    return ["| field | unit | meaning |", "| --- | --- | --- |", *(f"| `{name}` | {unit} | {text} |" for name, unit, text in units_of(model))]
