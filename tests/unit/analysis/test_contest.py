"""Method against method, and the inflection, against hand calculation."""

from __future__ import annotations

import math

import pytest
from scipy import stats
from tests.standin.synthetic import repeats

from specstudy.analysis import Cell, Family, Inflection, best_k, eagle3_and_31, families, inflection, inflections, same_k
from specstudy.analysis.contest import contenders
from specstudy.analysis.families import at, family_labels

OURS, THEIRS = Family("peagle", "p"), Family("eagle3", "e")


def ours(k: int, c: int, values: list[float]) -> Cell:
    return repeats(values, method="peagle", draft="p", num_speculative_tokens=k, concurrency=c)


def theirs(k: int, c: int, values: list[float]) -> Cell:
    return repeats(values, method="eagle3", draft="e", num_speculative_tokens=k, concurrency=c)


def over(ratios: dict[int, list[float]], k: int = 4) -> Inflection:
    """The inflection of these ratios by concurrency: the other side has 100 everywhere."""
    cells = [cell for c, values in ratios.items() for cell in (ours(k, c, [100 * value for value in values]), theirs(k, c, [100.0] * len(values)))]
    (found,) = inflections(same_k(cells, OURS, THEIRS))
    return found


def test_the_same_k_meets_the_same_k_and_the_best_the_best() -> None:
    cells = [ours(3, 1, [90, 90]), ours(7, 1, [120, 120]), theirs(3, 1, [100, 100]), theirs(5, 1, [80, 80]), theirs(7, 1, [60, 60])]
    same = same_k(cells, OURS, THEIRS)
    assert [(one.cell.variant.num_speculative_tokens, one.ratio.estimate) for one in same] == [(3, pytest.approx(0.9)), (7, pytest.approx(2.0))]
    (best,) = best_k(cells, OURS, THEIRS)
    assert (best.cell.variant.num_speculative_tokens, best.baseline.variant.num_speculative_tokens) == (7, 3)
    assert best.ratio.estimate == pytest.approx(1.2)
    assert best.verdict == "faster"


def test_a_contest_needs_both_sides_at_one_load() -> None:
    assert same_k([ours(3, 1, [90.0]), theirs(3, 2, [100.0])], OURS, THEIRS) == []
    assert best_k([ours(3, 1, [90.0])], OURS, THEIRS) == []


def test_the_crossing_is_interpolated_in_the_logarithm_of_concurrency() -> None:
    # log2 of the ratios: 1 at c=4, -1 at c=16; halfway between log2 4 = 2 and log2 16 = 4 lies 3: concurrency 8.
    found = over({1: [4, 4], 4: [2, 2], 16: [0.5, 0.5]})
    assert (found.state, found.k, found.returns) == ("crosses", 4, False)
    assert (found.low, found.concurrency, found.high) == pytest.approx((8, 8, 8))
    assert found.text == "8.0"


def test_an_uneven_fall_crosses_nearer_to_the_smaller_ratio() -> None:
    # From log2 ratio 0.5 at c=2 to -1.5 at c=4: a quarter of the way, 2 ** 1.25.
    found = over({2: [2**0.5] * 2, 4: [2**-1.5] * 2})
    assert found.concurrency == pytest.approx(2**1.25)


@pytest.mark.parametrize(
    ("ratios", "state", "text"),
    [
        ({1: [1.5, 1.5], 64: [1.1, 1.1]}, "above", "none up to 64"),
        ({1: [0.9, 0.9], 64: [0.8, 0.8]}, "below", "below 1 from 1 on"),
        ({1: [0.9, 0.9], 8: [1.2, 1.2], 64: [0.8, 0.8]}, "below", "below 1 from 1 on; above 1 again further up"),
    ],
)
def test_where_nothing_crosses_it_says_so(ratios: dict[int, list[float]], state: str, text: str) -> None:
    found = over(ratios)
    assert (found.state, found.concurrency, found.text) == (state, None, text)


def test_the_interval_is_open_where_the_repeats_leave_it_open() -> None:
    # At c=2 the log ratio is 0.1 with standard error 0.1 (two repeats at 0 and 0.2): with one degree of freedom a draw is
    # above 0 with the probability that t is above -1, which is 0.75; so no crossing is the answer in 75 % of the draws.
    values = [1.0, math.exp(0.2)]
    assert stats.t.cdf(1, 1) == pytest.approx(0.75)
    found = over({1: [9.0, 9.0], 2: values})
    assert (found.state, found.high) == ("above", math.inf)
    assert 1 < found.low < 2
    assert found.text == f"none up to 2 ({found.low:.1f} to over 2)"


def test_the_lower_bound_is_the_percentile_that_t_gives() -> None:
    # One noisy cell (c=4: log ratio -L with error s) after a sure one (c=1: log ratio L). A draw m crosses at log2 c = 2 L / (L - m),
    # so the 2.5 % quantile of the crossing is that of m: -L - t(0.975, 2) s, with three repeats.
    level, spread = 2.0, 0.1
    logs = [-level - spread, -level, -level + spread]
    found = over({1: [math.exp(level)] * 3, 4: [math.exp(value) for value in logs]})
    error = spread / math.sqrt(3)
    low, high = (2 ** (2 * level / (level - (-level + sign * stats.t.ppf(0.975, 2) * error))) for sign in (-1, 1))
    assert found.concurrency == pytest.approx(2)
    assert (found.low, found.high) == pytest.approx((low, high), rel=0.01)


def test_one_repeat_has_a_crossing_and_no_interval() -> None:
    found = over({1: [2.0], 4: [0.5]})
    assert found.concurrency == pytest.approx(2)
    assert math.isnan(found.low) and found.text == "2.0, one repeat only"


def test_one_concurrency_has_no_inflection() -> None:
    assert inflection(same_k([ours(3, 1, [90, 90]), theirs(3, 1, [100, 100])], OURS, THEIRS)) is None


def test_contests_of_two_workloads_at_one_concurrency_are_no_series() -> None:
    cells = [
        repeats([v, v], method=m, draft=d, num_speculative_tokens=4, concurrency=c, workload=w)
        for w in ("chat", "code")
        for c in (1, 2)
        for m, d, v in (("peagle", "p", 2.0), ("eagle3", "e", 1.0))
    ]
    with pytest.raises(ValueError, match="one workload"):
        inflection(same_k(cells, OURS, THEIRS))


def test_two_ways_to_serve_the_target_are_never_mixed() -> None:
    """P-EAGLE was served as fp8 alone: it is set against EAGLE-3 as fp8, not against the faster EAGLE-3 as awq that comes first."""
    fp8, awq = {"engine_variant": "fp8"}, {"engine_variant": "awq"}
    head, other = {"method": "eagle3", "draft": "e", "num_speculative_tokens": 3}, {"method": "peagle", "draft": "p", "num_speculative_tokens": 3}
    cells = [repeats([300, 300], **head, **awq), repeats([100, 100], **head, **fp8), repeats([120, 120], **other, **fp8)]
    pair = contenders(cells)
    assert pair == (Family("peagle", "p", "fp8"), Family("eagle3", "e", "fp8"))
    assert [one.ratio.estimate for one in (*same_k(cells, *pair), *best_k(cells, *pair))] == [pytest.approx(1.2)] * 2
    assert [[k for k in at(cells, family, cells[0].load)] for family in families(cells)] == [[3], [3], [3]]
    assert list(family_labels(families(cells)).values()) == ["awq, e", "fp8, e", "p"]
    assert contenders(cells[::2]) is None
    newer = repeats([90, 90], method="eagle3", draft="e3.1", num_speculative_tokens=3, **fp8)
    assert eagle3_and_31([*cells, newer]) == (Family("eagle3", "e", "fp8"), Family("eagle3", "e3.1", "fp8"))
    assert eagle3_and_31([cells[0], newer]) == (Family("eagle3", "e", "awq"), None)
    assert eagle3_and_31([newer]) == (None, Family("eagle3", "e3.1", "fp8"))
