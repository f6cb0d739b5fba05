from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.standin.engine import standin_engine, survivors
from tests.standin.world import CHAPTER, PROFILE, World, make_model_folder, make_world

from specstudy.errors import SpecstudyError
from specstudy.serving import ENGINES
from specstudy.study import open_study


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_folder(tmp_path_factory.mktemp("model") / "words")


@pytest.fixture(autouse=True)
def marker() -> Iterator[str]:
    """Names every process that a test's servers are made of; none of them may outlive the test."""
    name = f"standin-{uuid.uuid4().hex}"
    yield name
    assert survivors(name) == []


@pytest.fixture
def world(tmp_path: Path, model_folder: Path, marker: str, monkeypatch: pytest.MonkeyPatch) -> World:
    """A small study whose servers are stand-ins; the product finds it by its environment variables."""
    made = make_world(tmp_path, model_folder, marker)
    for name, value in made.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(ENGINES, "vllm", standin_engine(made.options, marker))
    return made


def run_live(world: World) -> SpecstudyError | None:
    world.write()
    try:
        open_study(CHAPTER, PROFILE, "live", str(world.root / "results"))
    except SpecstudyError as error:
        return error
    return None


@pytest.fixture
def run(world: World) -> Callable[[], SpecstudyError | None]:
    """Run the chapter live in this process; the error that ended it, if one did."""
    return lambda: run_live(world)


@pytest.fixture(scope="session")
def measured_results(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Path:
    """Results of one whole run, eight records; every world counts them as its own, since only its folder differs."""
    made = make_world(tmp_path_factory.mktemp("measured"), model_folder, f"standin-{uuid.uuid4().hex}")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in made.env.items():
            patch.setenv(name, value)
        patch.setitem(ENGINES, "vllm", standin_engine(made.options, made.marker))
        assert run_live(made) is None
    assert survivors(made.marker) == []
    return made.root / "results"


@pytest.fixture
def measured(world: World, measured_results: Path) -> World:
    """A world whose chapter is on disk."""
    shutil.copytree(measured_results, world.root / "results")
    return world
