"""A stand-in for vLLM's OpenAI server: no model, answers known by construction, faults to order.

It is not vLLM and nothing measured on it is evidence of anything but our own code. It speaks what our code
reads: /health, /metrics, and /v1/chat/completions and /v1/completions as a stream of events. It takes vLLM's flags and ignores
those that it has no use for.

    python server.py --port 8000 --served-model-name words --fault http_500:after=3

Behaviour (see `Behaviour`) comes from $STANDIN_OPTIONS or --options, a JSON object, and can be changed while
it runs by POST /standin. GET /standin/journal tells what it did and when, on the clock of
`time.perf_counter()`, which on Linux is the same for every process of a machine.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter as Tally
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import prometheus_client
from aiohttp import web

from specstudy.scaling.events import Events, prompt_tokens, refused

# What vLLM's monitor of compilation writes, on a GPU: once that it watches, and a line for each kernel. tests/live/test_kernel_log.py compares them.
PREFIX = "(EngineCore pid=1) {level} 11-30 00:07:05 [jit_monitor.py:135] "
WATCHING = PREFIX.format(level="INFO") + "Kernel JIT monitor activated; monitored JIT compilations during inference will use mode=warn."
COMPILED = PREFIX.format(level="WARNING") + (
    "Triton kernel JIT compilation during inference: _topk_forward. This causes a latency spike; consider extending warmup to cover this shape/config."
)

FAULTS = {
    "die_at_start": "log a line and exit with status 3",
    "hang_at_start": "never listen",
    "unhealthy": "listen, but answer /health with 503",
    "ignore_sigterm": "end on SIGKILL only",
    "worker": "start a process in a session of its own and leave it behind at the end",
    "stubborn_worker": "the same, and it ignores SIGTERM",
    "http_400": "refuse the request",
    "http_500": "fail the request",
    "http_500_binary": "fail the request with a body that isn't text",
    "no_usage": "no usage in any event",
    "no_final_usage": "no event with the whole usage",
    "cut_stream": "end the answer in its middle, as HTTP has it properly",
    "reset_stream": "drop the connection in the middle of the answer",
    "error_event": "report an error within the stream",
    "broken_json": "an event that isn't JSON",
    "die_mid_stream": "exit with status 9 in the middle of the answer",
    "hang_mid_stream": "stop sending in the middle of the answer",
    "stale_keep_alive": "drop a connection that is used again, before any answer",
    "drop_connection": "drop every connection before any answer",
    "metrics_503": "answer /metrics with 503",
    "metrics_empty": "answer /metrics without any vllm: line",
    "metrics_reset": "start the counters anew",
    "foreign_request": "count a request of somebody else too",
    "lost_request": "don't count the request",
    "compile_kernel": "log that a kernel was compiled",
}


class TextEvents(Events):
    """The events of a completion of token ids: no role, text in the place of a delta."""

    def tokens(self, start: int, stop: int, *, last: bool) -> bytes:
        event = json.loads(super().tokens(start, stop, last=last).removeprefix(b"data: "))
        (choice,) = event["choices"]
        choice["text"] = choice.pop("delta")["content"]
        return f"data: {json.dumps({**event, 'object': 'text_completion'})}\n\n".encode()


@dataclass
class Fault:
    """Strikes once more than `after` requests have begun since it was ordered, at most `times` times."""

    after: int = 0
    times: int | None = None


@dataclass
class Behaviour:
    """What an answer looks like, and what goes wrong."""

    chunk_tokens: list[int] = field(default_factory=lambda: [1])  # tokens in each chunk, over and over
    answer_tokens: int | None = None  # length of an answer; by default the request's limit
    first_delay_s: float = 0.0
    chunk_delay_s: float = 0.002
    queue_s: float = 0.003  # what each request adds to the queue-time histogram
    count_delay_s: float = 0.0  # how long after the last chunk a request is counted
    journal: str | None = None  # file that gets a line for each request
    faults: dict[str, dict[str, int]] = field(default_factory=dict)


class Metrics:
    """vLLM's metrics that our code reads, made with the library that vLLM uses."""

    def __init__(self, model: str, drafted: int, buckets: list[float]) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        self._model, self._drafted = model, drafted
        self._success = self._counter("request_success", "finished_reason")
        for reason in ("stop", "length", "abort"):
            self._of(self._success, reason)
        self._generated, self._prompt = self._counter("generation_tokens"), self._counter("prompt_tokens")
        labels = ["model_name", "engine"]
        self._queue = prometheus_client.Histogram("vllm:request_queue_time_seconds", "Queue.", labels, registry=self.registry, buckets=buckets)
        for metric in (self._generated, self._prompt, self._queue):
            self._of(metric)  # shown from the start, at 0
        if drafted:
            self._drafts, self._draft_tokens = self._counter("spec_decode_num_drafts"), self._counter("spec_decode_num_draft_tokens")
            self._accepted = self._counter("spec_decode_num_accepted_tokens")
            self._at = self._counter("spec_decode_num_accepted_tokens_per_pos", "position")
            for metric in (self._drafts, self._draft_tokens, self._accepted):
                self._of(metric)
            for position in range(drafted):
                self._of(self._at, str(position))

    def _counter(self, name: str, *labels: str) -> prometheus_client.Counter:
        return prometheus_client.Counter(f"vllm:{name}", name, ["model_name", "engine", *labels], registry=self.registry)

    def _of(self, metric: Any, *labels: str) -> Any:
        return metric.labels(self._model, "0", *labels)

    def count(self, prompt_tokens: int, chunks: list[int], queue_s: float) -> None:
        """One finished request. With speculation each chunk after the first is a draft, its first token free."""
        self._of(self._success, "length").inc()
        self._of(self._generated).inc(sum(chunks))
        self._of(self._prompt).inc(prompt_tokens)
        self._of(self._queue).observe(queue_s)
        if self._drafted:
            for tokens in chunks[1:]:
                self._of(self._drafts).inc()
                self._of(self._draft_tokens).inc(self._drafted)
                self._of(self._accepted).inc(tokens - 1)
                for position in range(tokens - 1):
                    self._of(self._at, str(position)).inc()


class StandIn:
    """The server's state and handlers."""

    def __init__(self, model: str, max_model_len: int, drafted: int, buckets: list[float], behaviour: Behaviour) -> None:
        self._model, self._max_model_len, self._drafted, self._buckets = model, max_model_len, drafted, buckets
        self.metrics = Metrics(model, drafted, buckets)
        self.journal: list[dict[str, Any]] = []
        self.in_flight, self.begun = 0, 0
        self.uses: Tally[Any] = Tally()
        self.later: set[asyncio.Task[None]] = set()
        self.order(behaviour)

    def order(self, behaviour: Behaviour) -> None:
        """Behave so from now on."""
        unknown = set(behaviour.faults) - set(FAULTS)
        assert not unknown, f"no such fault: {unknown}"
        self.behaviour, self.ordered_at = behaviour, self.begun
        self.faults = {name: Fault(**how) for name, how in behaviour.faults.items()}

    def strikes(self, name: str) -> bool:
        """Whether the fault strikes now."""
        fault = self.faults.get(name)
        if fault is None or self.begun - self.ordered_at <= fault.after or fault.times == 0:
            return False
        if fault.times is not None:
            fault.times -= 1
        return True

    async def control(self, request: web.Request) -> web.Response:
        """POST /standin: a new behaviour. The journal begins anew; the counters go on."""
        self.order(Behaviour(**await request.json()))
        self.journal.clear()
        return web.json_response({})

    async def told(self, request: web.Request) -> web.Response:
        """GET /standin/journal."""
        return web.json_response({"requests": self.journal, "in_flight": self.in_flight, "begun": self.begun, "pid": os.getpid()})

    async def health(self, request: web.Request) -> web.Response:
        return web.Response(status=503 if "unhealthy" in self.faults else 200)

    async def exposition(self, request: web.Request) -> web.Response:
        if self.strikes("metrics_503"):
            return web.Response(status=503)
        text = b"" if self.strikes("metrics_empty") else prometheus_client.generate_latest(self.metrics.registry)
        return web.Response(body=text, headers={"Content-Type": prometheus_client.CONTENT_TYPE_LATEST})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        received_s = time.perf_counter()
        body = await request.json()
        peer = request.transport.get_extra_info("peername") if request.transport else None
        self.uses[peer] += 1
        self.begun += 1
        if (self.uses[peer] > 1 and self.strikes("stale_keep_alive")) or self.strikes("drop_connection"):
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if self.strikes("compile_kernel"):
            print(COMPILED, flush=True)
        refusal = self._refusal(body)
        if refusal is not None:
            return refusal
        self.in_flight += 1
        entry: dict[str, Any] = {"received_s": received_s, "in_flight": self.in_flight, "reused": self.uses[peer] > 1, "body": body, "sends": []}
        try:
            return await self._answer(request, body, entry)
        finally:
            self.in_flight -= 1
            self._note(entry)

    def _refusal(self, body: dict[str, Any]) -> web.Response | None:
        limit = body.get("max_completion_tokens", body.get("max_tokens", 16))
        if self.strikes("http_400"):
            return refused(400, "BadRequestError", "told to refuse")
        if self.strikes("http_500"):
            return refused(500, "InternalServerError", "told to fail")
        if self.strikes("http_500_binary"):
            return web.Response(status=500, body=b"\xff\xfe\xfd")
        if body.get("model") != self._model:
            return refused(404, "NotFoundError", f"The model `{body.get('model')}` does not exist.")
        if not isinstance(limit, int) or limit < 1 or limit > self._max_model_len:
            return refused(400, "BadRequestError", f"max_completion_tokens={limit} can't be had")
        return None

    async def _answer(self, request: web.Request, body: dict[str, Any], entry: dict[str, Any]) -> web.StreamResponse:
        how = self.behaviour
        limit = body.get("max_completion_tokens", body.get("max_tokens", 16))
        total = min(limit, how.answer_tokens or limit)
        chunks = split(total, how.chunk_tokens)
        of_ids = "prompt" in body
        entry["chunks"], entry["prompt_tokens"] = chunks, len(body["prompt"]) if of_ids else prompt_tokens(body)
        usage = not self.strikes("no_usage")
        events = (TextEvents if of_ids else Events)(body, self._model, entry["prompt_tokens"], usage=usage)
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        answer.enable_chunked_encoding()
        await answer.prepare(request)
        await asyncio.sleep(how.first_delay_s)
        if not of_ids:
            await answer.write(events.role())
        done = 0
        for number, tokens in enumerate(chunks):
            if number == (len(chunks) + 1) // 2 and await self._mid_stream(request, answer):
                return answer
            if number:
                await asyncio.sleep(how.chunk_delay_s)
            done += tokens
            entry["sends"].append([time.perf_counter(), tokens])
            await answer.write(events.tokens(done - tokens, done, last=done == total))
        if events.include and not self.strikes("no_final_usage"):
            await answer.write(events.whole(total))
        await answer.write(b"data: [DONE]\n\n")
        counting = asyncio.create_task(self._count(entry["prompt_tokens"], chunks))
        self.later.add(counting)
        if not how.count_delay_s:
            await counting
        await answer.write_eof()
        return answer

    async def _mid_stream(self, request: web.Request, answer: web.StreamResponse) -> bool:
        """Whether the answer ends here."""
        if self.strikes("die_mid_stream"):
            print("standin: dying, as told", flush=True)
            os._exit(9)
        if self.strikes("hang_mid_stream"):
            await asyncio.sleep(3600)
        if self.strikes("error_event"):
            await answer.write(b'data: {"error": {"message": "told to break off", "type": "InternalServerError", "code": 500}}\n\n')
        if self.strikes("broken_json"):
            await answer.write(b"data: {not json\n\n")
        if self.strikes("reset_stream"):
            assert request.transport is not None
            request.transport.abort()
            return True
        return self.strikes("cut_stream")

    async def _count(self, prompt: int, chunks: list[int]) -> None:
        await asyncio.sleep(self.behaviour.count_delay_s)
        if self.strikes("metrics_reset"):
            self.metrics = Metrics(self._model, self._drafted, self._buckets)
        if not self.strikes("lost_request"):
            self.metrics.count(prompt, chunks, self.behaviour.queue_s)
        if self.strikes("foreign_request"):
            self.metrics.count(prompt, chunks, self.behaviour.queue_s)

    def _note(self, entry: dict[str, Any]) -> None:
        self.journal.append(entry)
        if self.behaviour.journal is not None:
            with Path(self.behaviour.journal).open("a") as out:
                out.write(json.dumps(entry) + "\n")


def split(total: int, pattern: list[int]) -> list[int]:
    """`total` cut into the pattern's pieces, the last one as long as what is left."""
    pieces: list[int] = []
    for piece in itertools.cycle(pattern):
        if sum(pieces) == total:
            return pieces
        pieces.append(min(piece, total - sum(pieces)))
    raise ValueError("an empty pattern")


def arguments() -> argparse.Namespace:
    """Our options and those of vLLM's that matter here."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--speculative-config", type=json.loads, default={})
    parser.add_argument("--custom-histogram-buckets", type=json.loads, default={})
    parser.add_argument("--options", type=json.loads, default=json.loads(os.environ.get("STANDIN_OPTIONS", "{}")), help="JSON of a Behaviour")
    parser.add_argument("--fault", action="append", default=[], help=f"NAME or NAME:after=N:times=M; known: {', '.join(FAULTS)}")
    return parser.parse_known_args()[0]


def behaviour_of(given: argparse.Namespace) -> Behaviour:
    """The behaviour that the command line asks for."""
    behaviour = Behaviour(**given.options)
    for word in given.fault:
        name, *settings = word.split(":")
        behaviour.faults[name] = {key: int(value) for key, value in (setting.split("=") for setting in settings)}
    return behaviour


def start_worker(stubborn: bool) -> None:
    """A process as vLLM's engine core is one: in a session of its own, with our environment."""
    code = f"import signal, time; {'signal.signal(signal.SIGTERM, signal.SIG_IGN)' if stubborn else ''}; time.sleep(600)".replace("; ;", ";")
    subprocess.Popen([sys.executable, "-S", "-E", "-c", code], start_new_session=True)


async def serve(given: argparse.Namespace, behaviour: Behaviour) -> None:
    """Listen until a signal ends us."""
    buckets = given.custom_histogram_buckets.get("request_latency", [0.3, 0.5, 1.0, 5.0])
    standin = StandIn(given.served_model_name, given.max_model_len, given.speculative_config.get("num_speculative_tokens", 0), buckets, behaviour)
    app = web.Application()
    app.add_routes(
        [
            web.get("/health", standin.health),
            web.get("/metrics", standin.exposition),
            web.post("/v1/chat/completions", standin.chat),
            web.post("/v1/completions", standin.chat),
            web.post("/standin", standin.control),
            web.get("/standin/journal", standin.told),
        ]
    )
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)  # as vLLM: who hangs up is served no longer
    await runner.setup()
    await web.TCPSite(runner, given.host, given.port).start()
    print(WATCHING, flush=True)
    print(f"standin: serving {given.served_model_name} on port {given.port}", flush=True)
    await asyncio.Event().wait()


def main() -> None:
    """See the module's text."""
    given = arguments()
    behaviour = behaviour_of(given)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if "ignore_sigterm" in behaviour.faults else lambda *_: os._exit(0))
    if "die_at_start" in behaviour.faults:
        print("standin: dying at start, as told", flush=True)
        sys.exit(3)
    for name in {"worker", "stubborn_worker"} & set(behaviour.faults):
        start_worker(stubborn=name == "stubborn_worker")
    if "hang_at_start" in behaviour.faults:
        print("standin: hanging at start, as told", flush=True)
        time.sleep(3600)
    asyncio.run(serve(given, behaviour))


if __name__ == "__main__":
    main()
