"""Facts from vLLM's own log lines, as vLLM 0.26.0 wrote them on a GPU and 0.32.0 on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specstudy.serving import log_facts
from specstudy.serving.logs import start_failure, weights_size_gib

GPU_V2 = """
(APIServer pid=1374) INFO 11-29 14:55:10 [vllm.py:1109] Asynchronous scheduling is enabled.
(EngineCore pid=1439) INFO 11-29 14:55:36 [gpu_worker.py:378] Using V2 Model Runner
(EngineCore pid=1439) INFO 11-29 14:55:38 [weight_utils.py:869] Filesystem type for checkpoints: EXT4. Checkpoint size: 0.25 GiB. Available RAM: 123 GiB.
(EngineCore pid=1439) INFO 11-29 14:55:39 [model_runner.py:305] Model loading took 0.26 GiB and 2.935153 seconds
(EngineCore pid=1439) INFO 11-29 14:55:47 [kv_cache_utils.py:2177] GPU KV cache size: 5,965,600 tokens
"""
GPU_V1_FALLBACK = """
(APIServer pid=1804) WARNING 11-29 14:57:59 [vllm.py:1077] Async scheduling not supported with ngram-based speculative decoding and will be disabled.
(APIServer pid=1804) INFO 11-29 14:57:59 [vllm.py:1109] Asynchronous scheduling is disabled.
(APIServer pid=1804) WARNING 11-29 14:57:59 [vllm.py:584] Model Runner V2 does not yet support ngram/ngram_gpu; using the V1 model runner instead.
(EngineCore pid=1873) INFO 11-29 14:58:30 [gpu_model_runner.py:5347] Model loading took 0.25 GiB memory and 2.087772 seconds
"""
# With VLLM_USE_V2_MODEL_RUNNER=0 nothing names a runner but the module on its lines.
GPU_V1_FORCED = """
(APIServer pid=1804) INFO 11-29 14:57:59 [vllm.py:1109] Asynchronous scheduling is enabled.
(EngineCore pid=1873) INFO 11-29 14:58:26 [gpu_model_runner.py:5250] Starting to load model /models/smollm2...
(EngineCore pid=1873) INFO 11-29 14:58:29 [gpu_model_runner.py:5274] Loading drafter model...
(EngineCore pid=1873) INFO 11-29 14:58:30 [gpu_model_runner.py:5347] Model loading took 0.46 GiB memory and 2.087772 seconds
"""
CPU_032 = """
(APIServer pid=3470) WARNING 11-29 14:53:31 [vllm.py:1605] Async scheduling not supported with ngram-based speculative decoding and will be disabled.
(APIServer pid=3344) WARNING 11-29 14:51:49 [vllm.py:725] Model Runner V2 requires Triton; using the V1 model runner instead.
(Worker pid=3371) INFO 11-29 14:52:09 [cpu_model_runner.py:68] Starting to load model /models/smollm2...
(Worker pid=3371) INFO 11-29 14:52:10 [weight_utils.py:1108] Filesystem type for checkpoints: EXT4. Checkpoint size: 0.25 GiB. Available RAM: 21.21 GiB.
(Worker pid=3670) INFO 11-29 14:56:07 [weight_utils.py:1108] Filesystem type for checkpoints: EXT4. Checkpoint size: 0.20 GiB. Available RAM: 20.73 GiB.
(EngineCore pid=3357) INFO 11-29 14:52:11 [kv_cache_utils.py:2327] CPU KV cache size: 46,592 tokens, Maximum concurrency for 2,048 tokens per request: 22.75x
"""
# The words are those of kernels/linear/__init__.py and quantization/auto_awq.py in vLLM 0.26.0.
KERNEL_FP8 = "(EngineCore pid=1873) INFO 11-29 14:58:26 [__init__.py:635] Selected MarlinFP8ScaledMMLinearKernel for Fp8PerTensorOnlineLinearMethod\n"
KERNEL_AWQ = "(EngineCore pid=1873) INFO 11-29 14:58:26 [auto_awq.py:473] Using MacheteLinearKernel for AutoAWQMarlinLinearMethod\n"


@pytest.mark.parametrize(
    ("log", "facts"),
    [
        (GPU_V2, {"kv_cache_tokens": 5_965_600, "weights_gib": 0.26, "model_runner": "V2", "async_scheduling": True}),
        (GPU_V1_FALLBACK, {"weights_gib": 0.25, "model_runner": "V1", "async_scheduling": False}),
        (GPU_V1_FORCED, {"weights_gib": 0.46, "model_runner": "V1", "async_scheduling": True}),
        (CPU_032, {"kv_cache_tokens": 46_592, "weights_gib": 0.45, "model_runner": "V1", "async_scheduling": False}),
        (KERNEL_FP8, {"linear_kernel": "MarlinFP8ScaledMMLinearKernel"}),
        (KERNEL_AWQ, {"linear_kernel": "MacheteLinearKernel"}),
        ("a log of something else\n", {}),
    ],
)
def test_what_a_log_says(tmp_path: Path, log: str, facts: dict[str, Any]) -> None:
    path = tmp_path / "server.log"
    path.write_text(log)
    assert log_facts(path) == facts


def test_size_of_the_weight_files(tmp_path: Path) -> None:
    assert weights_size_gib(str(tmp_path)) is None
    for name, size in (("model-1.safetensors", 2**20), ("model-2.safetensors", 3 * 2**20), ("config.json", 5 * 2**20)):
        (tmp_path / name).write_bytes(b"\0" * size)
    assert weights_size_gib(str(tmp_path)) == 4 / 1024


def test_a_log_that_was_removed_says_nothing(tmp_path: Path) -> None:
    assert log_facts(tmp_path / "gone.log") == {}


# vLLM 0.32.0 on a CPU with too little memory free: the worker's error, the engine's of the worker, the server's of the engine, then leaks.
NO_MEMORY = """
(APIServer pid=3277) WARNING 11-30 08:01:48 [system_utils.py:255] This can cause fd limit errors like `OSError: [Errno 24] Too many open files`.
(VllmWorker-0 pid=3524) ERROR 11-30 08:02:13 [multiproc_executor.py:953]     raise ValueError(
(VllmWorker-0 pid=3524) ERROR 11-30 08:02:13 [multiproc_executor.py:953] ValueError: Available memory on node 0 (21.03/23.54 GiB) on startup is less
(EngineCore pid=3401) INFO 11-30 08:02:13 [multiproc_executor.py:479] [shutdown] Executor: waiting for worker exit count=1
(EngineCore pid=3401) ERROR 11-30 08:02:16 [core.py:1510] EngineCore failed to start.
(EngineCore pid=3401) ERROR 11-30 08:02:16 [core.py:1510] Exception: WorkerProc initialization failed due to an exception in a background process.
Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause.
    raise RuntimeError(
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
nanobind: leaked 64 types!
 - leaked type "triton._C.libtriton.ir.location"
"""
# The same with --max-model-len beyond the target's positions.
TOO_LONG = """
    s.__pydantic_validator__.validate_python(ArgsKwargs(args, kwargs), self_instance=s)
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, User-specified max_model_len (100000) is greater than the derived max_model_len
    For further information visit https://errors.pydantic.dev/2.14/v/value_error
"""


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (NO_MEMORY, "ValueError: Available memory on node 0 (21.03/23.54 GiB) on startup is less"),
        (
            TOO_LONG,
            "ValidationError: 1 validation error for ModelConfig Value error, User-specified max_model_len (100000) is greater than the derived max_model_len",
        ),
        (CPU_032, None),
        ("", None),
    ],
    ids=["memory", "length", "none", "empty"],
)
def test_what_ended_a_server_is_found_above_what_followed(tmp_path: Path, text: str, cause: str | None) -> None:
    log = tmp_path / "vllm.log"
    log.write_text(text)
    assert start_failure(log) == cause


def test_a_long_cause_is_cut_and_a_log_that_is_gone_names_none(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    assert start_failure(log) is None
    log.write_text(f"torch.OutOfMemoryError: {'word ' * 100}\n")
    found = start_failure(log) or ""
    assert found.startswith("OutOfMemoryError: word word") and found.endswith(" …") and len(found) <= 300
