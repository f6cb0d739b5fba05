"""What a page says of cells that weren't measured under like conditions, or fewer times than planned."""

from __future__ import annotations

from typing import Any

import pytest
from tests.standin.synthetic import cell, record, repeats

from specstudy.analysis import Cell
from specstudy.book.conditions import conditions
from specstudy.catalog import load_profile

CHAPTER = "05_peagle"


def measured(k: int, concurrency: int, others: list[float | None]) -> Cell:
    own = {"method": "eagle3", "draft": "smollm2-135m-eagle3", "num_speculative_tokens": k, "workload": "chat-64", "concurrency": concurrency}
    return cell([record(repeat=i, host_other_cpu_share=share, output_tokens_per_s=100.0, duration_s=3.0, **own) for i, share in enumerate(others)])


@pytest.mark.parametrize("others", [0.05, None])
def test_nothing_is_said_of_cells_that_are_whole_and_alike(others: float | None) -> None:
    assert conditions(load_profile("h200-smollm2"), CHAPTER, [measured(k, 1, [others] * 5) for k in (1, 2, 3)]) == ""


def test_cells_with_fewer_repeats_than_the_profile_asks_for_are_counted() -> None:
    cells = [measured(1, 1, [None] * 5), measured(2, 1, [None] * 4), measured(3, 1, [None] * 3)]
    assert conditions(load_profile("h200-smollm2"), CHAPTER, cells) == (
        "**Short of the profile's rules:** 2 of 3 cells lack a repeat or more. 2 of them have 3 to 4, fewer than the least. "
        "The recording ended before, or was told another number."
    )


@pytest.mark.parametrize(("seconds", "short"), [(3.0, True), (10.0, False)])
def test_cells_that_are_known_less_well_than_aimed_at_are_counted(seconds: float, short: bool) -> None:
    """Of five repeats 90 to 110 the interval is ± 2.776 x 7.07 / sqrt(5) = 8.8 % of the mean; a sixth would take 18 s of the 20 that are allowed, or 60."""
    own: dict[str, Any] = {"method": "eagle3", "draft": "smollm2-135m-eagle3", "num_speculative_tokens": 1, "workload": "chat-64", "concurrency": 1}
    wide = repeats([90.0, 100.0, 110.0, 100.0, 100.0], duration_s=seconds, **own)
    told = conditions(load_profile("h200-smollm2"), CHAPTER, [wide, measured(2, 1, [None] * 5)])
    assert (
        "**Known less well than aimed at:** the throughput of 1 of 2 cells is known to ± 9 %, not to the 3 % at which the rules stop: "
        "the time or the repeats that a cell may take came first."
    ) in told
    assert ("**Short of the profile's rules:** 1 of 2 cells lack a repeat or more. The recording ended" in told) is short


def test_a_sections_own_number_of_repeats_is_what_is_asked_for_and_a_load_outside_the_plan_asks_for_none() -> None:
    own = {"method": "eagle3", "draft": "smollm2-135m-eagle3", "num_speculative_tokens": 5, "concurrency": 8}
    whole = cell([record(repeat=i, workload="humaneval", **own) for i in range(3)])
    unplanned = cell([record(workload="something", **own)])
    assert conditions(load_profile("h200-smollm2"), "04_eagle3", [whole, unplanned]) == ""


def test_cells_beside_which_the_host_did_more_or_less_than_beside_their_baseline_are_named() -> None:
    """Baseline 5 %; 28 % is more, 0.5 % less, and 8 % is within four points."""
    plain = cell([record(repeat=i, method="none", workload="chat-64", host_other_cpu_share=0.05) for i in range(5)])
    told = conditions(load_profile("h200-smollm2"), CHAPTER, [plain, *(measured(k, 1, [share] * 5) for k, share in enumerate((0.08, 0.28, 0.005), 1))])
    assert "at least 4 points more or less of other work" in told and "K=1" not in told
    assert "smollm2-135m-eagle3 K=2 at chat-64 c=1 (28% against 5%); smollm2-135m-eagle3 K=3 at chat-64 c=1 (0% against 5%). " in told
