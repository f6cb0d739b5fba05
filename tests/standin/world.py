"""A whole small study to run against the stand-in: catalog, model folder, prompts, results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from specstudy.records import Record, load_records

RUN_STUDY = Path(__file__).with_name("run_study.py")
CHAPTER = "03_baseline"
PROFILE = "words"
TARGET = "words-model"
WORDS = [f"w{i}" for i in range(200)]
# 3 requests and 1 warm-up for each unit of concurrency; one method more than the baseline; exactly two repeats.
CONCURRENCIES = (1, 2)
REPEATS = 2
LABELS = ("none", "ngram-k2")


def make_model_folder(folder: Path) -> Path:
    """config.json and a tokenizer of whole words with a chat template; no weights, the stand-in loads none."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate(["<unk>", "user", "assistant", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    fast.chat_template = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}assistant {% endif %}"
    fast.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": len(vocabulary), "max_position_embeddings": 4096}))
    return folder


def profile_content(prompts: Path) -> dict[str, Any]:
    """A profile with two servers and two cells on each."""
    return {
        "name": PROFILE,
        "title": "Stand-in",
        "evidence": "real",
        "hardware": "cpu",
        "target": TARGET,
        "dtype": "float32",
        "engine": {"max_model_len": 256, "max_num_seqs": 8, "start_timeout_s": 120},
        "measuring": {"prompts_per_slot": 3, "warmups_per_slot": 1, "min_repeats": REPEATS, "max_repeats": REPEATS},
        "workloads": {"words": {"dataset": "domain", "path": str(prompts), "max_prompt_tokens": 64, "max_tokens": 6}},
        "chapters": {
            CHAPTER: {
                "workloads": ["words"],
                "arrivals": {"concurrencies": list(CONCURRENCIES)},
                "methods": [{"method": "none"}, {"method": "ngram", "num_speculative_tokens": [2], "prompt_lookup_min": 2, "prompt_lookup_max": 4}],
            }
        },
    }


@dataclass
class World:
    """A study's folders, all under `root`, and how the stand-in is to behave in it."""

    root: Path
    marker: str
    profile: dict[str, Any]
    options: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def records_path(self) -> Path:
        return self.root / "results" / PROFILE / f"{CHAPTER}.jsonl"

    @property
    def journal_path(self) -> Path:
        return self.root / "journal.jsonl"

    @property
    def env(self) -> dict[str, str]:
        """What points the product to this world."""
        return {
            "SPECSTUDY_ROOT": str(self.root),
            "SPECSTUDY_CACHE": str(self.root / "cache"),
            "SPECSTUDY_RESULTS": str(self.root / "recorded"),
        }

    def write(self) -> World:
        """Put the profile on disk."""
        (self.root / "data" / "profiles" / f"{PROFILE}.yaml").write_text(yaml.safe_dump(self.profile))
        return self

    def behave(self, label: str = "*", **behaviour: Any) -> None:
        """How the servers of `label` behave, "*" for all."""
        self.options.setdefault(label, {}).update(behaviour)

    def records(self) -> list[Record]:
        """What is on disk now."""
        return list(load_records(self.records_path).records)

    def lines(self) -> list[bytes]:
        """The results file as it is, by lines."""
        return self.records_path.read_bytes().splitlines() if self.records_path.exists() else []

    def requests_served(self) -> int:
        """Requests that the stand-in answered to their end, or to a fault, over all its lives."""
        return len(self.journal_path.read_text().splitlines()) if self.journal_path.exists() else 0


def make_world(root: Path, model_folder: Path, marker: str) -> World:
    """A world under `root`, with 60 prompts of 5 to 14 words."""
    for name in ("profiles", "targets", "drafts"):
        (root / "data" / name).mkdir(parents=True)
    prompts = root / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": " ".join(WORDS[i : i + 5 + i % 10])}) + "\n" for i in range(60)))
    target = {"name": TARGET, "title": "Words", "licence": "Apache-2.0", "source": {"kind": "folder", "path": str(model_folder)}}
    (root / "data" / "targets" / f"{TARGET}.yaml").write_text(yaml.safe_dump(target))
    world = World(root, marker, profile_content(prompts))
    world.behave(journal=str(world.journal_path))
    return world.write()


@dataclass(frozen=True)
class StudyProcess:
    """A study that runs in a process of its own, its output in a file."""

    process: subprocess.Popen[bytes]
    output: Path

    def text(self) -> str:
        """All that it said so far, warnings and tracebacks included."""
        return self.output.read_text(errors="replace")

    def await_text(self, text: str, timeout_s: float = 120) -> None:
        """Wait until it has said `text`."""
        await_true(lambda: text in self.text() or self.process.poll() is not None, timeout_s)
        assert text in self.text(), self.text()

    def end(self, timeout_s: float = 180) -> int:
        """Wait for its end; the exit status, negative for a signal."""
        return self.process.wait(timeout=timeout_s)


def start_study(world: World, *, via: str = "study", arguments: Sequence[str] = (), max_file_bytes: int | None = None) -> StudyProcess:
    """Start `run_study.py` on `world`: by `open_study`, or with `via` "cli" by the command line, with further `arguments`."""
    world.write()
    given = world.root / "study.json"
    given.write_text(json.dumps({"marker": world.marker, "options": world.options, "via": via, "arguments": list(arguments), "max_file_bytes": max_file_bytes}))
    output = world.root / f"output-{time.monotonic_ns()}.txt"
    with output.open("wb") as out:
        command = [sys.executable, "-W", "error", str(RUN_STUDY), str(given), CHAPTER, PROFILE, str(world.root / "results")]
        process = subprocess.Popen(command, env={**os.environ, **world.env}, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    return StudyProcess(process, output)


def await_true(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    """Poll until `condition()`; fails after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        time.sleep(0.03)


def finished(record: Record) -> tuple[str, int | None, int]:
    """Which repeat of which cell a record is."""
    return (record.method, record.concurrency, record.repeat)
