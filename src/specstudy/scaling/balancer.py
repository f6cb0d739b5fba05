"""A load balancer inside the load generator: each request goes to the ready replica with the fewest in flight.

Which replicas are ready comes from the cluster's Endpoints. A replica that leaves gets no further request; those in
flight run to their end. Only a connection that was refused, so that no server saw the request, is tried elsewhere.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType

from specstudy.measure.client import Outcome, StreamClient
from specstudy.workloads.prompts import Prompt

LONGEST_WAIT_S = 120.0
POLL_S = 0.02
REFUSED = ("ConnectionRefusedError", "StaleConnectionError")


class Balancer:
    """Stands where a StreamClient stands. `ready` gives, whenever it is asked, pod names with host:port of the ready ones."""

    def __init__(self, ready: Callable[[], Mapping[str, str]], model: str) -> None:
        self._ready, self._model = ready, model
        self._clients: dict[str, StreamClient] = {}
        self._in_flight: Counter[str] = Counter()
        self._writer = StreamClient("http://balancer", model)
        self.served: Counter[str] = Counter()

    async def __aenter__(self) -> Balancer:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for client in self._clients.values():
            await client.__aexit__(kind, error, trace)

    def body(self, prompt: Prompt, *, max_tokens: int, temperature: float, seed: int) -> bytes:
        """As StreamClient's."""
        return self._writer.body(prompt, max_tokens=max_tokens, temperature=temperature, seed=seed)

    async def send(self, body: bytes) -> Outcome:
        """As StreamClient's; the time spent waiting for a ready replica belongs to the request."""
        sent, avoid = time.perf_counter(), set[str]()
        while time.perf_counter() - sent < LONGEST_WAIT_S:
            among = {address for address in self._ready().values() if address not in avoid}
            if not among:
                avoid.clear()
                await asyncio.sleep(POLL_S)
                continue
            address = min(among, key=lambda one: (self._in_flight[one], self.served[one], one))
            outcome = await self._send_to(address, body)
            if outcome.ok or outcome.chunk_times or not (outcome.error or "").startswith(REFUSED):
                outcome.resent = outcome.resent or bool(avoid)
                outcome.sent = sent
                return outcome
            avoid.add(address)
        return Outcome(sent=sent, error=f"no replica was ready for {LONGEST_WAIT_S:.0f} s")

    async def _send_to(self, address: str, body: bytes) -> Outcome:
        client = self._clients.setdefault(address, StreamClient(f"http://{address}", self._model))
        self._in_flight[address] += 1
        self.served[address] += 1
        try:
            return await client.send(body)
        finally:
            self._in_flight[address] -= 1
