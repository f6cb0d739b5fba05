"""Who else used the processors while we measured?"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil


@dataclass
class HostShare:
    """`other`: processor time of everything but the server and us, stolen time included, over all processor time."""

    other: float | None = None


@contextmanager
def watching(server_pid: int) -> Iterator[HostShare]:
    """Fill in the share when the block ends. It stays None if the server is gone by then."""
    share = HostShare()
    began, busy, ours = time.monotonic(), _busy_s(), _tree_s(server_pid)
    yield share
    ours_now = _tree_s(server_pid)
    if ours is not None and ours_now is not None:
        used = _busy_s() - busy - (ours_now - ours)
        share.other = max(0.0, used / ((time.monotonic() - began) * (os.cpu_count() or 1)))


def _busy_s() -> float:
    times = psutil.cpu_times()
    return sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)


def _tree_s(server_pid: int) -> float | None:
    """Processor seconds of this process, and of the server with its live descendants; None if the server is gone."""
    total = sum(psutil.Process().cpu_times()[:2])
    try:
        processes = [server := psutil.Process(server_pid), *server.children(recursive=True)]
    except psutil.NoSuchProcess:
        return None
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:2])
    return total
