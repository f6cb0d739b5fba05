from __future__ import annotations

from typing import Any

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
    assert said == "**Planned and not measured:** head K=5 at chat c=8, gsm8k c=8; head K=7, 8; ngram K=3."


def test_nothing_is_said_when_all_is_there() -> None:
    cells = [at(c, **method) for c in (1, 8) for method in ({}, head(3), head(5), head(7), head(8), {"method": "ngram", "num_speculative_tokens": 3})]
    assert unrecorded(PLAN, "04_eagle3", [*cells, at(8, "gsm8k", **head(5))]) == ""


SHAPE = load_profile("h200-llama-3.3-70b-shape")
EAGLE = {"method": "eagle3", "draft": "llama-3.3-70b-eagle3-shape"}


def test_each_variant_of_the_engine_is_looked_for_by_itself() -> None:
    recorded = [at(c, "fixed", engine_variant=name) for name, loads in (("default", (1, 8, 32)), ("tuned", (1, 32))) for c in loads]
    assert unrecorded(SHAPE, "03_baseline", recorded) == "**Planned and not measured:** static; tuned at fixed c=8."


def test_a_variant_with_methods_is_named_before_them() -> None:
    """Planned beside c=8: 32 and 1 for all; 64, 16, 2 and 4 and both lengths of the mix for K = 5 and the baseline, but the mix not for K = 3."""
    every = (8, 32, 1, 64, 16, 2, 4)
    recorded = [at(c, "fixed", engine_variant="tuned", **more) for more in ({}, {**EAGLE, "num_speculative_tokens": 5}) for c in every]
    recorded += [at(c, "fixed", engine_variant="tuned", **EAGLE, num_speculative_tokens=3) for c in every if c != 16]
    recorded += [at(c, "sharegpt-mix", engine_variant="tuned") for c in (8, 32)]
    recorded += [at(c, "fixed", engine_variant="tuned", **EAGLE, num_speculative_tokens=7) for c in (8, 32, 1)]
    assert unrecorded(SHAPE, "04_eagle3", recorded) == (
        "**Planned and not measured:** tuned, llama-3.3-70b-eagle3-shape K=3 at fixed c=16; "
        "tuned, llama-3.3-70b-eagle3-shape K=5 at sharegpt-mix c=8, sharegpt-mix c=32; tuned, llama-3.3-70b-eagle3-shape K=1."
    )


def test_a_chapter_without_any_record_lacks_each_variant() -> None:
    assert unrecorded(SHAPE, "01_quantization", []) == "**Planned and not measured:** fp8; fp8-marlin; awq; bf16; awq-marlin."


def test_open_loads_are_named_and_a_trace_is_not_read() -> None:
    chapter: dict[str, Any] = {
        "workloads": ["chat"],
        "arrivals": {"pattern": "trace", "trace": "/nowhere.csv"},
        "methods": [{"method": "none"}, {"method": "ngram", "num_speculative_tokens": [3]}],
        "sections": [{"workloads": ["chat"], "arrivals": {"pattern": "poisson", "request_rates": [2, 4]}, "baseline": True}],
    }
    plan = PLAN.model_copy(update={"chapters": {"04_eagle3": PLAN.chapters["04_eagle3"].model_validate(chapter)}})
    trace = repeats([1.0], workload="chat", pattern="trace", concurrency=None, request_rate=3.21)
    poisson = repeats([1.0], workload="chat", pattern="poisson", concurrency=None, request_rate=2)
    assert unrecorded(plan, "04_eagle3", [trace, poisson]) == "**Planned and not measured:** baseline at chat 4/s; ngram K=3."


def test_a_missing_baseline_is_named() -> None:
    assert unrecorded(PLAN, "04_eagle3", []).startswith("**Planned and not measured:** baseline; head K=3, 5, 7, 8; ngram")
