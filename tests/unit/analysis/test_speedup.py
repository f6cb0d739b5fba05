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
