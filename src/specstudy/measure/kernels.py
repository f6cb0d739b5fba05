"""Kernels that the engine compiles while it serves, as its own log tells: a load that meets one is no steady state."""

from __future__ import annotations

import os
from pathlib import Path

# vLLM's monitor of compilation (vllm/utils/jit_monitor.py, the same words in 0.26.0 and 0.32.0) says once that it watches, on a GPU before
# the server is ready, and then a line like "Triton kernel JIT compilation during inference: _topk_forward. This causes a latency spike; …".
# Without --jit-monitor-verbose it names each kernel once only, however many shapes it is compiled for.
WATCHED = b"Kernel JIT monitor activated"
COMPILED = b"JIT compilation during inference: "


class KernelLog:
    """A server's log, read on from where it was read last. To be asked between loads: reading costs time, if little."""

    def __init__(self, path: Path) -> None:
        self._path, self._read, self._watched = path, 0, False
        self.compiled()

    def compiled(self) -> int | None:
        """Kernels compiled since it was asked last; None while the log doesn't say that the engine watches for them.

        Of a log that was removed or cut short meanwhile nothing can be said, so that is None too.
        """
        try:
            with self._path.open("rb") as log:
                if log.seek(0, os.SEEK_END) < self._read:
                    self._read = log.tell()
                    return None
                log.seek(self._read)
                fresh = log.read()
        except OSError:
            return None
        whole = fresh[: fresh.rfind(b"\n") + 1]  # the rest of a line that is being written is read next time
        self._read += len(whole)
        self._watched = self._watched or WATCHED in whole
        return whole.count(COMPILED) if self._watched else None
