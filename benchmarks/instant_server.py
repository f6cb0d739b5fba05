"""A stand-in for vLLM's OpenAI server that answers at once: POST /v1/chat/completions streams a fixed number of tokens.

The events are those of vLLM 0.32, field by field: a chunk that names the role, one chunk a token (with `usage` when
`stream_options.continuous_usage_stats` asks for it), the last one with its finish_reason, a chunk with the whole usage and
no choice (when `include_usage` asks for it), then [DONE]. By default a whole answer is one write: the server is then never
what a load generator waits for. With --gap-ms, as in vLLM, one step of the "engine" gives every running request one token,
and each token is a write of its own; with 0 the next step follows at once, and the server, at 0.5 ms an answer, is slower
than a good client. GET /health, /v1/models and /metrics answer what load generators ask for.

    python instant_server.py --port 8123

All events are made before the first request, so a step costs one write per request and little else.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any

PROMPT_TOKENS = 12
WORD = " token"


def _http_chunk(body: bytes) -> bytes:
    return f"{len(body):x}\r\n".encode() + body + b"\r\n"


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": PROMPT_TOKENS, "total_tokens": PROMPT_TOKENS + tokens, "completion_tokens": tokens}


def _event(model: str, choices: list[dict[str, Any]], **more: object) -> bytes:
    event = {"id": "chatcmpl-0123456789abcdef", "object": "chat.completion.chunk", "created": 1700000000, "model": model, "choices": choices, **more}
    return _http_chunk(b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n")


def _choice(delta: dict[str, str], **more: object) -> list[dict[str, Any]]:
    return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, **more}]


def answer_writes(model: str, tokens: int, *, include_usage: bool, continuous: bool) -> list[bytes]:
    """What goes to the socket in each step: headers and role, then a token each; the last holds whatever follows its token."""

    def so_far(number: int) -> dict[str, object]:
        return {"usage": {**_usage(number), "completion_tokens_details": None}} if continuous else {}

    headers = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
    role = _choice({"role": "assistant", "content": ""})
    writes = [headers + _event(model, role, **so_far(0), prompt_token_ids=None, prompt_text=None)]
    for number in range(1, tokens + 1):
        end = {"finish_reason": "length", "stop_reason": None} if number == tokens else {}
        writes.append(_event(model, _choice({"content": WORD}, **end, token_ids=None), **so_far(number)))
    if include_usage:
        writes[-1] += _event(model, [], usage=_usage(tokens), system_fingerprint="stand-in")
    writes[-1] += _http_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
    return writes


def _plain(body: bytes, kind: str = "application/json", status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


class Engine:
    """Gives every running answer its next write, step after step, while there are any."""

    def __init__(self, model: str, tokens: int, gap_s: float | None) -> None:
        self._model, self._tokens, self._gap_s = model, tokens, gap_s or 0.0
        self._writes = {
            (usage, continuous): answer_writes(model, tokens, include_usage=usage, continuous=continuous)
            for usage in (False, True)
            for continuous in (False, True)
        }
        if gap_s is None:
            self._writes = {asked: [b"".join(writes)] for asked, writes in self._writes.items()}
        self._running: dict[asyncio.Transport, tuple[list[bytes], int]] = {}
        self._stepping = False
        self._finished = 0

    def add(self, transport: asyncio.Transport, body: bytes) -> None:
        """A request came. A client that asks for no stream gets one all the same; none of the generators does."""
        options = json.loads(body).get("stream_options") or {}
        usage = bool(options.get("include_usage"))
        self._running[transport] = self._writes[usage, usage and bool(options.get("continuous_usage_stats"))], 0
        if not self._stepping:
            self._stepping = True
            asyncio.get_running_loop().call_soon(self._step)

    def drop(self, transport: asyncio.Transport) -> None:
        """Its connection is gone."""
        self._running.pop(transport, None)

    def _step(self) -> None:
        for transport, (writes, done) in list(self._running.items()):
            transport.write(writes[done])
            if done + 1 < len(writes):
                self._running[transport] = writes, done + 1
            else:
                del self._running[transport]
                self._finished += 1
        self._stepping = bool(self._running)
        if self._stepping:
            asyncio.get_running_loop().call_later(self._gap_s, self._step)

    def get(self, path: str) -> bytes:
        """The answer to a GET."""
        if path == "/health":
            return _plain(b"", "text/plain")
        if path == "/v1/models":
            return _plain(json.dumps({"object": "list", "data": [{"id": self._model, "object": "model", "root": self._model}]}).encode())
        if path == "/metrics":
            return _plain(self._metrics().encode(), "text/plain; version=0.0.4")
        return _plain(b'{"error":{"message":"no such path"}}', status="404 Not Found")

    def _metrics(self) -> str:
        label, count, queue = f'{{model_name="{self._model}"}}', self._finished, "vllm:request_queue_time_seconds"
        return (
            f"# TYPE vllm:request_success counter\nvllm:request_success_total{label} {count}\n"
            f"# TYPE vllm:generation_tokens counter\nvllm:generation_tokens_total{label} {count * self._tokens}\n"
            f'# TYPE {queue} histogram\n{queue}_bucket{{le="0.001"}} {count}\n{queue}_bucket{{le="+Inf"}} {count}\n{queue}_sum 0\n{queue}_count {count}\n'
        )


class Connection(asyncio.Protocol):
    """HTTP/1.1, just enough of it: requests come one after another, their bodies with a content-length."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._got = engine, b""

    def connection_made(self, transport: Any) -> None:
        """Called by asyncio."""
        self._transport: asyncio.Transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        """Called by asyncio."""
        self._engine.drop(self._transport)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        self._got += data
        while (end := self._got.find(b"\r\n\r\n")) >= 0:
            head = self._got[:end].decode("latin-1").split("\r\n")
            length = next((int(line[15:]) for line in head[1:] if line.lower().startswith("content-length:")), 0)
            if len(self._got) < end + 4 + length:
                return
            body, self._got = self._got[end + 4 : end + 4 + length], self._got[end + 4 + length :]
            method, path, _ = head[0].split(" ", 2)
            if method == "POST" and path == "/v1/chat/completions":
                self._engine.add(self._transport, body)
            elif method == "GET":
                self._transport.write(self._engine.get(path.partition("?")[0]))
            else:
                self._transport.write(_plain(b'{"error":{"message":"no such path"}}', status="404 Not Found"))


async def serve(port: int, model: str, tokens: int, gap_ms: float | None) -> None:
    """Serve on the loopback until cancelled."""
    engine = Engine(model, tokens, None if gap_ms is None else gap_ms / 1e3)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(engine), "127.0.0.1", port)
    async with server:
        await server.serve_forever()


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", default="stand-in")
    parser.add_argument("--tokens", type=int, default=100, help="of each answer")
    parser.add_argument("--gap-ms", type=float, help="between two tokens of an answer, each a write of its own; without it an answer is one write")
    given = parser.parse_args()
    try:
        import uvloop as loops  # cheaper writes, where it's installed; vLLM brings it along
    except ImportError:
        loops = asyncio
    loops.run(serve(given.port, given.model, given.tokens, given.gap_ms))


if __name__ == "__main__":
    main()
