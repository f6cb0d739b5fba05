"""A chapter's records, or a sentence where there are none: a page is read before everything is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from specstudy.analysis import Cell, of_main_workload
from specstudy.book.conditions import conditions
from specstudy.book.served_heads import other_drafts_note
from specstudy.book.unrecorded import unrecorded
from specstudy.catalog import Profile, load_profile, names_in
from specstudy.errors import ConfigError, StudyError
from specstudy.figures import Shown, Text, baselines_on_two_runners, engine_note, on_another_runner, source_note
from specstudy.figures.text import NOTHING
from specstudy.study import LIVE_DEFAULT, Study, check_parameters, open_study, read_study, results_folder


@dataclass(frozen=True)
class Chapter:
    """What a page shows: `cells` holds every load, `main` the workload that is measured over concurrency."""

    cells: list[Cell]
    note: Text

    @property
    def main(self) -> list[Cell]:
        """The cells of the main workload."""
        return of_main_workload(self.cells)

    def show(self, figure: Callable[[Sequence[Cell]], Shown], *, main: bool = False) -> Shown:
        """What `figure` makes of the cells, or of the main workload's; a dash where there are none: the note has said so once."""
        return figure(self.main if main else self.cells) if self.cells else NOTHING


def open_chapter(chapter: str, profile: str | None = None, mode: str = "recorded", results_dir: str | None = None) -> Chapter:
    """The chapter's records; mode "live" measures what they lack first, and raises as `open_study` does.

    `profile` None: in live mode the CPU's; else the profile that has records of the chapter, a GPU's and real weights
    before others. In recorded mode a chapter without records has no cells and a note that says so.
    """
    check_parameters(profile, mode, results_dir)
    if mode != "recorded":
        return _shown(open_study(chapter, profile or LIVE_DEFAULT, mode, results_dir))
    folder = results_folder("recorded", results_dir)
    name = profile or next((found.name for found in recorded_profiles(chapter, folder)), None)
    if name is None:
        return Chapter([], Text(f"*No profile has records of chapter {chapter}. Measure it with mode live.*"))
    if chapter not in load_profile(name).chapters:
        return Chapter([], Text(f"*Profile {name} doesn't measure chapter {chapter}.*"))
    try:
        return _shown(open_study(chapter, name, mode, results_dir))
    except (ConfigError, StudyError) as error:
        return Chapter([], Text(f"*There is nothing to show: {error}*"))


def open_full_size(chapter: str, results_dir: str | None = None) -> Chapter:
    """The recorded chapter of a full-size target with random weights, beside the page's own; no cells and a note where there is none."""
    check_parameters(results_dir=results_dir)
    folder = results_folder("recorded", results_dir)
    found = next((profile for profile in recorded_profiles(chapter, folder) if profile.evidence == "shape" and profile.hardware == "gpu"), None)
    if found is None:
        return Chapter([], Text(f"*No full-size target has records of chapter {chapter}; how-to/shapes says how to make them.*"))
    return open_chapter(chapter, found.name, "recorded", str(folder))


def cells_of(chapter: str, profile: str, folder: Path) -> list[Cell]:
    """A chapter's cells under one profile; nothing where it has no records, or none that can be read."""
    found = next((one for one in recorded_profiles(chapter, folder) if one.name == profile), None)
    try:
        return read_study(found, chapter, folder).cells if found is not None else []
    except (ConfigError, StudyError):
        return []


def runner_note(chapter: Chapter, other: str, mode: str = "recorded", results_dir: str | None = None) -> Text:
    """What EAGLE-3 does under chapter `other` of the same profile, if another model runner ran there."""
    told = on_another_runner(chapter.cells, _beside(chapter, other, mode, results_dir))
    number = other.split("_")[0]
    if not told:
        return Text(f"*The same EAGLE-3 head wasn't recorded on another model runner in chapter {number} of this profile.*")
    return Text(
        f"**Bound to a model runner.** {told} (chapter {number}). Without P-EAGLE a deployment isn't bound to this "
        f"runner: weigh P-EAGLE against EAGLE-3 in chapter {number}, not against EAGLE-3 here."
    )


def baseline_note(chapter: Chapter, other: str, mode: str = "recorded", results_dir: str | None = None) -> Text:
    """How fast the target is without speculation under chapter `other` of the same profile, if another model runner ran there.

    Ratios are made on one runner, so that they are the method's; a reader's server without speculation may run on either.
    """
    told = baselines_on_two_runners(chapter.cells, _beside(chapter, other, mode, results_dir))
    number = other.split("_")[0]
    if not told:
        return Text(f"*No baseline is known to have run on another model runner in chapter {number} of this profile.*")
    return Text(
        f"**Which baseline?** A server without speculation needn't run on the methods' model runner; chapter {number} has it on another. {told} What "
        "speculation here gains over a server on that runner wasn't measured: it may be less than the ratios on this page, nothing, or a loss."
    )


def _beside(chapter: Chapter, other: str, mode: str, results_dir: str | None) -> list[Cell]:
    """The cells of another chapter under the same profile."""
    profile = chapter.cells[0].records[0].profile if chapter.cells else ""
    return cells_of(other, profile, results_folder(mode, results_dir))


def _shown(study: Study) -> Chapter:
    cells = study.cells
    source = source_note(study.records, study.skipped)
    parts = [
        f"Profile **{study.profile.name}**: {study.profile.title}.",
        source.markdown,
        other_drafts_note(cells),
        unrecorded(study.profile, study.chapter, cells),
        conditions(study.profile, study.chapter, cells),
    ]
    return Chapter(cells, Text("\n\n".join(part for part in [*parts, engine_note(cells).markdown] if part)))


def recorded_profiles(chapter: str, folder: Path) -> Iterator[Profile]:
    """Profiles of data/profiles with a results file for the chapter in `folder`: GPUs first, real weights first, then by name."""
    profiles = (load_profile(name) for name in names_in("profiles"))
    kept = [profile for profile in profiles if chapter in profile.chapters and (folder / profile.name / f"{chapter}.jsonl").is_file()]
    yield from sorted(kept, key=lambda profile: (profile.hardware != "gpu", profile.evidence != "real", profile.name))
