"""What the page on quantization shows: arithmetic for the 70B, records of its variants where there are any, the small model's answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from specstudy.analysis import Cell
from specstudy.analysis.quantization import H100, H200, Headroom, headroom, of_variant, variants
from specstudy.analysis.shares import Share, shares
from specstudy.book.chapter import open_chapter
from specstudy.book.limits import machine_limits
from specstudy.catalog import load_profile, names_in, project_root
from specstudy.catalog.shapes import load_shape
from specstudy.figures.limits import limit_lines, machine_table, share_figure, share_table
from specstudy.figures.picture import Picture
from specstudy.figures.quantization import (
    headroom_table,
    memory_figure,
    quality_lines,
    quality_table,
    quantization_conclusion,
    variant_memory_table,
    variant_speed,
    variant_table,
)
from specstudy.figures.tables import Table
from specstudy.figures.text import NOTHING, Text
from specstudy.records import load_records
from specstudy.records.machine import MachineLimits
from specstudy.records.quality import Quality, read_quality
from specstudy.study import check_parameters, results_folder

CHAPTER, MODEL, SMALL = "01_quantization", "llama-3.3-70b", "smollm2-135m-instruct"
QUALITY = Text("*What quantization does to the small model's answers isn't measured yet; `specstudy quantize` does it.*")
HOW = (
    "*So what a server's log says, the speeds and the shares of the limit are missing below; the arithmetic and the small model stand without them. To record "
    "them on a host with the GPU, `specstudy limits --profile {profile}`, then `specstudy measure {chapter} --profile {profile}`: `--plan` says how long it "
    "takes, and a run that is cut off goes on where it stopped.*"
)
PRECISIONS = ("bf16", "fp8", "awq")


@dataclass(frozen=True)
class Quantization:
    """The page; where records aren't there the note says so once, and a dash stands for what is made of them."""

    note: Text
    cells: list[Cell]
    machines: dict[str, MachineLimits]
    left: list[Headroom]
    small: Quality | None
    failed: dict[str, str]

    def memory(self) -> Picture:
        """Weights of each form beside the memory of one card."""
        return memory_figure(self.left, load_shape(MODEL).title)

    def memory_table(self) -> Table:
        """The same in numbers."""
        return headroom_table(self.left)

    def servers(self) -> Table | Text:
        """What the servers' logs say."""
        return variant_memory_table(self.cells) if self.cells else NOTHING

    def speed(self) -> Picture | Text:
        """Tokens/s of each variant."""
        return variant_speed(self.cells) if self.cells else NOTHING

    def speed_table(self) -> Table | Text:
        """With TPOT and the ratio to fp8."""
        return variant_table(self.cells) if self.cells else NOTHING

    def machine(self) -> Table | Text:
        """What the machine can do at best."""
        return machine_table(list(self.machines.values())) if self.cells else NOTHING

    def limits(self) -> Picture | Text:
        """Share of the limit at each load."""
        return share_figure(self.shares) if self.machines else NOTHING

    def limits_table(self) -> Table | Text:
        """With the parts of the limit."""
        return share_table(self.shares) if self.machines else NOTHING

    def limits_text(self) -> Text:
        """What bounds each variant."""
        return limit_lines(self.shares) if self.machines else NOTHING

    def quality(self) -> Table | Text:
        """Perplexity and agreement of the small model's forms."""
        return QUALITY if self.small is None else quality_table(self.small)

    def quality_text(self) -> Text:
        """The same in sentences."""
        return QUALITY if self.small is None else quality_lines(self.small)

    def conclusion(self) -> Text:
        """Where each variant wins, and what isn't measured."""
        return quantization_conclusion(self.cells, self.left, self.failed)

    @cached_property
    def shares(self) -> list[Share]:
        """Every cell beside its limit, in the order of the other tables, so that a variant has one colour in every figure."""
        return shares([cell for name in variants(self.cells) for cell in of_variant(self.cells, name)], self.machines)


def open_quantization(profile: str | None = None, mode: str = "recorded", results_dir: str | None = None) -> Quantization:
    """Records of the chapter where there are any; mode "live" measures them first, and raises as `open_study` does.

    Raises RecordError for a record of limits or quality that is something else.
    """
    check_parameters(profile, mode, results_dir)
    chosen = profile or (_profile_that_measures_it() if mode != "recorded" else None)
    chapter = open_chapter(CHAPTER, profile=chosen, mode=mode, results_dir=results_dir)
    small = read_quality(quality_path()) if quality_path().is_file() else None
    machines = machine_limits(chapter.cells, mode, results_dir)
    failed = _failed(chapter.cells, mode, results_dir)
    note = chapter.note if chapter.cells else Text(f"{chapter.note.markdown} {HOW.format(profile=chosen or _profile_that_measures_it(), chapter=CHAPTER)}")
    return Quantization(note, chapter.cells, machines, headroom(load_shape(MODEL), PRECISIONS, (H200, H100)), small, failed)


def _failed(cells: Sequence[Cell], mode: str, results_dir: str | None) -> dict[str, str]:
    """Why each variant failed that was tried in the cells' allocation and has no good repeat there, by its newest try."""
    if not cells:
        return {}
    path = results_folder(mode, results_dir) / cells[0].records[0].profile / f"{CHAPTER}.jsonl"
    good = set(variants(cells))
    records = sorted(load_records(path).records, key=lambda record: record.started_at)
    tried = [record for record in records if record.status == "failed" and record.allocation == cells[0].allocation and record.engine_variant not in good]
    return {record.engine_variant or "": (record.error or "").splitlines()[0] for record in tried}


def _profile_that_measures_it() -> str | None:
    return next((name for name in names_in("profiles") if CHAPTER in load_profile(name).chapters), None)


def quality_path() -> Path:
    """Where `specstudy quantize` keeps the small model's record."""
    return project_root() / "data" / "quality" / f"{SMALL}.json"
