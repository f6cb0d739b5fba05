"""Whose processor time is whose, with real processes that spend a known amount of it."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from specstudy.measure.host import watching

SPEND = "import time\nuntil = {since} + {seconds}\nwhile time.process_time() < until: pass\n"
WAIT = "import sys; print('done', flush=True); sys.stdin.readline()"
CHILD = SPEND.format(since=0, seconds=1.0) + WAIT
# The server itself spends 0.3 s and waits for its two children, of which one spends a second.
SERVER = f"""
import subprocess, sys
idle = subprocess.Popen([sys.executable, "-c", {WAIT!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
print("up", flush=True)
sys.stdin.readline()
busy = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
{SPEND.format(since="time.process_time()", seconds=0.3)}
busy.stdout.readline()
print("done", flush=True)
sys.stdin.readline()
for child in (idle, busy):
    child.communicate(b"end")
"""


# What stands between us and the server, as serving.guard does, and passes our lines on.
GUARD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SERVER!r}])"


def test_the_api_server_the_engine_and_we_are_told_apart() -> None:
    with subprocess.Popen([sys.executable, "-c", GUARD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None and server.stdout is not None
        server.stdout.readline()
        began, ours = time.monotonic(), time.process_time()
        with watching(server.pid) as use:
            server.stdin.write("go\n")
            server.stdin.flush()
            server.stdout.readline()
            spent_until = time.process_time() + 0.2
            while time.process_time() < spent_until:
                pass
        elapsed, ours = time.monotonic() - began, time.process_time() - ours
        server.communicate("end\n")
    assert use.engine is not None and use.api_server is not None and use.load_generator is not None and use.other is not None
    # psutil counts in hundredths of a second. What a child spends before it starts to count is the interpreter's start.
    assert use.engine * elapsed == pytest.approx(1.0, abs=0.1)
    assert use.api_server * elapsed == pytest.approx(0.3, abs=0.1)
    assert use.load_generator * elapsed == pytest.approx(ours, abs=0.05)


def test_of_a_server_that_is_gone_nothing_is_known() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as server, watching(server.pid) as use:
        server.communicate(b"end\n")
    assert (use.other, use.api_server, use.engine, use.load_generator) == (None, None, None, None)
