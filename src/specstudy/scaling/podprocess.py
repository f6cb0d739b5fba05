"""One Pod as a local process: start, probes, restart, drain. What a kubelet would do, as far as a serving pod needs it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any

from specstudy.serving.local import get
from specstudy.serving.server import Command, free_port, start, stop

TICK_S = 0.1
LONGEST_BACKOFF_S = 30.0


@dataclass(frozen=True)
class Probe:
    """An httpGet probe; seconds as in a pod's spec."""

    path: str
    period_s: float = 10
    timeout_s: float = 1
    failures: int = 3

    @classmethod
    def of(cls, spec: Mapping[str, Any] | None) -> Probe | None:
        """From a container's probe; None for none, or for another kind than httpGet."""
        if not spec or not spec.get("httpGet"):
            return None
        return cls(spec["httpGet"]["path"], spec.get("periodSeconds") or 10, spec.get("timeoutSeconds") or 1, spec.get("failureThreshold") or 3)


def local_argv(words: Sequence[str], port: int, container_port: int) -> list[str]:
    """A container's command on this machine: our interpreter for python, loopback for --host, `port` for the container's.

    Pods share this machine's loopback, so each has a port of its own.
    """
    argv = [sys.executable if word in ("python", "python3") else word for word in words]
    if argv[:2] == ["vllm", "serve"]:
        argv = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", *argv[2:]]
    for flag, value in (("--port", str(port)), ("--host", "127.0.0.1")):
        argv = [value if before == flag else word for before, word in zip(["", *argv], argv, strict=False)]
    return [word.replace(f":{container_port}", f":{port}") for word in argv]


@dataclass
class PodProcess:
    """Runs until `delete` is called, in a thread of its own; `report` is called whenever the status changes."""

    name: str
    spec: Mapping[str, Any]
    log_path: Path
    report: Callable[[PodProcess], None]
    port: int = field(default_factory=free_port)
    ready: bool = False
    started: bool = False
    restarts: int = 0
    began_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    ready_since: datetime | None = None

    def __post_init__(self) -> None:
        self._container: Mapping[str, Any] = self.spec["containers"][0]
        self._deleted = threading.Event()
        self._grace_s = 30.0
        self._thread = threading.Thread(target=self._run, name=f"pod {self.name}", daemon=True)

    def begin(self) -> None:
        """Start the process and its probes."""
        self._thread.start()

    def delete(self, grace_s: float) -> None:
        """preStop, then SIGTERM; the process is gone when `join` returns."""
        self._grace_s = grace_s
        self._deleted.set()

    def join(self) -> None:
        """Wait for the end."""
        self._thread.join()

    @property
    def container_port(self) -> int:
        """The port that the spec names; 8000 if it names none."""
        ports = self._container.get("ports") or [{}]
        return int(ports[0].get("containerPort", 8000))

    @property
    def address(self) -> str:
        """host:port on this machine."""
        return f"127.0.0.1:{self.port}"

    def _environment(self) -> dict[str, str]:
        given = {one["name"]: one["value"] for one in self._container.get("env") or [] if one.get("value") is not None}
        return {**given, "POD_NAME": self.name}

    def _command(self) -> Command:
        """Each start has a log of its own: why the one before ended must stay readable."""
        log = self.log_path.with_suffix(f".{self.restarts}.log") if self.restarts else self.log_path
        words = [*(self._container.get("command") or []), *(self._container.get("args") or [])]
        return Command(tuple(local_argv(words, self.port, self.container_port)), self._environment(), self.port, "", log)

    def _run(self) -> None:
        backoff_s = 1.0
        while not self._deleted.is_set():
            process = start(self._command())
            try:
                self._watch(process)
                if self._deleted.is_set() and process.poll() is None:
                    self._pre_stop()
            finally:
                stop(process)
            self._now(ready=False, started=False)
            if not self._deleted.wait(backoff_s):
                self.restarts += 1
                backoff_s = min(LONGEST_BACKOFF_S, 2 * backoff_s)
                self.report(self)

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Probe until the process ends or the pod is deleted. No liveness probe: a process that hangs is seen by the readiness probe."""
        readiness, startup = Probe.of(self._container.get("readinessProbe")), Probe.of(self._container.get("startupProbe"))
        missed, due_s = 0, time.monotonic()
        self._now(ready=readiness is None and startup is None, started=startup is None)
        while process.poll() is None and not self._deleted.wait(TICK_S):
            probe = readiness if self.started else startup
            if probe is None or time.monotonic() < due_s:
                continue
            due_s = time.monotonic() + probe.period_s
            if _answers(f"http://{self.address}{probe.path}", probe.timeout_s):
                missed = 0
                self._now(ready=self.ready or self.started or readiness is None, started=True)
                due_s = due_s if self.ready else 0.0  # started now: ask for readiness at once
            else:
                missed += 1
                if not self.started and missed >= probe.failures:
                    return  # as a kubelet does: never came up, so it is restarted
                if self.ready and missed >= probe.failures:
                    self._now(ready=False, started=True)

    def _now(self, *, ready: bool, started: bool) -> None:
        if (ready, started) != (self.ready, self.started):
            self.ready, self.started = ready, started
            self.ready_since = datetime.now(UTC) if ready else None
            self.report(self)

    def _pre_stop(self) -> None:
        """The spec's preStop command, within the grace period; new requests have stopped coming, those in flight end."""
        hook = ((self._container.get("lifecycle") or {}).get("preStop") or {}).get("exec")
        if hook is None:
            time.sleep(float((((self._container.get("lifecycle") or {}).get("preStop") or {}).get("sleep") or {}).get("seconds", 0)))
            return
        argv = local_argv(hook["command"], self.port, self.container_port)
        process = start(Command(tuple(argv), self._environment(), self.port, "", self.log_path.with_suffix(".prestop.log")))
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self._grace_s)
        finally:
            stop(process)


def _answers(url: str, timeout_s: float) -> bool:
    try:
        get(url, timeout_s)
    except (OSError, HTTPException):
        return False
    return True
