"""What a page shows one below the other where only the records tell how many there are."""

from __future__ import annotations

import html
from dataclasses import dataclass

from specstudy.figures.picture import Panels, Picture
from specstudy.figures.tables import Table
from specstudy.figures.text import Text

Shown = Picture | Panels | Table | Text


@dataclass(frozen=True)
class Stack:
    """Named figures, tables or sentences; each keeps its own evidence."""

    parts: tuple[tuple[str, Shown], ...]

    def _repr_html_(self) -> str:
        return "".join(f'<p style="margin:1em 0 2px"><strong>{html.escape(name)}</strong></p>{_html(shown)}' for name, shown in self.parts)

    def __repr__(self) -> str:
        return "\n\n".join(f"{name}\n{shown!r}" for name, shown in self.parts)


def _html(shown: Shown) -> str:
    return f"<p>{html.escape(shown.markdown.strip('*'))}</p>" if isinstance(shown, Text) else shown._repr_html_()
