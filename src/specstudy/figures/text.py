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


NOTHING_TO_COMPARE = Text("*No method has a good repeat beside a baseline of the same allocation, so there is nothing to compare.*")
