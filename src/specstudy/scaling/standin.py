"""A paced stand-in for vLLM's server: slots, a queue and tokens by the clock, and no model.

It is not vLLM: a lab that runs it tells how the autoscaler behaves, not how fast anything is. It answers
/v1/chat/completions with a stream of events, /health, and /metrics under vLLM's names; a request above
`--max-num-seqs` waits, first come first served. As with vLLM, a wait is counted when its request ends, who hangs up
is dropped, the port opens only when the model is loaded (here: after `--cold-start-s`), and SIGTERM cuts off what is
in flight, so a drain must come before it. vLLM's other flags are taken and ignored.

    python -m specstudy.scaling.standin --port 8000 --served-model-name words --max-num-seqs 4 --token-ms 20
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import prometheus_client
from aiohttp import web

from specstudy.scaling.events import Events, prompt_tokens, refused
from specstudy.scaling.fleet import pace
from specstudy.scaling.policy import check_slowdown
from specstudy.serving.vllm import LATENCY_BUCKETS_S

DEFAULT_BUCKETS_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)  # vLLM's own


class Metrics:
    """vLLM's metrics that the autoscaling and its dashboards read."""

    def __init__(self, model: str, buckets: Sequence[float]) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        self._of = (model, "0")
        labels = ["model_name", "engine"]
        self.running = prometheus_client.Gauge("vllm:num_requests_running", "Running.", labels, registry=self.registry).labels(*self._of)
        self.waiting = prometheus_client.Gauge("vllm:num_requests_waiting", "Waiting.", labels, registry=self.registry).labels(*self._of)
        self._finished = prometheus_client.Counter("vllm:request_success", "Finished.", [*labels, "finished_reason"], registry=self.registry)
        for reason in ("stop", "length", "abort"):
            self._finished.labels(*self._of, reason)
        self.prompt, self.generated = (
            prometheus_client.Counter(f"vllm:{kind}_tokens", f"{kind} tokens.", labels, registry=self.registry).labels(*self._of)
            for kind in ("prompt", "generation")
        )
        self.queue, self.first, self.whole = (
            prometheus_client.Histogram(f"vllm:{name}_seconds", name, labels, registry=self.registry, buckets=buckets).labels(*self._of)
            for name in ("request_queue_time", "time_to_first_token", "e2e_request_latency")
        )

    def finished(self, reason: str) -> None:
        """One more request that ended so."""
        self._finished.labels(*self._of, reason).inc()


@dataclass
class Pace:
    """Times in s. `first_s`: prefill; `token_s`: each further token with up to a quarter of the slots busy, `slowdown` times that with all; see `pace`."""

    slots: int
    first_s: float
    token_s: float
    slowdown: float = 1.0
    running: int = 0

    def __post_init__(self) -> None:
        """Raises ConfigError for a slowdown that is none."""
        check_slowdown(self.slowdown)

    def next_s(self) -> float:
        """Until the next token, as many requests as now run."""
        return self.token_s * pace(self.running, self.slots, self.slowdown)


class PacedServer:
    """Slots and the clock."""

    def __init__(self, model: str, pace: Pace, max_model_len: int, buckets: Sequence[float]) -> None:
        self._model, self._pace, self._slots, self._max_model_len = model, pace, asyncio.Semaphore(pace.slots), max_model_len
        self.metrics = Metrics(model, buckets)

    async def health(self, request: web.Request) -> web.Response:
        """GET /health."""
        return web.Response()

    async def exposition(self, request: web.Request) -> web.Response:
        """GET /metrics."""
        return web.Response(body=prometheus_client.generate_latest(self.metrics.registry), headers={"Content-Type": prometheus_client.CONTENT_TYPE_LATEST})

    async def models(self, request: web.Request) -> web.Response:
        """GET /v1/models."""
        return web.json_response({"object": "list", "data": [{"id": self._model, "object": "model", "owned_by": "standin"}]})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions, streamed."""
        body = await request.json()
        limit = body.get("max_completion_tokens", body.get("max_tokens", 16))
        if body.get("model") != self._model:
            return refused(404, "NotFoundError", f"The model `{body.get('model')}` does not exist.")
        if not isinstance(limit, int) or not 1 <= limit <= self._max_model_len:
            return refused(400, "BadRequestError", f"max_completion_tokens={limit} can't be had")
        came_s = time.perf_counter()
        try:
            waited_s = await self._slot(came_s)
        except asyncio.CancelledError:
            self.metrics.finished("abort")
            raise
        self.metrics.running.inc()
        self._pace.running += 1
        try:
            answer = await self._answer(request, body, limit, came_s)
        except (asyncio.CancelledError, ConnectionError):
            self.metrics.finished("abort")
            raise
        finally:
            self.metrics.running.dec()
            self._pace.running -= 1
            self._slots.release()
        self.metrics.finished("length")
        self.metrics.queue.observe(waited_s)
        self.metrics.whole.observe(time.perf_counter() - came_s)
        return answer

    async def _slot(self, came_s: float) -> float:
        self.metrics.waiting.inc()
        try:
            await self._slots.acquire()
        finally:
            self.metrics.waiting.dec()
        return time.perf_counter() - came_s

    async def _answer(self, request: web.Request, body: dict[str, Any], total: int, came_s: float) -> web.StreamResponse:
        events = Events(body, self._model, prompt_tokens(body), usage=True)
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        answer.enable_chunked_encoding()
        await answer.prepare(request)
        await answer.write(events.role())
        due_s = time.perf_counter() + self._pace.first_s
        for number in range(total):
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            if not number:
                self.metrics.first.observe(time.perf_counter() - came_s)
            await answer.write(events.tokens(number, number + 1, last=number == total - 1))
            due_s += self._pace.next_s()
        if events.include:
            await answer.write(events.whole(total))
        await answer.write(b"data: [DONE]\n\n")
        self.metrics.prompt.inc(prompt_tokens(body))
        self.metrics.generated.inc(total)
        return answer


async def serve(given: argparse.Namespace) -> None:
    """Listen until SIGTERM."""
    await asyncio.sleep(given.cold_start_s)
    buckets = given.custom_histogram_buckets.get("request_latency", DEFAULT_BUCKETS_S)
    pace = Pace(given.max_num_seqs, given.first_ms / 1e3, given.token_ms / 1e3, given.slowdown)
    paced = PacedServer(given.served_model_name, pace, given.max_model_len, buckets)
    app = web.Application()
    app.add_routes([web.get("/health", paced.health), web.get("/metrics", paced.exposition), web.get("/v1/models", paced.models)])
    app.add_routes([web.post("/v1/chat/completions", paced.chat)])
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, given.host, given.port, backlog=1024).start()
    print(f"paced stand-in: {given.served_model_name} on port {given.port}", flush=True)
    await asyncio.Event().wait()


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Our flags and those of vLLM's that mean something here."""
    parser = argparse.ArgumentParser(description="A paced stand-in for vLLM's server: no model, so no evidence of speed.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--max-num-seqs", type=int, default=4, help="slots: requests that run at once")
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--custom-histogram-buckets", type=json.loads, default={"request_latency": LATENCY_BUCKETS_S})
    parser.add_argument("--first-ms", type=float, default=40, help="from the slot to the first token")
    parser.add_argument("--token-ms", type=float, default=20, help="each further token, with up to a quarter of the slots busy")
    parser.add_argument("--slowdown", type=float, default=1, help="how much longer a token takes with all slots busy; at least 1")
    parser.add_argument("--cold-start-s", type=float, default=0, help="until the port opens")
    return parser.parse_known_args(words)[0]


def main() -> None:
    """See the module's text."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    asyncio.run(serve(arguments()))


if __name__ == "__main__":
    main()
