"""Write a file whole."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel

from specstudy.errors import RecordError


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


def write_model(path: Path, model: BaseModel, indent: int | None = None) -> None:
    """Keep a model as JSON, whole, in a folder that is made if it isn't there. Raises RecordError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, model.model_dump_json(indent=indent) + "\n")
    except OSError as error:
        raise RecordError(f"{path} can't be written: {error.strerror}") from error
