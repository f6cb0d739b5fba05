"""From a profile to servers and cells, and when a cell has enough; nothing is started."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from tests.standin.world import CHAPTER, PROFILE, World, make_model_folder, make_world

import specstudy.plan
from specstudy.catalog import load_profile
from specstudy.catalog.models import Measuring
from specstudy.errors import ConfigError
from specstudy.plan import Cell, Plan, at_concurrencies, cell_facts, enough, expected_repeat_s, make_plan, with_repeats
from specstudy.records import Record
from specstudy.workloads.prompts import Message

NGRAM = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """The stand-in's study with a second workload; prompt tokens are words."""
    made = make_world(tmp_path, make_model_folder(tmp_path / "model"), f"standin-{uuid.uuid4().hex}")
    for name, value in made.env.items():
        monkeypatch.setenv(name, value)

    def words(messages: Sequence[Message]) -> int:
        return 1 + sum(1 + len(turn["content"].split()) for turn in messages)

    monkeypatch.setattr(specstudy.plan, "kept_token_counter", lambda folder: nullcontext(words))
    made.profile["workloads"]["short"] = {**made.profile["workloads"]["words"], "max_prompt_tokens": 10}
    made.profile["chapters"][CHAPTER]["methods"][1:] = [{**NGRAM, "num_speculative_tokens": [2, 4]}]
    return made


def planned(world: World, names: Sequence[str] = (), *sections: dict[str, Any]) -> Plan:
    world.profile["chapters"][CHAPTER]["sections"] = list(sections)
    world.write()
    return make_plan(load_profile(PROFILE), CHAPTER, lambda text: None, names)


def cells(plan: Plan) -> dict[str, list[str]]:
    return {server.deployment.label: [cell.label for cell in server.cells] for server in plan.servers}


def test_a_section_adds_loads_to_its_servers_only(world: World) -> None:
    section = {"workloads": ["short"], "arrivals": {"concurrencies": [2]}, "num_speculative_tokens": [4], "repeats": 4, "prompts_per_slot": 5}
    plan = planned(world, (), section)
    both = ["words c=1", "words c=2"]
    assert cells(plan) == {"none": both, "ngram-k2": both, "ngram-k4": [*both, "short c=2"]}
    added = plan.servers[2].cells[2]
    assert (added.num_prompts, added.warmups, added.repeats) == (10, 2, 4)
    assert plan.servers[2].cells[1].repeats is None
    assert plan.servers[2].cells[1].num_prompts == 6
    assert set(plan.pools) == {"words", "short"}


def test_the_baseline_gets_a_sections_loads_where_it_is_asked_for(world: World) -> None:
    plan = planned(world, (), {"workloads": ["short"], "arrivals": {"concurrencies": [2]}, "baseline": True})
    assert all(labels[-1] == "short c=2" for labels in cells(plan).values())


def test_a_load_that_chapter_and_section_name_comes_once(world: World) -> None:
    plan = planned(world, (), {"workloads": ["words"], "arrivals": {"concurrencies": [2, 3]}, "repeats": 9})
    assert cells(plan)["ngram-k2"] == ["words c=1", "words c=2", "words c=3"]
    assert [cell.repeats for cell in plan.servers[1].cells] == [None, None, 9]


@pytest.mark.parametrize(
    ("names", "labels"),
    [([], ["none", "ngram-k2", "ngram-k4"]), (["none"], ["none"]), (["ngram-k4"], ["none", "ngram-k4"]), (["ngram"], ["none", "ngram-k2", "ngram-k4"])],
)
def test_a_part_always_has_the_baseline(world: World, names: list[str], labels: list[str]) -> None:
    assert list(cells(planned(world, names))) == labels


def test_a_part_reads_no_prompts_for_the_rest(world: World) -> None:
    section = {"workloads": ["short"], "arrivals": {"concurrencies": [2]}, "num_speculative_tokens": [4]}
    assert set(planned(world, ["ngram-k2"], section).pools) == {"words"}


def test_an_unknown_part_is_refused(world: World) -> None:
    with pytest.raises(ConfigError, match="only: got 'ngram-k3'; known: ngram, ngram-k2, ngram-k4, none"):
        planned(world, ["ngram-k3"])


def test_a_section_of_an_unknown_workload_is_refused(world: World) -> None:
    with pytest.raises(ConfigError, match="workloads: got 'nope'; known: short, words"):
        planned(world, (), {"workloads": ["nope"], "arrivals": {"concurrencies": [1]}})


VARIANTS = [
    {"name": "plain", "quantization": None},
    {"name": "small", "quantization": "fp8", "max_model_len": 64, "flags": {"enforce-eager": True}, "env": {"FORCE": "1"}},
]


def with_variants(world: World) -> Plan:
    world.profile["engine"] |= {"quantization": "awq", "flags": {"block-size": 16}, "env": {"FORCE": "0", "KEPT": "1"}}
    world.profile["chapters"][CHAPTER]["variants"] = VARIANTS
    world.profile["chapters"][CHAPTER]["methods"][1:] = [{**NGRAM, "num_speculative_tokens": [2]}]
    return planned(world)


def test_each_variant_of_the_engine_gets_each_method(world: World) -> None:
    plan = with_variants(world)
    assert list(cells(plan)) == ["plain", "plain-ngram-k2", "small", "small-ngram-k2"]
    plain, _, small, _ = (server.deployment for server in plan.servers)
    # A quantization is never inherited; flags and environment are added to the engine's.
    assert (plain.quantization, plain.max_model_len, plain.flags, plain.env) == (None, 256, {"block-size": 16}, {"FORCE": "0", "KEPT": "1"})
    assert (small.quantization, small.max_model_len) == ("fp8", 64)
    assert (small.flags, small.env) == ({"block-size": 16, "enforce-eager": True}, {"FORCE": "1", "KEPT": "1"})
    facts = cell_facts(plan, small, plan.servers[2].cells[0])
    assert (facts["engine_variant"], facts["quantization"], facts["server_env"]) == ("small", "fp8", ("FORCE=1", "KEPT=1"))


@pytest.mark.parametrize(
    ("names", "labels"), [(["small"], ["small", "small-ngram-k2"]), (["plain-ngram-k2"], ["plain", "plain-ngram-k2"]), (["none"], ["plain", "small"])]
)
def test_a_part_of_the_variants_has_their_own_baseline(world: World, names: list[str], labels: list[str]) -> None:
    with_variants(world)
    assert list(cells(make_plan(load_profile(PROFILE), CHAPTER, lambda text: None, names))) == labels


def test_two_variants_of_one_name_are_refused(world: World) -> None:
    world.profile["chapters"][CHAPTER]["variants"] = [VARIANTS[0], VARIANTS[0]]
    with pytest.raises(ConfigError, match=r"variants: got .*; each name once"):
        planned(world)


@pytest.fixture
def record() -> Callable[..., Record]:
    """A good record whose figures a test names; nothing else of it matters here."""
    fixed = {"workload": "chat", "concurrency": 2, "request_rate": None, "num_prompts": 20, "max_tokens": 10, "output_tokens_per_s": 100.0}
    return lambda **figures: Record.model_construct(**{**fixed, **figures})


def cell(**changes: Any) -> Cell:
    return Cell(**{"workload": "chat", "pattern": "closed", "concurrency": 2, "request_rate": None, "num_prompts": 20, "warmups": 4, **changes})


RULES = Measuring(min_repeats=3, max_repeats=5, target_interval=0.03, cell_budget_s=40)


@pytest.mark.parametrize(
    ("throughputs", "seconds", "repeats", "done"),
    [
        ([100.0] * 2, 1, None, False),
        ([100.0] * 3, 1, None, True),  # an interval of 0
        ([90.0, 100.0, 110.0], 1, None, False),  # 4.30 x 10 / sqrt(3) = 25 % of the mean
        ([90.0, 100.0, 110.0], 10, None, False),  # a fourth makes 40 s, which is the budget
        ([90.0, 100.0, 110.0], 11, None, True),  # a fourth would make 44 s
        ([90.0, 100.0, 110.0, 90.0, 110.0], 1, None, True),  # as many as are allowed
        ([90.0, 100.0], 1, 2, True),
        ([100.0] * 3, 1, 4, False),
        ([90.0, 100.0, 110.0, 120.0], 100, 4, True),
    ],
)
def test_when_a_cell_has_enough(record: Callable[..., Record], throughputs: list[float], seconds: float, repeats: int | None, done: bool) -> None:
    measured = [record(output_tokens_per_s=throughput, duration_s=seconds) for throughput in throughputs]
    assert enough(RULES, repeats, measured) is done


def test_what_a_repeat_is_expected_to_take(record: Callable[..., Record]) -> None:
    # The same load: the mean of 10 s and 20 s, and a fifth more for 4 warm-ups to 20 prompts.
    assert expected_repeat_s(cell(), 10, [record(duration_s=10.0), record(duration_s=20.0)], Measuring()) == pytest.approx(18)
    # The same load with the same method tells more than with all of them, and another load of it nothing while this one is known.
    known = [record(duration_s=10.0), record(duration_s=20.0)]
    assert expected_repeat_s(cell(), 10, known, Measuring(), same_method=known[1:]) == pytest.approx(24)
    assert expected_repeat_s(cell(), 10, known, Measuring(), same_method=[record(concurrency=64, num_prompts=640, duration_s=1.0)]) == pytest.approx(18)
    # Twice the output limit: 20 prompts of 10 tokens over 2 slots took 10 s, so 0.1 s a token and slot; 10 in a row x 20 tokens x 0.1 s, and a fifth.
    assert expected_repeat_s(cell(), 20, [record(duration_s=10.0)], Measuring()) == pytest.approx(24)
    # The same concurrency tells more than another one.
    other = record(concurrency=64, num_prompts=640, duration_s=1.0)
    assert expected_repeat_s(cell(workload="code"), 20, [other, record(duration_s=10.0)], Measuring()) == pytest.approx(24)
    assert expected_repeat_s(cell(workload="code", concurrency=4, num_prompts=40, warmups=8), 20, [record(duration_s=10.0)], Measuring()) == pytest.approx(24)
    # An open load lasts as long as its arrivals do.
    assert expected_repeat_s(cell(concurrency=None, request_rate=2.0), 10, [], Measuring()) == pytest.approx(12)


def test_no_two_repeats_or_loads_share_a_request_seed() -> None:
    cells = [Cell("chat", "closed", c, None, 200, 1) for c in (1, 8, 32)] + [Cell("mix", "closed", 8, None, 200, 1)]
    seeds = [cell.request_seed(repeat) + index for cell in cells for repeat in range(5) for index in range(cell.num_prompts)]
    assert len(set(seeds)) == len(seeds) == 4 * 5 * 200
    assert all(0 <= seed < 2**53 for seed in seeds), "JSON's numbers are exact up to there"
    again = Cell("chat", "closed", 8, None, 200, 1, acceptance_source="a row")
    assert again.request_seed(3) == cells[1].request_seed(3), "a method's requests have the baseline's seeds"


def test_a_part_of_the_grid_by_its_loads(world: World) -> None:
    """Each load keeps its baseline; a section without a load left adds nothing, nor does an open loop; a load of a section alone is one too."""
    section = {"workloads": ["short"], "arrivals": {"concurrencies": [2, 3]}, "num_speculative_tokens": [4]}
    planned(world, (), section, {"workloads": ["short"], "arrivals": {"pattern": "poisson", "request_rates": [3], "requests": 10}})
    whole = load_profile(PROFILE)

    def at(*loads: int) -> dict[str, list[str]]:
        return cells(make_plan(at_concurrencies(whole, CHAPTER, loads), CHAPTER, lambda text: None))

    assert at(1) == {"none": ["words c=1"], "ngram-k2": ["words c=1"], "ngram-k4": ["words c=1"]}
    assert at(1, 2) == {"none": ["words c=1", "words c=2"], "ngram-k2": ["words c=1", "words c=2"], "ngram-k4": ["words c=1", "words c=2", "short c=2"]}
    assert at(3) == {"none": [], "ngram-k2": [], "ngram-k4": ["short c=3"]}
    with pytest.raises(ConfigError, match="concurrency: got 4; known: 1, 2, 3"):
        at(1, 4)


def test_exactly_so_many_repeats_whatever_a_section_says(world: World) -> None:
    planned(world, (), {"workloads": ["short"], "arrivals": {"concurrencies": [2]}, "num_speculative_tokens": [4], "repeats": 4})
    told = with_repeats(load_profile(PROFILE), CHAPTER, 6)
    assert {cell.repeats for server in make_plan(told, CHAPTER, lambda text: None).servers for cell in server.cells} == {None}
    assert (told.measuring.min_repeats, told.measuring.max_repeats) == (6, 6)
