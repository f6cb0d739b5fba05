"""What an engine's own log says of a server: facts that no command line shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

GIB = 2**30


def log_facts(log_path: Path) -> dict[str, Any]:
    """kv_cache_tokens, weights_gib, linear_kernel, model_runner and async_scheduling, as vLLM's log states them.

    A line that isn't there gives no key, nor does a log that somebody has removed.
    """
    text = log_path.read_text(errors="replace") if log_path.is_file() else ""
    facts: dict[str, Any] = {}
    if cache := re.search(r"KV cache size: ([\d,]+) tokens", text):
        facts["kv_cache_tokens"] = int(cache[1].replace(",", ""))
    if weights := re.search(r"Model loading took ([\d.]+) GiB", text):
        facts["weights_gib"] = float(weights[1])
    elif checkpoints := re.findall(r"Checkpoint size: ([\d.]+) GiB", text):  # a CPU's log: the target's, then the draft's
        facts["weights_gib"] = round(sum(map(float, checkpoints)), 2)
    if kernel := re.search(r"(?:Selected|Using) (\w*Kernel) for \w+", text):
        facts["linear_kernel"] = kernel[1]
    if runner := _model_runner(text):
        facts["model_runner"] = runner
    if scheduling := re.search(r"Asynchronous scheduling is (enabled|disabled)", text):
        facts["async_scheduling"] = scheduling[1] == "enabled"
    elif re.search(r"Async scheduling\b.*\b(will be|is) disabled", text):  # vLLM 0.32 speaks of it only when it is off
        facts["async_scheduling"] = False
    return facts


# What vLLM puts before a line of its log: process, level, time, place.
_PREFIX = re.compile(r"^\([^)]*pid=\d+\) (?:[A-Z]+ \d\d-\d\d [\d:]+ \[[^\]]*\] ?)?")
_RAISED = re.compile(r"^(?:\w+\.)*(\w+(?:Error|Exception)|Exception): (.+)$")
# Said by one process of what another one said before it.
_SECOND_HAND = ("initialization failed", "EngineCore encountered an issue")
_CAUSE_LENGTH = 300


def start_failure(log_path: Path) -> str | None:
    """The exception that ended a server before it was ready, as its log names it, in one line; None where it names none.

    A log ends with what follows from it: processes that report others' ends, and tens of lines on leaked objects.
    """
    lines = [_PREFIX.sub("", line) for line in log_path.read_text(errors="replace").splitlines()] if log_path.is_file() else []
    for at in reversed(range(len(lines))):
        raised = _RAISED.match(lines[at])
        if raised and not any(words in raised[2] for words in _SECOND_HAND):
            # pydantic says what is wrong on the lines after
            more = lines[at + 1].strip() if re.match(r"\d+ validation error", raised[2]) and at + 1 < len(lines) else ""
            text = f"{raised[1]}: {raised[2]} {more}".strip()
            return text if len(text) <= _CAUSE_LENGTH else f"{text[: _CAUSE_LENGTH - 2].rstrip()} …"
    return None


def _model_runner(text: str) -> str | None:
    """V1 or V2. Forced by VLLM_USE_V2_MODEL_RUNNER=0, V1 says nothing of itself, but its module's name is on its lines."""
    if "Using V2 Model Runner" in text:
        return "V2"
    if "using the V1 model runner" in text or re.search(r"\[[gc]pu_model_runner\.py:\d+\]", text):
        return "V1"
    return None


def weights_size_gib(folder: str) -> float | None:
    """Size of a model folder's weight files in GiB; None for a folder without any."""
    sizes = [path.stat().st_size for pattern in ("*.safetensors", "*.bin") for path in Path(folder).glob(pattern)]
    return sum(sizes) / GIB if sizes else None
