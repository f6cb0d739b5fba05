"""A real control plane and a real Prometheus, built at the first run and kept in the cache."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from specstudy.errors import ConfigError
from specstudy.progress import tell
from specstudy.scaling.binaries import Binaries, build, find
from specstudy.scaling.control_plane import ControlPlane, control_plane
from specstudy.scaling.recipe import check_platform


@pytest.fixture(scope="session")
def binaries() -> Binaries:
    """Skipped only where they are neither to be found nor to be built; a build that fails, fails."""
    if find() is None:
        try:
            check_platform()
        except ConfigError as error:
            pytest.skip(str(error))
    return build(tell)


@pytest.fixture(scope="module")
def plane(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A fresh control plane for each module."""
    with control_plane(binaries, tmp_path_factory.mktemp("plane")) as started:
        yield started
