"""Drive a load: closed, with so many in flight, or open, by the clock."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import uvloop

from specstudy.errors import ConfigError
from specstudy.measure.client import Outcome
from specstudy.workloads.arrivals import Arrival, Closed, Open

T = TypeVar("T")


class Client(Protocol):
    """What sends a request: a StreamClient, or a balancer over several."""

    async def send(self, body: bytes) -> Outcome:
        """One request to its end; what the server does is in the Outcome, never raised."""
        ...


@dataclass(frozen=True)
class Load:
    """A finished load. `scheduled[i]` is when request i was due, on the clock of `outcomes[i].sent`."""

    began: float
    scheduled: tuple[float, ...]
    outcomes: tuple[Outcome, ...]


async def drive(client: Client, bodies: Sequence[bytes], arrival: Arrival, alive: Callable[[], bool] = lambda: True) -> Load:
    """Send every body as `arrival` says and wait for all answers.

    After a failed request `alive` is asked; once it says no, nothing more is sent, and what was left says so.
    """
    sender = _Sender(client, bodies, alive)
    if isinstance(arrival, Closed):
        return await _closed(sender, arrival.concurrency)
    return await _open(sender, arrival)


class _Sender:
    def __init__(self, client: Client, bodies: Sequence[bytes], alive: Callable[[], bool]) -> None:
        self._client, self._bodies, self._alive, self._halted = client, bodies, alive, False
        self.outcomes = [Outcome(error="not sent: the server had ended") for _ in bodies]

    async def send(self, index: int) -> None:
        if self._halted:
            self.outcomes[index].sent = time.perf_counter()
            return
        outcome = self.outcomes[index] = await self._client.send(self._bodies[index])
        self._halted = self._halted or not (outcome.ok or self._alive())


async def _closed(sender: _Sender, concurrency: int) -> Load:
    waiting = iter(range(len(sender.outcomes)))

    async def slot() -> None:
        for index in waiting:
            await sender.send(index)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as slots:
        for _ in range(min(concurrency, len(sender.outcomes))):
            slots.create_task(slot())
    return Load(began, tuple(outcome.sent for outcome in sender.outcomes), tuple(sender.outcomes))


async def _open(sender: _Sender, arrival: Open) -> Load:
    if len(arrival.times_s) != len(sender.outcomes):
        raise ConfigError("arrivals", len(arrival.times_s), f"one time for each of the {len(sender.outcomes)} requests")
    began = time.perf_counter()
    async with asyncio.TaskGroup() as requests:
        for index, due_s in enumerate(arrival.times_s):
            while (wait_s := began + due_s - time.perf_counter()) > 0:  # noqa: ASYNC110 - a loop's timer may wake a little early
                await asyncio.sleep(wait_s)
            await asyncio.sleep(0)
            requests.create_task(sender.send(index))
    return Load(began, tuple(began + due_s for due_s in arrival.times_s), tuple(sender.outcomes))


def run_async(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to the end in a thread with a loop of its own: a notebook's own loop can't be used for it.

    Ctrl-C cancels the coroutine, waits for it to unwind, and is raised again. Of a group of errors the
    first is raised.
    """
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    task = loop.create_task(coroutine)
    thread = threading.Thread(target=_until_done, args=(loop, task), name="load")
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.2)
    except BaseException:
        with suppress(RuntimeError):  # the load may have ended by itself just now, and its loop is closed
            loop.call_soon_threadsafe(task.cancel)
        thread.join()
        raise
    try:
        return task.result()
    except BaseExceptionGroup as group:
        raise _first(group) from None


def _until_done(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(asyncio.wait([task]))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
