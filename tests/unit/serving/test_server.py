"""`running` and `launch` with a small real server."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from specstudy.errors import ConfigError, ServerDiedError, ServerStartError
from specstudy.serving import ENGINES, Deployment, Engine, engine_named, guard, launch, log_tail
from specstudy.serving.server import check_port, free_port, running

Family = Callable[..., list[str]]
Members = Callable[..., list[psutil.Process]]
AssertGone = Callable[..., None]

PROCESSES = ("server", "plain", "stubborn", "daemon")
ALL_KINDS = ("plain", "stubborn", "daemon", "deaf")


class Interrupted(BaseException):
    """Like KeyboardInterrupt: no Exception."""


@pytest.mark.parametrize("error", [None, ValueError("in the block"), Interrupted()])
def test_everything_is_gone_when_the_block_is_left(
    quick_guard: Path, family: Family, members: Members, assert_gone: AssertGone, tmp_path: Path, error: BaseException | None
) -> None:
    port = free_port()
    everybody: list[psutil.Process] = []
    with suppress(ValueError, Interrupted), running(family(port, *ALL_KINDS), {}, port=port, model="m", log_path=tmp_path / "log.txt", timeout_s=120) as server:
        everybody += [*members(*PROCESSES), psutil.Process(server.process.pid)]
        assert len({process.pid for process in everybody}) == 5
        if error is not None:
            raise error
    assert_gone(everybody, 0.1)


def test_a_server_says_where_it_is_and_what_it_is(family: Family, tmp_path: Path) -> None:
    port = free_port()
    argv, log = family(port), tmp_path / "logs" / "server.log"
    with running(argv, {}, port=port, model="m", log_path=log, timeout_s=120) as server:
        assert (server.base_url, server.model, server.argv, server.log_path) == (f"http://127.0.0.1:{port}", "m", tuple(argv), log)
        assert 0 < server.start_s < 120
        with urllib.request.urlopen(f"{server.base_url}/health") as answer:
            assert answer.status == 200
        server.raise_if_dead()
    assert log.read_text() == "server is up\n"


def test_the_environment_is_ours_and_what_is_added(family: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setenv("CHANGED", "1")
    port = free_port()
    with running(family(port), {"CHANGED": "2", "NEW": "3"}, port=port, model="m", log_path=tmp_path / "log.txt", timeout_s=120) as server:
        child = psutil.Process(server.process.pid).children()[0]
        assert {name: child.environ().get(name) for name in ("KEPT", "CHANGED", "NEW")} == {"KEPT": "1", "CHANGED": "2", "NEW": "3"}


def test_it_is_ready_only_when_health_answers_200(family: Family, tmp_path: Path) -> None:
    port, waited = free_port(), list[float]()
    where = {"port": port, "model": "m", "log_path": tmp_path / "log.txt", "timeout_s": 120, "waiting": waited.append}
    with running(family(port), {"READY_AT_CALL": "3"}, **where) as server:  # type: ignore[arg-type]
        assert server.start_s >= 2 * 0.25, "two answers of 503, and a pause after each"
    assert len(waited) >= 2
    assert waited == sorted(waited)


def test_a_log_of_an_earlier_start_is_not_kept(family: Family, tmp_path: Path) -> None:
    log, port = tmp_path / "log.txt", free_port()
    log.write_text("KV cache size: 1 tokens\n")
    with running(family(port), {}, port=port, model="m", log_path=log, timeout_s=120):
        pass
    assert "KV cache" not in log.read_text()


def test_a_server_that_ends_before_it_is_ready_gives_status_and_last_lines(tmp_path: Path) -> None:
    script = "for i in $(seq 1 40); do echo line $i; done; echo no such model >&2; exit 9"
    with (
        pytest.raises(ServerStartError) as refused,
        running(["sh", "-c", script], {}, port=free_port(), model="m", log_path=tmp_path / "log.txt", timeout_s=60),
    ):
        pytest.fail("it never became healthy")
    first, *tail = str(refused.value).splitlines()
    assert first == "the server ended with status 9 before it was ready; its log ends:"
    assert tail == [f"    line {i}" for i in range(17, 41)] + ["    no such model"]


def test_a_server_that_never_answers_gives_up_at_the_deadline_and_is_gone(quick_guard: Path, family: Family, tmp_path: Path) -> None:
    began = time.monotonic()
    with (
        pytest.raises(ServerStartError) as refused,
        running(family(free_port(), *ALL_KINDS), {}, port=free_port(), model="m", log_path=tmp_path / "log.txt", timeout_s=10),
    ):
        pytest.fail("it never became healthy")
    assert str(refused.value) == "the server gave no answer within 10 s; its log ends:\n    server is up"
    assert time.monotonic() - began > 10
    assert len(pids(tmp_path)) == len(PROCESSES)
    assert living(tmp_path) == []


def test_an_interrupt_while_it_starts_leaves_nothing(quick_guard: Path, family: Family, tmp_path: Path) -> None:
    def interrupt(elapsed_s: float) -> None:
        if elapsed_s > 0.5:
            raise Interrupted

    with (
        pytest.raises(Interrupted),
        running(family(free_port(), *ALL_KINDS), {}, port=free_port(), model="m", log_path=tmp_path / "log.txt", timeout_s=60, waiting=interrupt),
    ):
        pytest.fail("it never became healthy")
    assert living(tmp_path) == []


def test_a_server_that_dies_in_the_block_says_so_with_its_last_lines(family: Family, tmp_path: Path) -> None:
    port = free_port()
    with running(family(port), {}, port=port, model="m", log_path=tmp_path / "log.txt", timeout_s=120) as server:
        with suppress(OSError), urllib.request.urlopen(f"{server.base_url}/die"):
            pass
        server.process.wait(timeout=60)
        with pytest.raises(ServerDiedError) as died:
            server.raise_if_dead()
    assert str(died.value) == "the server ended with status 3; its log ends:\n    server is up\n    dying as asked"


PARENT = """
import signal, sys, time
from pathlib import Path
from specstudy.serving import guard
from specstudy.serving.server import running

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell has it ignored
guard.__file__, log, timeout_s, port, *argv = sys.argv[1:]
with running(argv, {}, port=int(port), model="m", log_path=Path(log), timeout_s=float(timeout_s)):
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_everything_is_gone_when_the_parent_is_ended_by_a_signal(
    quick_guard: Path, family: Family, members: Members, assert_gone: AssertGone, tmp_path: Path, number: signal.Signals
) -> None:
    port = free_port()
    command = [sys.executable, "-c", PARENT, guard.__file__, str(tmp_path / "log.txt"), "20", str(port), *family(port, *ALL_KINDS)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert parent.stdout is not None
    with parent.stdout:
        assert parent.stdout.readline() == b"ready\n"
        everybody = [*members(*PROCESSES), *psutil.Process(parent.pid).children()]
        parent.send_signal(number)
        parent.wait(timeout=60)
    assert_gone(everybody, 60)


def pids(folder: Path) -> list[int]:
    """Process ids that the family has written."""
    return [int(path.read_text()) for path in folder.glob("*.pid")]


def living(folder: Path) -> list[psutil.Process]:
    """Members of the family that still live."""
    found = []
    for pid in pids(folder):
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if str(folder) in " ".join(process.cmdline()):
                found.append(process)
    return found


def test_a_log_tail_is_its_last_lines_indented(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    assert log_tail(log) == ""
    log.write_bytes(b"one\ntwo\nthree \xff\n")
    assert log_tail(log, 2) == "    two\n    three \N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_port_that_somebody_listens_on_is_refused(address: str) -> None:
    with socket.socket() as holder:
        holder.bind((address, 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(ConfigError) as refused:
            check_port(port)
    assert (refused.value.field, refused.value.got) == ("port", port)
    assert check_port(port) == port, "free again, although its last connection may linger"


def test_a_free_port_can_be_listened_on() -> None:
    port = free_port()
    assert 1024 < port < 65536
    assert check_port(port) == port


@pytest.fixture
def tiny_engine(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine called tiny that serves with the family's server, and one called absent that isn't installed."""
    monkeypatch.setitem(ENGINES, "tiny", Engine("tiny", lambda deployment, port: family(port), lambda deployment: {"TINY": deployment.target}, lambda: "1.0"))
    monkeypatch.setitem(ENGINES, "absent", Engine("absent", lambda deployment, port: ["false"], lambda deployment: {}, lambda: None))


@pytest.fixture
def deployment(gpu: Callable[..., Deployment], model_folder: Callable[..., str]) -> Deployment:
    """A deployment whose model's files are there."""
    return gpu(target_path=model_folder("target", max_position_embeddings=4096))


def test_launch_serves_a_deployment_with_its_engines_command_and_environment(tiny_engine: None, deployment: Deployment, tmp_path: Path) -> None:
    with launch(deployment, tmp_path / "log.txt", engine="tiny", timeout_s=120) as server:
        assert server.model == "big"
        child = psutil.Process(server.process.pid).children()[0]
        assert child.environ()["TINY"] == "big"
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", server.base_url)


def test_launch_takes_the_port_it_is_given(tiny_engine: None, deployment: Deployment, tmp_path: Path) -> None:
    port = free_port()
    with launch(deployment, tmp_path / "log.txt", engine="tiny", port=port, timeout_s=120) as server:
        assert server.base_url.endswith(f":{port}")


def test_launch_refuses_before_anything_starts(tiny_engine: None, deployment: Deployment, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        for field, how in {
            "engine": {"engine": "absent"},
            "port": {"engine": "tiny", "port": taken},
        }.items():
            with pytest.raises(ConfigError) as refused, launch(deployment, log, **how):  # type: ignore[arg-type]
                pytest.fail("it started")
            assert refused.value.field == field
    (Path(deployment.target_path) / "config.json").write_text(json.dumps({"max_position_embeddings": 8}))
    with pytest.raises(ConfigError, match="max_model_len"), launch(deployment, log, engine="tiny"):
        pytest.fail("it started")
    assert not log.exists()


def test_an_unknown_engine_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError) as refused:
        engine_named("llama.cpp")
    assert (refused.value.field, refused.value.got) == ("engine", "llama.cpp")
    assert "vllm" in refused.value.allowed


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_number_that_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(ConfigError):
        check_port(port)


def test_a_proxy_in_the_environment_does_not_matter_on_loopback(family: Family, tmp_path: Path) -> None:
    port = free_port()
    env = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")} | {"http_proxy": f"http://127.0.0.1:{free_port()}"}
    command = [sys.executable, "-c", PARENT, guard.__file__, str(tmp_path / "log.txt"), "3", str(port), *family(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env) as parent:
        assert parent.stdout is not None
        answer = parent.stdout.readline()
        parent.terminate()
    assert answer == b"ready\n"


def test_a_log_that_cannot_be_written_is_refused_and_nothing_is_started(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    started = tmp_path / "started"
    argv = [sys.executable, "-c", f"open({str(started)!r}, 'w')"]
    for log in (tmp_path / "file" / "log", tmp_path / "folder"):
        with pytest.raises(ConfigError, match="log: got"), running(argv, {}, port=free_port(), model="m", log_path=log, timeout_s=5):
            pytest.fail("it was started")
    assert not started.exists()
