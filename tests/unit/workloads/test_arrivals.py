"""Arrivals against the theory of the Poisson process, and traces line by line."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specstudy.errors import ConfigError
from specstudy.workloads import Closed, Open, poisson, steps, trace

RATES = st.floats(0.01, 1000)
SEEDS = st.integers(0, 2**32)


@pytest.mark.parametrize("concurrency", [0, -1])
def test_a_closed_loop_needs_a_request_in_flight(concurrency: int) -> None:
    with pytest.raises(ConfigError) as refused:
        Closed(concurrency)
    assert (refused.value.field, refused.value.got) == ("concurrency", concurrency)


@pytest.mark.parametrize("rate", [0.5, 8.0])
def test_poisson_gaps_are_exponential(rate: float) -> None:
    count = 20_000
    gaps = np.diff([0.0, *poisson(rate, count, seed=7).times_s])
    # Exponential(rate): mean 1/rate and standard deviation 1/rate, so the mean of n gaps has 1/(rate sqrt n).
    assert abs(gaps.mean() - 1 / rate) < 4 / (rate * math.sqrt(count))
    # Its variance is 1/rate^2; the sample variance of n has standard deviation sqrt(8/n)/rate^2 (kurtosis 9).
    assert abs(gaps.var(ddof=1) - 1 / rate**2) < 4 * math.sqrt(8 / count) / rate**2
    # P(gap > 1/rate) = 1/e.
    share = float(np.mean(gaps > 1 / rate))
    assert abs(share - math.exp(-1)) < 4 * math.sqrt(math.exp(-1) * (1 - math.exp(-1)) / count)
    # Gaps are independent: their correlation with the next one is 0 within 4/sqrt n.
    assert abs(float(np.corrcoef(gaps[:-1], gaps[1:])[0, 1])) < 4 / math.sqrt(count)


@given(rate=RATES, count=st.integers(1, 50), seed=SEEDS)
def test_poisson_is_decided_by_its_seed_and_rises(rate: float, count: int, seed: int) -> None:
    arrivals = poisson(rate, count, seed)
    assert arrivals == poisson(rate, count, seed)
    assert arrivals.pattern == "poisson"
    assert len(arrivals.times_s) == count
    assert arrivals.times_s[0] > 0
    assert list(arrivals.times_s) == sorted(arrivals.times_s)


@given(rate=RATES, factor=st.sampled_from([2.0, 4.0, 8.0]), seed=SEEDS)
def test_a_higher_rate_is_the_same_draw_run_faster(rate: float, factor: float, seed: int) -> None:
    slow, fast = poisson(rate, 20, seed).times_s, poisson(rate * factor, 20, seed).times_s
    assert np.allclose(np.array(slow) / factor, fast, rtol=1e-12)


def test_another_seed_gives_other_arrivals() -> None:
    assert poisson(1, 20, 0) != poisson(1, 20, 1)


@pytest.mark.parametrize("rate", [0, -1.0])
def test_a_rate_must_be_above_zero(rate: float) -> None:
    with pytest.raises(ConfigError) as refused:
        poisson(rate, 10, 0)
    assert (refused.value.field, refused.value.got) == ("request_rate", rate)


@pytest.mark.parametrize(
    ("times_s", "rate"),
    [((0.0, 1.0, 2.0, 3.0), 1.0), ((5.0, 5.5, 6.0), 2.0), ((10.0, 14.0), 0.25), ((1.0,), 1.0), ((2.0, 2.0, 2.0), 3.0)],
)
def test_the_rate_is_arrivals_after_the_first_over_their_span(times_s: tuple[float, ...], rate: float) -> None:
    assert Open("trace", times_s).rate == rate


def test_the_rate_of_a_poisson_draw_is_the_one_asked_for() -> None:
    assert poisson(8.0, 10, seed=0).rate == 8.0


def test_steps_change_the_rate_stage_by_stage() -> None:
    stages = [(5.0, 400.0), (50.0, 100.0), (1.0, 1000.0)]
    times = np.array(steps(stages, seed=3).times_s)
    began = 0.0
    for rate, length in stages:
        inside = times[(times >= began) & (times < began + length)]
        expected = rate * length
        assert abs(len(inside) - expected) < 4 * math.sqrt(expected), "a Poisson count has its mean for variance"
        # Uniform in the stage: the mean lies in its middle, within length / sqrt(12 n).
        assert abs(inside.mean() - (began + length / 2)) < 4 * length / math.sqrt(12 * len(inside))
        began += length
    assert times.max() < began


@given(stages=st.lists(st.tuples(st.floats(1, 20), st.floats(1, 10)), min_size=1, max_size=4), seed=SEEDS)
def test_steps_are_decided_by_their_seed_rise_and_stay_inside(stages: list[tuple[float, float]], seed: int) -> None:
    try:
        arrivals = steps(stages, seed)
    except ConfigError as refused:  # a short and slow plan may have no arrival at all
        assert "at least one arrival" in refused.allowed
        return
    assert arrivals == steps(stages, seed)
    assert arrivals.pattern == "steps"
    assert list(arrivals.times_s) == sorted(arrivals.times_s)
    assert arrivals.times_s[0] >= 0
    assert arrivals.times_s[-1] <= sum(length for _, length in stages)


@pytest.mark.parametrize("stages", [[], [(0, 10)], [(1, 0)], [(1, 10), (-1, 10)], [(1, -10)]])
def test_stages_must_have_rate_and_length(stages: list[tuple[float, float]]) -> None:
    with pytest.raises(ConfigError) as refused:
        steps(stages, 0)
    assert (refused.value.field, refused.value.got) == ("stages", stages)


def test_stages_without_any_arrival_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one arrival"):
        steps([(1e-9, 1e-9)], 0)


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    """Where a test puts its trace."""
    return tmp_path / "trace.csv"


def test_a_trace_starts_at_zero_and_gives_each_request_its_output(csv: Path) -> None:
    csv.write_text("timestamp,in,out\n100.5,10,20\n100.5,1,1\n103,0,400\n")
    assert trace(csv) == Open("trace", (0.0, 0.0, 2.5), (20, 1, 400))


@given(rows=st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 9999), st.integers(1, 9999)), min_size=1, max_size=20))
def test_a_trace_comes_back_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[float, int, int]]) -> None:
    rows.sort()
    path = tmp_path_factory.mktemp("trace") / "trace.csv"
    path.write_text("out,in,timestamp\n" + "".join(f"{out},{given},{when!r}\n" for when, given, out in rows))
    replayed = trace(path)
    assert replayed.times_s == tuple(when - rows[0][0] for when, _, _ in rows)
    assert replayed.output_tokens == tuple(out for _, _, out in rows)


@pytest.mark.parametrize(
    ("text", "field", "got"),
    [
        ("timestamp,in\n0,1\n", "trace.csv, line 2, out", None),
        ("time,in,out\n0,1,1\n", "trace.csv, line 2, timestamp", None),
        ("timestamp,in,out\n0,1,1\n1,1\n", "trace.csv, line 3, out", None),
        ("timestamp,in,out\n0,1,1\n1,,1\n", "trace.csv, line 3, in", ""),
        ("timestamp,in,out\n0,1,1\nsoon,1,1\n", "trace.csv, line 3, timestamp", "soon"),
        ("timestamp,in,out\n-1,1,1\n", "trace.csv, line 2, timestamp", "-1"),
        ("timestamp,in,out\n0,-1,1\n", "trace.csv, line 2, in", "-1"),
        ("timestamp,in,out\n0,1,-1\n", "trace.csv, line 2, out", "-1"),
        ("timestamp,in,out\nnan,1,1\n", "trace.csv, line 2, timestamp", "nan"),
        ("timestamp,in,out\n0,1,inf\n", "trace.csv, line 2, out", "inf"),
    ],
)
def test_a_bad_line_of_a_trace_is_named(csv: Path, text: str, field: str, got: str | None) -> None:
    csv.write_text(text)
    with pytest.raises(ConfigError) as refused:
        trace(csv)
    assert (refused.value.field, refused.value.got) == (field, got)


@pytest.mark.parametrize("text", ["timestamp,in,out\n", ""])
def test_a_trace_that_holds_nothing_is_refused(csv: Path, text: str) -> None:
    csv.write_text(text)
    with pytest.raises(ConfigError) as refused:
        trace(csv)
    assert refused.value.field == "trace"
    assert "at least one row" in refused.value.allowed


def test_a_trace_that_is_not_there_is_refused(csv: Path) -> None:
    with pytest.raises(ConfigError, match="No such file") as refused:
        trace(csv)
    assert (refused.value.field, refused.value.got) == ("trace", str(csv))


def test_a_trace_that_is_no_text_is_refused(csv: Path) -> None:
    csv.write_bytes(b"timestamp,in,out\n\xff,1,1\n")
    with pytest.raises(ConfigError) as refused:
        trace(csv)
    assert refused.value.field == "trace"


def test_falling_timestamps_are_refused_with_their_line(csv: Path) -> None:
    csv.write_text("timestamp,in,out\n0,1,1\n2,1,1\n1,1,1\n")
    with pytest.raises(ConfigError, match="line 4"):
        trace(csv)


def test_a_rate_that_is_no_number_is_refused() -> None:
    with pytest.raises(ConfigError):
        poisson(float("nan"), 3, 0)
