"""Servers started side by side: measured in turns, failing one by one, gone together."""

from __future__ import annotations

import itertools
import json
import signal
from collections import Counter
from collections.abc import Callable

import pytest
from tests.standin.engine import command_lines, marked
from tests.standin.world import CHAPTER, World, await_true, start_study

from specstudy.errors import SpecstudyError, StudyError
from specstudy.records import Record

Run = Callable[[], SpecstudyError | None]
GONE_WITHIN_S = 90


@pytest.fixture
def four(world: World) -> World:
    """A world of four servers, started three at a time and then the last."""
    world.profile["measuring"]["servers_at_once"] = 3
    world.profile["chapters"][CHAPTER]["methods"][1]["num_speculative_tokens"] = [2, 3, 4]
    return world


def repeats(world: World) -> list[tuple[str, int | None, int]]:
    return [(f"{record.method}{record.num_speculative_tokens or ''}", record.concurrency, record.repeat) for record in good(world)]


def good(world: World) -> list[Record]:
    return [record for record in world.records() if record.status == "ok"]


def not_started(world: World) -> list[tuple[str, int | None, int, str]]:
    failed = [record for record in world.records() if record.status == "failed"]
    return [(f"{one.method}{one.num_speculative_tokens or ''}", one.concurrency, one.num_prompts, one.error or "") for one in failed]


def of(*servers: str) -> set[tuple[str, int, int]]:
    return {(server, c, repeat) for server in servers for c in (1, 2) for repeat in (0, 1)}


def test_each_is_measured_in_its_turn_while_the_others_stand_idle(four: World, run: Run) -> None:
    """The rounds outermost, then the loads: what is compared at a load is measured within minutes, and no server has a minute of the host's for itself."""
    assert run() is None
    groups = [("none", "ngram2", "ngram3"), ("ngram4",)]
    assert repeats(four) == [(server, c, repeat) for together in groups for repeat in (0, 1) for c in (1, 2) for server in together]
    assert [record.idle_neighbours for record in four.records()] == [2] * 12 + [0] * 4
    ports = {record.server_argv[record.server_argv.index("--port") + 1] for record in four.records()}
    assert len(ports) == 4
    # No request of one repeat began before the last one of the repeat before it had ended: 1 warm-up and 3 requests for each slot.
    entries = iter([json.loads(line) for line in four.journal_path.read_text().splitlines()])
    turns = [list(itertools.islice(entries, 4 * c)) for _, c, _ in repeats(four)]
    assert list(entries) == []
    for before, after in itertools.pairwise(turns):
        assert max(one["sends"][-1][0] for one in before) < min(one["received_s"] for one in after)


def test_one_that_doesnt_start_costs_its_own_cells_only(four: World, run: Run) -> None:
    four.behave("ngram-k2", faults={"die_at_start": {}})
    error = run()
    assert isinstance(error, StudyError)
    assert "1 failed" in str(error) and "ngram-k2" in str(error) and "dying at start, as told" in str(error)
    assert set(repeats(four)) == of("none", "ngram3", "ngram4")
    assert [record.idle_neighbours for record in good(four)] == [1] * 8 + [0] * 4
    # One record for the server, of its first load: tried, and not run. The log's last lines aren't in it.
    assert not_started(four) == [("ngram2", 1, 3, "not started: the server ended with status 3 before it was ready")]
    (record,) = (one for one in four.records() if one.status == "failed")
    assert record.completed == record.failed == 0 and "--port" not in record.server_argv
    four.behave("ngram-k2", faults={})
    served = four.requests_served()
    assert run() is None
    assert set(repeats(four)) == of("none", "ngram2", "ngram3", "ngram4")
    assert four.requests_served() - served == 24


def test_a_group_of_which_none_starts_is_no_end(four: World, run: Run) -> None:
    for label in ("none", "ngram-k2", "ngram-k3"):
        four.behave(label, faults={"die_at_start": {}})
    error = run()
    assert isinstance(error, StudyError) and "3 failed" in str(error)
    assert set(repeats(four)) == of("ngram4")
    assert [server for server, *_ in not_started(four)] == ["none", "ngram2", "ngram3"]


def test_one_that_dies_in_mid_run_is_no_neighbour_any_more(four: World, run: Run) -> None:
    four.behave("none", faults={"die_mid_stream": {"after": 5}})
    error = run()
    assert isinstance(error, StudyError)
    assert {repeat for repeat in repeats(four) if repeat[0] != "none"} == of("ngram2", "ngram3", "ngram4")
    # It answered its first turn, 4 requests, and died in the next: at 1 request in flight the others of the first round still had it beside them.
    idle = Counter((record.num_speculative_tokens, record.concurrency, record.idle_neighbours) for record in four.records() if record.method == "ngram")
    assert idle == {(2, 1, 2): 1, (3, 1, 2): 1, (2, 1, 1): 1, (3, 1, 1): 1, (2, 2, 1): 2, (3, 2, 1): 2, (4, 1, 0): 2, (4, 2, 0): 2}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=["SIGINT", "SIGTERM", "SIGKILL"])
@pytest.mark.parametrize("phase", ["start", "load"])
def test_all_are_gone_after_an_interruption_and_a_rerun_goes_on(four: World, run: Run, phase: str, number: signal.Signals) -> None:
    faults = {"hang_at_start": {}} if phase == "start" else {"hang_mid_stream": {"after": 10}}  # it stays in the phase until the signal has come
    four.behave("none" if phase == "load" else "ngram-k2", faults=faults)
    study = start_study(four)
    if phase == "start":
        await_true(lambda: sum("server.py" in line for line in command_lines(four.marker)) >= 3, 120)
    else:
        await_true(lambda: four.requests_served() >= 16, 120)  # 4 of each server at 1 in flight, then 4 or more of the one that hangs
    study.process.send_signal(number)
    assert study.end(GONE_WITHIN_S) != 0, study.text()
    await_true(lambda: not marked(four.marker), GONE_WITHIN_S)
    kept = four.lines()
    assert len(kept) >= (3 if phase == "load" else 0)
    four.behave("none", faults={}, chunk_delay_s=0.001)
    four.behave("ngram-k2", faults={})
    assert run() is None
    assert four.lines()[: len(kept)] == kept
    assert sorted(repeats(four)) == sorted(of("none", "ngram2", "ngram3", "ngram4"))


def test_a_part_is_measured_with_its_baseline_and_the_rest_later(four: World) -> None:
    plan = start_study(four, via="cli", arguments=["--plan", "--only", "ngram-k3"])
    assert plan.end() == 0, plan.text()
    assert "2 servers, 4 cells to measure" in plan.text()
    assert "words c=2: 2 repeats of 6 prompts, 2 to warm up" in plan.text()
    assert "48 requests in all" in plan.text()  # 2 servers x 2 repeats x (3 + 1 + 6 + 2)
    assert four.requests_served() == 0 and not four.records_path.exists()
    part = start_study(four, via="cli", arguments=["--only", "ngram-k3"])
    assert part.end() == 0, part.text()
    assert set(repeats(four)) == of("none", "ngram3")
    rest = start_study(four, via="cli")
    assert rest.end() == 0, rest.text()
    assert sorted(repeats(four)) == sorted(of("none", "ngram2", "ngram3", "ngram4"))
    again = start_study(four, via="cli", arguments=["--plan"])
    assert again.end() == 0
    assert "every cell is on disk already" in again.text()


def test_a_part_that_the_chapter_lacks_is_refused(four: World) -> None:
    study = start_study(four, via="cli", arguments=["--only", "eagle3"])
    assert study.end() == 2
    assert "only: got 'eagle3'; known: ngram, ngram-k2, ngram-k3, ngram-k4, none" in study.text()
    assert not four.records_path.exists()
