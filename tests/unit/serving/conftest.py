from __future__ import annotations

import json
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from specstudy.serving import Deployment, deploy, guard

GONE_WITHIN_S = 20.0

# A server that answers /health, with workers that hold on to life. Each process writes its id to the folder it is given.
FAMILY = textwrap.dedent(
    """
    import http.server, os, signal, sys, threading, time

    folder, port, *workers = sys.argv[1:]

    def write_id(name):
        with open(f"{folder}/{name}.{os.getpid()}", "w") as out:
            out.write(str(os.getpid()))
        os.rename(out.name, f"{folder}/{name}.pid")

    def hold_on(name):
        write_id(name)
        time.sleep(120)

    for kind in workers:
        if kind == "deaf":  # the server itself ignores SIGTERM
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        elif os.fork() == 0:
            if kind == "stubborn":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if kind == "daemon":  # leaves the session, then loses its parent
                os.setsid()
                if os.fork():
                    os._exit(0)
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                signal.signal(signal.SIGHUP, signal.SIG_IGN)
            hold_on(kind)
            os._exit(0)

    class Health(http.server.BaseHTTPRequestHandler):
        calls = 0
        def do_GET(self):
            Health.calls += 1
            warming = Health.calls < int(os.environ.get("READY_AT_CALL", "1"))
            self.send_response(503 if warming else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()
            if self.path == "/die":
                print("dying as asked", flush=True)
                os._exit(3)
        def log_message(self, *words):
            pass

    print("server is up", flush=True)
    write_id("server")
    while any(not os.path.exists(f"{folder}/{kind}.pid") for kind in workers if kind != "deaf"):
        time.sleep(0.01)
    http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), Health).serve_forever()
    """
)


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Callable[..., list[str]]]:
    """argv of a small server with the workers asked for: plain, stubborn, daemon, or deaf for the server itself."""
    script = tmp_path / "family.py"
    script.write_text(FAMILY)
    yield lambda port, *workers: [sys.executable, "-S", "-E", str(script), str(tmp_path), str(port), *workers]
    for path in tmp_path.glob("*.pid"):  # a failing test must not leave what it was looking for
        try:
            process = psutil.Process(int(path.read_text()))
            if str(script) in process.cmdline():
                process.send_signal(signal.SIGKILL)
        except psutil.Error:
            continue


@pytest.fixture
def members(tmp_path: Path) -> Callable[..., list[psutil.Process]]:
    """The family's living processes by name, once all of them have begun."""

    def find(*names: str) -> list[psutil.Process]:
        deadline = time.monotonic() + 60
        while not all((tmp_path / f"{name}.pid").exists() for name in names):
            assert time.monotonic() < deadline, f"not all of {names} began"
            time.sleep(0.01)
        return [psutil.Process(int((tmp_path / f"{name}.pid").read_text())) for name in names]

    return find


def is_gone(process: psutil.Process) -> bool:
    """Ended, even where nobody has collected its status."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def assert_gone() -> Callable[..., None]:
    """Fail unless every process has ended, `within_s` from now."""

    def check(processes: list[psutil.Process], within_s: float = GONE_WITHIN_S) -> None:
        assert processes
        deadline = time.monotonic() + within_s
        while left := [process for process in processes if not is_gone(process)]:
            assert time.monotonic() < deadline, f"still there: {left}"
            time.sleep(0.02)

    return check


@pytest.fixture
def quick_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The guard with half a second of grace instead of eight, so that what ignores SIGTERM is killed sooner."""
    source = Path(guard.__file__).read_text()
    assert source.count("\nGRACE_S = 8.0\n") == 1
    path = tmp_path / "guard.py"
    path.write_text(source.replace("\nGRACE_S = 8.0\n", "\nGRACE_S = 0.5\n"))
    monkeypatch.setattr(guard, "__file__", str(path))
    return path


@pytest.fixture
def model_folder(tmp_path: Path) -> Callable[..., str]:
    """A folder with a config.json of these keys."""

    def make(name: str, **config: Any) -> str:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        return str(folder)

    return make


@pytest.fixture
def gpu() -> Callable[..., Deployment]:
    """A Deployment on a GPU, with these fields beside the smallest set."""
    fields = {"target": "big", "target_path": "/models/big", "hardware": "gpu", "max_model_len": 4096, "max_num_seqs": 64}
    return lambda **more: deploy(**{**fields, **more})
