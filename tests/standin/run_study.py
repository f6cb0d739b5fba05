"""Run one chapter live against the stand-in, in a process that a test can interrupt or kill.

    python run_study.py GIVEN.json CHAPTER PROFILE RESULTS_DIR

Exit status: 0, or that of the error. With "via": "cli" in GIVEN it is the product's own command line that
runs. Prompt tokens are counted in words here: loading transformers takes longer than the rest of such a test.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from engine import standin_engine

import specstudy.plan
from specstudy.errors import SpecstudyError
from specstudy.serving import ENGINES
from specstudy.study import open_study
from specstudy.workloads import TokenCounter
from specstudy.workloads.prompts import Message


def word_counter(folder: Path) -> TokenCounter:
    """As the model folder's chat template has it: a word for each role, and one for the answer's."""

    def count(messages: Sequence[Message]) -> int:
        return 1 + sum(1 + len(turn["content"].split()) for turn in messages)

    return count


def main() -> int:
    """See the module's text."""
    given, chapter, profile, results_dir = sys.argv[1:]
    content = json.loads(Path(given).read_text())
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell has it ignored
    if content["max_file_bytes"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (content["max_file_bytes"], content["max_file_bytes"]))
    ENGINES["vllm"] = standin_engine(content["options"], content["marker"])
    specstudy.plan.kept_token_counter = lambda folder: nullcontext(word_counter(folder))
    if content["via"] == "cli":
        from specstudy import cli

        sys.argv = ["specstudy", "measure", chapter, "--profile", profile, "--results-dir", results_dir, *content["arguments"]]
        cli.main()
        return 0
    try:
        study = open_study(chapter, profile, "live", results_dir)
    except SpecstudyError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return error.exit_status
    print(f"study: {len(study.records)} records", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
