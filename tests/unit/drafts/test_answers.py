from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from specstudy.drafts.answers import PART_PROMPTS, Job, conversations, make_parts
from specstudy.errors import AssetError


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A work folder with three parts at two temperatures, all made."""
    job = Job("no-target", 64, 8, (0.0, 0.7), "", 0, ("sharegpt",), None, ())
    (tmp_path / "job.json").write_text(json.dumps(asdict(job)))
    (tmp_path / "prompts.jsonl").write_text("\n".join(json.dumps({"key": str(n), "source": "x", "ids": [n]}) for n in range(2 * PART_PROMPTS + 1)) + "\n")
    for number in range(6):
        whole = {"sources": ["x"], "temperatures": [0.0], "prompts": [number], "prompt_ends": [1], "answers": [7, 8], "answer_ends": [2]}
        np.savez_compressed(tmp_path / f"answers-{number:04d}.npz", **{name: np.array(values) for name, values in whole.items()})
    return tmp_path


@pytest.mark.parametrize("engines", [1, 3])
def test_what_is_made_is_not_made_again(engines: int, work: Path) -> None:
    assert make_parts(work, 0, 1, "gpu", engines) == 0  # an engine would fail: there is no such target
    assert [one.prompt.tolist() for one in conversations(work)] == [[number] for number in range(6)]


def test_an_engine_that_fails_is_told_by_the_exit_status(work: Path) -> None:
    (work / "job.json").write_text("{")
    assert make_parts(work, 0, 1, "gpu", 2) == 1


def test_a_missing_part_is_named(work: Path) -> None:
    (work / "answers-0004.npz").unlink()
    with pytest.raises(AssetError, match=r"answers-0004\.npz is missing"):
        conversations(work)
