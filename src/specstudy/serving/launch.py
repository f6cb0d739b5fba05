"""A Deployment becomes a running server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from specstudy.errors import ConfigError, ServerStartError
from specstudy.serving.checks import check_files
from specstudy.serving.deployment import Deployment
from specstudy.serving.server import Command, Server, check_port, free_ports, running_together
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
    ports = None if port is None else [check_port(port)]
    with _launch([(deployment, log_path)], engine, ports, timeout_s, waiting) as (started,):
        if isinstance(started, ServerStartError):
            raise started
        yield started


@contextmanager
def launch_together(
    wanted: Sequence[tuple[Deployment, Path]], *, engine: str = "vllm", timeout_s: float = 600, waiting: Callable[[float], None] = lambda elapsed_s: None
) -> Iterator[list[Server | ServerStartError]]:
    """Serve several deployments, (deployment, log_path) each, for the length of the block; see `running_together`.

    Raises ConfigError before anything starts. A server that doesn't start is given as its error.
    """
    with _launch(wanted, engine, None, timeout_s, waiting) as started:
        yield started


@contextmanager
def _launch(
    wanted: Sequence[tuple[Deployment, Path]], engine: str, ports: list[int] | None, timeout_s: float, waiting: Callable[[float], None]
) -> Iterator[list[Server | ServerStartError]]:
    chosen = engine_named(engine)
    if chosen.version() is None:
        raise ConfigError("engine", engine, "an engine that is installed in this environment")
    for deployment, _ in wanted:
        check_files(deployment)
    commands = [
        Command(tuple(chosen.argv(deployment, port)), chosen.env(deployment), port, deployment.target, log_path)
        for (deployment, log_path), port in zip(wanted, ports or free_ports(len(wanted)), strict=True)
    ]
    with running_together(commands, timeout_s=timeout_s, waiting=waiting) as started:
        yield started
