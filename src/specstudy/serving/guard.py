"""Run one command and let nothing of it outlive us or our parent.

    python guard.py LOG COMMAND...

The parent holds our standard input. Whatever ends the parent, even SIGKILL, closes it; then, or on a
signal, the command and every process it made are stopped. Standard library only: it starts in 50 ms.
Exit status: the command's own, or 128 + signal.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
GRACE_S = 8.0


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parent = int(stat.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found, queue = [], list(children.get(root, []))
    while queue:
        pid = queue.pop()
        found.append(pid)
        queue += children.get(pid, [])
    return found


def _send(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _reap() -> None:
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return


def _stop_all(child: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the command, which stops its own workers; SIGKILL to whatever is left after GRACE_S."""
    if child.poll() is None:
        child.terminate()
    deadline = time.monotonic() + GRACE_S
    while time.monotonic() < deadline:
        child.poll()
        _reap()
        if not _descendants(os.getpid()):
            return
        if child.returncode is not None:
            _send(_descendants(os.getpid()), signal.SIGTERM)
        time.sleep(0.05)
    while left := _descendants(os.getpid()):
        _send(left, signal.SIGKILL)
        time.sleep(0.02)
        child.poll()
        _reap()


def main() -> int:
    """See the module's text."""
    log, *command = sys.argv[1:]
    _prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphaned grandchildren become ours, so that none is missed
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    with open(log, "ab", buffering=0) as out:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, preexec_fn=lambda: _prctl(PR_SET_PDEATHSIG, signal.SIGKILL))
    received = 0
    while child.poll() is None and not received:
        ready, _, _ = select.select([wake, sys.stdin.fileno()], [], [])
        if wake in ready:
            received = max((number for number in os.read(wake, 64) if number != signal.SIGCHLD), default=0)
        elif not os.read(sys.stdin.fileno(), 1):
            received = signal.SIGTERM
    _stop_all(child)
    return 128 + received if received else child.returncode if child.returncode >= 0 else 128 - child.returncode


if __name__ == "__main__":
    sys.exit(main())
