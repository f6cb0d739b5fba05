"""The files of a packed draft head, and the hashes that name its unpacked folder. Needs no torch."""

from __future__ import annotations

import hashlib
import lzma
from functools import cache
from pathlib import Path

from specstudy.errors import AssetError

WEIGHTS, CONFIG = "head.safetensors.xz", "config.json"


def packed_sha256(folder: Path) -> str:
    """SHA-256 over the packed weights and config.json: names the unpacked folder. Raises AssetError if one is missing."""
    return hashlib.sha256(_read(folder, WEIGHTS) + _read(folder, CONFIG)).hexdigest()


def decompressed_sha256(folder: Path) -> str:
    """The same over the decompressed weights: it stays when they are only compressed otherwise. Raises AssetError."""
    return _decompressed(folder, packed_sha256(folder))


@cache
def _decompressed(folder: Path, packed: str) -> str:
    """Once for each content, which `packed` stands for: every page asks, and to decompress takes 30 times as long as to hash."""
    try:
        weights = lzma.decompress(_read(folder, WEIGHTS))
    except lzma.LZMAError as error:
        raise AssetError(f"{folder / WEIGHTS} isn't a whole xz file ({error})") from error
    return hashlib.sha256(weights + _read(folder, CONFIG)).hexdigest()


def _read(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        raise AssetError(f"{folder / name} can't be read ({error.strerror}); it belongs to the checkout") from error
