"""Markdown as a cell's output."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Text:
    """Markdown for a cell's output."""

    markdown: str

    def _repr_markdown_(self) -> str:
        return self.markdown

    def __repr__(self) -> str:
        return self.markdown


NOTHING = Text("–")  # where the page has said once that there are no records; an empty text is drawn as an empty box
NOTHING_TO_COMPARE = Text("*No method has a good repeat beside a baseline of the same allocation, so there is nothing to compare.*")
NO_RECORDS = Text("*No records, so there is nothing to show here.*")


def not_measured(what: str) -> Text:
    """Said in place of a figure or table whose records aren't there."""
    return Text(f"*{what} wasn't measured under this profile.*")


def bullets(lines: list[str]) -> Text:
    """A list; lines that say nothing are left out."""
    return Text("\n".join(f"- {line}" for line in lines if line))
