"""Where the lab's programs are: etcd, Kubernetes, Prometheus, kustomize. Found, else built once from Debian's packages."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from specstudy.catalog.assets import Say, once, silent
from specstudy.catalog.paths import cache_dir
from specstudy.errors import ConfigError

VARIABLE = "SPECSTUDY_KUBERNETES_BIN"
# The newest Kubernetes whose whole source a Debian package has. It is out of support: for experiments on loopback and tests only.
KUBERNETES_VERSION = "1.20.2"
# Bookworm's etcd and Prometheus, trixie's kustomize: unpacked, not built. A change here or in the recipe must change RECIPE.
RECIPE = 1
SERVERS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "prometheus")
TOOLS = ("kubectl", "kustomize", "promtool")


@dataclass(frozen=True)
class Binaries:
    """A folder that holds every program of the lab."""

    folder: Path

    def path(self, name: str) -> str:
        """One program's path."""
        return str(self.folder / name)


def cached_folder() -> Path:
    """Where `build` puts the programs, named by their version."""
    return cache_dir() / "kubernetes" / f"{KUBERNETES_VERSION}-{RECIPE}"


def missing(folder: Path) -> list[str]:
    """Programs that a folder lacks."""
    return [name for name in (*SERVERS, *TOOLS) if not os.access(folder / name, os.X_OK)]


def find() -> Binaries | None:
    """The programs of $SPECSTUDY_KUBERNETES_BIN, else those in the cache; None if they were never built.

    Raises ConfigError if the variable names a folder that lacks one.
    """
    given = os.environ.get(VARIABLE)
    folder = Path(given).expanduser().resolve() if given else cached_folder()
    lacking = missing(folder)
    if given and lacking:
        raise ConfigError(VARIABLE, given, f"a folder that also holds {', '.join(lacking)}")
    return None if lacking else Binaries(folder)


def need() -> Binaries:
    """The programs. Raises ConfigError, saying how to get them, if they aren't there."""
    found = find()
    if found is None:
        raise ConfigError(VARIABLE, None, f"a folder with {', '.join(SERVERS)}; or build them once with `specstudy lab build` (about 6 CPU-minutes)")
    return found


def build(say: Say = silent) -> Binaries:
    """The programs, built if they aren't there; of two builds at once one waits for the other.

    Raises ConfigError on a machine that can't build them, AssetError when a download or the build fails.
    """
    found = find()
    if found is not None:
        return found
    from specstudy.scaling.recipe import check_platform, make

    check_platform()
    return Binaries(once(cached_folder(), lambda scratch: make(scratch, cached_folder().with_name("build.log"), say)))
