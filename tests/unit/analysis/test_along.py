"""Tokens a step along an answer, by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.standin.synthetic import cell, record, request

from specstudy import figures
from specstudy.analysis import Cell
from specstudy.analysis.along import along_answers
from specstudy.figures import Table

HEAD = {"method": "eagle3", "draft": "a-head", "num_speculative_tokens": 3, "acceptance_per_position": (0.5, 0.25, 0.1), "acceptance_length": 1.85}
# 64 tokens in 26 steps after the first chunk. They begin at 1, 2, ..., 15: 15 of one token; at 16, 18, ..., 30: 8 of two; at 32, 36, ..., 60: 8 of four.
CHUNKS = (1, *[1] * 15, *[2] * 8, *[4] * 8)


def made(answers: Sequence[tuple[int, ...]], repeats: int = 2, limit: int = 64, **what: object) -> Cell:
    records = [record(repeat=i, record_id=f"{i:016x}", max_tokens=limit, **(what or HEAD)) for i in range(repeats)]
    rows = [
        request(one.record_id, i, chunk_tokens=chunks, chunks=len(chunks), completion_tokens=sum(chunks), chunk_gap_us=tuple([1000] * (len(chunks) - 1)))
        for one in records
        for i, chunks in enumerate(answers)
    ]
    return cell(records, rows)


def test_a_step_counts_where_its_first_token_lies() -> None:
    (found,) = along_answers([made([CHUNKS])])
    assert [part.estimate for part in found.parts] == [1, 2, 4, 4]
    assert found.share == 1


def test_only_answers_that_ran_to_their_limit_count() -> None:
    """The short one has three tokens in every step, and none of them counts."""
    (found,) = along_answers([made([CHUNKS, (1, 3, 3, 3)])])
    assert [part.estimate for part in found.parts] == [1, 2, 4, 4]
    assert found.share == 0.5


@pytest.mark.parametrize("one", [made([(1, 3, 3)]), made([(1, *[3] * 5)], limit=16), made([], repeats=1)])
def test_nothing_is_said_of_short_answers_or_without_chunks(one: Cell) -> None:
    assert along_answers([one]) == []
    assert "wasn't measured" in repr(figures.along_table([one])) and "wasn't measured" in repr(figures.along_conclusion([one]))


def test_what_a_lookup_gains_is_called_repetition() -> None:
    lookup = made([CHUNKS], method="ngram", num_speculative_tokens=3, acceptance_per_position=(0.5, 0.25, 0.1), acceptance_length=1.85)
    level = made([(2, *[2] * 31)])
    table = figures.along_table([made([CHUNKS])])
    assert isinstance(table, Table)
    assert table.frame.iloc[0][["tokens 1 to 16", "tokens 49 to 64", "answers counted"]].tolist() == ["1.00 ± 0.00", "4.00 ± 0.00", "100%"]
    assert "repeat earlier text" in figures.along_conclusion([made([CHUNKS]), lookup]).markdown
    assert "repeat earlier text" not in figures.along_conclusion([made([CHUNKS])]).markdown
    assert "no difference" in figures.along_conclusion([level]).markdown


def test_what_falls_or_was_seen_once_isnt_called_no_difference() -> None:
    falls = made([(1, *[4] * 8, *[2] * 8, *[1] * 15)])
    told = figures.along_conclusion([falls]).markdown
    assert "4.00 ± 0.00 tokens a step in the first quarter" in told and "no difference" not in told
    once = figures.along_conclusion([made([CHUNKS], repeats=1)]).markdown
    assert "in the last, one repeat, so not told apart" in once


def test_the_names_of_parts_that_dont_divide_evenly_are_where_their_steps_begin() -> None:
    """66 tokens: the second quarter begins behind 16.5 tokens, so with the 18th."""
    table = figures.along_table([made([(1, *[1] * 65)], limit=66)])
    assert isinstance(table, Table)
    assert [name for name in table.frame if name.startswith("tokens")] == ["tokens 1 to 17", "tokens 18 to 33", "tokens 34 to 50", "tokens 51 to 66"]
