"""Which methods aren't told apart from the best."""

from __future__ import annotations

from tests.standin.synthetic import repeats

from specstudy.analysis import Cell, best_per_load, rivals, speedups


def head(draft: str, values: list[float]) -> Cell:
    return repeats(values, method="eagle3", draft=draft, num_speculative_tokens=3)


def test_a_method_with_one_repeat_is_not_told_apart_from_the_best() -> None:
    cells = [repeats([100.0, 101.0, 102.0]), head("best", [200.0, 202.0, 204.0]), head("slow", [110.0, 111.0, 112.0]), head("once", [190.0])]
    found = speedups(cells)
    (best,) = best_per_load(found)
    assert best.cell.variant.draft == "best"
    assert [one.cell.variant.draft for one in rivals(best, found)] == ["once"]


def test_the_best_is_chosen_on_repeats_that_all_have() -> None:
    """The fourth repeat was slow for all, and the second head lacks it: 1.5 on three repeats against 1.4, but 1.5^(3/4) x 0.9^(1/4) = 1.32 on four."""
    found = speedups([repeats([100.0] * 4), head("whole", [150.0, 150.0, 150.0, 90.0]), head("short", [140.0, 140.0, 140.0])])
    assert [round(one.ratio.estimate, 2) for one in found] == [1.32, 1.4]
    (best,) = best_per_load(found)
    assert best.cell.variant.draft == "whole"


def test_two_methods_are_told_apart_by_their_own_ratio_not_by_the_baselines_noise() -> None:
    """Over this baseline both are known to a quarter; over each other 200/190, 201/191, 202/192 are 1.05 to a thousandth."""
    found = speedups([repeats([100.0, 130.0, 80.0]), head("best", [200.0, 201.0, 202.0]), head("near", [190.0, 191.0, 192.0])])
    assert found[0].ratio.overlaps(found[1].ratio)
    assert rivals(found[0], found) == []


def test_a_method_on_another_runner_than_its_baseline_is_no_rival() -> None:
    own = {"method": "ngram", "num_speculative_tokens": 3}
    cells = [
        repeats([100.0, 101.0], model_runner="V2"),
        repeats([200.0, 230.0], model_runner="V2", **own),
        repeats([200.0, 230.0], model_runner="V1", **{**own, "num_speculative_tokens": 5}),
    ]
    found = speedups(cells)
    assert [one.same_runner for one in found] == [True, False]
    assert rivals(found[0], found) == []
