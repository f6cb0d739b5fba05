"""A run measures what is missing, and only that."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.standin.world import CHAPTER, TARGET, World, finished

from specstudy.analysis import group
from specstudy.errors import SpecstudyError
from specstudy.records import load_requests
from specstudy.serving import ENGINES

Run = Callable[[], SpecstudyError | None]


def test_a_whole_study_is_not_measured_again(measured: World, run: Run) -> None:
    lines = measured.lines()
    assert run() is None
    assert measured.lines() == lines
    assert measured.requests_served() == 0


def test_open_loads_are_told_apart_by_their_rate(world: World, run: Run) -> None:
    plan = world.profile["chapters"][CHAPTER]
    plan["arrivals"] = {"pattern": "poisson", "request_rates": [40, 50], "requests": 10}
    del plan["methods"][1]
    world.profile["measuring"]["max_schedule_lag_ms"] = 2000
    assert run() is None
    assert Counter(record.request_rate for record in world.records()) == {40: 2, 50: 2}
    served = world.requests_served()
    assert run() is None
    assert world.requests_served() == served
    assert len(world.records()) == 4


def test_another_output_limit_is_another_cell(measured: World, run: Run) -> None:
    measured.profile["workloads"]["words"]["max_tokens"] = 5
    del measured.profile["chapters"][CHAPTER]["methods"][1]
    assert run() is None
    assert Counter(record.max_tokens for record in measured.records()) == {6: 8, 5: 4}


def test_another_server_flag_is_another_cell(measured: World, run: Run) -> None:
    measured.profile["engine"]["max_num_seqs"] = 4
    del measured.profile["chapters"][CHAPTER]["methods"][1]
    assert run() is None
    assert len(measured.records()) == 12


def test_another_draft_of_the_same_name_is_measured_anew_and_never_averaged_with_the_old_one(world: World, run: Run, model_folder: Path) -> None:
    """A head that is trained further keeps its name; the folder that it is unpacked to doesn't."""
    plan = world.profile["chapters"][CHAPTER]
    plan["methods"][1] = {"method": "draft_model", "draft": "small", "num_speculative_tokens": [2]}
    plan["arrivals"] = {"concurrencies": [1]}
    for folder in ("small-aaaaaaaa", "small-bbbbbbbb"):
        shutil.copytree(model_folder, world.root / folder)
        draft = {"name": "small", "title": "", "method": "draft_model", "target": TARGET, "licence": "MIT", "source": {"kind": "folder", "path": folder}}
        (world.root / "data/drafts/small.yaml").write_text(yaml.safe_dump(draft))
        assert run() is None
    assert Counter(record.draft_folder for record in world.records()) == {None: 2, "small-aaaaaaaa": 2, "small-bbbbbbbb": 2}
    served = world.requests_served()
    assert run() is None
    assert world.requests_served() == served
    cells = group(world.records(), load_requests(world.records_path.with_suffix(".requests.parquet")))
    assert [[record.draft_folder for record in cell.records] for cell in cells] == [[None, None], ["small-bbbbbbbb", "small-bbbbbbbb"]]


def test_only_the_missing_repeat_is_measured(measured: World, run: Run) -> None:
    *rest, last = measured.lines()
    measured.records_path.write_bytes(b"\n".join(rest) + b"\n")
    lost = finished(measured.records()[-1])
    assert run() is None
    assert len(measured.records()) == 8
    assert measured.lines()[:7] == rest
    assert last not in measured.lines()
    assert lost != finished(measured.records()[-1]) == ("ngram", 2, 1)
    assert measured.requests_served() == 8  # 2 warm-ups and 6 requests


def test_an_engine_that_isnt_installed(world: World, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = ENGINES["vllm"]
    monkeypatch.setitem(ENGINES, "vllm", type(installed)("vllm", installed.argv, installed.env, lambda: None))
    error = run()
    assert error is not None
    assert "engine: got 'vllm'; an engine that is installed" in str(error)
    assert error.exit_status == 2


def test_each_request_of_a_server_has_a_seed_of_its_own_and_each_method_the_same(world: World, run: Run) -> None:
    """An engine may draw an imposed acceptance from the seed alone: repeats that shared seeds would be one repeat, measured twice."""
    assert run() is None
    served = [json.loads(line)["body"] for line in world.journal_path.read_text().splitlines()]
    measured = Counter(body["seed"] for body in served)
    # Two repeats of 3 and of 6 requests at 1 and 2 in flight, and each repeat's warm-ups with the first seeds of its own; two methods.
    assert sum(measured.values()) == 2 * 2 * (3 + 1 + 6 + 2)
    assert sorted(measured.values()) == [2] * 2 * (2 + 4) + [4] * 2 * (1 + 2)
