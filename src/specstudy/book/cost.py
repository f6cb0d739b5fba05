"""The page on cost: it measures nothing, and prices what the other chapters have measured on GPUs, profile by profile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from specstudy.analysis import Cell, input_per_output, of_main_workload
from specstudy.book.served_heads import other_drafts_note
from specstudy.catalog import Profile, load_profile, names_in
from specstudy.catalog.models import TOKEN_DATASETS
from specstudy.catalog.prices import Charged, GpuPrice, gpu_prices, hosted_weights_of, middle_offer, own_price
from specstudy.errors import ConfigError, StudyError
from specstudy.figures import Panels, Picture, Shown, Stack, Table, Text, badge
from specstudy.figures.price import change_table, cost_picture, cost_table, price_text, utilization_table
from specstudy.figures.price_list import bill_table, break_even_table, gpu_price_table, token_price_picture
from specstudy.figures.price_text import cost_lines
from specstudy.figures.text import bullets
from specstudy.study import check_parameters, read_study, results_folder

# Chapters that compare methods; the plain baseline's stands in where neither was recorded.
COMPARING, BASELINE = ("04_eagle3", "05_peagle"), "03_baseline"
DEFAULT_GPU = "H200"
NOTHING = Text("*No profile has records of a GPU with a price on file, so no cost is computed here. The price lists below stand by themselves.*")


@dataclass(frozen=True)
class Part:
    """One chapter's records of one profile, with the offers for its GPU, if any, and the price that is charged."""

    profile: Profile
    chapter: str
    cells: tuple[Cell, ...]
    offers: tuple[GpuPrice, ...]
    price: Charged

    @property
    def name(self) -> str:
        """Like SmolLM2-135M-Instruct on one H200, chapter 04."""
        return f"{self.profile.title}, chapter {self.chapter.split('_')[0]}"

    @property
    def imposed(self) -> str:
        """A sentence with the published rows that acceptance was imposed from; nothing where it was measured."""
        sources = sorted({record.acceptance_source for cell in self.cells for record in cell.records if record.acceptance_source})
        spec = self.profile.workloads.get(self.cells[0].load.workload)
        random = " Prompts are random token ids, whatever their workload is called." if spec is not None and spec.dataset in TOKEN_DATASETS else ""
        return f" Acceptance is imposed: {'; '.join(sources)}.{random}" if sources else ""

    @property
    def sold(self) -> bool:
        """Whether somebody sells these weights' tokens, so that a list price can stand beside the cost at all."""
        return bool(hosted_weights_of(self.profile.target))


@dataclass(frozen=True)
class Costs:
    """What the page shows."""

    parts: tuple[Part, ...]
    note: Text

    def pictures(self) -> Stack | Text:
        """Cost over concurrency of each part; beside it the list prices, where somebody sells these weights' tokens."""
        return self._each(lambda part: _beside(part, cost_picture(part.cells, part.price)))

    def tables(self) -> Stack | Text:
        """The same as tables, with throughput and latency."""
        return self._each(lambda part: cost_table(part.cells, part.offers, part.price))

    def changes(self) -> Stack | Text:
        """Cost over the baseline's, paired."""
        return self._each(lambda part: change_table(part.cells))

    def utilization(self) -> Stack | Text:
        """Cost where the GPU idles in part of the paid time."""
        return self._each(lambda part: utilization_table(part.cells, part.price))

    def bills(self) -> Table:
        """List prices of a million output tokens with the prompts of each part's workload."""
        ratios = {part.cells[0].load.workload + f" of {part.profile.name}": input_per_output(part.cells) for part in self.parts}
        return bill_table({name: ratio for name, ratio in ratios.items() if ratio is not None})

    def gpu_prices(self) -> Table:
        """Offers by the hour for the GPUs that were measured."""
        return gpu_price_table(self.gpus)

    def break_even(self) -> Stack:
        """Throughput at which an hour of each GPU costs what the list prices ask."""
        return Stack(tuple((f"One {gpu}", break_even_table(gpu)) for gpu in self.gpus))

    @property
    def gpus(self) -> tuple[str, ...]:
        """Models of the GPUs that were measured and that somebody lets, each once; the H200 if there is none."""
        return tuple(dict.fromkeys(part.offers[0].gpu for part in self.parts if part.offers)) or (DEFAULT_GPU,)

    def conclusion(self) -> Text:
        """For each part: the cheapest cell, what speculation changes, and what may be compared with a list price."""
        told = [f"**{part.name}** {badge(part.profile.evidence)}\n\n{cost_lines(part.cells, part.price, part.profile.target).markdown}" for part in self.parts]
        return Text("\n\n".join(told)) if told else NOTHING

    def _each(self, show: Callable[[Part], Shown]) -> Stack | Text:
        return Stack(tuple((part.name, show(part)) for part in self.parts)) if self.parts else NOTHING


def open_costs(profile: str | None = None, mode: str = "recorded", results_dir: str | None = None, usd_per_gpu_hour: float | None = None) -> Costs:
    """What can be priced: the chapters that compare methods of every profile with a GPU's records, or of `profile` alone.

    Mode "live" reads what the other chapters have measured into `results_dir`, by default ./results. `usd_per_gpu_hour` is
    charged instead of the offer in the middle of those on file, also for a GPU without one. Raises ConfigError for an unknown
    mode or profile, or a price not above 0.
    """
    check_parameters(profile, mode, results_dir)
    own = None if usd_per_gpu_hour is None else own_price(usd_per_gpu_hour)
    folder = results_folder(mode, results_dir)
    parts: list[Part] = []
    told: list[str] = []
    for found, chapter in _recorded(folder, profile):
        part = _part(found, chapter, folder, own)
        if isinstance(part, Part):
            parts.append(part)
            told.append(f"{part.name} {badge(found.evidence)}: charged {price_text(part.price)} for each GPU.{part.imposed}")
            if note := other_drafts_note(part.cells):
                told.append(f"{part.name}: {note}")
        else:
            told.append(f"{found.title}: {part}")
    return Costs(tuple(parts), bullets(list(dict.fromkeys(told))) if told else NOTHING)


def _recorded(folder: Path, wanted: str | None) -> list[tuple[Profile, str]]:
    """(profile, chapter) with records: the chapters that compare methods, or the baseline's where there is none of them."""
    profiles = [load_profile(name) for name in ([wanted] if wanted else names_in("profiles"))]
    found: list[tuple[Profile, str]] = []
    for profile in sorted(profiles, key=lambda one: (one.hardware != "gpu", one.evidence != "real", one.name)):
        there = [chapter for chapter in (*COMPARING, BASELINE) if (folder / profile.name / f"{chapter}.jsonl").is_file()]
        found += [(profile, chapter) for chapter in there if chapter != BASELINE or there == [BASELINE]]
    return found


def _part(profile: Profile, chapter: str, folder: Path, own: Charged | None) -> Part | str:
    """The part, or the reason why there is none."""
    if profile.hardware != "gpu":
        return "not priced, since no hourly price of its processor is on file."
    try:
        cells = of_main_workload(read_study(profile, chapter, folder).cells)
    except (ConfigError, StudyError) as error:
        return f"not priced: {error}"
    name = cells[0].records[-1].gpu if cells else None
    offers = gpu_prices(name) if name else []
    if own is None and not offers:
        return f"not priced, since no price of {name or 'its GPU'} is on file; give your own as the parameter usd_per_gpu_hour."
    return Part(profile, chapter, tuple(cells), tuple(offers), own or middle_offer(offers).charged)


def _beside(part: Part, own: Picture | Text) -> Shown:
    return Panels((own, token_price_picture())) if part.sold and isinstance(own, Picture) else own
