"""What is to be served. A Deployment that exists is consistent; see `checks` for what needs the model's files."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from specstudy.catalog.models import METHODS_WITHOUT_DRAFT, Dtype, FlagValue, KvCacheDtype, Quantization, StrictModel
from specstudy.errors import ConfigError
from specstudy.records.schema import Method

RATES_AGREE_WITHIN = 0.011  # a published length is rounded to two decimals


class Deployment(StrictModel):
    """One server: target, quantization, method, draft, K and engine flags.

    Build it with `deploy()`, which raises ConfigError with the field's name instead of
    pydantic's error.
    """

    target: str = Field(description="name in the catalog; also the served model's name")
    target_path: str = Field(description="folder with config.json, tokenizer and weights")
    hardware: Literal["cpu", "gpu"]
    engine_variant: str | None = Field(default=None, description="which of the chapter's ways to serve the target")
    dtype: Dtype = "bfloat16"
    quantization: Quantization | None = None
    kv_cache_dtype: KvCacheDtype = "auto"
    method: Method = "none"
    draft: str | None = None
    draft_path: str | None = None
    num_speculative_tokens: int | None = Field(default=None, ge=1)
    prompt_lookup_min: int | None = Field(default=None, ge=1)
    prompt_lookup_max: int | None = Field(default=None, ge=1)
    random_weights: bool = Field(default=False, description="a shape: the engine fills target and draft with random values")
    imposed_acceptance_length: float | None = Field(default=None, ge=1)
    imposed_acceptance_rates: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(
        default=(), description="share of steps in which the first i drafted tokens are all accepted, i = 1 to K; they make up the length"
    )
    max_model_len: int = Field(gt=0)
    max_num_seqs: int = Field(gt=0)
    flags: dict[str, FlagValue] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _method_and_k(self) -> Deployment:
        k = self.num_speculative_tokens
        if self.method == "none" and k is not None:
            raise ConfigError("num_speculative_tokens", k, "nothing without a method; choose a method or leave K out")
        if self.method != "none" and k is None:
            raise ConfigError("num_speculative_tokens", k, f"a number of at least 1 for method {self.method}")
        return self

    @model_validator(mode="after")
    def _ngram_bounds(self) -> Deployment:
        low, high = self.prompt_lookup_min, self.prompt_lookup_max
        if self.method != "ngram":
            for field, value in (("prompt_lookup_min", low), ("prompt_lookup_max", high)):
                if value is not None:
                    raise ConfigError(field, value, "nothing: only method ngram has lookup bounds")
            return self
        for field, value in (("prompt_lookup_min", low), ("prompt_lookup_max", high)):
            if value is None:
                raise ConfigError(field, None, "a number of at least 1: ngram needs both lookup bounds")
        if low is not None and high is not None and low > high:
            raise ConfigError("prompt_lookup_min", low, f"at most prompt_lookup_max, {high}")
        return self

    @model_validator(mode="after")
    def _draft_given(self) -> Deployment:
        if self.method in METHODS_WITHOUT_DRAFT:
            if self.draft is not None or self.draft_path is not None:
                raise ConfigError("draft", self.draft or self.draft_path, f"nothing: method {self.method} loads no draft")
        elif self.draft_path is None:
            raise ConfigError("draft", self.draft, f"a draft: method {self.method} loads one")
        return self

    @model_validator(mode="after")
    def _imposed_acceptance(self) -> Deployment:
        imposed, k = self.imposed_acceptance_length, self.num_speculative_tokens
        if imposed is None:
            if self.imposed_acceptance_rates:
                raise ConfigError("imposed_acceptance_rates", self.imposed_acceptance_rates, "nothing without imposed_acceptance_length")
            return self
        if self.hardware == "cpu":
            raise ConfigError("imposed_acceptance_length", imposed, "nothing on a CPU: vLLM imposes acceptance only when it samples on a GPU")
        if k is None or imposed > k + 1:
            raise ConfigError("imposed_acceptance_length", imposed, f"a method, and at most K + 1 = {(k or 0) + 1}")
        rates = self.imposed_acceptance_rates
        if len(rates) != k or any(later > earlier for earlier, later in pairwise(rates)) or abs(1 + sum(rates) - imposed) > RATES_AGREE_WITHIN:
            raise ConfigError("imposed_acceptance_rates", rates, f"{k} shares that don't rise and sum to {imposed - 1:.3f}")
        if not self.random_weights:
            raise ConfigError("imposed_acceptance_length", imposed, "nothing with real weights: they accept what they accept")
        return self

    @property
    def label(self) -> str:
        """Short name for logs and progress, like ngram-k3, with the engine's variant in front and the imposed acceptance length at the end if it has them."""
        method = self.method if self.num_speculative_tokens is None else f"{self.draft or self.method}-k{self.num_speculative_tokens}"
        if self.imposed_acceptance_length is not None:
            method += f"-al{self.imposed_acceptance_length:g}"
        if self.engine_variant is None:
            return method
        return self.engine_variant if self.method == "none" else f"{self.engine_variant}-{method}"


def deploy(**fields: object) -> Deployment:
    """A Deployment from its fields. Raises ConfigError for the first that doesn't fit."""
    try:
        return Deployment.model_validate(fields)
    except ValidationError as error:
        raise ConfigError.from_pydantic(error, "deployment") from error
