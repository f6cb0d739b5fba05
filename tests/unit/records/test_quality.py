"""A record of quality has a figure for each text of each model, or it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tests.standin.synthetic import QUALITY

from specstudy.errors import RecordError
from specstudy.records.quality import Quality, Scores, read_quality, write_quality

BASE = Scores(name="bf16", recipe="as it was", weights_bytes=10, nll=(1.0, 2.0), agreed=(3, 4), same_until=(3, 4))
GIVEN: dict[str, Any] = {**QUALITY, "scored_tokens": (5, 6), "answer_tokens": (3, 4), "models": (BASE,)}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    quality = Quality(**GIVEN)
    write_quality(tmp_path / "new" / "one.json", quality)
    assert read_quality(tmp_path / "new" / "one.json") == quality
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["one.json"]


@pytest.mark.parametrize("change", [{"scored_tokens": (5,)}, {"answer_tokens": (1, 2, 3)}, {"models": (BASE.model_copy(update={"nll": (1.0,)}),)}])
def test_a_text_without_a_figure_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="every list needs"):
        Quality(**{**GIVEN, **change})


@pytest.mark.parametrize(("content", "words"), [(None, "can't be read"), ("{}", "holds no record of quality")])
def test_what_is_no_record(tmp_path: Path, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / "one.json").write_text(content)
    with pytest.raises(RecordError, match=words):
        read_quality(tmp_path / "one.json")


def test_one_text_has_no_interval_and_is_refused() -> None:
    one = Scores(name="bf16", recipe="", weights_bytes=10, nll=(1.0,), agreed=(3,), same_until=(3,))
    with pytest.raises(ValidationError, match="at least two texts"):
        Quality(**{**GIVEN, "scored_tokens": (5,), "answer_tokens": (3,), "models": (one,)})


@pytest.mark.parametrize("change", [{"agreed": (3, 5)}, {"same_until": (3, 5)}, {"agreed": (2, 4)}])
def test_more_agreement_than_there_are_tokens_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="same_until is at most agreed"):
        Quality(**{**GIVEN, "models": (BASE.model_copy(update=change),)})
