"""What the note on sources says of repeats during which the engine compiled kernels."""

from __future__ import annotations

import json

from tests.standin.synthetic import record

from specstudy.figures import source_note


def note(*changes: dict[str, object]) -> str:
    return source_note([record(record_id=f"{i:016x}", repeat=i, **change) for i, change in enumerate(changes)]).markdown


def test_steady_repeats_are_not_spoken_of() -> None:
    for steady in ({"kernels_compiled": 0}, {"kernels_compiled": None}):
        told = note(steady, steady)
        assert "measured again" not in told and "steady" not in told.lower()


def test_repeats_that_were_measured_again_are_counted() -> None:
    told = note({"tries_discarded": 2, "kernels_compiled": 0}, {"tries_discarded": 1, "kernels_compiled": 0}, {})
    assert "2 of 3 repeats were measured again, because the engine compiled kernels while they ran the first time." in told
    assert "Not steady" not in told


def test_a_kept_repeat_that_compiled_is_named_by_server_and_load() -> None:
    head = {"method": "eagle3", "draft": "head", "num_speculative_tokens": 3, "concurrency": 64, "tries_discarded": 2}
    told = note({**head, "kernels_compiled": 4}, {**head, "kernels_compiled": 1}, {**head, "kernels_compiled": 0}, {"kernels_compiled": 2})
    assert (
        "**Not steady:** the engine still compiled kernels during 3 of the repeats that are kept: head K=3 at chat c=64 (2), baseline at chat c=1 (1)." in told
    )


def test_records_of_other_allocations_are_not_spoken_of() -> None:
    told = note({"kernels_compiled": 3, "allocation": "b" * 12, "started_at": "2026-11-28T12:00:00Z"}, {"kernels_compiled": 0})
    assert "Not steady" not in told


def test_a_commit_is_told_in_twelve_digits() -> None:
    """40 don't fit on a phone; changes beside the commit are still told."""
    assert f"commit {'ab' * 6};" in note({"git_sha": "ab" * 20})
    assert f"commit {'ab' * 6}-dirty;" in note({"git_sha": "ab" * 6 + "-dirty"})


def test_records_of_an_earlier_head_of_the_same_name_are_counted_and_not_used() -> None:
    def served(digest: str, minute: int) -> dict[str, object]:
        config = json.dumps({"method": "eagle3", "model": f"$SPECSTUDY_CACHE/drafts/head-{digest}"})
        argv = ("python", "--speculative-config", config)
        return {"method": "eagle3", "draft": "head", "num_speculative_tokens": 3, "server_argv": argv, "started_at": f"2026-11-29T12:{minute:02}:00Z"}

    told = note(served("aaaaaaaa", 0), served("aaaaaaaa", 1), served("bbbbbbbb", 2))
    assert "2 records of another draft named head are on file and not used: head-bbbbbbbb was measured after it." in told
    assert "1 records, the newest" in told and "1 of 1 cells rest on fewer than 3 repeats" in told
    assert "another draft" not in note(served("aaaaaaaa", 0), served("aaaaaaaa", 1))
