"""What used the processors while we measured: the server's processes, the load generator, and everything else."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil


@dataclass
class HostUse:
    """`other`: processor time of everything but the server and us, stolen time included, over all processor time.

    The rest are processor time over time, so processors in use: of the process that answers HTTP, of the busiest of those that it started, which is
    the engine's, and of us, who make the load. A Python process that is the bottleneck uses about one, whatever else is idle; but one
    that waits for a GPU may do so by spinning, and uses one too. None where unknown.
    """

    other: float | None = None
    api_server: float | None = None
    engine: float | None = None
    load_generator: float | None = None


@contextmanager
def watching(guard_pid: int) -> Iterator[HostUse]:
    """Fill in what was used when the block ends, by the process of serving.guard, whose one child is the server, and its descendants.

    All stays None if the server is gone by then.
    """
    use = HostUse()
    began, busy, before = time.monotonic(), _busy_s(), _by_process_s(guard_pid)
    yield use
    api_server, after = _child(guard_pid), _by_process_s(guard_pid)
    if before is None or after is None or api_server not in after:
        return
    elapsed = time.monotonic() - began
    spent = {pid: seconds - before.get(pid, 0.0) for pid, seconds in after.items()}
    use.other = max(0.0, (_busy_s() - busy - sum(spent.values())) / (elapsed * (os.cpu_count() or 1)))
    use.load_generator, use.api_server = spent.pop(os.getpid()) / elapsed, spent.pop(api_server) / elapsed
    engine = [seconds for pid, seconds in spent.items() if pid != guard_pid]
    use.engine = max(engine) / elapsed if engine else None


def _busy_s() -> float:
    times = psutil.cpu_times()
    return sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)


def _child(guard_pid: int) -> int | None:
    with contextlib.suppress(psutil.NoSuchProcess):
        return next((child.pid for child in psutil.Process(guard_pid).children()), None)
    return None


def _by_process_s(guard_pid: int) -> dict[int, float] | None:
    """Processor seconds of this process, of the guard and of its live descendants; None if the guard is gone."""
    try:
        processes = [psutil.Process(), guard := psutil.Process(guard_pid), *guard.children(recursive=True)]
        found = {one.pid: _seconds(one) for one in processes[:2]}
    except psutil.NoSuchProcess:
        return None
    for process in processes[2:]:
        with contextlib.suppress(psutil.NoSuchProcess):
            found[process.pid] = _seconds(process)
    return found


def _seconds(process: psutil.Process) -> float:
    return sum(process.cpu_times()[:2])
