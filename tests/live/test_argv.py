"""vLLM's own parser takes the command line of every method. Parsing only, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from specstudy.serving import deploy
from specstudy.serving.vllm import LATENCY_BUCKETS_S, vllm_argv, vllm_version

pytestmark = [pytest.mark.live, pytest.mark.skipif(vllm_version() is None, reason="vLLM isn't installed here")]

PARSE = """
import dataclasses, json, sys
from vllm.config.speculative import SpeculativeConfig
from vllm.utils.argparse_utils import FlexibleArgumentParser
try:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
except ModuleNotFoundError:
    from vllm.entrypoints.openai.cli_args import make_arg_parser
parser = make_arg_parser(FlexibleArgumentParser())
wanted = ("model", "served_model_name", "host", "port", "dtype", "max_model_len", "max_num_seqs", "quantization", "kv_cache_dtype",
          "speculative_config", "load_format", "worker_extension_cls", "enable_prefix_caching", "enforce_eager", "custom_histogram_buckets")
parsed = [{name: getattr(found, name) for name in wanted} for found in map(parser.parse_args, json.load(sys.stdin))]
fields = [field.name for field in dataclasses.fields(SpeculativeConfig)]
def flat(hint):
    for value in getattr(hint, "__args__", ()):
        yield from [value] if isinstance(value, str) else flat(value)
methods = sorted(set(flat(SpeculativeConfig.__annotations__["method"])))
print("PARSED" + json.dumps({"parsed": parsed, "fields": fields, "methods": methods}))
"""
COMMON: dict[str, Any] = {"target": "some-model", "hardware": "gpu", "max_model_len": 2048, "max_num_seqs": 16}
RATES: dict[str, Any] = {"imposed_acceptance_length": 2.5, "imposed_acceptance_rates": (0.8, 0.5, 0.2)}
METHODS: dict[str, dict[str, Any]] = {
    "none": {},
    "ngram": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 4},
    "suffix": {"method": "suffix", "num_speculative_tokens": 8},
    "draft_model": {"method": "draft_model", "draft": "small", "num_speculative_tokens": 2},
    "eagle3": {"method": "eagle3", "draft": "head", "num_speculative_tokens": 3},
    "peagle": {"method": "peagle", "draft": "head", "num_speculative_tokens": 5},
    "dflash": {"method": "dflash", "draft": "head", "num_speculative_tokens": 7},
    "imposed": {"method": "eagle3", "draft": "head", "num_speculative_tokens": 3, "random_weights": True, **RATES},
    "flags": {"quantization": "fp8", "kv_cache_dtype": "fp8", "flags": {"enforce-eager": True, "gpu_memory_utilization": 0.8}},
}


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All command lines parsed in one process: importing vLLM takes ten seconds."""
    folder = tmp_path_factory.mktemp("models")
    lines = [vllm_argv(deploy(**COMMON, target_path=str(folder / "target"), **with_path(folder, given)), 8123)[3:] for given in METHODS.values()]
    done = subprocess.run([sys.executable, "-c", PARSE], input=json.dumps(lines), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.partition("PARSED")[2])
    return found


def with_path(folder: Path, given: dict[str, Any]) -> dict[str, Any]:
    return {**given, "draft_path": str(folder / given["draft"])} if "draft" in given else given


def parsed(answer: dict[str, Any], method: str) -> dict[str, Any]:
    found: dict[str, Any] = answer["parsed"][list(METHODS).index(method)]
    return found


@pytest.mark.parametrize("method", METHODS)
def test_the_server_would_get_what_was_meant(answer: dict[str, Any], method: str) -> None:
    found = parsed(answer, method)
    assert found["model"].endswith("target")
    assert found["served_model_name"] in ("some-model", ["some-model"])
    assert (found["host"], found["port"], found["max_model_len"], found["max_num_seqs"]) == ("127.0.0.1", 8123, 2048, 16)
    assert found["enable_prefix_caching"] is False
    buckets = found["custom_histogram_buckets"]
    assert (json.loads(buckets) if isinstance(buckets, str) else buckets)["request_latency"] == list(LATENCY_BUCKETS_S)


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("none", "flags")])
def test_every_key_of_the_speculative_config_is_vllms(answer: dict[str, Any], method: str) -> None:
    config = parsed(answer, method)["speculative_config"]
    assert set(config) <= set(answer["fields"])
    assert config["method"] in answer["methods"]
    assert config["num_speculative_tokens"] == METHODS[method]["num_speculative_tokens"]


def test_the_baseline_has_no_speculative_config(answer: dict[str, Any]) -> None:
    assert parsed(answer, "none")["speculative_config"] is None


def test_peagle_is_eagle3_drafting_in_parallel(answer: dict[str, Any]) -> None:
    config = parsed(answer, "peagle")["speculative_config"]
    assert (config["method"], config["parallel_drafting"]) == ("eagle3", True)
    assert config["model"].endswith("head")
    assert "parallel_drafting" not in parsed(answer, "eagle3")["speculative_config"]


def test_imposed_acceptance(answer: dict[str, Any]) -> None:
    found = parsed(answer, "imposed")
    config = found["speculative_config"]
    assert (config["rejection_sample_method"], config["synthetic_acceptance_rates"]) == ("synthetic", [0.8, 0.5, 0.2])
    assert (found["load_format"], found["worker_extension_cls"]) == ("dummy", "specstudy.serving.random_weights.RandomWeights")
    assert parsed(answer, "eagle3")["load_format"] == "auto"


def test_further_flags(answer: dict[str, Any]) -> None:
    found = parsed(answer, "flags")
    assert (found["enforce_eager"], found["quantization"], found["kv_cache_dtype"]) == (True, "fp8", "fp8")
