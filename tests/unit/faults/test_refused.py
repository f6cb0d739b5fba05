"""What can't be done is refused with its field's name, and nothing was started for it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from tests.standin.engine import marked
from tests.standin.world import CHAPTER, PROFILE, TARGET, World

from specstudy.catalog import load_profile
from specstudy.errors import AssetError, ConfigError, SpecstudyError
from specstudy.plan import make_plan
from specstudy.serving import launch
from specstudy.study import open_study

Run = Callable[[], SpecstudyError | None]


def refused(world: World, error: SpecstudyError | None, kind: type[SpecstudyError], *says: str) -> None:
    assert isinstance(error, kind), error
    assert all(part in str(error) for part in says), error
    assert world.records() == []
    assert world.requests_served() == 0
    assert marked(world.marker) == []


def test_the_world_itself_is_fine(world: World, run: Run) -> None:
    assert run() is None
    assert len(world.records()) == 8


def test_unknown_profile(world: World) -> None:
    with pytest.raises(ConfigError, match=f"profile: got 'nope'; known: {PROFILE}") as caught:
        open_study(CHAPTER, "nope", "live", str(world.root / "results"))
    assert caught.value.exit_status == 2
    assert not (world.root / "results").exists()


def test_unknown_chapter(world: World) -> None:
    with pytest.raises(ConfigError, match=f"chapter: got '99_none'; known: {CHAPTER}"):
        open_study("99_none", PROFILE, "live", str(world.root / "results"))
    assert not (world.root / "results").exists()


def test_unknown_mode(world: World) -> None:
    with pytest.raises(ConfigError, match="mode: got 'lively'; known: live, recorded"):
        open_study(CHAPTER, PROFILE, "lively")


def test_unknown_method(world: World, run: Run) -> None:
    world.profile["chapters"][CHAPTER]["methods"][1]["method"] = "medusa"
    refused(world, run(), ConfigError, "method", "medusa", "ngram")


def test_unknown_dataset(world: World, run: Run) -> None:
    world.profile["workloads"]["words"] = {"dataset": "nope", "max_prompt_tokens": 64, "max_tokens": 6}
    refused(world, run(), ConfigError, "dataset: got 'nope'", "humaneval")


def test_unknown_key(world: World, run: Run) -> None:
    world.profile["engine"]["max_model_length"] = 256
    refused(world, run(), ConfigError, "engine.max_model_length")


def test_unknown_target(world: World, run: Run) -> None:
    world.profile["target"] = "nope"
    refused(world, run(), ConfigError, "target: got 'nope'", TARGET)


def test_unknown_draft(world: World, run: Run) -> None:
    world.profile["chapters"][CHAPTER]["methods"].append({"method": "draft_model", "draft": "nope", "num_speculative_tokens": [2]})
    refused(world, run(), ConfigError, "draft: got 'nope'")


@pytest.mark.parametrize("exists", [False, True], ids=["no folder", "an empty folder"])
def test_missing_model_folder(world: World, run: Run, exists: bool) -> None:
    folder = world.root / "nowhere"
    if exists:
        folder.mkdir()
    path = world.root / "data" / "targets" / f"{TARGET}.yaml"
    target = yaml.safe_load(path.read_text())
    target["source"]["path"] = str(folder)
    path.write_text(yaml.safe_dump(target))
    refused(world, run(), AssetError, str(folder), "config.json")


def test_missing_prompts_file(world: World, run: Run) -> None:
    (world.root / "prompts.jsonl").unlink()
    refused(world, run(), ConfigError, "path", "prompts.jsonl")


def test_a_prompts_line_that_is_no_prompt(world: World, run: Run) -> None:
    with (world.root / "prompts.jsonl").open("a") as out:
        out.write('{"text": "hello"}\n')
    refused(world, run(), ConfigError, "prompts.jsonl, line 61")


def test_too_few_prompts(world: World, run: Run) -> None:
    world.profile["measuring"]["prompts_per_slot"] = 40
    refused(world, run(), ConfigError, "workload words: got 80", "60 prompts")


def test_a_context_longer_than_the_models(world: World, run: Run) -> None:
    world.profile["engine"]["max_model_len"] = 8192
    refused(world, run(), ConfigError, "max_model_len: got 8192", "4096")


def test_a_flag_that_the_deployment_sets_itself(world: World, run: Run) -> None:
    world.profile["engine"]["flags"] = {"port": 8000}
    refused(world, run(), ConfigError, "flags.port")


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


def test_port_in_use(world: World, taken_port: int, tmp_path: Path) -> None:
    deployment = make_plan(load_profile(PROFILE), CHAPTER, print).servers[0].deployment
    with pytest.raises(ConfigError, match=f"port: got {taken_port}; a free port"), launch(deployment, tmp_path / "log", port=taken_port):
        pass
    assert not (tmp_path / "log").exists()
