"""Which cells belong together: a method with its draft, served one way, is a family, whatever its K; a workload has a role."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specstudy.analysis.cells import Cell, Load, Variant
from specstudy.records.schema import Method

MAIN_WORKLOAD = "chat"
CONTEXT = re.compile(r"context-(\d+)(k?)")


@dataclass(frozen=True)
class Family:
    """A method and its draft, under one of the chapter's ways to serve the target, if there are several."""

    method: Method
    draft: str | None
    engine_variant: str | None = None

    @property
    def label(self) -> str:
        """The draft's name, or the method's; baseline for none. See `family_labels` where several ways to serve are shown."""
        return "baseline" if self.method == "none" else self.draft or self.method

    @property
    def is_31(self) -> bool:
        """An EAGLE 3.1 head: vLLM has no method of that name, so the draft's tells."""
        return self.method == "eagle3" and self.draft is not None and self.draft.endswith("3.1")

    @property
    def drafts_every_step(self) -> bool:
        """Whether the server's counters see every step; ngram and suffix draft only where they find something."""
        return self.method in ("draft_model", "eagle3", "peagle", "dflash")


def family_of(variant: Variant) -> Family:
    """The family of a variant."""
    return Family(variant.method, variant.draft, variant.engine_variant)


def family_labels(found: Iterable[Family]) -> dict[Family, str]:
    """A label for each; where several would have the same, what the target was served as comes first."""
    distinct = list(dict.fromkeys(found))
    named = Counter(family.label for family in distinct)
    return {family: family.label if named[family.label] == 1 or family.engine_variant is None else _in_full(family) for family in distinct}


def _in_full(family: Family) -> str:
    return family.engine_variant or "" if family.method == "none" else f"{family.engine_variant}, {family.label}"


def families(cells: Sequence[Cell], method: Method | None = None) -> list[Family]:
    """Those that were measured, in the cells' order; of one method if it is given."""
    found = dict.fromkeys(family_of(cell.variant) for cell in cells)
    return [family for family in found if method in (None, family.method)]


def eagle3_and_31(cells: Sequence[Cell]) -> tuple[Family | None, Family | None]:
    """The first EAGLE-3 and EAGLE 3.1 families that were served the same way, else the first of either; None for one that wasn't measured."""
    found = families(cells, "eagle3")
    plain, newer = [one for one in found if not one.is_31], [one for one in found if one.is_31]
    pairs = ((one, other) for one in plain for other in newer if one.engine_variant == other.engine_variant)
    alone = (plain[0], None) if plain else (None, newer[0] if newer else None)
    return next(pairs, alone)


def main_workload(cells: Sequence[Cell]) -> str | None:
    """The workload that is measured over concurrency: chat, else the one with most loads; None without cells."""
    loads = {cell.load for cell in cells}
    names = [load.workload for load in loads]
    if not names:
        return None
    return MAIN_WORKLOAD if MAIN_WORKLOAD in names else max(sorted(set(names)), key=names.count)


def of_main_workload(cells: Sequence[Cell]) -> list[Cell]:
    """The cells of the main workload."""
    main = main_workload(cells)
    return [cell for cell in cells if cell.load.workload == main]


def context_tokens(workload: str) -> int | None:
    """Tokens that a prompt length band is named after: context-256 is 256, context-4k 4,096; None for another workload."""
    found = CONTEXT.fullmatch(workload)
    return None if found is None else int(found[1]) * (1024 if found[2] else 1)


def at(cells: Sequence[Cell], family: Family, load: Load) -> dict[int, Cell]:
    """Cells of one family at one load, by K in rising order; 0 stands for the baseline."""
    own = {cell.variant.num_speculative_tokens or 0: cell for cell in cells if cell.load == load and family_of(cell.variant) == family}
    return dict(sorted(own.items()))


def loads(cells: Sequence[Cell]) -> list[Load]:
    """Every load once, by workload and then by concurrency or rate."""
    return sorted({cell.load for cell in cells}, key=lambda load: load.order)
