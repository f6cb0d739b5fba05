"""What quantization did to a model's answers: one record for each target, with every text's figures."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from specstudy.errors import RecordError
from specstudy.records.files import write_model

Count = Annotated[int, Field(ge=0)]


class _Kept(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Scores(_Kept):
    """One form of the model; the lists have an entry for each text, in the record's order."""

    name: str = Field(description="bf16 for the model as it was")
    recipe: str = Field(description="what was done to it, in words")
    weights_bytes: int = Field(gt=0, description="size of its weight files")
    nll: tuple[Annotated[float, Field(ge=0)], ...] = Field(description="nats, summed over a text's scored tokens")
    agreed: tuple[Count, ...] = Field(description="tokens of the unquantized model's greedy answer that are this one's first choice too")
    same_until: tuple[Count, ...] = Field(description="tokens of that answer before the first that isn't")


class Quality(_Kept):
    """Perplexity on fixed texts, and agreement with the greedy answers of the unquantized model.

    Agreement is of next tokens, each after the same beginning of the unquantized model's answer: one disagreement doesn't make the
    rest count as different. Before the first one the two would have written the same.
    """

    target: str
    created_at: datetime
    git_sha: str
    packages: dict[str, str]
    arithmetic: str = Field(description="how the quantized products were computed")
    texts: str = Field(description="where they came from")
    texts_sha256: str
    calibration: str
    scored_tokens: tuple[Annotated[int, Field(gt=0)], ...] = Field(description="tokens of each text that count")
    answer_tokens: tuple[Annotated[int, Field(gt=0)], ...] = Field(description="tokens of each greedy answer")
    models: tuple[Scores, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _as_long_as_the_texts(self) -> Quality:
        wanted = len(self.scored_tokens)
        columns = [self.answer_tokens, *(column for one in self.models for column in (one.nll, one.agreed, one.same_until))]
        if any(len(column) != wanted for column in columns):
            raise ValueError(f"every list needs {wanted} entries, one for each text")
        if wanted < 2:
            raise ValueError("at least two texts are needed: an interval resamples them")
        for one in self.models:
            if not all(until <= agreed <= whole for until, agreed, whole in zip(one.same_until, one.agreed, self.answer_tokens, strict=True)):
                raise ValueError(f"{one.name}: same_until is at most agreed, and that at most answer_tokens, in every text")
        return self

    @property
    def base(self) -> Scores:
        """The unquantized model, which comes first."""
        return self.models[0]


def write_quality(path: Path, quality: Quality) -> None:
    """Replace the record at `path`. Raises RecordError."""
    write_model(path, quality)


def read_quality(path: Path) -> Quality:
    """Raises RecordError for a file that isn't there or holds something else."""
    try:
        return Quality.model_validate_json(path.read_bytes())
    except OSError as error:
        raise RecordError(f"{path} can't be read: {error.strerror}") from error
    except ValidationError as error:
        raise RecordError(f"{path} holds no record of quality: {str(error).splitlines()[0]}") from error
