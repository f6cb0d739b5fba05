"""The preStop hook, run as the pod runs it, against a server whose gauges are set by hand."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from specstudy.deploy import drain

SCRIPT = Path(drain.__file__)
GAUGES = 'vllm:num_requests_running{{engine="0",model_name="m"}} {running}\nvllm:num_requests_waiting{{engine="0",model_name="m"}} {waiting}\n'


class Gauges(ThreadingHTTPServer):
    """Says what it is told to say."""

    running, waiting, asked, late_s, cut = 0.0, 0.0, 0, 0.0, False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Gauges)
        self.server.asked += 1
        content = GAUGES.format(running=self.server.running, waiting=self.server.waiting).encode()
        time.sleep(self.server.late_s)
        self.send_response(200)
        if self.server.cut:
            self.send_header("Content-Length", str(2 * len(content)))
        self.end_headers()
        with contextlib.suppress(BrokenPipeError):  # whoever asked may have gone
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Gauges]:
    with Gauges() as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def start(url: str, settle_s: float, limit_s: float) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-S", "-E", str(SCRIPT), str(settle_s), str(limit_s), url], stderr=subprocess.PIPE, text=True)


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    """(exit status, what it said)."""
    _, said = process.communicate(timeout=120)
    return process.returncode, said


def test_it_ends_when_nothing_runs_and_nothing_waits(server: Gauges) -> None:
    assert end(start(server.url, 0, 60)) == (0, "")


@pytest.mark.parametrize("gauge", ["running", "waiting"])
def test_it_waits_for_the_last_request(server: Gauges, gauge: str) -> None:
    setattr(server, gauge, 1.0)
    process = start(server.url, 0, 60)
    while server.asked < 5:  # more than the three answers that would end it
        assert process.poll() is None
        time.sleep(0.05)
    setattr(server, gauge, 0.0)
    assert end(process) == (0, "")


def test_it_asks_nothing_before_the_others_have_learnt_of_it(server: Gauges) -> None:
    process = start(server.url, 3600, 60)
    time.sleep(1)
    assert (process.poll(), server.asked) == (None, 0)
    process.kill()
    process.communicate()


def test_it_gives_up_at_its_limit_and_says_what_is_left(server: Gauges) -> None:
    server.running, server.waiting = 2.0, 3.0
    status, said = end(start(server.url, 0, 8))
    assert status == 1
    assert "5 requests are left after 8 s" in said


@pytest.mark.parametrize(("late_s", "cut"), [(0.3, False), (0.0, True)])
def test_a_server_that_answers_late_or_in_part_has_not_gone(
    server: Gauges, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], late_s: float, cut: bool
) -> None:
    """It has requests: to take it for gone would end them."""
    monkeypatch.setattr(drain, "TIMEOUT_S", 0.1)
    monkeypatch.setattr(drain, "POLL_S", 0.05)
    server.running, server.late_s, server.cut = 1.0, late_s, cut
    assert drain.drain(server.url, 0, 1.5) is False
    assert server.asked >= 4  # more than the three that would end it
    assert "it gave no answer after 1.5 s" in capsys.readouterr().err


def test_a_server_that_has_gone_needs_no_waiting() -> None:
    with Gauges() as closed:
        url = closed.url
    assert end(start(url, 0, 60)) == (0, "")


def test_gauges_of_several_engines_are_added_and_others_are_left_out() -> None:
    text = 'vllm:num_requests_running{engine="0"} 1.0\nvllm:num_requests_running{engine="1"} 2.0\nvllm:num_requests_waiting_by_reason{reason="capacity"} 9.0\n'
    assert drain.unfinished(text + 'vllm:num_requests_waiting{engine="0"} 4.0\n# TYPE vllm:num_requests_running gauge\n') == 7
    with pytest.raises(ValueError, match="num_requests_running"):
        drain.unfinished("up 1\n")
