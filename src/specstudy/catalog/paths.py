"""Where the project's data and the user's cache are."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from specstudy.errors import ConfigError


def project_root() -> Path:
    """The checkout's folder: $SPECSTUDY_ROOT, else the folder that this package is installed from.

    Raises ConfigError when it holds no data/profiles.
    """
    given = os.environ.get("SPECSTUDY_ROOT")
    root = Path(given) if given else Path(__file__).resolve().parents[3]
    if not (root / "data" / "profiles").is_dir():
        raise ConfigError("SPECSTUDY_ROOT", str(root), "a checkout of specstudy, with a folder data/profiles")
    return root


def data_dir() -> Path:
    """The catalog's folder."""
    return project_root() / "data"


def check_writable(field: str, path: Path) -> None:
    """Raises ConfigError, naming `field`, where nothing can be written at `path`: asked before the work whose result belongs there."""
    try:
        place = next(folder for folder in path.resolve().parents if folder.exists())
    except OSError as error:  # a parent that may not even be searched
        raise ConfigError(field, str(path), f"a place that can be written to ({error.strerror})") from error
    if not (place.is_dir() and os.access(place, os.W_OK)):
        raise ConfigError(field, str(path), f"a place that can be written to; {place} can't")


def recorded_dir() -> Path:
    """Results that recorded mode reads by default: $SPECSTUDY_RESULTS, else data/results of the checkout."""
    given = os.environ.get("SPECSTUDY_RESULTS")
    return Path(given).resolve() if given else data_dir() / "results"


def cache_dir() -> Path:
    """Models and datasets: $SPECSTUDY_CACHE, else the platform's cache folder for specstudy."""
    given = os.environ.get("SPECSTUDY_CACHE")
    return Path(given).resolve() if given else Path(platformdirs.user_cache_dir("specstudy"))
