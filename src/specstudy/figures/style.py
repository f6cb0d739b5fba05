"""How a variant looks: a colour and a marker for each family, hollow and half-filled markers and broken lines for its further K."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from specstudy.analysis import Cell, Family, Interval, Variant, family_of
from specstudy.analysis.families import family_labels
from specstudy.figures.picture import STYLE

LINES = ("-", "--", ":", "-.")
FILLS = ("full", "hollow", "bottom", "left")
NAMES = {"none": "baseline", "draft_model": "draft model", "eagle3": "EAGLE-3", "eagle3.1": "EAGLE 3.1", "peagle": "P-EAGLE", "dflash": "DFlash"}


@dataclass(frozen=True)
class Look:
    """Keywords for matplotlib's errorbar."""

    color: str
    marker: str
    linestyle: str
    fill: str

    @property
    def keywords(self) -> dict[str, Any]:
        """What errorbar takes."""
        faces = {"markerfacecolor": "#ffffff" if self.fill == "hollow" else self.color, "markerfacecoloralt": "#ffffff"}
        half = {"fillstyle": self.fill} if self.fill in ("bottom", "left") else {}
        return {"color": self.color, "marker": self.marker, "linestyle": self.linestyle, "capsize": 3, **faces, **half}


def family_style(family: Family) -> tuple[str, str]:
    """(colour, marker) of a family."""
    return STYLE[_kind(family)]


def _kind(family: Family) -> str:
    return "eagle3.1" if family.is_31 else family.method


def short_names(families: Sequence[Family]) -> dict[Family, str]:
    """A name for each that fits into a figure: the method's, or the draft's where two drafts of one method are shown."""
    kinds = [_kind(family) for family in families]
    labels = family_labels(families)
    return {family: NAMES.get(kind, kind) if kinds.count(kind) == 1 else labels[family] for family, kind in zip(families, kinds, strict=True)}


def short_labels(variants: Sequence[Variant]) -> dict[Variant, str]:
    """The same with K; a variant of the engine stands for its baseline, and follows a method's name."""
    names = short_names(list(dict.fromkeys(map(_however_served, variants))))

    def label(variant: Variant) -> str:
        method = names[_however_served(variant)] + (f" K={variant.num_speculative_tokens}" if variant.num_speculative_tokens else "")
        if variant.engine_variant is None:
            return method
        return variant.engine_variant if variant.method == "none" else f"{method}, {variant.engine_variant}"

    return {variant: label(variant) for variant in variants}


def looks(variants: Sequence[Variant]) -> dict[Variant, Look]:
    """A look for each; the K of a family in rising order, under each variant of the engine, get a full line, then a broken one, and so on."""
    found = {}
    for variant in variants:
        own = sorted({_place(other) for other in variants if _however_served(other) == _however_served(variant)})
        index = own.index(_place(variant))
        colour, marker = family_style(family_of(variant))
        found[variant] = Look(colour, marker, LINES[index % len(LINES)], FILLS[index % len(FILLS)])
    return found


def _however_served(variant: Variant) -> Family:
    return Family(variant.method, variant.draft)


def _place(variant: Variant) -> tuple[str, int]:
    return variant.engine_variant or "", variant.num_speculative_tokens or 0


def variants_of(cells: Sequence[Cell]) -> list[Variant]:
    """Each variant once, in the cells' order."""
    return list(dict.fromkeys(cell.variant for cell in cells))


def bars(intervals: Sequence[Interval]) -> np.ndarray:
    """Lengths of error bars, below and above: shape (2, n); 0 where there is no interval, or none that ends."""
    lengths = np.array([[one.estimate - one.low, one.high - one.estimate] for one in intervals], dtype=float).reshape(-1, 2).T
    return np.asarray(np.nan_to_num(lengths, posinf=0.0))


def concurrency_axis(axes: Axes, concurrencies: Sequence[int]) -> None:
    """A log2 axis with a tick for each concurrency measured."""
    ticks = sorted(set(concurrencies))
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("concurrency (requests in flight)")


def legend_above(axes: Axes, columns: int = 2) -> None:
    """A legend over the axes, where no line can pass under it."""
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, frameon=False, columnspacing=1.0, handlelength=2.2)
