from __future__ import annotations

from tests.standin.synthetic import repeats

from specstudy.analysis import Cell
from specstudy.book.unrecorded import unrecorded
from specstudy.catalog import load_profile

PLAN = load_profile("h200-smollm2").model_copy(
    update={
        "chapters": {
            "04_eagle3": load_profile("h200-smollm2")
            .chapters["04_eagle3"]
            .model_validate(
                {
                    "workloads": ["chat"],
                    "arrivals": {"concurrencies": [1, 8]},
                    "methods": [
                        {"method": "none"},
                        {"method": "eagle3", "draft": "head", "num_speculative_tokens": [3, 5, 7, 8]},
                        {"method": "ngram", "num_speculative_tokens": [3]},
                    ],
                    "sections": [{"workloads": ["gsm8k"], "arrivals": {"concurrencies": [8]}, "num_speculative_tokens": [5], "methods": ["eagle3"]}],
                }
            )
        }
    }
)


def at(c: int, workload: str = "chat", **method: object) -> Cell:
    return repeats([1.0], workload=workload, concurrency=c, **method)


def head(k: int) -> dict[str, object]:
    return {"method": "eagle3", "draft": "head", "num_speculative_tokens": k}


def test_what_is_planned_and_not_recorded_is_named() -> None:
    cells = [at(1), at(8), at(1, **head(3)), at(8, **head(3)), at(1, **head(5))]
    said = unrecorded(PLAN, "04_eagle3", cells)
    assert said == "**Planned and not recorded:** head K=5 at chat c=8, gsm8k c=8; head K=7, 8; ngram K=3."


def test_nothing_is_said_when_all_is_there() -> None:
    cells = [at(c, **method) for c in (1, 8) for method in ({}, head(3), head(5), head(7), head(8), {"method": "ngram", "num_speculative_tokens": 3})]
    assert unrecorded(PLAN, "04_eagle3", [*cells, at(8, "gsm8k", **head(5))]) == ""


def test_a_missing_baseline_is_named() -> None:
    assert unrecorded(PLAN, "04_eagle3", []).startswith("**Planned and not recorded:** baseline; head K=3, 5, 7, 8; ngram")
