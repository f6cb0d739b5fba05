"""HTTP/1.1 over kept-alive connections, for streamed answers: httptools parses, asyncio moves bytes.

A general client spends more on each chunk of a streamed answer than reading its content costs, and what the
load generator uses, the server under test may lack. So this one only posts JSON and hands on body bytes with the
time at which they came. `benchmarks/client_cpu.py` compares.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import cast
from urllib.parse import urlsplit

import httptools

CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 300.0  # longest silence within one answer
ERROR_BODY_BYTES = 400
READ_BYTES = 1 << 16

# Bytes of a 200 answer's body and the time.perf_counter() at which they came; what it raises ends the request.
OnBody = Callable[[bytes, float], None]


class StaleConnectionError(Exception):
    """The server had closed a kept-alive connection before it saw the request."""


class BrokenAnswerError(Exception):
    """The connection ended, or fell silent, before the answer did; or the answer isn't HTTP."""


class StatusError(Exception):
    """An answer other than 200, with the start of its body."""


class _Connection(asyncio.BufferedProtocol):
    """One connection; at most one request at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._done: asyncio.Future[None] | None = None
        self._on_body: OnBody | None = None
        self._body: list[bytes] = []
        self._silent: asyncio.TimerHandle | None = None
        self._heard_at = 0.0
        self._answering = False
        self._complete = False
        self._keep = False
        self._used = False
        self._buffer = memoryview(bytearray(READ_BYTES))
        self.usable = True

    async def post(self, head_and_body: bytes, on_body: OnBody) -> None:
        """Send one request and return when its answer is complete. Raises what the module's errors say."""
        if self._transport is None or not self.usable:
            raise StaleConnectionError
        self._done, self._on_body, self._answering = self._loop.create_future(), on_body, False
        self._heard_at = self._loop.time()
        self._watch()
        self._transport.write(head_and_body)
        try:
            await self._done
        finally:
            if self._silent is not None:
                self._silent.cancel()
            if not self._done.done() or self._done.cancelled() or self._done.exception() is not None:
                self.close()
            self._done, self._used = None, True

    def close(self) -> None:
        """Give the connection up."""
        self.usable = False
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's callback."""
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """asyncio's callback: where to put what comes. One buffer for good: asyncio would make one of 256 KiB for each read."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """asyncio's callback: parse, and hand on the body of everything that came together at once."""
        now = time.perf_counter()
        self._heard_at, self._answering = self._loop.time(), True
        try:
            self._parser.feed_data(self._buffer[:nbytes])
            if self._parser.get_status_code() == 200 and self._body:
                self._hand_on(now)
            if self._complete:
                self._finish()
        except httptools.HttpParserError as error:
            self._fail(BrokenAnswerError(f"not HTTP: {error}"))
        except Exception as error:  # the reader's own complaint about the content
            self._fail(error)

    def connection_lost(self, error: Exception | None) -> None:
        """asyncio's callback."""
        self.usable = False
        if self._used and not self._answering:
            self._fail(StaleConnectionError())
        else:
            self._fail(BrokenAnswerError(f"the server closed the connection{f' ({error})' if error else ''}"))

    def on_body(self, body: bytes) -> None:
        """httptools' callback."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """httptools' callback; what it raised would be lost in the parser's own error, so it only takes note."""
        self._complete, self._keep = True, self._parser.should_keep_alive()

    def _hand_on(self, now: float) -> None:
        data = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body.clear()
        if self._on_body is not None:
            self._on_body(data, now)

    def _finish(self) -> None:
        status = self._parser.get_status_code()
        if status != 200:
            raise StatusError(f"HTTP {status}: {b''.join(self._body)[:ERROR_BODY_BYTES].decode(errors='replace')}")
        self.usable = self.usable and self._keep
        self._parser, self._complete = httptools.HttpResponseParser(self), False
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def _fail(self, error: Exception) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)

    def _watch(self) -> None:
        silence = self._loop.time() - self._heard_at
        if silence >= READ_TIMEOUT_S:
            self._fail(BrokenAnswerError(f"no byte for {READ_TIMEOUT_S:.0f} s"))
        else:
            self._silent = self._loop.call_later(READ_TIMEOUT_S - silence, self._watch)


class Pool:
    """Connections to one server, kept and reused; as many as there are requests at once. `headers` go with each request."""

    def __init__(self, base_url: str, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        parts = urlsplit(base_url)
        self._host, self._tls = parts.hostname or "", parts.scheme == "https"
        self._port = parts.port or (443 if self._tls else 80)
        self._prefix, self._authority = parts.path.rstrip("/"), parts.netloc
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in {"Content-Type": "application/json", **headers}.items())
        self._idle: list[_Connection] = []

    def request(self, path: str, body: bytes) -> bytes:
        """A POST of JSON, ready to be sent as often as needed."""
        head = f"POST {self._prefix}{path} HTTP/1.1\r\nHost: {self._authority}\r\n{self._headers}Content-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    async def post(self, request: bytes, on_body: OnBody, *, fresh: bool = False) -> None:
        """Send `request` on an idle connection or, if none is left or `fresh`, on a new one.

        Raises StaleConnectionError, BrokenAnswerError, StatusError, OSError or TimeoutError, and whatever `on_body` raises.
        """
        connection = None
        while self._idle and not fresh and connection is None:
            kept = self._idle.pop()
            connection = kept if kept.usable else None
        if connection is None:
            connection = await self._connect()
        await connection.post(request, on_body)
        if connection.usable:
            self._idle.append(connection)

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        context = ssl.create_default_context() if self._tls else None
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, connection = await loop.create_connection(lambda: _Connection(loop), self._host, self._port, ssl=context)
        return connection

    def close(self) -> None:
        """Close what is idle."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()
