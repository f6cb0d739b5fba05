"""The exact command line and environment; expected values are written out by hand from vLLM's own options."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specstudy.errors import ConfigError
from specstudy.serving import Deployment
from specstudy.serving.vllm import vllm_argv, vllm_env, vllm_version

Gpu = Callable[..., Deployment]

HEAD = {"draft": "head", "draft_path": "/models/head"}
# The queue-time histogram starts at 0.3 s in vLLM; the study wants finer buckets below it.
BUCKETS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960]
PLAIN = [
    *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
    *("--model", "/models/big"),
    *("--served-model-name", "big"),
    *("--host", "127.0.0.1"),
    *("--port", "8123"),
    *("--dtype", "bfloat16"),
    *("--max-model-len", "4096"),
    *("--max-num-seqs", "64"),
    "--no-enable-prefix-caching",
    "--disable-uvicorn-access-log",
    *("--custom-histogram-buckets", {"request_latency": BUCKETS}),
]


def decoded(argv: list[str]) -> list[object]:
    """`argv` with its JSON values read, so that spacing and order of keys don't count."""
    return [json.loads(word) if word.startswith("{") else word for word in argv]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}, {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}),
        ({"method": "suffix"}, {"method": "suffix"}),
        ({"method": "draft_model", **HEAD}, {"method": "draft_model", "model": "/models/head"}),
        ({"method": "eagle3", **HEAD}, {"method": "eagle3", "model": "/models/head"}),
        ({"method": "peagle", **HEAD}, {"method": "eagle3", "parallel_drafting": True, "model": "/models/head"}),
        ({"method": "dflash", **HEAD}, {"method": "dflash", "model": "/models/head"}),
    ],
)
def test_each_method_has_exactly_this_command_line(gpu: Gpu, fields: dict[str, Any], expected: dict[str, object]) -> None:
    argv = vllm_argv(gpu(**fields, num_speculative_tokens=5), 8123)
    assert decoded(argv) == [*PLAIN, "--speculative-config", {**expected, "num_speculative_tokens": 5}]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"method": "eagle3", **HEAD, "imposed_acceptance_length": 2.5, "imposed_acceptance_rates": (0.8, 0.4, 0.2, 0.1, 0.0)},
            {"method": "eagle3", "model": "/models/head", "rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.8, 0.4, 0.2, 0.1, 0.0]},
        ),
        (
            {"method": "peagle", **HEAD, "imposed_acceptance_length": 6.0, "imposed_acceptance_rates": (1.0,) * 5},
            {
                "method": "eagle3",
                "parallel_drafting": True,
                "model": "/models/head",
                "rejection_sample_method": "synthetic",
                "synthetic_acceptance_rates": [1.0] * 5,
            },
        ),
    ],
)
def test_an_imposed_acceptance_is_given_by_position(gpu: Gpu, fields: dict[str, Any], expected: dict[str, object]) -> None:
    argv = vllm_argv(gpu(**fields, num_speculative_tokens=5, random_weights=True), 8123)
    assert decoded(argv)[-2:] == ["--speculative-config", {**expected, "num_speculative_tokens": 5}]


def test_the_baseline_has_no_speculative_config(gpu: Gpu) -> None:
    assert decoded(vllm_argv(gpu(), 8123)) == PLAIN


def test_quantization_and_kv_cache_are_said_only_when_asked_for(gpu: Gpu) -> None:
    argv = decoded(vllm_argv(gpu(quantization="fp8", kv_cache_dtype="fp8_e4m3"), 8123))
    assert argv == [*PLAIN, "--quantization", "fp8", "--kv-cache-dtype", "fp8_e4m3"]


def test_a_shape_has_random_weights(gpu: Gpu) -> None:
    filled = ["--load-format", "dummy", "--worker-extension-cls", "specstudy.serving.random_weights.RandomWeights"]
    assert decoded(vllm_argv(gpu(random_weights=True), 8123)) == [*PLAIN, *filled]
    drafted = decoded(vllm_argv(gpu(random_weights=True, method="eagle3", **HEAD, num_speculative_tokens=2), 8123))
    assert drafted[len(PLAIN) : len(PLAIN) + 4] == filled


def test_further_flags_come_last_in_the_profiles_order(gpu: Gpu) -> None:
    flags = {"enforce-eager": True, "block_size": 16, "--gpu-memory-utilization": 0.85, "async-scheduling": False, "max-num-batched-tokens": 8192}
    argv = decoded(vllm_argv(gpu(flags=flags), 8123))
    expected = ["--enforce-eager", "--block-size", "16", "--gpu-memory-utilization", "0.85", "--max-num-batched-tokens", "8192"]
    assert argv == [*PLAIN, *expected]


@pytest.mark.parametrize(
    "flag",
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
        "load-format",
        "worker-extension-cls",
        "max_model_len",
        "--max-model-len",
        "--speculative_config",
    ],
)
def test_a_flag_that_the_deployment_sets_itself_is_refused(gpu: Gpu, flag: str) -> None:
    with pytest.raises(ConfigError) as refused:
        vllm_argv(gpu(flags={flag: "x"}), 8123)
    assert (refused.value.field, refused.value.got) == (f"flags.{flag}", "x")


@pytest.mark.parametrize("flag", ["enable-prefix-caching", "no-enable-prefix-caching", "custom-histogram-buckets", "disable-uvicorn-access-log"])
def test_a_flag_that_every_server_gets_is_refused(gpu: Gpu, flag: str) -> None:
    with pytest.raises(ConfigError):
        vllm_argv(gpu(flags={flag: True}), 8123)


@pytest.mark.parametrize("openmp", [True, False])
def test_a_cpu_server_gets_its_openmp_library_where_there_is_one(gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, openmp: bool) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    library = tmp_path / "lib" / "libiomp5.so"
    library.parent.mkdir()
    if openmp:
        library.touch()
    expected = {"VLLM_NO_USAGE_STATS": "1", "VLLM_HOST_IP": "127.0.0.1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "auto"}
    assert vllm_env(gpu(hardware="cpu")) == expected | ({"LD_PRELOAD": str(library)} if openmp else {})


def test_a_gpu_server_gets_nothing_of_a_cpus(gpu: Gpu) -> None:
    assert vllm_env(gpu()) == {"VLLM_NO_USAGE_STATS": "1", "VLLM_HOST_IP": "127.0.0.1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_a_model_on_disk_needs_no_hub(gpu: Gpu, tmp_path: Path) -> None:
    assert vllm_env(gpu(target_path=str(tmp_path)))["HF_HUB_OFFLINE"] == "1"


def test_the_profiles_environment_has_the_last_word(gpu: Gpu) -> None:
    env = vllm_env(gpu(hardware="cpu", env={"VLLM_CPU_KVCACHE_SPACE": "4", "OMP_NUM_THREADS": "2"}))
    assert (env["VLLM_CPU_KVCACHE_SPACE"], env["OMP_NUM_THREADS"]) == ("4", "2")


def installed(folder: Path, name: str, version: str) -> None:
    """Metadata of a distribution, as pip leaves it."""
    where = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    where.mkdir(parents=True)
    (where / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.mark.parametrize(
    ("distributions", "expected"),
    [({"vllm": "0.26.0"}, "0.26.0"), ({"vllm-cpu": "0.32.0"}, "0.32.0"), ({"vllm-cpu": "0.32.0", "vllm": "0.26.0"}, "0.26.0"), ({}, None)],
)
def test_the_version_is_that_of_either_distribution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, distributions: dict[str, str], expected: str | None
) -> None:
    for name, version in distributions.items():
        installed(tmp_path / "site", name, version)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    assert vllm_version() == expected
