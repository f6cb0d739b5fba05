"""The heads that ship with the study, as the page on drafts shows them: cards, loss curves, checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from specstudy.analysis import Cell, context_tokens
from specstudy.analysis.served import other_drafts
from specstudy.book.served_heads import records_of, replaced_since
from specstudy.catalog import data_dir, load_draft, load_target
from specstudy.drafts.card import Card, acceptance_table, facts_table, read_card
from specstudy.drafts.recipe import Recipe
from specstudy.figures import Picture, Table, Text
from specstudy.figures.picture import STYLE, canvas
from specstudy.figures.style import legend_above
from specstudy.figures.tables import DASH
from specstudy.study import results_folder

TRAINED = {"eagle3", "peagle", "dflash"}
NONE_SHIPPED = Text("*No head is shipped with this checkout yet, so there is no card to show.*")
CHECKS = "checks.csv"


@dataclass(frozen=True)
class Heads:
    """Folders under data/drafts that hold a card, with their cards."""

    folders: tuple[Path, ...]
    cards: tuple[Card, ...]

    def facts(self) -> Table | Text:
        """What each head is and was trained on: a row a fact, a column a head."""
        if not self.cards:
            return NONE_SHIPPED
        frame = facts_table(list(self.cards)).fillna(DASH).rename_axis("fact").reset_index()
        replaced = replaced_since(results_folder("recorded", None), [card.name for card in self.cards])
        last = " or, of a head trained further, that made it of the one before" if any(card.training.started_from for card in self.cards) else ""
        note = f"From the card.json beside each head; the command is the one that made it{last}."
        return Table(frame, "real", " ".join(filter(None, [note, replaced])), words=True)

    def loss_curve(self) -> Picture | Text:
        """Training loss over steps, a line for each head."""
        drawn = [card for card in self.cards if card.training.loss_curve]
        if not drawn:
            return NONE_SHIPPED
        figure, axes = canvas(3.4)
        told = []
        for card, line in zip(drawn, ("-", "--", ":", "-.") * len(drawn), strict=False):
            steps, losses = zip(*card.training.loss_curve, strict=True)
            axes.plot(steps, losses, color=STYLE[card.method][0], linestyle=line, label=_title(card))
            told.append(f"{_title(card)}: {losses[0]:.2f} at step {steps[0]:,}, {losses[-1]:.2f} at step {steps[-1]:,}")
        axes.set_xlabel("training step")
        axes.set_ylabel("training loss")
        legend_above(axes, columns=1)
        alt = f"Training loss over steps. {'; '.join(told)}."
        return Picture.of(figure, "How far did training get?", alt, "real")

    def validation(self) -> Picture | Text:
        """Acceptance length that the validation during training expects, over steps, a line for each head."""
        drawn = [card for card in self.cards if card.training.validation]
        if not drawn:
            return Text("*No card holds a validation during training.*")
        figure, axes = canvas(3.4)
        told = []
        for card in drawn:
            points = [(one.step, one.expected_acceptance_length) for one in card.training.validation]
            colour, marker = STYLE[card.method]
            axes.plot([step for step, _ in points], [length for _, length in points], color=colour, marker=marker, label=_title(card))
            told.append(f"{_title(card)}: {points[0][1]:.2f} at step {points[0][0]:,}, {points[-1][1]:.2f} at step {points[-1][0]:,}")
        axes.set_xlabel("training step")
        axes.set_ylabel("expected AL (tokens/step)")
        legend_above(axes, columns=1)
        alt = f"Acceptance length expected from held-out answers over training steps. {'; '.join(told)}."
        return Picture.of(figure, "Was it still getting better when training ended?", alt, "real")

    def acceptance(self) -> Table | Text:
        """What each card says was accepted, by workload, K, concurrency and position."""
        frame = acceptance_table(list(self.cards))
        if frame.empty:
            return NONE_SHIPPED if not self.cards else Text("*No card holds a measured acceptance.*")
        told = frame["half-width"].notna().any()
        frame["half-width"] = [DASH if pd.isna(value) else f"{value:.2f}" for value in frame["half-width"]]
        if not told:
            frame = frame.drop(columns="half-width")
        frame["acceptance length"] = [f"{value:.2f}" for value in frame["acceptance length"]]
        versions = ", ".join(sorted({one.engine_version for card in self.cards for one in card.acceptance}))
        note = (
            f"Acceptance length in tokens a step, measured with vLLM {versions} by specstudy drafts measure: one load each, by default 40 prompts with "
            "answers of 128 tokens. Acceptance changes along an answer, so compare no figure here with one over longer answers. "
            + ("The half-width is that of the 95 % interval over repeats. " if told else "One load has no interval. ")
            + "Positions: share of drafts accepted at 1 to K."
        )
        return Table(frame, "real", note)

    def tried(self) -> Table | Text:
        """What was tried on the way, and what it gave."""
        rows = [{"head": card.name, "tried": one.what, "gave": one.gave} for card in self.cards for one in card.tried]
        return Table(pd.DataFrame(rows), "real", words=True) if rows else Text("*No card lists what was tried.*")

    def data_note(self, cells: Sequence[Cell]) -> Text:
        """Whether the heads that `cells` were measured with learned from the same prompts, and how much each saw."""
        drafts = {cell.variant.draft for cell in cells if cell.variant.method in TRAINED}
        if len(drafts) < 2:
            return Text("*Fewer than two trained heads were measured under this profile, so there are none to compare.*")
        cards = self._cards_of(cells)
        if cards is None:
            return Text("*What these heads were trained on isn't on a card of this checkout, so a difference between them may be one of data.*")
        learned = {tuple(one.prompts_sha256 for one in card.stages) if card.stages else None for card in cards}
        told = "learned from the same prompts" if len(learned) == 1 else "learned from different prompts, so a difference between them may be one of data"
        if None in learned:
            told = "didn't all begin anew, and what they began with was trained on isn't kept, so a difference between them may be one of data"
        seen = "; ".join(f"{card.name} {_millions(card.training.tokens_in_all)}" for card in cards)
        contexts = self.long_note(cells)
        return Text(
            f"By their cards these heads {told}. Tokens seen in training: {seen}. Each was trained once; another seed would give somewhat other figures."
            + (f" {contexts}" if contexts else "")
        )

    def _cards_of(self, cells: Sequence[Cell]) -> list[Card] | None:
        """Cards of the trained heads that `cells` were measured with; None where one has no card here, or has been replaced since."""
        drafts = {cell.variant.draft for cell in cells if cell.variant.method in TRAINED}
        cards = [card for card in self.cards if card.name in drafts]
        return None if len(cards) < len(drafts) or drafts & other_drafts(records_of(cells)).keys() else cards

    def long_note(self, cells: Sequence[Cell]) -> str:
        """Said beside bands of context where not all of these heads were trained behind long prompts: what is long is then new to the others."""
        cards = self._cards_of([cell for cell in cells if context_tokens(cell.load.workload) is not None])
        new = [card.name for card in cards or () if not any(one.long_answers for one in card.stages or ()) and not _long_answers(card)]
        most = Recipe.model_fields["max_prompt_tokens"].default
        if not cards or not new:
            return ""
        if len(new) < len(cards):
            others = f"not trained on prompts over {most:,} tokens and the others were, so a difference at longer contexts may be one of data."
            return f"Of these heads {' and '.join(new)} {'was' if len(new) == 1 else 'were'} {others}"
        return (
            f"None was trained on prompts over {most:,} tokens, so longer contexts are new to them: this compares how they do there, not what the method could."
        )

    def checks(self, mode: str = "recorded") -> Table | Text:
        """Every check of `specstudy drafts check` on every head; in mode "live" made now, else as kept beside the heads."""
        read: Callable[[Path, Card], pd.DataFrame | None] = _check if mode == "live" else _kept
        found = {card.name: frame for folder, card in zip(self.folders, self.cards, strict=True) if (frame := read(folder, card)) is not None}
        if not found:
            return Text("*No head's checks are on file.*") if self.cards else NONE_SHIPPED
        columns = {name: frame.set_index("check").apply(lambda row: f"{row['verdict']}: {row['found']}", axis=1) for name, frame in found.items()}
        table = pd.DataFrame(columns).fillna(DASH).rename_axis("check").reset_index()
        return Table(table, "real", "Each field: the verdict and what was found. specstudy drafts check NAME prints what is allowed, too.", words=True)


def _millions(tokens: int | None) -> str:
    return "an unknown number" if tokens is None else f"{tokens / 1e6:,.1f} million"


def _long_answers(card: Card) -> int:
    return sum(source.long_answers for source in card.data.sources)


def _title(card: Card) -> str:
    """The name that a line of a figure has: its steps are those of the last training alone."""
    return card.name if card.training.started_from is None else f"{card.name}, trained further"


def shipped_heads(folder: Path | None = None) -> Heads:
    """The heads with a card under `folder`, by default data/drafts. Raises ConfigError for a card that can't be read."""
    folders = tuple(sorted(path.parent for path in (folder or data_dir() / "drafts").glob("*/card.json")))
    return Heads(folders, tuple(read_card(one) for one in folders))


def record_checks(heads: Heads) -> list[Path]:
    """Run the checks and keep them beside the heads, for pages that are built without the target's weights."""
    written = []
    for folder, card in zip(heads.folders, heads.cards, strict=True):
        path = folder / CHECKS
        _check(folder, card).to_csv(path, index=False)
        written.append(path)
    return written


def _check(folder: Path, card: Card) -> pd.DataFrame:
    from specstudy.catalog.materialise import draft_folder, target_folder
    from specstudy.drafts.check import check_head, findings_table

    return findings_table(check_head(draft_folder(load_draft(folder.name)), target_folder(load_target(card.target.name)), card))


def _kept(folder: Path, card: Card) -> pd.DataFrame | None:
    path = folder / CHECKS
    return pd.read_csv(path, dtype=str, keep_default_na=False) if path.is_file() else None
