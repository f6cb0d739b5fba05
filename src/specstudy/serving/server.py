"""Start a server, wait until it is healthy, and stop it whatever happens."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from specstudy.errors import ConfigError, ServerDiedError, ServerStartError
from specstudy.serving import guard
from specstudy.serving.local import get

POLL_S = 0.25
LOG_LINES = 25


@dataclass(frozen=True)
class Server:
    """A running server, reachable at `base_url`."""

    base_url: str
    model: str
    argv: tuple[str, ...]
    log_path: Path
    process: subprocess.Popen[bytes]
    start_s: float

    def ended(self) -> bool:
        """To be asked after a failed request: whether the server has ended. Waits for one that is about to.

        A process that dies takes its workers along only seconds later, and until then it looks alive.
        """
        if self.process.poll() is None and not _healthy(self.base_url):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(guard.GRACE_S + 2)
        return self.process.poll() is not None

    def raise_if_dead(self) -> None:
        """Raises ServerDiedError, with the log's last lines, if the process has ended."""
        status = self.process.poll()
        if status is not None:
            raise ServerDiedError(f"the server ended with status {status}; its log ends:", log_tail(self.log_path))


def log_tail(path: Path, lines: int = LOG_LINES) -> str:
    """The last lines of a log, indented."""
    if not path.exists():
        return ""
    return "\n".join(f"    {line}" for line in path.read_text(errors="replace").splitlines()[-lines:])


def free_port() -> int:
    """A loopback port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check_port(port: int) -> int:
    """`port`, if it can be listened on. Raises ConfigError if something holds it."""
    if not 0 < port < 65536:
        raise ConfigError("port", port, "a number from 1 to 65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError("port", port, f"a free port ({error.strerror})") from None
    return port


@contextmanager
def running(
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    port: int,
    model: str,
    log_path: Path,
    timeout_s: float,
    waiting: Callable[[float], None] = lambda elapsed_s: None,
) -> Iterator[Server]:
    """A healthy server for the length of the block.

    Its log goes to `log_path`. `waiting` is called with the seconds passed at each health poll.
    Raises ServerStartError, with the log's last lines, when the process ends first or `timeout_s` passes.
    On leaving, for whatever reason, every process of it is gone; `guard` sees to that even if we are killed.
    """
    log_path.parent.mkdir(parents=True, exist_ok=True)
    log_path.write_bytes(b"")
    began = time.monotonic()
    # A session of its own: Ctrl-C at a terminal reaches us, and we stop the server in order.
    process = subprocess.Popen(
        [sys.executable, "-S", "-E", guard.__file__, str(log_path), *argv],
        env={**os.environ, **env},
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    base_url = f"http://127.0.0.1:{port}"
    try:
        _wait_healthy(process, base_url, log_path, timeout_s, waiting)
        yield Server(base_url, model, tuple(argv), log_path, process, time.monotonic() - began)
    finally:
        stop(process)


def _wait_healthy(process: subprocess.Popen[bytes], base_url: str, log_path: Path, timeout_s: float, waiting: Callable[[float], None]) -> None:
    began = time.monotonic()
    while True:
        status = process.poll()
        if status is not None:
            raise ServerStartError(f"the server ended with status {status} before it was ready; its log ends:", log_tail(log_path))
        if _healthy(base_url):
            return
        elapsed_s = time.monotonic() - began
        if elapsed_s > timeout_s:
            raise ServerStartError(f"the server gave no answer within {timeout_s:.0f} s; its log ends:", log_tail(log_path))
        waiting(elapsed_s)
        time.sleep(POLL_S)


def _healthy(base_url: str) -> bool:
    try:
        get(f"{base_url}/health", timeout_s=5)
    except (OSError, HTTPException):
        return False
    return True


def stop(process: subprocess.Popen[bytes]) -> None:
    """Have the guard stop everything and wait for it; a second Ctrl-C meanwhile changes nothing of that."""
    if process.stdin is not None:
        process.stdin.close()
    interrupted: BaseException | None = None
    while process.poll() is None:
        try:
            process.wait(timeout=guard.GRACE_S + 10)
        except KeyboardInterrupt as again:
            interrupted = again
        except subprocess.TimeoutExpired:
            process.kill()  # the guard is stuck; its child dies with it
    if interrupted is not None:
        raise interrupted
