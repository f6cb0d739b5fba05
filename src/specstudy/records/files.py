"""Write a file whole."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a file by rename, so that it is the old one or the new one and never half of either. Raises OSError."""
    scratch = path.with_name(f".{path.name}.new")
    try:
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(path)
    except OSError:
        with suppress(OSError):  # where not even the folder is one
            scratch.unlink(missing_ok=True)
        raise
