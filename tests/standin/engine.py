"""Put the stand-in in vLLM's place, for tests only: the product has no flag for it."""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from specstudy.serving import Deployment, Engine, Server
from specstudy.serving.vllm import vllm_argv

SERVER = Path(__file__).with_name("server.py")
MARKER = "STANDIN_MARKER"
# What a Behaviour of server.py holds, and {"METHOD-LABEL": {...}} for what one server does otherwise.
Options = Mapping[str, Any]


def standin_engine(options: Options, marker: str) -> Engine:
    """An Engine that starts the stand-in with the flags that vLLM would get.

    `options` is a behaviour by server label, "*" for every server. It goes by the environment: a server's
    command line is part of what a cell is, and a fault must not make it another cell.
    """

    def argv(deployment: Deployment, port: int) -> list[str]:
        words = vllm_argv(deployment, port)
        return [sys.executable, str(SERVER), *words[words.index("--model") :]]

    def env(deployment: Deployment) -> dict[str, str]:
        behaviour = {**options.get("*", {}), **options.get(deployment.label, {})}
        return {"STANDIN_OPTIONS": json.dumps(behaviour), MARKER: marker}

    return Engine("vllm", argv, env, lambda: "standin")


def marked(marker: str) -> list[psutil.Process]:
    """Every process, guard and workers included, that was started with `marker`."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARKER) == marker and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def command_lines(marker: str) -> list[str]:
    """Those of the marked processes."""
    found = []
    for process in marked(marker):
        with suppress(psutil.Error):
            found.append(" ".join(process.cmdline()))
    return found


def survivors(marker: str, wait_s: float = 60.0) -> list[str]:
    """Command lines of marked processes that are still there after `wait_s`; they are then killed."""
    deadline = time.monotonic() + wait_s
    while (left := marked(marker)) and time.monotonic() < deadline:
        time.sleep(0.1)
    lines = []
    for process in left:
        try:
            lines.append(" ".join(process.cmdline()))
            process.kill()
        except psutil.NoSuchProcess:
            continue
    return lines


@dataclass(frozen=True)
class StandIn:
    """A running stand-in, as a test sees it."""

    server: Server

    def order(self, **behaviour: Any) -> None:
        """Behave so from now on, and begin the journal anew."""
        request = urllib.request.Request(f"{self.server.base_url}/standin", json.dumps(behaviour).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60):
            pass

    def told(self) -> dict[str, Any]:
        """Its journal and its state."""
        with urllib.request.urlopen(f"{self.server.base_url}/standin/journal", timeout=60) as answer:
            told: dict[str, Any] = json.load(answer)
            return told

    def journal(self) -> list[dict[str, Any]]:
        """What it did for each request, in the order in which they ended."""
        requests: list[dict[str, Any]] = self.told()["requests"]
        return requests
