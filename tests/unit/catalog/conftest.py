from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

TARGET = {"name": "tiny", "title": "Tiny", "licence": "MIT", "source": {"kind": "folder", "path": "models/tiny"}}
DRAFT = {"name": "tiny-pruned", "title": "Tiny, pruned", "method": "draft_model", "target": "tiny", "licence": "MIT"}
PROFILE = {
    "name": "tiny-cpu",
    "title": "Tiny on a CPU",
    "evidence": "real",
    "hardware": "cpu",
    "target": "tiny",
    "dtype": "float32",
    "engine": {"max_model_len": 64, "max_num_seqs": 2},
    "workloads": {"chat": {"dataset": "humaneval", "max_prompt_tokens": 32, "max_tokens": 8}},
    "chapters": {"03_baseline": {"workloads": ["chat"], "arrivals": {"concurrencies": [1]}, "methods": [{"method": "none"}]}},
}

Write = Callable[[str, dict[str, object]], Path]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder of this test's own."""
    monkeypatch.setenv("SPECSTUDY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder with an empty catalog."""
    folder = tmp_path / "project"
    for name in ("profiles", "targets", "drafts"):
        (folder / "data" / name).mkdir(parents=True)
    monkeypatch.setenv("SPECSTUDY_ROOT", str(folder))
    return folder


@pytest.fixture
def write(root: Path) -> Write:
    """Write one YAML file under the project's data folder."""

    def write_yaml(name: str, content: dict[str, object]) -> Path:
        path = root / "data" / name
        path.write_text(yaml.safe_dump(content))
        return path

    return write_yaml


@pytest.fixture
def tiny_catalog(root: Path, write: Write) -> Path:
    """A catalog of one target, one pruned draft and one profile."""
    write("targets/tiny.yaml", TARGET)
    write("drafts/tiny-pruned.yaml", {**DRAFT, "source": {"kind": "pruned", "of": "tiny", "layers": [0, 2]}})
    write("profiles/tiny-cpu.yaml", PROFILE)
    return root


@pytest.fixture
def profile_with() -> Callable[..., dict[str, object]]:
    """The profile with some of its top-level keys replaced."""
    return lambda **changes: {**PROFILE, **changes}
