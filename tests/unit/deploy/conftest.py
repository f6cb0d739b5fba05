from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from specstudy.deploy.render import render, shipped_overlays

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def tree() -> dict[str, str]:
    """What deploy/ is to hold: path to content."""
    return render(shipped_overlays())


@pytest.fixture(scope="session")
def manifests(tree: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Every object of base and components, by its path; kustomize's own files, values and patches are none."""
    parsed = {path: yaml.safe_load(content) for path, content in tree.items() if path.endswith(".yaml") and path.startswith(("base/", "components/", "loader"))}
    return {path: content for path, content in parsed.items() if not path.endswith("kustomization.yaml")}
