"""Shapes: published architectures without their weights, to be served with random ones. Each is one YAML file of data/shapes."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from specstudy.catalog.load import named
from specstudy.catalog.models import Name, StrictModel
from specstudy.errors import ConfigError

Size = Annotated[int, Field(gt=0)]
BYTES = 256
LayerType = Literal["full_attention", "sliding_attention"]


class Architecture(StrictModel):
    """Sizes of a model under the names that config.json gives them, in elements; what a model hasn't got is None."""

    hidden_size: Size
    num_hidden_layers: Size
    num_attention_heads: Size
    num_key_value_heads: Size
    head_dim: Size
    intermediate_size: Size = Field(description="inner width of the feed-forward part; of one expert where there are experts")
    vocab_size: Size
    draft_vocab_size: Size | None = Field(default=None, description="heads: rows of lm_head")
    max_position_embeddings: Size
    tie_word_embeddings: bool
    attention_bias: bool = False
    num_local_experts: Size | None = None
    num_experts_per_tok: Size | None = None
    sliding_window: Size | None = None
    layer_types: tuple[LayerType, ...] | None = Field(default=None, description="one for each layer; None: all full")


class Shape(StrictModel):
    """A published model's config.json, with where it was read.

    `architecture` holds the sizes that the study computes with, `config` the rest of the file as it is.
    `quantizations` are the quantization_config of the forms that a target may be made in, by name; `assumed`
    names each value that isn't public, and why it was taken.
    """

    name: Name
    title: str
    kind: Literal["target", "head"]
    licence: str
    sources: tuple[str, ...] = Field(min_length=1, description="where the values were read")
    architecture: Architecture
    config: dict[str, Any]
    quantizations: dict[Name, dict[str, Any]] = Field(default_factory=dict)
    tokens: dict[str, int] = Field(default_factory=dict, description="targets: token ids that an engine looks up by name")
    hidden_states_read: int | None = Field(default=None, ge=1, description="heads: hidden states of the target that fc joins")
    assumed: dict[str, str] = Field(default_factory=dict)
    note: str = ""

    @model_validator(mode="after")
    def _consistent(self) -> Shape:
        arch = self.architecture
        twice = set(self.config) & set(Architecture.model_fields)
        if twice:
            raise ConfigError("config", sorted(twice), "only what architecture doesn't hold")
        if arch.layer_types is not None and len(arch.layer_types) != arch.num_hidden_layers:
            raise ConfigError("architecture.layer_types", len(arch.layer_types), f"one for each of the {arch.num_hidden_layers} layers")
        if arch.num_attention_heads % arch.num_key_value_heads:
            raise ConfigError("architecture.num_key_value_heads", arch.num_key_value_heads, f"a divisor of the {arch.num_attention_heads} heads")
        if (arch.num_local_experts is None) != (arch.num_experts_per_tok is None):
            raise ConfigError("architecture.num_experts_per_tok", arch.num_experts_per_tok, "given together with num_local_experts")
        if arch.num_local_experts is not None and (arch.num_experts_per_tok or 0) > arch.num_local_experts:
            raise ConfigError("architecture.num_experts_per_tok", arch.num_experts_per_tok, f"at most num_local_experts, {arch.num_local_experts}")
        if arch.draft_vocab_size is not None and (self.kind == "target" or arch.draft_vocab_size > arch.vocab_size):
            raise ConfigError("architecture.draft_vocab_size", arch.draft_vocab_size, f"given for heads only, and at most vocab_size, {arch.vocab_size}")
        if (self.kind == "head") != (self.hidden_states_read is not None):
            raise ConfigError("hidden_states_read", self.hidden_states_read, "given for a head, and only there")
        return self

    @model_validator(mode="after")
    def _can_be_written(self) -> Shape:
        """config.json holds what JSON can, and the tokenizer has a place for every byte and every named token."""
        size = self.architecture.vocab_size
        for field in ("config", "quantizations"):
            try:
                json.dumps(getattr(self, field), allow_nan=False)
            except (TypeError, ValueError) as error:
                raise ConfigError(field, getattr(self, field), f"what JSON can hold ({error})") from None
        if self.kind == "head":
            if self.tokens:
                raise ConfigError("tokens", self.tokens, "given for targets only: a head has the target's tokenizer")
        elif size < BYTES:
            raise ConfigError("architecture.vocab_size", size, f"at least {BYTES}: the tokenizer has an entry for each byte")
        if len(set(self.tokens.values())) < len(self.tokens) or not all(BYTES <= number < size for number in self.tokens.values()):
            raise ConfigError("tokens", self.tokens, f"each id once, from {BYTES} to vocab_size - 1 = {size - 1}")
        return self

    def config_json(self, quantization: str | None = None) -> dict[str, Any]:
        """The whole config.json, in the form `quantization` if one is named. Raises ConfigError for an unknown form."""
        if quantization is not None and quantization not in self.quantizations:
            raise ConfigError.unknown("quantization", quantization, self.quantizations)
        form = {} if quantization is None else {"quantization_config": self.quantizations[quantization]}
        sizes = self.architecture.model_dump(mode="json", exclude_none=True)
        return {**sizes, **self.config, **form}


def load_shape(name: str) -> Shape:
    """A shape of data/shapes. Raises ConfigError for an unknown name or a bad file."""
    return named(name, "shapes", "shape", Shape)
