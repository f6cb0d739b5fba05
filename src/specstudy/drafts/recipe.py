"""How a head is trained: its shape, its data and its schedule."""

from __future__ import annotations

from typing import Literal, NamedTuple

from pydantic import ConfigDict, Field, ValidationError, model_validator

from specstudy.catalog.models import StrictModel
from specstudy.errors import ConfigError

HeadMethod = Literal["eagle3", "eagle3.1", "peagle"]


class RowShape(NamedTuple):
    """Shape of a batch: rows, tokens a row, anchors a row."""

    rows: int
    tokens: int
    anchors: int


class Recipe(StrictModel):
    """What `specstudy drafts train` needs to know beside the target and the data.

    The shape follows EAGLE-3 (arXiv 2503.01840: one layer, training-time test), EAGLE 3.1 (arXiv 2605.09992: a norm for each
    auxiliary state, the normalised state fed back) and P-EAGLE (arXiv 2602.01469: four layers, a learned hidden state for masked
    positions, conditional drop of depths with ratio 0.7 and floor 0.2).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    method: HeadMethod
    layers: int = Field(ge=1, description="decoder layers of the head")
    intermediate_size: int = Field(ge=8, description="width of its MLP")
    draft_vocab_size: int = Field(default=24_576, ge=64, description="most frequent tokens of the answers, all that the head can propose")
    aux_layers: tuple[int, ...] | None = Field(default=None, description="target layers whose inputs the head reads; None: 2, the middle, the third last")
    depth: int = Field(ge=1, le=16, description="tokens drafted per step in training")
    depth_weight: float = Field(default=0.8, gt=0, le=1, description="loss weight of a depth over that of the depth before it")
    drop_ratio: float = Field(default=0.7, gt=0, le=1, description="peagle: share of the anchors kept from one depth to the next")
    drop_floor: float = Field(default=0.2, ge=0, le=1, description="peagle: least share of anchors kept")
    hard_share: float = Field(default=0.5, ge=0, le=1, description="share of the target's own argmax in the label; the rest is its distribution")
    learning_rate: float = Field(default=1e-3, gt=0)
    warmup_steps: int = Field(default=200, ge=1, description="at most a thirtieth of `steps`; not of the time, part of which is compiling")
    weight_decay: float = Field(default=0.01, ge=0)
    row_tokens: int = Field(default=1536, ge=32, description="length of a training row; a longer conversation is cut")
    rows: int = Field(default=11, ge=1, description="rows of a step")
    max_prompt_tokens: int = Field(default=1100, ge=8, description="longer prompts go into long rows, if there are any")
    long_row_tokens: int | None = Field(default=None, ge=32, description="length of the rows of long prompts; None: there are none")
    long_rows: int = Field(default=3, ge=1, description="rows of a step on long prompts")
    long_every: int = Field(default=4, ge=2, description="one step of so many is on long prompts")
    max_long_prompts: int | None = Field(default=6_000, ge=1, description="take no more long prompts than this")
    max_answer_tokens: int = Field(default=400, ge=1)
    temperatures: tuple[float, ...] = Field(default=(0.0, 0.7), min_length=1, description="each prompt is answered once at each")
    max_prompts: int | None = Field(default=15_000, ge=1, description="take no more prompts than this, in the order of their hashes")
    steps: int | None = Field(default=None, ge=1, description="end after this many steps")
    minutes: float | None = Field(default=None, gt=0, description="end after this much training time")
    validate_every_s: float = Field(default=45, gt=0)
    seed: int = Field(default=0, ge=0, lt=2**32, description="the engine takes no larger one")

    @model_validator(mode="after")
    def _ends(self) -> Recipe:
        if self.steps is None and self.minutes is None:
            raise ConfigError("steps", None, "steps or minutes: training has to end")
        if self.long_row_tokens is not None and self.max_long_prompt_tokens <= self.max_prompt_tokens:
            least = self.max_prompt_tokens + self.max_answer_tokens + 1
            raise ConfigError("long_row_tokens", self.long_row_tokens, f"at least {least}: the longest short prompt, its answer and one token more")
        if self.method != "peagle" and self.layers != 1:
            raise ConfigError("layers", self.layers, f"1: {self.method} drafts with one layer, token after token")
        return self

    @property
    def max_long_prompt_tokens(self) -> int:
        """Longest prompt of all: what a long row has room for beside an answer."""
        return self.max_prompt_tokens if self.long_row_tokens is None else self.long_row_tokens - self.max_answer_tokens

    @property
    def shape(self) -> RowShape:
        """Of a step on short prompts. Answers fill more than half of such a row."""
        return RowShape(self.rows, self.row_tokens, self.row_tokens // 2)

    @property
    def long_shape(self) -> RowShape | None:
        """Of a step on long prompts, whose answers are an eighth of the row at most, as a rule."""
        return None if self.long_row_tokens is None else RowShape(self.long_rows, self.long_row_tokens, self.long_row_tokens // 8)

    @property
    def switches(self) -> dict[str, bool]:
        """Norm switches of the head's config.json; EAGLE 3.1 is nothing but these."""
        if self.method == "eagle3.1":
            return {"fc_norm": True, "norm_output": True}
        return {"fc_norm": self.method == "peagle", "norm_output": False}


# A step on long rows has as many tokens as one on short rows and a third of the anchors; in place of their loss the target's attention takes time.
_LONG: dict[str, object] = {"long_row_tokens": 6144}
# "tiny" trains in a few minutes on two cores: enough to see the loss fall and the head load, useless as a draft.
_FULL: dict[str, dict[str, object]] = {
    "eagle3": {"layers": 1, "intermediate_size": 3072, "depth": 7, "minutes": 5},
    "eagle3.1": {"layers": 1, "intermediate_size": 3072, "depth": 7, "minutes": 5},
    "peagle": {"layers": 4, "intermediate_size": 1536, "depth": 8, "minutes": 5, "long_every": 8},
}
_TINY: dict[str, object] = {
    "intermediate_size": 256,
    "draft_vocab_size": 2048,
    "depth": 3,
    "rows": 2,
    "row_tokens": 128,
    "max_prompt_tokens": 64,
    "max_answer_tokens": 24,
    "temperatures": (0.0,),
    "max_prompts": 24,
    "steps": 12,
    "minutes": None,
}
SETTINGS: dict[str, dict[str, object]] = {"full": _LONG, "tiny": _TINY}


def recipe_for(method: str, setting: str = "full", **changes: object) -> Recipe:
    """The recipe of a method; `changes` replace single fields. Raises ConfigError."""
    if method not in _FULL:
        raise ConfigError.unknown("method", method, _FULL)
    if setting not in SETTINGS:
        raise ConfigError.unknown("setting", setting, SETTINGS)
    fields = {"method": method, **_FULL[method], **SETTINGS[setting], **{name: value for name, value in changes.items() if value is not None}}
    for budget, other in (("steps", "minutes"), ("minutes", "steps")):  # the one that is given replaces the setting's
        if changes.get(budget) is not None and changes.get(other) is None:
            fields[other] = None
    try:
        return Recipe.model_validate(fields)
    except ValidationError as error:
        raise ConfigError.from_pydantic(error, "recipe") from error
