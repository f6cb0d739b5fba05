"""A head's card: what it is, what it was trained on, and what it was measured to accept. Kept as card.json beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import ConfigDict, Field, ValidationError

from specstudy.catalog.models import StrictModel
from specstudy.errors import ConfigError
from specstudy.records.files import write_whole

HeadMethod = Literal["eagle3", "eagle3.1", "peagle"]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
Length = Annotated[float, Field(ge=1, description="tokens per step, the target's own token included")]


class CardModel(StrictModel):
    """Base of the card's parts; nan and inf have no JSON, so they are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class CardTarget(CardModel):
    """The target that the head was trained for."""

    name: str
    hidden_size: int = Field(gt=0)
    num_hidden_layers: int = Field(gt=0)
    vocab_size: int = Field(gt=0)
    tokenizer_sha256: Sha256 = Field(description="of vocabulary, merges and added tokens; see checkpoint.tokenizer_sha256")


class NormFlags(CardModel):
    """The switches of config.json that change the arithmetic; two of them have no weight that would give them away."""

    fc_norm: bool = Field(description="EAGLE 3.1: a norm for each of the target's hidden states before fc")
    norm_output: bool = Field(description="EAGLE 3.1: the next step gets the normed hidden state")
    norm_before_residual: bool
    norm_before_fc: bool = Field(default=False, description="one norm over all hidden states before fc")

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> NormFlags:
        """The switches as vLLM reads them from a head's config.json."""
        nested = config.get("eagle_config") or {}
        top = {name: bool(config.get(name, False)) for name in ("fc_norm", "norm_output", "norm_before_residual")}
        return cls(**top, norm_before_fc=bool(nested.get("norm_before_fc", config.get("norm_before_fc", False))))


class DataSource(CardModel):
    """One dataset of the training data."""

    name: str
    prompts: Count
    answers: Count
    answer_tokens: Count
    long_answers: Count = Field(default=0, description="of them behind prompts that only long rows have room for")


class RegeneratedWith(CardModel):
    """The engine that made the answers with the target."""

    engine: str
    version: str


class Data(CardModel):
    """What the head was trained on."""

    sources: tuple[DataSource, ...] = Field(min_length=1)
    evaluation_share: Share = Field(description="share of prompts kept out of training, by their own hash")
    temperatures: tuple[Annotated[float, Field(ge=0)], ...]
    regenerated_with: RegeneratedWith
    prompts_sha256: Sha256 = Field(description="over the keys of the training prompts")
    compared_with: tuple[str, ...] = Field(default=(), description="datasets whose prompts were left out, each compared by hash")


class Validation(CardModel):
    """The head against held-out answers, in the middle of training."""

    step: Count
    accuracy_per_position: tuple[Share, ...]
    expected_acceptance_length: Length
    long_acceptance_length: Length | None = Field(default=None, description="the same behind long prompts")


class Stage(CardModel):
    """One training of a head that was trained further, as the head's card of that time said it."""

    name: str
    command: str
    prompts: Count
    prompts_sha256: Sha256
    long_answers: Count = 0
    steps: Count
    tokens_seen: Count
    seconds: float = Field(ge=0)
    device: str
    learning_rate: float = Field(gt=0)


class StartedFrom(CardModel):
    """The head that training began with."""

    name: str
    weights_sha256: Sha256 = Field(description="over its tensors but the output rows; see catalog.packed.weights_sha256")
    tokens_seen: Count | None = Field(description="in all its training; None: it has no card")
    stages: tuple[Stage, ...] = Field(default=(), description="its trainings, the first one first; empty where they aren't known")


class Training(CardModel):
    """How it was trained."""

    method: str
    library: str = Field(description="name and version")
    steps: Count
    tokens_per_step: float = Field(ge=0)
    rows: str = Field(default="", description="how many of what length make a step")
    tokens_seen: Count = Field(description="in this training")
    started_from: StartedFrom | None = Field(default=None, description="None: from the target's last layers")
    epochs: float = Field(ge=0)
    seconds: float = Field(ge=0)
    device: str
    learning_rate: float = Field(gt=0)
    loss: str
    seed: int
    parameters: Count = Field(description="trained ones")
    loss_curve: tuple[tuple[Count, float], ...] = Field(description="pairs of step and loss")
    validation: tuple[Validation, ...] = ()

    @property
    def tokens_in_all(self) -> int | None:
        """Tokens seen in this training and in those before it; None where one before it can't tell."""
        if self.started_from is None:
            return self.tokens_seen
        return None if self.started_from.tokens_seen is None else self.started_from.tokens_seen + self.tokens_seen


class Packing(CardModel):
    """How it is stored, and what that cost in acceptance."""

    bits: dict[str, int] = Field(description="bits per value of each group of tensors: attention, fc, mlp, other")
    bytes: Count = Field(description="of head.safetensors.xz and config.json")
    acceptance_length_unpacked: Length | None = Field(default=None, description="of the trained bf16 head")
    acceptance_length_packed: Length | None = Field(default=None, description="of the head after packing and unpacking, same prompts")


class Acceptance(CardModel):
    """One measured acceptance length."""

    workload: str
    num_speculative_tokens: int = Field(ge=1)
    concurrency: int = Field(ge=1)
    temperature: float = Field(ge=0)
    dtype: str
    engine_version: str
    acceptance_length: Length
    half_width: float | None = Field(default=None, ge=0, description="of the 95 % interval")
    per_position: tuple[Share, ...]
    drafts: Count = Field(description="steps with a draft that the figures come from")


class Tried(CardModel):
    """Something that was tried, and what came of it."""

    what: str
    gave: str


class Card(CardModel):
    """The whole card."""

    name: str
    method: HeadMethod
    target: CardTarget
    aux_layers: tuple[Count, ...] = Field(min_length=1, description="target layers whose input the head reads, as vLLM counts them")
    norm_flags: NormFlags | None = Field(default=None, description="NormFlags.of(config) of the trained head")
    weights_sha256: Sha256 | None = Field(default=None, description="of the head that the figures are of; see catalog.packed.weights_sha256")
    licence: str
    command: str = Field(description="the command that made it")
    data: Data
    training: Training
    packing: Packing | None = None
    acceptance: tuple[Acceptance, ...] = ()
    tried: tuple[Tried, ...] = ()

    @property
    def stages(self) -> tuple[Stage, ...] | None:
        """Every training of this head, the last one last; None where those before it aren't known."""
        start, data, training = self.training.started_from, self.data, self.training
        if start is not None and not start.stages:
            return None
        own = Stage(
            name=self.name,
            command=self.command,
            prompts=sum(source.prompts for source in data.sources),
            prompts_sha256=data.prompts_sha256,
            long_answers=sum(source.long_answers for source in data.sources),
            **{name: getattr(training, name) for name in ("steps", "tokens_seen", "seconds", "device", "learning_rate")},
        )
        return (*(() if start is None else start.stages), own)


def read_card(folder: Path) -> Card:
    """card.json of a head's folder. Raises ConfigError for one that isn't there or doesn't fit."""
    path = folder / "card.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(str(path), "unreadable", f"a head's card ({error})") from error
    try:
        return Card.model_validate(content)
    except ValidationError as error:
        raise ConfigError.from_pydantic(error, path.name) from error


def write_card(card: Card, folder: Path) -> Path:
    """Write card.json into `folder`, by rename so that it is never half there."""
    path = folder / "card.json"
    write_whole(path, json.dumps(card.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n")
    return path


def acceptance_table(cards: list[Card]) -> pd.DataFrame:
    """A row for each measured acceptance length of `cards`; AL in tokens per step, positions as shares."""
    rows = [
        {
            "head": card.name,
            "workload": one.workload,
            "K": one.num_speculative_tokens,
            "concurrency": one.concurrency,
            "temperature": one.temperature,
            "acceptance length": one.acceptance_length,
            "half-width": one.half_width,
            "per position": " ".join(f"{share:.2f}" for share in one.per_position),
            "drafts": one.drafts,
        }
        for card in cards
        for one in card.acceptance
    ]
    return pd.DataFrame(rows)


def facts_table(cards: list[Card]) -> pd.DataFrame:
    """What the cards say but the acceptance: a row for each fact, a column for each card."""
    return pd.DataFrame({card.name: dict(_facts(card)) for card in cards})


def _facts(card: Card) -> Iterator[tuple[str, str]]:
    data, training, packing = card.data, card.training, card.packing
    yield "method", card.method
    yield "target", card.target.name
    yield "aux layers", ", ".join(map(str, card.aux_layers))
    if card.weights_sha256 is not None:
        yield "weights", card.weights_sha256[:12]
    yield "licence", card.licence
    yield "prompts", f"{sum(source.prompts for source in data.sources):,} of {', '.join(source.name for source in data.sources)}"
    yield "answer tokens", f"{sum(source.answer_tokens for source in data.sources):,}"
    yield "answers by", f"{data.regenerated_with.engine} {data.regenerated_with.version}, T = {', '.join(f'{t:g}' for t in data.temperatures)}"
    yield "kept out of training", f"{data.evaluation_share:.0%} of prompts"
    yield "parameters trained", f"{training.parameters:,}"
    yield "steps", f"{training.steps:,}"
    yield "tokens seen", f"{training.tokens_seen:,}"
    if training.started_from is not None:
        start = training.started_from
        yield "started from", f"{start.name}, weights {start.weights_sha256[:12]}"
        yield "trained before by", "; then ".join(map(_stage_text, start.stages)) or "not kept on this card"
        yield "tokens seen in all", "unknown: it has no card" if training.tokens_in_all is None else f"{training.tokens_in_all:,}"
        if card.stages is not None:
            yield "training time in all", f"{sum(one.seconds for one in card.stages):,.0f} s"
    if training.rows:
        yield "rows of a step", training.rows
    yield "epochs", f"{training.epochs:.3g}"
    yield "training time", f"{training.seconds:,.0f} s on {training.device}"
    yield "library", training.library
    if training.loss_curve:
        (first, began), (last, ended) = training.loss_curve[0], training.loss_curve[-1]
        yield "loss", f"{began:.3f} at step {first:,}, {ended:.3f} at step {last:,}"
    if packing is not None:
        yield "stored in", f"{packing.bytes / 1e6:.1f} MB ({', '.join(f'{group} {bits} bits' for group, bits in packing.bits.items())})"
        if packing.acceptance_length_packed and packing.acceptance_length_unpacked:
            yield "packed over unpacked acceptance", f"{packing.acceptance_length_packed / packing.acceptance_length_unpacked:.3f}"
    yield "command", card.command


def _stage_text(one: Stage) -> str:
    return (
        f"{one.command} ({one.steps:,} steps, {one.tokens_seen:,} tokens, {one.seconds:,.0f} s on {one.device}; {one.prompts:,} prompts, "
        f"{one.prompts_sha256[:12]})"
    )


def card_text(card: Card) -> str:
    """The card as Markdown: facts, acceptance, what was tried."""
    lines = [f"# {card.name}", "", *_markdown(("fact", "value"), [tuple(fact) for fact in _facts(card)])]
    if card.acceptance:
        table = acceptance_table([card]).drop(columns="head")
        rows = [tuple(_cell(value) for value in row) for row in table.itertuples(index=False)]
        lines += ["", "## Acceptance", "", *_markdown(tuple(table.columns), rows)]
    if card.tried:
        lines += ["", "## Tried", "", *_markdown(("what", "gave"), [(one.what, one.gave) for one in card.tried])]
    return "\n".join(lines) + "\n"


def _cell(value: object) -> str:
    if value is None or value != value:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _markdown(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    def line(words: tuple[str, ...]) -> str:
        return f"| {' | '.join(word.replace('|', '/').replace(chr(10), ' ') for word in words)} |"

    return [line(header), line(tuple("---" for _ in header)), *map(line, rows)]
