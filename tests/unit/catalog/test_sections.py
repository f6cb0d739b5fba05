"""A chapter's sections: what they may name, and which servers they want."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from specstudy.catalog.models import ChapterPlan, Measuring, Section
from specstudy.errors import ConfigError

LOAD = {"workloads": ["code"], "arrivals": {"concurrencies": [8]}}
METHODS = [
    {"method": "none"},
    {"method": "eagle3", "draft": "a", "num_speculative_tokens": [3, 5]},
    {"method": "eagle3", "draft": "b", "num_speculative_tokens": [3]},
    {"method": "ngram", "num_speculative_tokens": [2]},
]


def chapter(**section: Any) -> ChapterPlan:
    return ChapterPlan.model_validate({"workloads": ["chat"], "arrivals": {"concurrencies": [1]}, "methods": METHODS, "sections": [{**LOAD, **section}]})


def wanted(section: dict[str, Any]) -> list[str]:
    plan = chapter(**section)
    servers = [(spec.method, spec.draft, k) for spec in plan.methods for k in spec.num_speculative_tokens or (None,)]
    return [f"{draft or method}{k or ''}" for method, draft, k in servers if plan.sections[0].wants(method, draft, k)]


@pytest.mark.parametrize(
    ("section", "servers"),
    [
        ({}, ["a3", "a5", "b3", "ngram2"]),
        ({"baseline": True}, ["none", "a3", "a5", "b3", "ngram2"]),
        ({"methods": ["eagle3"]}, ["a3", "a5", "b3"]),
        ({"drafts": ["b"]}, ["b3"]),
        ({"num_speculative_tokens": [5]}, ["a5"]),
        ({"num_speculative_tokens": [2, 5], "baseline": True}, ["none", "a5", "ngram2"]),
        ({"methods": ["eagle3"], "drafts": ["a"], "num_speculative_tokens": [3]}, ["a3"]),
    ],
)
def test_a_section_wants_the_servers_that_it_names(section: dict[str, Any], servers: list[str]) -> None:
    assert wanted(section) == servers


@pytest.mark.parametrize(
    ("section", "field", "got", "allowed"),
    [
        ({"drafts": ["c"]}, "sections.0.drafts", "c", "known: a, b"),
        ({"methods": ["peagle"]}, "sections.0.methods", "peagle", "known: eagle3, ngram, none"),
        ({"num_speculative_tokens": [7]}, "sections.0", (7,), "at least one method, draft and K of the chapter"),
        ({"methods": ["ngram"], "num_speculative_tokens": [3]}, "sections.0", (3,), "at least one method, draft and K"),
        ({"methods": ["none"]}, "sections.0.methods", ["none"], "baseline: true adds the baseline"),
    ],
)
def test_a_section_without_a_server_is_refused(section: dict[str, Any], field: str, got: object, allowed: str) -> None:
    with pytest.raises(ValidationError) as refused:
        chapter(**section)
    error = ConfigError.from_pydantic(refused.value, "file")
    assert (error.field, error.got) == (f"file: {field}", got)
    assert allowed in error.allowed


def test_workloads_of_chapter_and_sections_come_once() -> None:
    plan = ChapterPlan.model_validate(
        {
            "workloads": ["chat", "code"],
            "arrivals": {"concurrencies": [1]},
            "methods": METHODS,
            "sections": [LOAD, {**LOAD, "workloads": ["long", "chat"]}],
        }
    )
    assert plan.all_workloads == ("chat", "code", "long")


@pytest.mark.parametrize(
    ("model", "fields"),
    [(Section, {**LOAD, "workloads": []}), (Section, {**LOAD, "repeats": 1}), (Section, {**LOAD, "prompts_per_slot": 2}), (Measuring, {"servers_at_once": 0})],
)
def test_bounds(model: type[Section | Measuring], fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        model.model_validate(fields)


def test_by_default_a_server_is_alone() -> None:
    assert Measuring().servers_at_once == 1
