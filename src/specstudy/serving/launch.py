"""A Deployment becomes a running server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from specstudy.errors import ConfigError
from specstudy.serving.checks import check_files
from specstudy.serving.deployment import Deployment
from specstudy.serving.server import Server, check_port, free_port, running
from specstudy.serving.vllm import vllm_argv, vllm_env, vllm_version


@dataclass(frozen=True)
class Engine:
    """What the study needs to know of a serving engine."""

    name: str
    argv: Callable[[Deployment, int], list[str]]
    env: Callable[[Deployment], dict[str, str]]
    version: Callable[[], str | None]


ENGINES: dict[str, Engine] = {"vllm": Engine("vllm", vllm_argv, vllm_env, vllm_version)}


def engine_named(name: str) -> Engine:
    """Raises ConfigError for an engine that isn't known."""
    if name not in ENGINES:
        raise ConfigError.unknown("engine", name, ENGINES)
    return ENGINES[name]


@contextmanager
def launch(
    deployment: Deployment,
    log_path: Path,
    *,
    engine: str = "vllm",
    port: int | None = None,
    timeout_s: float = 600,
    waiting: Callable[[float], None] = lambda elapsed_s: None,
) -> Iterator[Server]:
    """Serve `deployment` on a loopback port for the length of the block.

    Raises ConfigError before anything starts if the model's files or the port forbid it, ServerStartError after.
    """
    chosen = engine_named(engine)
    if chosen.version() is None:
        raise ConfigError("engine", engine, "an engine that is installed in this environment")
    check_files(deployment)
    port = free_port() if port is None else check_port(port)
    argv, env = chosen.argv(deployment, port), chosen.env(deployment)
    with running(argv, env, port=port, model=deployment.target, log_path=log_path, timeout_s=timeout_s, waiting=waiting) as server:
        yield server
