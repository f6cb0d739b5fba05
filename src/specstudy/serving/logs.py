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
