"""A server that dies, hangs or lies: its cells are failed, all else is measured and kept."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.standin.world import LABELS, World, finished

from specstudy.errors import SpecstudyError, StudyError
from specstudy.records import load_requests

Run = Callable[[], SpecstudyError | None]
BASELINE, NGRAM = LABELS
# Requests of one server, warm-ups included: at c = 1 twice (1 + 3), then at c = 2 twice (2 + 6).
FIRST_CELL = 8
ALL = {(method, c, repeat) for method in ("none", "ngram") for c in (1, 2) for repeat in (0, 1)}


def good(world: World) -> set[tuple[str, int | None, int]]:
    return {finished(record) for record in world.records() if record.status == "ok"}


def failed(world: World) -> list[tuple[str, int | None, int]]:
    return [finished(record) for record in world.records() if record.status == "failed"]


def baseline_only(world: World) -> None:
    del world.profile["chapters"]["03_baseline"]["methods"][1]


def of(method: str) -> set[tuple[str, int, int]]:
    return {each for each in ALL if each[0] == method}


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("die_at_start", ["ended with status 3 before it was ready", "standin: dying at start, as told"]),
        ("hang_at_start", ["gave no answer within 15 s", "standin: hanging at start, as told"]),
        ("unhealthy", ["gave no answer within 15 s", "standin: serving"]),
    ],
)
def test_a_server_that_doesnt_start_costs_only_its_own_cells(world: World, run: Run, fault: str, says: list[str]) -> None:
    world.profile["engine"]["start_timeout_s"] = 15
    world.behave(BASELINE, faults={fault: {}})
    error = run()
    assert isinstance(error, StudyError)
    assert error.exit_status != 0
    assert all(part in str(error) for part in [BASELINE, *says]), error
    assert good(world) == of("ngram")
    assert failed(world) == [("none", 1, 0)]  # its first cell, as tried and not run
    (record,) = (record for record in world.records() if record.status == "failed")
    assert record.error == f"not started: the server {says[0]}"


def test_a_server_that_dies_in_mid_run(world: World, run: Run) -> None:
    """In the second repeat of the second cell: the three repeats before it and the other server's are kept."""
    world.behave(BASELINE, faults={"die_mid_stream": {"after": FIRST_CELL + 8 + 4}})
    error = run()
    assert isinstance(error, StudyError)
    assert "standin: dying, as told" in str(error)
    assert "status 9" in str(error)
    assert good(world) == of("ngram") | {("none", 1, 0), ("none", 1, 1), ("none", 2, 0)}
    assert failed(world) == [("none", 2, 1)]
    (record,) = [record for record in world.records() if record.status == "failed"]
    assert record.failed > 0
    assert record.error
    assert record.output_tokens_per_s is None


def test_a_server_that_dies_in_a_warm_up(world: World, run: Run) -> None:
    world.behave(BASELINE, faults={"die_mid_stream": {}})
    error = run()
    assert isinstance(error, StudyError)
    assert "standin: dying, as told" in str(error)
    assert good(world) == of("ngram")


def test_a_dead_server_fails_one_record_and_its_other_cells_are_not_tried(world: World, run: Run) -> None:
    baseline_only(world)
    world.behave(faults={"die_mid_stream": {"after": 3}})
    assert isinstance(run(), StudyError)
    assert failed(world) == [("none", 1, 0)]


@pytest.mark.parametrize(
    ("faults", "says"),
    [
        ({"metrics_503": {"after": 2, "times": 1}}, "503"),
        ({"metrics_empty": {"after": 2, "times": 1}}, "has no vllm:"),
        ({"metrics_reset": {"after": 3, "times": 1}}, "went backwards|were ours"),
        ({"foreign_request": {"after": 3, "times": 1}}, "were ours"),
        ({"http_400": {"after": 2, "times": 1}}, "HTTP 400"),
        ({"http_500": {"after": 2, "times": 1}}, "HTTP 500"),
        ({"no_usage": {"after": 2, "times": 1}}, "without usage"),
        ({"cut_stream": {"after": 2, "times": 1}}, "before its last token"),
        ({"reset_stream": {"after": 2, "times": 1}}, "1 of 3 requests failed"),
        ({"error_event": {"after": 2, "times": 1}}, "told to break off"),
    ],
)
def test_a_spoilt_repeat_fails_its_cell_only(world: World, run: Run, faults: dict[str, Any], says: str) -> None:
    """The fault lies in the first repeat of the first cell; the second one is measured all the same."""
    baseline_only(world)
    world.behave(faults=faults)
    error = run()
    assert isinstance(error, StudyError)
    assert re.search(says, str(error)), error
    assert failed(world) == [("none", 1, 0)]
    assert good(world) == {("none", 2, 0), ("none", 2, 1)}


def test_a_failed_cell_is_measured_by_the_next_run_and_nothing_else(world: World, run: Run) -> None:
    baseline_only(world)
    world.behave(faults={"http_500": {"after": 2, "times": 1}})
    assert isinstance(run(), StudyError)
    served, lines = world.requests_served(), world.lines()
    world.behave(faults={})
    assert run() is None
    assert good(world) == of("none")
    assert world.lines()[: len(lines)] == lines
    assert world.requests_served() - served == FIRST_CELL
    assert run() is None
    assert world.requests_served() - served == FIRST_CELL


def test_stale_connections_are_no_failure(world: World, run: Run) -> None:
    baseline_only(world)
    world.behave(faults={"stale_keep_alive": {"after": 2, "times": 1}})
    assert run() is None
    assert good(world) == of("none")
    resent = Counter(record.method for record in world.records() for _ in range(record.resent))
    assert resent == {"none": 1}
    table = load_requests(world.records_path.with_suffix(".requests.parquet"))
    assert sum(table.column("resent").to_pylist()) == 1


def test_every_record_has_its_requests(measured: World) -> None:
    rows = Counter(load_requests(measured.records_path.with_suffix(".requests.parquet")).column("record_id").to_pylist())
    assert rows == {record.record_id: record.num_prompts for record in measured.records()}


@pytest.mark.parametrize("fault", ["worker", "stubborn_worker", "ignore_sigterm"])
def test_nothing_of_a_server_outlives_it(world: World, run: Run, fault: str) -> None:
    """A worker in a session of its own, one that ignores SIGTERM, a server that does: the fixture looks for them."""
    baseline_only(world)
    world.behave(faults={fault: {}})
    assert run() is None
    assert good(world) == of("none")


def test_a_worker_left_behind_by_a_server_that_died(world: World, run: Run) -> None:
    baseline_only(world)
    world.behave(faults={"worker": {}, "die_mid_stream": {"after": 3}})
    assert isinstance(run(), StudyError)
