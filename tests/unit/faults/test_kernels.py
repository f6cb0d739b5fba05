"""An engine that compiles kernels while it is measured: measured again, told, kept with what is known of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.standin.world import World

from specstudy.errors import SpecstudyError

Run = Callable[[], SpecstudyError | None]


def test_a_repeat_that_met_a_compilation_is_measured_again_and_the_run_goes_on(world: World, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """One request in flight: a warm-up, then 3 requests. The baseline's server compiles at the first of those and never again."""
    world.behave("none", faults={"compile_kernel": {"after": 1, "times": 1}})
    assert run() is None
    told = capsys.readouterr().out
    assert [line.count("measured 2 times because kernels were being compiled") for line in told.splitlines() if "tok/s" in line] == [1, *[0] * 7]
    assert "NOT STEADY" not in told
    assert [(record.tries_discarded, record.kernels_compiled) for record in world.records()] == [(1, 0), *[(0, 0)] * 7]
    served = world.requests_served()
    assert run() is None
    assert world.requests_served() == served, "what was measured again is as good as the rest"


def test_an_engine_that_never_stops_compiling_ends_the_tries_not_the_run(world: World, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    world.behave("ngram-k2", faults={"compile_kernel": {}})
    assert run() is None
    records = world.records()
    assert [(record.tries_discarded, record.kernels_compiled) for record in records if record.method == "none"] == [(0, 0)] * 4
    assert [(record.concurrency, record.tries_discarded, record.kernels_compiled) for record in records if record.method == "ngram"] == [
        (1, 2, 3),
        (2, 2, 6),
        (1, 2, 3),
        (2, 2, 6),
    ]
    told = capsys.readouterr().out
    assert told.count("tok/s, measured 3 times because kernels were being compiled; NOT STEADY: 3 compiled during this one too") == 2
