"""Arrivals as the server sees them."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import threading
import time
from typing import Any

import pytest
from tests.standin.engine import StandIn

from specstudy.errors import ConfigError, ServerDiedError
from specstudy.measure import StreamClient, drive, run_async
from specstudy.measure import load as load_module
from specstudy.measure.load import Load
from specstudy.workloads import Arrival, Closed, Prompt
from specstudy.workloads.arrivals import Open


def load(standin: StandIn, count: int, arrival: Arrival, max_tokens: int = 4, alive: bool = True) -> Load:
    async def run() -> Load:
        async with StreamClient(standin.server.base_url, "words") as client:
            bodies = [client.body(Prompt.user(f"number {i}"), max_tokens=max_tokens, temperature=0, seed=i) for i in range(count)]
            return await drive(client, bodies, arrival, lambda: alive)

    return run_async(run())


def at_once(spans: list[tuple[float, float]]) -> int:
    """The most of `spans` that hold one instant: counted at each beginning."""
    return max(sum(start <= instant < end for start, end in spans) for instant, _ in spans)


@pytest.mark.parametrize(("concurrency", "count"), [(1, 4), (3, 12), (8, 5)])
def test_closed_keeps_exactly_so_many_in_flight(standin: StandIn, concurrency: int, count: int) -> None:
    standin.order(chunk_delay_s=0.2)
    driven = load(standin, count, Closed(concurrency))
    wanted = min(concurrency, count)
    served = standin.journal()
    assert all(outcome.ok for outcome in driven.outcomes)
    assert max(request["in_flight"] for request in served) == wanted
    assert at_once([(outcome.sent, outcome.chunk_times[-1]) for outcome in driven.outcomes]) == wanted
    # From the first send to the last one, each slot is refilled as soon as it is free; a machine that stands still delays a few of them.
    sends, ends = sorted(outcome.sent for outcome in driven.outcomes), sorted(outcome.chunk_times[-1] for outcome in driven.outcomes)
    pauses = [refill - end for refill, end in zip(sends[wanted:], ends, strict=False)]
    assert min(pauses, default=0) >= 0
    assert not pauses or statistics.median(pauses) < 0.15


def test_closed_sends_each_body_once_and_keeps_the_order(standin: StandIn) -> None:
    driven = load(standin, 9, Closed(3))
    assert sorted(request["body"]["seed"] for request in standin.journal()) == list(range(9))
    assert len(driven.outcomes) == 9
    assert driven.scheduled == tuple(outcome.sent for outcome in driven.outcomes)
    assert driven.outcomes[0].sent == min(outcome.sent for outcome in driven.outcomes)


def test_open_sends_by_the_clock_whatever_the_server_does(standin: StandIn) -> None:
    standin.order(first_delay_s=5)
    times = (0.0, 0.1, 0.15, 0.3)
    driven = load(standin, 4, Open("trace", times))
    assert [when - driven.began for when in driven.scheduled] == pytest.approx(times)
    lags = [outcome.sent - due for outcome, due in zip(driven.outcomes, driven.scheduled, strict=True)]
    assert min(lags) >= 0
    assert max(lags) < 4, lags  # none waited for the five seconds that an answer takes
    assert max(request["in_flight"] for request in standin.journal()) == 4


def test_open_keeps_the_schedule_of_a_sender_that_was_late(standin: StandIn) -> None:
    async def run() -> Load:
        async with StreamClient(standin.server.base_url, "words") as client:
            bodies = [client.body(Prompt.user(f"number {i}"), max_tokens=2, temperature=0, seed=i) for i in range(3)]
            asyncio.get_running_loop().call_later(0.05, time.sleep, 0.4)  # the loop stands still from 0.05 s to 0.45 s
            return await drive(client, bodies, Open("trace", (0.0, 0.1, 0.6)))

    driven = run_async(run())
    lags = [outcome.sent - due for outcome, due in zip(driven.outcomes, driven.scheduled, strict=True)]
    assert lags[1] >= 0.3
    assert driven.scheduled[1] - driven.began == pytest.approx(0.1)


def test_open_needs_a_time_for_each_request(standin: StandIn) -> None:
    with pytest.raises(ConfigError, match="arrivals: got 2"):
        load(standin, 3, Open("trace", (0.0, 0.1)))


def test_once_the_server_is_gone_nothing_more_is_sent(standin: StandIn) -> None:
    standin.order(faults={"http_500": {"after": 2}})
    driven = load(standin, 10, Closed(1), alive=False)
    errors = [outcome.error for outcome in driven.outcomes]
    assert errors[:2] == [None, None]
    assert "HTTP 500" in (errors[2] or "")
    assert errors[3:] == ["not sent: the server had ended"] * 7
    assert standin.told()["in_flight"] == 0


def test_a_failed_request_on_a_living_server_ends_nothing(standin: StandIn) -> None:
    standin.order(faults={"http_500": {"after": 2, "times": 1}})
    driven = load(standin, 6, Closed(1), alive=True)
    assert [outcome.ok for outcome in driven.outcomes] == [True, True, False, True, True, True]


def test_run_async_gives_back_the_first_of_a_group() -> None:
    async def two() -> None:
        async def fail() -> None:
            raise ServerDiedError("gone")

        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            group.create_task(asyncio.sleep(60))

    with pytest.raises(ServerDiedError, match="gone"):
        run_async(two())


def test_run_async_works_within_a_running_loop() -> None:
    async def inner() -> int:
        await asyncio.sleep(0)
        return 7

    async def notebook() -> int:
        return run_async(inner())

    assert asyncio.run(notebook()) == 7
    assert not [thread for thread in threading.enumerate() if thread.name == "load"]


def test_a_signal_that_comes_when_the_loop_has_just_closed_is_what_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = load_module._until_done

    def and_then_a_signal(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
        ended(loop, task)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)  # the thread still lives, its loop doesn't

    monkeypatch.setattr(load_module, "_until_done", and_then_a_signal)
    with pytest.raises(KeyboardInterrupt):
        run_async(asyncio.sleep(0))
