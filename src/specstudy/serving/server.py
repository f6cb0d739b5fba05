"""Start a server, wait until it is healthy, and stop it whatever happens."""

from __future__ import annotations

import contextlib
import os
import random
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
from specstudy.serving.logs import start_failure

POLL_S = 0.25
LOWEST_PORT = 20_000
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
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
            raise ServerDiedError(f"the server ended with status {status}", log_tail(self.log_path))


def log_tail(path: Path, lines: int = LOG_LINES) -> str:
    """The last lines of a log, indented."""
    if not path.exists():
        return ""
    return "\n".join(f"    {line}" for line in path.read_text(errors="replace").splitlines()[-lines:])


def free_port() -> int:
    """A loopback port that is free now."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """`count` different loopback ports that are free now, each held until all are found.

    They lie below the range from which the system gives ports to outgoing connections, our own health polls
    among them: one from that range could be taken in the seconds until the server binds it.
    """
    found: list[int] = []
    with contextlib.ExitStack() as held:
        for port in random.sample(_candidates(), len(_candidates())):
            probe = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                found.append(int(probe.getsockname()[1]))
            if len(found) == count:
                return found
    raise ConfigError("servers_at_once", count, f"at most as many as there are free ports, {len(found)}")


def _candidates() -> range:
    try:
        outgoing_from = int(EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError):
        outgoing_from = 32768
    return range(LOWEST_PORT, outgoing_from) if outgoing_from >= LOWEST_PORT + 1000 else range(LOWEST_PORT, 65536)


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


@dataclass(frozen=True)
class Command:
    """What starts one server. Its log goes to `log_path`."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    port: int
    model: str
    log_path: Path


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

    `waiting` is called with the seconds passed at each health poll.
    Raises ServerStartError, with the log's last lines, when the process ends first or `timeout_s` passes.
    On leaving, for whatever reason, every process of it is gone; `guard` sees to that even if we are killed.
    """
    with running_together([Command(tuple(argv), env, port, model, log_path)], timeout_s=timeout_s, waiting=waiting) as (started,):
        if isinstance(started, ServerStartError):
            raise started
        yield started


@contextmanager
def running_together(
    commands: Sequence[Command], *, timeout_s: float, waiting: Callable[[float], None] = lambda elapsed_s: None
) -> Iterator[list[Server | ServerStartError]]:
    """Servers that start side by side, all of them up, or stopped, before the block begins.

    One that doesn't start is given as its error and disturbs no other. On leaving all are stopped together, as
    in `running`.
    """
    processes: list[subprocess.Popen[bytes]] = []
    try:
        began = time.monotonic()
        for command in commands:
            processes.append(start(command))
        yield _await_all(commands, processes, began, timeout_s, waiting)
    finally:
        stop_all(processes)


def run_guarded(argv: Sequence[str], env: Mapping[str, str], log_path: Path, waiting: Callable[[float], None]) -> int:
    """Run a command to its end and give its exit status; whatever ends us, nothing of it stays.

    `waiting` is called with the seconds passed once a second.
    """
    process = start(Command(tuple(argv), env, 0, "", log_path))
    began = time.monotonic()
    try:
        while process.poll() is None:
            waiting(time.monotonic() - began)
            time.sleep(1)
        return int(process.returncode)
    finally:
        stop(process)


def start(command: Command) -> subprocess.Popen[bytes]:
    """Start a command under its guard, and wait for nothing; end it with `stop`. Raises ConfigError for a log that can't be written."""
    try:
        command.log_path.parent.mkdir(parents=True, exist_ok=True)
        command.log_path.write_bytes(b"")
    except OSError as error:
        raise ConfigError("log", str(command.log_path), f"a file that can be written ({error.strerror or error})") from error
    # A session of its own: Ctrl-C at a terminal reaches us, and we stop the server in order.
    return subprocess.Popen(
        [sys.executable, "-S", "-E", guard.__file__, str(command.log_path), *command.argv],
        env={**os.environ, **command.env},
        stdin=subprocess.PIPE,
        start_new_session=True,
    )


def _await_all(
    commands: Sequence[Command], processes: Sequence[subprocess.Popen[bytes]], began: float, timeout_s: float, waiting: Callable[[float], None]
) -> list[Server | ServerStartError]:
    outcome: dict[int, Server | ServerStartError] = {}
    while True:
        for number, (command, process) in enumerate(zip(commands, processes, strict=True)):
            if number not in outcome and (now := _state(command, process, began, timeout_s)) is not None:
                outcome[number] = now
                if isinstance(now, ServerStartError):
                    stop(process)
        if len(outcome) == len(commands):
            return [outcome[number] for number in range(len(commands))]
        waiting(time.monotonic() - began)
        time.sleep(POLL_S)


def _state(command: Command, process: subprocess.Popen[bytes], began: float, timeout_s: float) -> Server | ServerStartError | None:
    """The server once it is healthy, why it never will be, or None while it may be."""
    status = process.poll()
    if status is not None:
        cause = start_failure(command.log_path)
        told = f"the server ended with status {status} before it was ready{'' if cause is None else f': {cause}'}"
        return ServerStartError(told, log_tail(command.log_path))
    base_url = f"http://127.0.0.1:{command.port}"
    if _healthy(base_url):
        return Server(base_url, command.model, command.argv, command.log_path, process, time.monotonic() - began)
    if time.monotonic() - began > timeout_s:
        return ServerStartError(f"the server gave no answer within {timeout_s:.0f} s", log_tail(command.log_path))
    return None


def _healthy(base_url: str) -> bool:
    try:
        get(f"{base_url}/health", timeout_s=5)
    except (OSError, HTTPException):
        return False
    return True


def stop(process: subprocess.Popen[bytes]) -> None:
    """Have the guard stop everything and wait for it; a second Ctrl-C meanwhile changes nothing of that."""
    stop_all([process])


def stop_all(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """The same for several, which stop side by side."""
    for process in processes:
        if process.stdin is not None:
            process.stdin.close()
    interrupted: BaseException | None = None
    while left := [process for process in processes if process.poll() is None]:
        try:
            left[0].wait(timeout=guard.GRACE_S + 10)
        except KeyboardInterrupt as again:
            interrupted = again
        except subprocess.TimeoutExpired:
            left[0].kill()  # the guard is stuck; its child dies with it
    if interrupted is not None:
        raise interrupted
