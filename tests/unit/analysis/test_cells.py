"""Which records make a cell: one allocation, or the GPUs of one host that were measured side by side."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from tests.standin.synthetic import record

from specstudy.analysis import comparable, group, side_by_side, speedups
from specstudy.analysis.cells import taken_together
from specstudy.records.schema import Record
from specstudy.records.store import REQUESTS_SCHEMA

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
NONE = {"method": "none", "draft": None, "num_speculative_tokens": None}
EAGLE = {"method": "eagle3", "draft": "one", "num_speculative_tokens": 3}
OTHER = {"method": "eagle3", "draft": "other", "num_speculative_tokens": 3}
REQUESTS = REQUESTS_SCHEMA.empty_table()


def series(allocation: str, minute: float, speed: float, method: dict[str, Any], **changes: Any) -> list[Record]:
    """Three repeats, a minute apart."""
    return [
        record(
            **method,
            allocation=allocation,
            repeat=repeat,
            record_id=f"{hash((allocation, minute, repeat)) & (2**60 - 1):016x}",
            started_at=NOON + timedelta(minutes=minute + repeat),
            output_tokens_per_s=speed + repeat,
            **changes,
        )
        for repeat in range(3)
    ]


def ratios(records: list[Record]) -> dict[str, float]:
    return {one.cell.variant.draft or "": round(one.ratio.estimate, 2) for one in speedups(group(records, REQUESTS))}


def test_two_gpus_measured_at_once_are_taken_together_each_with_its_own_baseline() -> None:
    left = [*series("left", 0, 100, NONE), *series("left", 3, 200, EAGLE)]
    right = [*series("right", 1, 50, NONE), *series("right", 4, 150, OTHER)]
    cells = group(left + right, REQUESTS)
    assert side_by_side(left + right) == ["left", "right"]
    assert [cell.label for cell in cells] == ["baseline (GPU 1)", "baseline (GPU 2)", "one K=3 (GPU 1)", "other K=3 (GPU 2)"]
    # 200/100, 201/101, 202/102 and 150/50, 151/51, 152/52: geometric means 1.99 and 2.96.
    assert ratios(left + right) == {"one": 1.99, "other": 2.96}


@pytest.mark.parametrize("change", [{"host_cpu": "another"}, {"engine_version": "0.1"}])
def test_another_machine_is_not_beside_it(change: dict[str, Any]) -> None:
    left, right = series("left", 0, 100, NONE, **change), series("right", 1, 50, NONE)
    assert side_by_side(left + right) == ["right"]


def in_parts(**changes: Any) -> list[Record]:
    """Concurrency 1 yesterday, concurrency 8 today, each with its baseline."""
    yesterday = [*series("old", -1440, 100, NONE, concurrency=1, **changes), *series("old", -1437, 200, EAGLE, concurrency=1, **changes)]
    return [*yesterday, *series("new", 0, 50, NONE, concurrency=8), *series("new", 3, 150, EAGLE, concurrency=8)]


def test_a_chapter_measured_in_parts_is_one_each_load_by_itself() -> None:
    """200/100, 201/101, 202/102 and 150/50, 151/51, 152/52: geometric means 1.99 and 2.96."""
    records = in_parts()
    assert side_by_side(records) == ["new"]
    assert taken_together(records) == ["old", "new"]
    found = {one.cell.load.concurrency: round(one.ratio.estimate, 2) for one in speedups(group(records, REQUESTS))}
    assert found == {1: 1.99, 8: 2.96}


@pytest.mark.parametrize(
    "change",
    [
        {"gpu": "another"},
        {"engine_version": "0.1"},
        {"packages": {"vllm": "0.1"}},
        {"server_argv": ("python", "--max-num-seqs", "7")},
        {"server_env": ("A=1",)},
    ],
    ids=str,
)
def test_a_part_that_was_served_otherwise_is_left_out(change: dict[str, Any]) -> None:
    assert {record.allocation for record in comparable(in_parts(**change))} == {"new"}


def test_a_part_that_shares_a_load_is_left_out_whole() -> None:
    records = [*in_parts(), *series("old", -1430, 100, NONE, concurrency=8)]
    assert taken_together(records) == ["new"]


def test_an_earlier_allocation_is_left_out() -> None:
    earlier = [*series("earlier", 0, 100, NONE), *series("earlier", 3, 200, EAGLE)]
    later = [*series("later", 60, 50, NONE), *series("later", 63, 60, OTHER)]
    assert [cell.label for cell in group(earlier + later, REQUESTS)] == ["baseline", "other K=3"]
    assert side_by_side(earlier + later) == ["later"]


def test_a_method_that_both_have_comes_from_the_newer_with_its_baseline_alone() -> None:
    left = [*series("left", 0, 100, NONE), *series("left", 3, 200, EAGLE)]
    right = [*series("right", 1, 50, NONE), *series("right", 4, 150, EAGLE)]
    cells = group(left + right, REQUESTS)
    assert [(cell.label, cell.allocation) for cell in cells] == [("baseline", "right"), ("one K=3", "right")]


def test_baselines_alone_come_from_the_newest() -> None:
    both = [*series("left", 0, 100, NONE), *series("right", 1, 50, NONE)]
    assert [cell.allocation for cell in group(both, REQUESTS)] == ["right"]


def test_each_variant_of_the_engine_has_its_own_cells_and_baseline() -> None:
    fp8, awq = {"engine_variant": "fp8"}, {"engine_variant": "awq"}
    records = [
        *series("one", 0, 100, NONE, **fp8),
        *series("one", 3, 200, EAGLE, **fp8),
        *series("one", 6, 50, NONE, **awq),
        *series("one", 9, 150, OTHER, **awq),
    ]
    cells = group(records, REQUESTS)
    assert [cell.label for cell in cells] == ["awq", "fp8", "fp8, one K=3", "awq, other K=3"]
    # As with two GPUs above: each against the baseline that was served the same way.
    assert ratios(records) == {"one": 1.99, "other": 2.96}


def test_without_records_there_are_no_cells() -> None:
    assert group([], pa.Table.from_pylist([], schema=REQUESTS_SCHEMA)) == []
    assert side_by_side([]) == []


def test_two_kinds_of_evidence_are_never_taken_together() -> None:
    real, shape = series("same", 0, 100, NONE), series("same", 3, 200, EAGLE, evidence="shape")
    assert {one.evidence for cell in group(real + shape, REQUESTS) for one in cell.records} == {"shape"}
    assert ratios(real + shape) == {}


def test_repeats_made_with_other_packages_are_left_out() -> None:
    """Measured anew after an update, and with fewer repeats: what is left of the earlier ones is another configuration."""
    before, after = series("same", 0, 100, NONE, packages={"torch": "2.10.0"}), series("same", 60, 200, NONE, packages={"torch": "2.11.0"})
    (found,) = group([*before, *after[:2]], REQUESTS)
    assert [one.output_tokens_per_s for one in found.records] == [200, 201]


def served_from(folder: str) -> dict[str, Any]:
    """A server's command line with the draft in this folder."""
    return {"server_argv": ("python", "--speculative-config", json.dumps({"method": "eagle3", "model": f"$SPECSTUDY_CACHE/drafts/{folder}"}), "--port", "1")}


def test_a_record_says_which_folder_its_draft_lay_in() -> None:
    assert record(**served_from("one-0123456789abcdef")).draft_folder == "one-0123456789abcdef"
    assert record(**EAGLE).draft_folder is None
    lookup = ("python", "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}')
    assert record(server_argv=lookup).draft_folder is None


def test_of_two_heads_of_one_name_only_the_one_measured_last_is_shown() -> None:
    """The older one's K = 5 would else lie on one curve with the newer one's K = 3."""
    deeper = {**EAGLE, "num_speculative_tokens": 5}
    plain = series("here", 0, 100, NONE)
    older = [*series("here", 3, 200, EAGLE, **served_from("one-aaaaaaaa")), *series("here", 6, 400, deeper, **served_from("one-aaaaaaaa"))]
    other = series("here", 9, 150, OTHER, **served_from("other-cccccccc"))
    newer = series("here", 12, 300, EAGLE, **served_from("one-bbbbbbbb"))
    cells = group([*plain, *older, *other, *newer], REQUESTS)
    assert [cell.label for cell in cells] == ["baseline", "one K=3", "other K=3"]
    # 300/100, 301/101, 302/102: a geometric mean of 2.98; the older head's own would be 1.99.
    assert ratios([*plain, *older, *other, *newer])["one"] == 2.98
    assert [cell.label for cell in group([*plain, *older, *other], REQUESTS)] == ["baseline", "one K=3", "one K=5", "other K=3"]


def test_gpus_stay_side_by_side_when_a_head_is_replaced_on_one_of_them() -> None:
    """Without the older head's records the right GPU would seem to begin after the left one's end."""
    left = [*series("left", 1, 100, NONE), *series("left", 4, 200, OTHER)]
    older, newer = (series("right", minute, 150, EAGLE, **served_from(f"one-{digest * 8}")) for minute, digest in ((0, "a"), (13, "b")))
    cells = group([*left, *older, *series("right", 10, 50, NONE), *newer], REQUESTS)
    assert [cell.label for cell in cells] == ["baseline (GPU 1)", "baseline (GPU 2)", "one K=3 (GPU 2)", "other K=3 (GPU 1)"]
    assert {record.draft_folder for cell in cells for record in cell.records} == {None, "one-bbbbbbbb"}
