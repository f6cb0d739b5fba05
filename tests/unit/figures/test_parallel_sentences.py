"""What the pages on P-EAGLE say: does either pay at all, where does an advantage end, what couldn't be compared, which runner."""

from __future__ import annotations

from typing import Any

import pytest
from tests.standin.synthetic import cell, record, repeats, request

from specstudy import figures
from specstudy.analysis import Cell, inflection, same_k
from specstudy.analysis.contest import contenders
from specstudy.figures.parallel_tables import between_cells_line, end_text

OURS: dict[str, Any] = {"method": "peagle", "draft": "p", "num_speculative_tokens": 3}
THEIRS: dict[str, Any] = {"method": "eagle3", "draft": "e", "num_speculative_tokens": 3}


def sides(ours: float, theirs: float, plain: float = 100, **where: Any) -> list[Cell]:
    """Three repeats of each, a thousandth apart."""
    made = ((plain, {"method": "none"}), (ours, OURS), (theirs, THEIRS))
    return [repeats([rate, rate * 1.001, rate * 0.999], **what, **where) for rate, what in made]


def wide() -> list[Cell]:
    """A ratio of 1.02 at concurrency 2, from repeats of 0.8 to 1.3."""
    made = (([100, 100, 100], {"method": "none"}), ([80, 101, 130], OURS), ([100, 100, 100], THEIRS))
    return [repeats([float(rate) for rate in rates], **what, concurrency=2) for rates, what in made]


def ends(*ratios: float) -> str:
    return end_of([one for i, ratio in enumerate(ratios) for one in sides(100 * ratio, 100, concurrency=2**i)])


def end_of(cells: list[Cell]) -> str:
    pair = contenders(cells)
    assert pair is not None
    end = inflection(same_k(cells, *pair))
    assert end is not None
    return end_text(end)


def test_where_an_advantage_ends_is_a_sentence() -> None:
    assert ends(1.2, 1.1) == "P-EAGLE's ratio stays above 1 up to 2 requests in flight, the highest load"
    assert ends(0.8, 0.7) == "P-EAGLE has no advantage to lose: its ratio is below 1 at a concurrency of 1, the lowest load compared"
    assert ends(1.2, 1 / 1.2) == "P-EAGLE's advantage ends at a concurrency of 1.4"
    lowest = "P-EAGLE's ratio is 0.90 at a concurrency of 1, the lowest load compared, and further up at most"
    assert ends(0.9, 1.2) == f"{lowest} 1.20, above 1 beyond its interval at 2"


def test_an_end_that_may_come_sooner_is_not_excluded() -> None:
    """1.2, then 1.01 with repeats from 0.8 to 1.3: it may fall to 1 in between."""
    told = end_of([*sides(120, 100), *wide()])
    assert "; an end from 1." in told and told.endswith(" on isn't excluded")


def test_above_1_within_the_noise_is_no_advantage_that_comes_back() -> None:
    lowest = "P-EAGLE's ratio is 0.90 at a concurrency of 1, the lowest load compared, and further up at most"
    assert end_of([*sides(90, 100), *wide()]) == f"{lowest} 1.02, nowhere above 1 beyond its interval"


def steps_at(k: int, tpot_ms: list[float], minutes: list[int], **what: Any) -> Cell:
    """A cell whose step takes as long as a token: each step accepts nothing."""
    own = what or {"method": "eagle3", "draft": "e", "num_speculative_tokens": k, "acceptance_length": 1.0}
    when = (f"2026-01-01T00:{minute:02}:00Z" for minute in minutes)
    return cell([record(repeat=i, tpot_ms_mean=t, started_at=at, **own) for i, (t, at) in enumerate(zip(tpot_ms, when, strict=True))])


@pytest.mark.parametrize(("minutes", "why"), [((0, 1), "were measured in one go"), ((0, 30), "that weren't measured in the same rounds")])
def test_cells_that_differ_by_more_than_their_repeats_explain_are_named(minutes: tuple[int, int], why: str) -> None:
    """Steps of 1, 9 and 3 ms at K = 1, 2, 3: the middle one lies 7 ms off the line of the other two, and its repeats 0.1 apart."""
    apart = [[1.0, 1.1], [9.1, 9.0], [3.0, 3.0]]
    cells = [steps_at(k, tpot, [2 * k + minute for minute in minutes]) for k, tpot in enumerate(apart, 1)]
    told = between_cells_line([steps_at(0, [0.5, 0.5], list(minutes), method="none"), *cells])
    assert told.startswith("Single cells differ by more than their intervals say: for 1 of 1 pairs") and why in told
    assert between_cells_line([steps_at(0, [0.5, 0.5], list(minutes), method="none"), *(steps_at(k, [k + 0.1, k - 0.1], [k, k + 1]) for k in (1, 2, 3))]) == ""


def test_two_that_both_lose_are_said_to_lose() -> None:
    told = figures.parallel_conclusion(sides(60, 80) + sides(70, 90, concurrency=2)).markdown
    assert "P-EAGLE at its best K has 0.60 to 0.70 of the baseline's throughput: slower at c=1, 2." in told
    assert "So neither pays here at any load: the comparison says which costs less." in told
    assert "every cell" in told
    paying = figures.parallel_conclusion(sides(60, 120) + sides(70, 90, concurrency=2)).markdown
    assert "neither" not in paying and "EAGLE-3 at its best K has 0.90 to 1.20 of the baseline's throughput: faster at c=1; slower at c=2." in paying


def test_of_most_cells_flagged_the_others_are_named() -> None:
    most = figures.parallel_conclusion(sides(60, 80) + sides(70, 100, concurrency=2)).markdown
    assert "Flagged, under 0.95 of the baseline, 3 of 4 cells: all but e K=3 at chat c=2 (1.00)." in most
    few = figures.parallel_conclusion(sides(60, 100) + sides(120, 100, concurrency=2)).markdown
    assert "Flagged, under 0.95 of the baseline, 1 of 4 cells: p K=3 at chat c=1 (0.60)." in few


def test_the_best_k_of_two_gpus_arent_compared_and_that_is_said() -> None:
    one, two = {"allocation": "a" * 12}, {"allocation": "b" * 12}
    cells = [
        *sides(60, 80, **one),
        repeats([90, 91, 89], **{**OURS, "num_speculative_tokens": 5}, **two),
        repeats([100, 101, 99], method="none", **two),
        *sides(60, 80, concurrency=2, **one),
        *sides(60, 80, concurrency=4, **one),
    ]
    assert "Not compared at chat c=1: the two best K ran on different GPUs there." in figures.parallel_conclusion(cells).markdown
    table = figures.best_k_table(cells)
    assert isinstance(table, figures.Table) and table.note.endswith("ran on different GPUs: chat c=1.")
    assert table.frame["load"].tolist() == ["chat c=2", "chat c=4"]


def test_the_same_head_on_another_runner_is_set_beside_it() -> None:
    here = sides(60, 50, model_runner="V1", max_tokens=64, workload="chat-64")
    there = sides(60, 200, model_runner="V2")
    told = figures.on_another_runner(here, there)
    assert told == (
        "e K=3 at chat-64 c=1 has 0.50 (0.50 to 0.50) of its baseline's throughput on model runner V1, with answers of 64 tokens; "
        "at chat c=1 on V2 with 256 it has 2.00 (2.00 to 2.00)"
    )
    assert figures.on_another_runner(here, sides(60, 200, model_runner="V1")) == ""
    assert figures.on_another_runner(here, []) == ""
    assert figures.on_another_runner(here, sides(60, 200, model_runner=None)) == ""


def test_baselines_of_two_runners_are_set_side_by_side() -> None:
    def plain(tpots: list[float], concurrency: int, **fields: Any) -> Cell:
        return repeats(tpots, "tpot_ms_p50", concurrency=concurrency, **fields)

    here = [plain([2.0, 2.0, 2.0], 1, model_runner="V2", allocation="a" * 12), plain([2.9, 3.0, 3.1], 8, model_runner="V2", allocation="a" * 12)]
    other: dict[str, Any] = {"model_runner": "V1", "max_tokens": 64, "workload": "chat-64", "server_env": ("VLLM_USE_V2_MODEL_RUNNER=0",)}
    there = [plain([1.4, 1.4, 1.4], 1, allocation="b" * 12, **other), plain([3.0, 3.1, 3.2], 8, allocation="b" * 12, **other)]
    # Student's t for 2 degrees of freedom is 4.303: 3.0 ± 4.303 x 0.1 / sqrt(3) = 0.25. Three equal repeats have no width.
    told = figures.baselines_on_two_runners(here, there)
    assert told.startswith(
        "Median TPOT without speculation on model runner V2 (vLLM's own choice) here and on model runner V1 (set by VLLM_USE_V2_MODEL_RUNNER) there: "
        "2.00 ± 0.00 and 1.40 ± 0.00 ms at c=1, V1's 0.70 (0.70 to 0.70) of V2's; 3.00 ± 0.25 and 3.10 ± 0.25 ms at c=8, V1's 1.03 ("
    )
    assert told.endswith(
        "of V2's, no difference. They come from two allocations, so a difference may be the hosts'; and answers have 256 tokens here and 64 there: "
        "more prompts come between the tokens of shorter ones."
    )
    together = figures.baselines_on_two_runners(here[:1], [plain([1.4, 1.4, 1.4], 1, model_runner="V1", allocation="a" * 12)])
    assert together.endswith("V1's 0.70 (0.70 to 0.70) of V2's.")
    assert figures.baselines_on_two_runners(here, [plain([1.3, 1.4, 1.5], 1, model_runner="V2")]) == ""
    assert figures.baselines_on_two_runners(here, []) == ""


def test_a_lookup_has_no_draft_whose_weights_could_be_told() -> None:
    cells = [repeats([1.0, 1.0], weights_gib=0.26), repeats([1.0, 1.0], method="ngram", num_speculative_tokens=3, weights_gib=0.25)]
    table = figures.memory_table(cells)
    assert isinstance(table, figures.Table)
    assert table.frame.iloc[0][["of it the draft GiB", "draft, % of target"]].tolist() == ["–", "–"]


OPEN: dict[str, Any] = {"pattern": "poisson", "concurrency": None, "request_rate": 2.0}


@pytest.mark.parametrize(("tokens", "load", "said"), [((3, 3), {"concurrency": 8}, True), ((3, 4), {"concurrency": 8}, False), ((3, 3), OPEN, False)])
def test_pauses_of_a_load_whose_answers_end_together_are_explained(tokens: tuple[int, int], load: dict[str, Any], said: bool) -> None:
    def one(**what: Any) -> Cell:
        kept = record(**load, chunk_gap_ms_p99=40.0, output_tokens_per_s=100.0, **what)
        gaps = tuple([1000] * 399)
        rows = [request(kept.record_id, i, completion_tokens=count, chunk_gap_us=gaps, chunk_tokens=(1,) * 400) for i, count in enumerate(tokens)]
        return cell([kept], rows)

    told = figures.speculation_conclusion([one(), one(**THEIRS)]).markdown
    assert "99th percentile of the pause" in told
    assert ("spared most of these pauses" in told) == said


def test_methods_of_two_gpus_are_told_apart_no_further_than_their_baselines() -> None:
    """100,000 and 98,000 tokens without a draft: 2.0 %."""
    one, two = {"allocation": "1", "gpu": "NVIDIA H200", "weights_gib": 67.0}, {"allocation": "2", "gpu": "NVIDIA H200", "weights_gib": 67.0}
    sides_of = [
        repeats([1.0, 1.0], kv_cache_tokens=base, **where)
        if plain
        else repeats([1.0, 1.0], kv_cache_tokens=90_000, **{**OURS, "num_speculative_tokens": k}, **where)
        for base, k, where in ((100_000, 3, one), (98_000, 5, two))
        for plain in (True, False)
    ]
    table = figures.memory_table(sides_of)
    assert isinstance(table, figures.Table)
    assert "The caches of the GPUs' baselines differ by 2.0%" in table.note
    alone = figures.memory_table(sides_of[:2])
    assert isinstance(alone, figures.Table) and "differ by" not in alone.note


def of_host(share: float, rate: float, k: int, **what: Any) -> Cell:
    """Three repeats of a throughput, a thousandth apart, beside which the host did so much of other work."""
    return repeats([rate, rate * 1.001, rate * 0.999], host_other_cpu_share=share, **{**what, "num_speculative_tokens": k or None})


def test_a_best_k_is_chosen_among_cells_that_were_measured_like_their_baseline() -> None:
    """K = 7 is fastest, on a host that did next to nothing else; the baseline and the rest had 6 % beside them."""
    cells = [
        of_host(0.06, 100, 0, method="none"),
        of_host(0.06, 90, 3, **OURS),
        of_host(0.005, 120, 7, **OURS),
        of_host(0.06, 80, 3, **THEIRS),
        of_host(0.06, 70, 7, **THEIRS),
    ]
    assert list(figures.best_k_table(cells).frame["P-EAGLE K"]) == [3]
    told = figures.parallel_conclusion(cells).markdown
    assert "P-EAGLE at its best K has 0.90 to 0.90 of the baseline's throughput" in told
    assert "Not under like conditions: K=7 at c=1. The host did at least 4 points more or less" in told
    same = figures.same_k_table(cells)
    assert [text.endswith("†") for text in same.frame["c=1"]] == [False, True] and "†: the host did" in same.note


def test_where_nothing_was_measured_like_the_baseline_the_best_is_chosen_from_all() -> None:
    cells = [of_host(0.06, 100, 0, method="none"), of_host(0.2, 90, 3, **OURS), of_host(0.3, 120, 7, **OURS), of_host(0.2, 80, 3, **THEIRS)]
    assert list(figures.best_k_table(cells).frame["P-EAGLE K"]) == [7]
