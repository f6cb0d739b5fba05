"""A figure as the book shows it: a question, an image with alt text, its evidence."""

from __future__ import annotations

import base64
import html
import io
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from specstudy.records.schema import Evidence

# Okabe and Ito's palette: told apart by colour-blind readers; markers differ too.
STYLE: dict[str, tuple[str, str]] = {
    "none": ("#000000", "o"),
    "ngram": ("#0072B2", "s"),
    "suffix": ("#56B4E9", "v"),
    "draft_model": ("#E69F00", "D"),
    "eagle3": ("#009E73", "^"),
    "peagle": ("#CC79A7", "P"),
    "eagle3.1": ("#D55E00", "v"),
    "dflash": ("#8a6d00", "X"),
}
# What a figure rests on. The last two are no evidence of an engine's speed.
Kind = Evidence | Literal["stand-in", "simulated"]
BADGES: dict[Kind, tuple[str, str]] = {
    "real": ("#00664a", "real weights, acceptance measured"),
    "shape": ("#8a5a00", "published architecture, random weights, acceptance imposed"),
    "published": ("#44546a", "somebody else's figure"),
    "stand-in": ("#6b3fa0", "a real control plane over paced stand-ins: no model ran"),
    "simulated": ("#7a3b3b", "computed, not measured"),
}
# A phone shows it 340 px wide: 4.6 in at 10 pt leaves the smallest text at 10 px.
SIZE_IN = (4.6, 3.2)
RC: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#d9d9d9",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.hashsalt": "specstudy",
}


def badge(evidence: Kind) -> str:
    """HTML of the evidence badge."""
    colour, meaning = BADGES[evidence]
    return (
        f'<span class="evidence" title="{meaning}" style="background:{colour};color:#fff;border-radius:3px;'
        f'padding:1px 7px;font-size:0.8em;white-space:nowrap">evidence: {evidence}</span>'
    )


def canvas(height_in: float = SIZE_IN[1]) -> tuple[Figure, Axes]:
    """An empty figure in the book's style, without pyplot's global state; as wide as all, `height_in` inches high."""
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(SIZE_IN[0], height_in), layout="constrained")
        return figure, figure.add_subplot()


@dataclass(frozen=True)
class Picture:
    """A finished figure."""

    question: str
    alt: str
    evidence: Kind
    png: bytes

    @classmethod
    def of(cls, figure: Figure, question: str, alt: str, evidence: Kind) -> Picture:
        """Render it; the same figure gives the same bytes."""
        out = io.BytesIO()
        with matplotlib.rc_context(RC):
            figure.savefig(out, format="png", dpi=200, metadata={"Software": None})
        return cls(question, alt, evidence, _in_a_palette(out))

    def _repr_html_(self) -> str:
        data = base64.b64encode(self.png).decode()
        return (
            '<figure class="specstudy" style="margin:1em 0;max-width:640px">'
            f'<figcaption style="font-weight:600;margin-bottom:4px">{html.escape(self.question)} {badge(self.evidence)}</figcaption>'
            f'<img alt="{html.escape(self.alt)}" style="width:100%;height:auto;background:#fff" src="data:image/png;base64,{data}"/>'
            "</figure>"
        )

    def __repr__(self) -> str:
        return f"Picture: {self.question} {self.alt}"


def _in_a_palette(png: io.BytesIO) -> bytes:
    """The same picture in 128 colours, all that lines and their smoothed edges need: a third of the bytes."""
    out = io.BytesIO()
    with Image.open(png) as full:
        full.convert("RGB").quantize(128, method=Image.Quantize.MEDIANCUT).save(out, "PNG", optimize=True)
    return out.getvalue()


@dataclass(frozen=True)
class Panels:
    """Figures side by side, each with its own evidence; on a phone they stand one below the other."""

    pictures: tuple[Picture, ...]

    def _repr_html_(self) -> str:
        inner = "".join(f'<div style="flex:1 1 300px;min-width:0">{picture._repr_html_()}</div>' for picture in self.pictures)
        return f'<div style="display:flex;flex-wrap:wrap;gap:12px">{inner}</div>'

    def __repr__(self) -> str:
        return "\n".join(map(repr, self.pictures))
