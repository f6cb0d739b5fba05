"""A full server's slowdown, by hand."""

from __future__ import annotations

import pytest
from tests.standin.synthetic import record

from specstudy.analysis.slowdown import slowdown


def times(e2e_ms: dict[int, tuple[float, ...]], **more: object) -> list[object]:
    """Repeats at each concurrency that took so long on the average."""
    return [record(concurrency=load, e2e_ms_mean=value, **more) for load, values in e2e_ms.items() for value in values]


@pytest.mark.parametrize(
    ("slots", "wanted"),
    [
        (4, 1.2),  # the lowest that fills them is 8, its fourth 2, of which only 1 was measured: 600 over 500
        (8, 1.2),
        (32, 1.5),  # 900 over 600
        (64, 1.5),  # nothing fills them: the highest
        (1, None),  # a fourth of one request is none
    ],
)
def test_full_over_a_quarter(slots: int, wanted: float | None) -> None:
    found = slowdown(times({1: (400, 600), 8: (600,), 32: (900,)}), slots)
    assert found == (None if wanted is None else pytest.approx(wanted))


def test_two_loads_too_close_say_nothing() -> None:
    assert slowdown(times({1: (500,), 2: (600,)}), 4) is None
    assert slowdown([], 4) is None


def test_a_full_server_that_is_quicker_by_noise_counts_as_equal() -> None:
    assert slowdown(times({1: (500,), 4: (450,)}), 4) == 1


def test_the_chapter_that_asks_for_the_most_replicas_counts() -> None:
    both = times({1: (500,), 4: (550,)}) + times({1: (500,), 4: (700,)}, chapter="05_peagle")
    assert slowdown(both, 4) == pytest.approx(1.4)


def test_failed_repeats_say_nothing() -> None:
    assert slowdown([*times({1: (500,), 4: (600,)}), record(concurrency=4, status="failed", error="gone")], 4) == pytest.approx(1.2)
