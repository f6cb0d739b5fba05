"""Several small real servers started side by side."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from specstudy.errors import ConfigError, ServerStartError
from specstudy.serving import Server, server
from specstudy.serving.server import Command, free_ports, running_together

Family = Callable[..., list[str]]
AssertGone = Callable[..., None]


class Interrupted(BaseException):
    """Like KeyboardInterrupt: no Exception."""


def test_free_ports_are_different_ones() -> None:
    ports = free_ports(200)
    assert len(set(ports)) == 200
    assert all(0 < port < 65536 for port in ports)


def test_no_outgoing_connection_can_take_a_free_port() -> None:
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not [port for port in free_ports(200) if low <= port <= high]


def test_a_port_that_is_held_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, free = free_ports(2)
    monkeypatch.setattr(server, "_candidates", lambda: [taken, free])
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", taken))
        assert free_ports(1) == [free]
        with pytest.raises(ConfigError, match="free ports, 1"):
            free_ports(2)


@pytest.fixture
def commands(family: Family, tmp_path: Path) -> Callable[..., list[Command]]:
    """Commands of `count` servers; `worse` gives some of them another argv or environment."""

    def make(count: int, **worse: dict[str, object]) -> list[Command]:
        made = []
        for number, port in enumerate(free_ports(count)):
            changed = worse.get(f"server_{number}", {})
            argv = tuple(changed.get("argv", family(port)))  # type: ignore[arg-type]
            made.append(Command(argv, changed.get("env", {}), port, f"m{number}", tmp_path / "logs" / f"{number}.log"))  # type: ignore[arg-type]
        return made

    return make


def family_of(servers: list[Server]) -> list[psutil.Process]:
    own = [psutil.Process(server.process.pid) for server in servers]
    return [*own, *(child for process in own for child in process.children(recursive=True))]


@pytest.mark.parametrize("error", [None, ValueError("in the block"), Interrupted()])
def test_all_are_up_in_the_block_and_gone_after_it(
    quick_guard: Path, commands: Callable[..., list[Command]], assert_gone: AssertGone, error: BaseException | None
) -> None:
    everybody: list[psutil.Process] = []
    with suppress(ValueError, Interrupted), running_together(commands(3), timeout_s=120) as servers:
        up = [server for server in servers if isinstance(server, Server)]
        assert [server.model for server in up] == ["m0", "m1", "m2"], servers
        assert len({server.base_url for server in up}) == 3
        everybody += family_of(up)
        assert len(everybody) == 6  # each with its guard
        if error is not None:
            raise error
    assert_gone(everybody, 0.1)


def test_one_that_ends_or_hangs_is_its_own_error_and_stopped_before_the_block(
    quick_guard: Path, commands: Callable[..., list[Command]], assert_gone: AssertGone
) -> None:
    dying, hanging = {"argv": ["python3", "-c", "print('no luck'); raise SystemExit(4)"]}, {"argv": ["sleep", "60"]}
    seen: list[psutil.Process] = []

    def waiting(elapsed_s: float) -> None:
        seen.extend(process for process in psutil.Process().children(recursive=True) if process.name() == "sleep")

    with running_together(commands(3, server_0=dying, server_2=hanging), timeout_s=15, waiting=waiting) as (dead, up, hung):
        assert isinstance(dead, ServerStartError) and "status 4" in str(dead) and "no luck" in str(dead)
        assert isinstance(hung, ServerStartError) and "no answer within 15 s" in str(hung)
        assert isinstance(up, Server) and up.process.poll() is None
        assert_gone(seen, 0.1)


def test_an_interruption_while_they_start_leaves_none(quick_guard: Path, commands: Callable[..., list[Command]], assert_gone: AssertGone) -> None:
    started: list[psutil.Process] = []
    before = set(psutil.Process().children(recursive=True))  # other tests may have left Python's resource tracker

    def waiting(elapsed_s: float) -> None:
        started.extend(set(psutil.Process().children(recursive=True)) - before)
        if len({process.pid for process in started}) >= 4:
            raise Interrupted

    never_ready = {"env": {"READY_AT_CALL": "1000000"}}
    with pytest.raises(Interrupted), running_together(commands(2, server_0=never_ready, server_1=never_ready), timeout_s=60, waiting=waiting):
        pytest.fail("the block was entered")
    assert_gone(started, 60)


def test_one_killed_from_outside_leaves_the_others_alone(quick_guard: Path, commands: Callable[..., list[Command]]) -> None:
    with running_together(commands(2), timeout_s=120) as servers:
        first, second = (server for server in servers if isinstance(server, Server))
        first.process.send_signal(signal.SIGTERM)
        first.process.wait(60)
        assert first.ended()
        assert not second.ended()
