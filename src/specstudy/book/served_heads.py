"""What a page says where its records were measured with other drafts than are shipped now."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from specstudy.analysis import Cell, comparable
from specstudy.analysis.served import other_drafts
from specstudy.records import Record, load_records


def records_of(cells: Sequence[Cell]) -> list[Record]:
    """Those that the cells are made of."""
    return [record for cell in cells for record in cell.records]


def other_drafts_note(cells: Sequence[Cell]) -> str:
    """A Markdown sentence for a page that shows `cells`; empty where every draft is this checkout's, or nothing is known."""
    found = other_drafts(records_of(cells))
    if not found:
        return ""
    told = "; ".join(f"{draft} was served from {folder}" for draft, folder in found.items())
    return (
        f"**Measured with other drafts than are shipped now:** {told}, and data/drafts holds other files under that name. What is shown is said of the "
        "draft that was served, not of the one that is shipped, whose card says nothing of it either."
    )


def replaced_since(folder: Path, drafts: Collection[str]) -> str:
    """A sentence for the page that shows the cards of `drafts`: which results files in `folder` were measured with other heads; empty for none."""
    told: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*/*.jsonl")):
        for draft in other_drafts(comparable(load_records(path).records)):
            if draft in drafts:
                told.setdefault(draft, []).append(f"chapter {path.stem.split('_')[0]} of {path.parent.name}")
    named = "; ".join(f"{draft} in {', '.join(places)}" for draft, places in told.items())
    return f"These are not the heads that other chapters were measured with, which had other files: {named}." if named else ""
