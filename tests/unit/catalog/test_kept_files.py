"""Every YAML file kept in the repository loads, and every kept file is a kind that somebody reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specstudy.catalog import load_draft, load_profile, load_target, names_in
from specstudy.catalog.models import METHODS_WITHOUT_DRAFT, PackedSource, PrunedSource
from specstudy.catalog.shapes import load_shape

DATA = Path(__file__).parents[3] / "data"
LOADERS: dict[str, Callable[[str], object]] = {"profiles": load_profile, "targets": load_target, "drafts": load_draft, "shapes": load_shape}
KEPT = [(folder, path.stem) for folder in LOADERS for path in sorted((DATA / folder).glob("*.yaml"))]


@pytest.fixture(autouse=True)
def _this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECSTUDY_ROOT", str(DATA.parent))


@pytest.mark.parametrize(("folder", "name"), KEPT)
def test_every_kept_file_loads_under_its_own_name(folder: str, name: str) -> None:
    assert getattr(LOADERS[folder](name), "name", None) == name


def packed_heads() -> dict[str, str]:
    """Folders of packed heads by the draft that names them."""
    sources = {name: load_draft(name).source for name in names_in("drafts")}
    return {name: source.path for name, source in sources.items() if isinstance(source, PackedSource)}


@pytest.mark.parametrize("folder", LOADERS)
def test_a_catalog_folder_holds_yaml_files_and_packed_heads_only(folder: str) -> None:
    packed = {DATA.parent / path for path in packed_heads().values()}
    unclassified = [path.name for path in (DATA / folder).iterdir() if path.suffix != ".yaml" and path not in packed]
    assert unclassified == [], f"data/{folder} holds what no loader reads"
    assert names_in(folder), f"data/{folder} offers nothing"


def test_a_packed_head_lies_under_its_drafts_own_name() -> None:
    assert packed_heads() == {name: f"data/drafts/{name}" for name in packed_heads()}


@pytest.mark.parametrize("name", [name for folder, name in KEPT if folder == "drafts"])
def test_every_kept_draft_belongs_to_a_kept_target(name: str) -> None:
    draft = load_draft(name)
    assert load_target(draft.target).name == draft.target
    if isinstance(draft.source, PrunedSource):
        assert draft.source.of == draft.target


@pytest.mark.parametrize("name", [name for folder, name in KEPT if folder == "profiles"])
def test_every_kept_profile_names_a_draft_exactly_where_a_method_loads_one(name: str) -> None:
    for plan in load_profile(name).chapters.values():
        for spec in plan.methods:
            assert (spec.draft is None) == (spec.method in METHODS_WITHOUT_DRAFT), spec
