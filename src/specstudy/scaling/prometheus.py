"""A real Prometheus on loopback, with the rules that `deploy/` ships."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

from specstudy.errors import MetricsUnavailableError, ServerStartError
from specstudy.scaling.binaries import Binaries
from specstudy.serving.local import get
from specstudy.serving.server import Command, free_port, log_tail, start, stop

START_TIMEOUT_S = 60.0
JOB = "vllm"


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus. Its targets are what `set_targets` wrote last."""

    url: str
    folder: Path
    process: subprocess.Popen[bytes]

    @property
    def log_path(self) -> Path:
        """Its log."""
        return _log(self.folder)

    def set_targets(self, pods: Mapping[str, str], namespace: str = "default") -> None:
        """Scrape these pods from now on: name to host:port. Labels are those that a PodMonitor gives: namespace and pod."""
        content = [{"targets": [address], "labels": {"namespace": namespace, "pod": pod}} for pod, address in pods.items()]
        scratch = self.folder / f".targets-{threading.get_ident()}.json"  # two threads may do this at once
        scratch.write_text(json.dumps(content))
        os.replace(scratch, self.folder / "targets.json")  # Prometheus watches the file and must not read half of it

    def query(self, expression: str) -> list[dict[str, Any]]:
        """An instant query's samples, each with `metric` and `value` [unix seconds, text]. Raises MetricsUnavailableError."""
        try:
            answer = json.loads(get(f"{self.url}/api/v1/query?{urlencode({'query': expression})}", timeout_s=10))
        except (OSError, HTTPException, ValueError) as error:
            raise MetricsUnavailableError(f"Prometheus didn't answer {expression!r}: {error}") from error
        samples: list[dict[str, Any]] = answer["data"]["result"]
        return samples


def configuration(rule_files: Sequence[Path], targets: Path, scrape_interval_s: float, evaluation_interval_s: float) -> dict[str, Any]:
    """Prometheus' configuration: one job, its targets from a file; Debian's build has no discovery through Kubernetes."""
    milliseconds = f"{round(scrape_interval_s * 1000)}ms"
    return {
        "global": {"scrape_interval": milliseconds, "scrape_timeout": milliseconds, "evaluation_interval": f"{round(evaluation_interval_s * 1000)}ms"},
        "rule_files": [str(path.resolve()) for path in rule_files],
        "scrape_configs": [{"job_name": JOB, "file_sd_configs": [{"files": [str(targets)], "refresh_interval": "1s"}]}],
    }


def _log(folder: Path) -> Path:
    return folder / "logs" / "prometheus.log"


@contextmanager
def prometheus(
    binaries: Binaries, folder: Path, rules: Sequence[Mapping[str, Any]], *, scrape_interval_s: float = 5, evaluation_interval_s: float = 5
) -> Iterator[Prometheus]:
    """Prometheus for the length of the block. `rules`: contents of rule files, each with `groups`; a PrometheusRule's `spec` is one.

    Raises ServerStartError, with the log's last lines, when it ends or isn't ready in time.
    """
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / "tsdb", ignore_errors=True)  # for five minutes an earlier lab's pods would pass for scraped ones
    files = []
    for number, content in enumerate(rules):
        files.append(folder / f"rules-{number}.yaml")
        files[-1].write_text(yaml.safe_dump(dict(content), sort_keys=False))
    targets, config, port = folder / "targets.json", folder / "prometheus.yaml", free_port()
    targets.write_text("[]")
    config.write_text(yaml.safe_dump(configuration(files, targets, scrape_interval_s, evaluation_interval_s), sort_keys=False))
    flags = {"config.file": str(config), "storage.tsdb.path": str(folder / "tsdb"), "web.listen-address": f"127.0.0.1:{port}", "log.level": "warn"}
    argv = (binaries.path("prometheus"), *(f"--{name}={value}" for name, value in flags.items()))
    process = start(Command(argv, {}, port, "", _log(folder)))
    try:
        running = Prometheus(f"http://127.0.0.1:{port}", folder, process)
        _await_ready(running, running.log_path)
        yield running
    finally:
        stop(process)


def _await_ready(running: Prometheus, log: Path) -> None:
    began = time.monotonic()
    while time.monotonic() - began < START_TIMEOUT_S:
        if running.process.poll() is not None:
            raise ServerStartError(f"Prometheus ended with status {running.process.returncode} before it was ready", log_tail(log))
        try:
            get(f"{running.url}/-/ready", timeout_s=5)
        except (OSError, HTTPException):
            time.sleep(0.1)
        else:
            return
    raise ServerStartError(f"Prometheus wasn't ready within {START_TIMEOUT_S:.0f} s", log_tail(log))
