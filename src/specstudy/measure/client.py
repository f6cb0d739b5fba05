"""A streaming client that spends its time waiting, not parsing.

Each request keeps the arrival time of every chunk and the tokens in it. Tokens are never counted by
chunks: the server states the running total with each chunk (`continuous_usage_stats`) and the whole at
the end (`usage`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import msgspec

from specstudy.measure.http import BrokenAnswerError, Pool, StaleConnectionError, StatusError
from specstudy.workloads.prompts import Prompt


@dataclass(slots=True)
class Outcome:
    """What became of one request; times are `time.perf_counter()` seconds."""

    sent: float = 0.0
    chunk_times: list[float] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    error: str | None = None
    resent: bool = False
    token_ids: list[int] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the whole answer came."""
        return self.error is None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Choice(msgspec.Struct, gc=False):
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class _Event(msgspec.Struct, gc=False):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode_events = msgspec.json.Decoder(list[_Event]).decode


class _Stream:
    """Reads one answer's events into an Outcome."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._rest = b""
        self._total = 0
        self._finished = False
        self._whole_usage = False

    def feed(self, data: bytes, now: float) -> None:
        """Take bytes as they came; events that they complete carry the time `now`. All are decoded in one go, which is cheaper."""
        if b"\r" in data:  # JSON escapes it, so it can only end a line
            data = data.replace(b"\r", b"")
        events = (self._rest + data).split(b"\n\n")
        self._rest = events.pop()
        payloads = [event[5:] for event in events if event.startswith(b"data:") and not event.endswith(b"[DONE]")]
        if payloads:
            self._take(_decode_events(b"[" + b",".join(payloads) + b"]"), now)

    def _take(self, events: list[_Event], now: float) -> None:
        outcome, total = self._outcome, self._total
        for event in events:
            if event.error is not None:
                raise _BadAnswerError(f"the server reported {str(event.error)[:200]}")
            usage = event.usage
            if usage is not None and usage.completion_tokens > total:  # the first chunk names the role and carries no token
                outcome.chunk_times.append(now)
                outcome.chunk_tokens.append(usage.completion_tokens - total)
                total = usage.completion_tokens
            if not event.choices:
                self._end_of_answer(usage)
                continue
            choice = event.choices[0]
            if choice.token_ids:
                outcome.token_ids += choice.token_ids
            if choice.finish_reason is not None:
                self._finished = True
        self._total = total

    def _end_of_answer(self, usage: _Usage | None) -> None:
        if usage is not None:
            self._whole_usage = True
            self._outcome.prompt_tokens, self._outcome.completion_tokens = usage.prompt_tokens, usage.completion_tokens

    def end(self) -> None:
        """Raises _BadAnswerError if the answer isn't whole."""
        if not self._finished:
            raise _BadAnswerError("the stream ended before its last token")
        if not self._whole_usage:
            raise _BadAnswerError("the stream ended without usage")
        if not self._outcome.chunk_times:
            raise _BadAnswerError("the answer holds no token")
        if self._total != self._outcome.completion_tokens:
            raise _BadAnswerError(f"the chunks carried {self._total} tokens, usage says {self._outcome.completion_tokens}")


class _BadAnswerError(Exception):
    """An answer came that can't be used."""


class StreamClient:
    """Sends chat completions, or completions of token ids, to one server. Use as an async context manager."""

    def __init__(self, base_url: str, model: str, *, want_token_ids: bool = False, api_key: str | None = None) -> None:
        self._model = model
        self._want_token_ids = want_token_ids
        self._pool = Pool(base_url, {} if api_key is None else {"Authorization": f"Bearer {api_key}"})

    async def __aenter__(self) -> StreamClient:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pool.close()

    def body(self, prompt: Prompt, *, max_tokens: int, temperature: float, seed: int, ignore_eos: bool = False) -> bytes:
        """The whole request; made before the load starts, so that encoding delays no send.

        With `ignore_eos` the answer goes on to `max_tokens`. So does that of a prompt of token ids: what would end it sooner means nothing there.
        """
        content: dict[str, Any] = {
            "model": self._model,
            "temperature": temperature,
            "seed": seed,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        if self._want_token_ids:
            content["return_token_ids"] = True
        if prompt.token_ids:
            content |= {"prompt": prompt.token_ids, "max_tokens": max_tokens, "ignore_eos": True}
            return self._pool.request("/v1/completions", msgspec.json.encode(content))
        content |= {"messages": prompt.as_messages(), "max_completion_tokens": max_tokens}
        if ignore_eos:
            content["ignore_eos"] = True
        return self._pool.request("/v1/chat/completions", msgspec.json.encode(content))

    async def send(self, body: bytes) -> Outcome:
        """One request to its end. Never raises for what the server does: `Outcome.error` says it.

        A keep-alive connection that the server closed before it answered is no failed request: it is sent
        once more on a new one, the clock running on, and marked.
        """
        outcome = Outcome(sent=time.perf_counter())
        stream = _Stream(outcome)
        try:
            try:
                await self._pool.post(body, stream.feed)
            except StaleConnectionError:
                outcome.resent = True
                await self._pool.post(body, stream.feed, fresh=True)
            stream.end()
        except (StaleConnectionError, BrokenAnswerError, StatusError, _BadAnswerError, msgspec.MsgspecError, OSError, TimeoutError) as error:
            outcome.error = f"{type(error).__name__.lstrip('_')}: {error}"
        return outcome
