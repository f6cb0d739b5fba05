"""A full server's slowdown, by hand."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.standin.synthetic import record

from specstudy.analysis.slowdown import slowdown
from specstudy.records import Record

HELD = 64


def repeats(tpot_ms: dict[int, tuple[float, ...]], **more: object) -> list[Record]:
    """Repeats at each concurrency with these mean times of a token."""
    return [record(concurrency=load, tpot_ms_mean=value, repeat=number, **more) for load, values in tpot_ms.items() for number, value in enumerate(values)]


@pytest.mark.parametrize(
    ("slots", "wanted"),
    [
        (4, 1.2),  # the lowest that fills them is 8, its fourth 2, of which only 1 was measured: 6 over 5
        (8, 1.2),
        (32, 1.5),  # 9 over 6
        (64, 1.5),  # nothing fills them, 32 half of them
        (65, None),  # not even half
        (1, None),  # a fourth of one request is none
    ],
)
def test_full_over_a_quarter(slots: int, wanted: float | None) -> None:
    found = slowdown(repeats({1: (4, 6), 8: (6,), 32: (9,)}), slots, HELD)
    assert found == (None if wanted is None else pytest.approx(wanted))


def test_two_loads_too_close_say_nothing() -> None:
    assert slowdown(repeats({1: (5,), 2: (6,)}), 4, HELD) is None
    assert slowdown([], 4, HELD) is None


def test_a_full_server_that_is_quicker_by_noise_counts_as_equal() -> None:
    assert slowdown(repeats({1: (5,), 4: (4.5,)}), 4, HELD) == 1


def test_more_in_flight_than_the_server_held_says_nothing() -> None:
    """With 48 slots the times at 64 have a wait in them; 8 isn't half of 48."""
    assert slowdown(repeats({8: (5,), 64: (10,)}), 48, held=48) is None
    assert slowdown(repeats({8: (5,), 64: (10,)}), 48, held=64) == pytest.approx(2)


def test_the_server_and_the_chapter_that_ask_for_the_most_replicas_count() -> None:
    fields = ("draft", "num_speculative_tokens", "acceptance_length", "acceptance_rate", "acceptance_per_position")
    both = repeats({1: (5,), 4: (5.5,)}) + repeats({1: (5,), 4: (6,)}, method="none", **dict.fromkeys(fields))
    assert slowdown(both, 4, HELD) == pytest.approx(1.2)
    assert slowdown(both + repeats({1: (5,), 4: (7,)}, chapter="05_peagle"), 4, HELD) == pytest.approx(1.4)


def test_of_an_earlier_allocation_nothing_counts() -> None:
    early = repeats({1: (5,), 4: (9,)}, allocation="a" * 12, started_at=datetime(2026, 11, 1, tzinfo=UTC))
    late = repeats({1: (5,), 4: (6,)}, allocation="b" * 12, started_at=datetime(2026, 11, 2, tzinfo=UTC))
    assert slowdown(early + late, 4, HELD) == pytest.approx(1.2)


def test_failed_repeats_say_nothing() -> None:
    assert slowdown([*repeats({1: (5,), 4: (6,)}), record(concurrency=4, status="failed", error="gone")], 4, HELD) == pytest.approx(1.2)
