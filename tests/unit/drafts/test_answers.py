from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from specstudy.catalog.assets import silent
from specstudy.drafts.answers import PART_PROMPTS, Job, _write, answer, conversations, make_parts, prepare
from specstudy.drafts.prompts import TrainingPrompt
from specstudy.drafts.recipe import recipe_for
from specstudy.errors import AssetError, ConfigError
from specstudy.workloads import Prompt


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A work folder with three parts at two temperatures, all made: prompt n is the token n, its answer 7, 8."""
    count = 2 * PART_PROMPTS + 1
    prompts = [{"key": str(n), "source": "x", "ids": [n]} for n in range(count)]
    digest = hashlib.sha256("\n".join(str(n) for n in range(count)).encode()).hexdigest()
    job = Job("no-target", 64, 8, (0.0, 0.7), digest, 0, ("sharegpt",), None, ())
    (tmp_path / "job.json").write_text(json.dumps(asdict(job)))
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(one) + "\n" for one in prompts))
    for number in range(6):
        some = prompts[number // 2 * PART_PROMPTS :][:PART_PROMPTS]
        _write(tmp_path / f"answers-{number:04d}.npz", some, (0.0, 0.7)[number % 2], [[7, 8]] * len(some))
    return tmp_path


@pytest.mark.parametrize("engines", [1, 3])
def test_what_is_made_is_not_made_again(engines: int, work: Path) -> None:
    assert make_parts(work, 0, 1, "gpu", engines) == 0  # an engine would fail: there is no such target
    halves = [list(range(PART_PROMPTS)), list(range(PART_PROMPTS, 2 * PART_PROMPTS)), [2 * PART_PROMPTS]]
    assert [one.prompt.tolist() for one in conversations(work)] == [[n] for half in halves for _ in range(2) for n in half]


def test_an_engine_that_fails_is_told_by_the_exit_status(work: Path) -> None:
    (work / "job.json").write_text("{")
    assert make_parts(work, 0, 1, "gpu", 2) == 1


def test_a_missing_part_is_named(work: Path) -> None:
    (work / "answers-0004.npz").unlink()
    with pytest.raises(AssetError, match=r"answers-0004\.npz is missing"):
        conversations(work)


def spoil_middle(path: Path) -> None:
    content = bytearray(path.read_bytes())
    at = len(content) // 2
    content[at : at + 40] = bytes(40)
    path.write_bytes(content)


def array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.arange(3))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "spoilt": spoil_middle,
    "an array": array,
    "text": lambda path: path.write_text("hello"),
    "without a field": lambda path: np.savez_compressed(path, sources=np.array(["x"])),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_part_is_named_before_an_engine_starts(damage: str, work: Path) -> None:
    DAMAGE[damage](work / "answers-0002.npz")
    (work / "answers-0005.npz").unlink()  # an engine would be needed, and would fail: there is no such target
    with pytest.raises(AssetError, match=r"answers-0002\.npz isn't whole.*remove it"):
        answer(work, "cpu", silent)
    assert not list(work.glob("*.log"))


def test_the_answers_to_other_prompts_are_refused(work: Path) -> None:
    """As when a part is copied from a machine with other data: half the prompts, the same ones in another order, another temperature."""
    prompts = [{"source": "x", "ids": [n]} for n in range(PART_PROMPTS)]
    for some, temperature in ((prompts[:600], 0.0), (prompts[::-1], 0.0), (prompts, 0.7)):
        _write(work / "answers-0000.npz", some, temperature, [[7]] * len(some))
        with pytest.raises(AssetError, match=r"answers-0000\.npz answers other prompts"):
            conversations(work)
    _write(work / "answers-0000.npz", prompts, 0.0, [[7]] * len(prompts))
    assert conversations(work)[0].answer.tolist() == [7]


def test_prompts_that_are_not_those_of_the_job_are_refused(work: Path) -> None:
    path = work / "prompts.jsonl"
    whole = path.read_text()
    for spoilt, said in (
        (whole[:-9], "can't be read"),
        (whole[: whole.rindex("{")], "doesn't hold the prompts"),
        ("", "doesn't hold"),
        ("[]\n", "can't be read"),
    ):
        path.write_text(spoilt)
        with pytest.raises(AssetError, match=f"prompts.jsonl {said}"):
            answer(work, "cpu", silent)
    path.unlink()
    with pytest.raises(AssetError, match="can't be read"):
        conversations(work)


def test_answers_without_a_job_are_not_taken_for_those_of_a_new_one(work: Path, target: Path) -> None:
    (work / "job.json").unlink()
    prompts = [TrainingPrompt("own", Prompt.user("w1 w2"))]
    before = (work / "prompts.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=r"job\.json"):
        prepare(work, prompts, target, recipe_for("eagle3", "tiny"), data=["own"], compared_with=[], say=silent)
    assert (work / "prompts.jsonl").read_bytes() == before


def test_a_target_that_says_nothing_is_told(work: Path) -> None:
    prompts = [json.loads(line) for line in (work / "prompts.jsonl").read_text().splitlines()]
    for number in range(6):
        some = prompts[number // 2 * PART_PROMPTS :][:PART_PROMPTS]
        _write(work / f"answers-{number:04d}.npz", some, (0.0, 0.7)[number % 2], [[]] * len(some))
    with pytest.raises(AssetError, match="no answer with a token"):
        conversations(work)
