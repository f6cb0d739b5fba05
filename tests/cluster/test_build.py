"""The build, where it fails: nothing half-made stays, and the reason is told. Where it succeeds, the other modules here use what it made."""

from __future__ import annotations

from pathlib import Path

import pytest

from specstudy.errors import AssetError, ConfigError
from specstudy.scaling.binaries import VARIABLE, build
from specstudy.scaling.recipe import MIRROR_VARIABLE, check_platform


@pytest.fixture(autouse=True)
def able() -> None:
    try:
        check_platform()
    except ConfigError as error:
        pytest.skip(str(error))


def test_a_mirror_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECSTUDY_CACHE", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv(MIRROR_VARIABLE, "http://127.0.0.1:1/debian")
    said: list[str] = []
    with pytest.raises(AssetError, match=r"(?s)reading Debian bookworm's package lists failed with status 100.*127\.0\.0\.1"):
        build(said.append)
    assert said == ["reading Debian bookworm's package lists"]
    kept = [path.name for path in (tmp_path / "kubernetes").iterdir()]
    assert sorted(kept) == ["1.20.2-1.lock", "build.log"]
