"""Parameters, bytes and limits against published tables and hand calculations."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from specstudy.analysis.roofline import Server, pass_time, step_limit, turning_point, work_of
from specstudy.analysis.weights import PRECISIONS, kv_bytes_per_token, kv_read_bytes, weights_of
from specstudy.catalog.shapes import load_shape
from specstudy.records.machine import MachineLimits

LLAMA, GPT_OSS, EAGLE, PEAGLE = (load_shape(name) for name in ("llama-3.3-70b", "gpt-oss-20b", "llama-3.3-70b-eagle3", "gpt-oss-20b-peagle"))


def limits(**changes: Any) -> MachineLimits:
    """4.3 TB/s as read on an H200; 800 and 1,600 TFLOP/s are round numbers near what its matrix units reach."""
    given = {
        "allocation": "0" * 12,
        "measured_at": datetime(2026, 11, 29, tzinfo=UTC),
        "device": "a GPU",
        "torch": "2.11.0",
        "memory_bytes": 150 * 10**9,
        "copy_bytes_per_s": (4.1e12, 4.3e12),
        "read_bytes_per_s": {"sum": (4.2e12,)},
        "bf16_flop_per_s": (0.8e15,),
        "fp8_flop_per_s": (1.6e15,),
    }
    return MachineLimits.model_validate({**given, **changes})


def test_llama_has_the_published_number_of_parameters() -> None:
    # The hub's page of meta-llama/Llama-3.3-70B-Instruct counts 70,553,706,496 in its safetensors.
    assert weights_of(LLAMA).total == 70_553_706_496
    assert weights_of(LLAMA).active == 70_553_706_496 - 128_256 * 8_192


def test_gpt_oss_has_the_published_number_of_parameters() -> None:
    """OpenAI's model card (arXiv 2508.10925), table 1: MLP 19.12, attention 0.64, embedding and unembedding 1.16, active 3.61, total 20.91 billion."""
    weights = weights_of(GPT_OSS)
    assert weights.total == 20_914_757_184
    experts = weights.layers * weights.experts * (weights.expert + weights.expert_bias)
    router = 24 * (2_880 * 32 + 32)
    assert round((experts + router) / 1e9, 2) == 19.12
    assert round((weights.linear + weights.other - router) / 1e9, 2) == 0.64
    assert round((weights.embedding + weights.lm_head) / 1e9, 2) == 1.16
    assert round(weights.active / 1e9, 2) == 3.61


def test_a_tied_embedding_counts_once() -> None:
    # The hub counts 134,515,008 for HuggingFaceTB/SmolLM2-135M-Instruct.
    assert weights_of(load_shape("smollm2-135m")).total == 134_515_008


def test_sizes_in_memory() -> None:
    llama = weights_of(LLAMA)
    assert llama.size_bytes(PRECISIONS["bf16"]) == 2 * 70_553_706_496
    # 80 layers of 855,638,016 in one byte; 2 x 128,256 x 8,192 and the norms in two.
    assert llama.size_bytes(PRECISIONS["fp8"]) == 80 * 855_638_016 + 2 * (2 * 128_256 * 8_192 + 161 * 8_192)
    assert llama.size_bytes(PRECISIONS["fp8"]) / 1e9 == pytest.approx(72.7, abs=0.05)
    # 4 bits, and 20 bits for each group of 128.
    assert llama.size_bytes(PRECISIONS["awq"]) == 80 * 855_638_016 * (4 + 20 / 128) / 8 + 2 * (2 * 128_256 * 8_192 + 161 * 8_192)
    # The same model card: the checkpoint of the 20B has 12.8 GiB.
    assert weights_of(GPT_OSS).size_bytes(PRECISIONS["mxfp4"]) / 2**30 == pytest.approx(12.8, abs=0.05)


def test_heads() -> None:
    eagle = weights_of(EAGLE)
    # q, k, v over 16,384 inputs; o; feed-forward.
    assert eagle.linear == 16_384 * (8_192 + 2 * 1_024) + 8_192 * 8_192 + 3 * 8_192 * 28_672
    assert eagle.fc == 3 * 8_192 * 8_192
    assert eagle.lm_head == 32_000 * 8_192
    # Its makers' 3.6 GB in bfloat16 have the embedding of 201,088 x 2,880 in them.
    peagle = weights_of(PEAGLE)
    assert 2 * (peagle.total + 201_088 * 2_880) / 1e9 == pytest.approx(3.6, abs=0.05)


def test_keys_and_values() -> None:
    assert kv_bytes_per_token(LLAMA.architecture) == 327_680  # 80 x 2 x 8 x 128 x 2
    assert kv_bytes_per_token(LLAMA.architecture, bits=8) == 163_840
    assert kv_read_bytes(LLAMA.architecture, 1_000) == 327_680_000
    # GPT-OSS: 12 layers look at 128 tokens, 12 at all; 2 x 8 x 64 x 2 bytes a token and layer.
    assert kv_read_bytes(GPT_OSS.architecture, 1_128) == 12 * (128 + 1_128) * 2_048
    assert kv_read_bytes(GPT_OSS.architecture, 100) == 24 * 100 * 2_048


def test_experts_that_a_batch_touches() -> None:
    weights = weights_of(GPT_OSS)
    assert weights.distinct_experts(1) == pytest.approx(4)
    assert weights.distinct_experts(2) == pytest.approx(4 + 4 * 28 / 32)  # the second token's: each is new with 28 of 32
    assert weights.distinct_experts(1_000) == pytest.approx(32)
    assert weights_of(LLAMA).distinct_experts(7) == 0


def test_a_pass_reads_the_chosen_experts_alone() -> None:
    one, many = (weights_of(GPT_OSS).read_bytes(PRECISIONS["mxfp4"], tokens) for tokens in (1, 10_000))
    weights = weights_of(GPT_OSS)
    each = 24_883_200 * 4.25 / 8 + 2 * 8_640  # 3 x 2,880 x 2,880 in MXFP4, 3 x 2,880 biases in two bytes
    assert many - one == pytest.approx(24 * 28 * each)
    assert many == pytest.approx(weights.size_bytes(PRECISIONS["mxfp4"]) - 2 * weights.embedding)


def test_one_request_of_the_70b_in_fp8_is_bound_by_its_weights() -> None:
    """72.66 GB less the embedding, whose 2.1 GB are looked up: 70.55 GB over 4.3 TB/s are 16.41 ms; the cache adds 0.05 ms."""
    found = step_limit(Server(LLAMA, PRECISIONS["fp8"]), limits(), sequences=1, context=640)
    assert found.target.bound == "weights"
    assert found.target.weights_s * 1e3 == pytest.approx((80 * 855_638_016 + 2 * (128_256 * 8_192 + 161 * 8_192)) / 4.3e9)
    assert found.target.weights_s * 1e3 == pytest.approx(16.41, abs=0.01)
    assert found.target.kv_s == pytest.approx(641 * 327_680 / 4.3e12)
    # 2 x 68.45 billion in FP8; 2 x 1.05 billion and 80 x 4 x 8,192 x 640 for attention in bfloat16.
    products = 2 * 80 * 855_638_016 / 1.6e15 + (2 * 128_256 * 8_192 + 80 * 4 * 8_192 * 640) / 0.8e15
    assert found.target.products_s == pytest.approx(products)
    assert found.total_s == found.target.weights_s + found.target.kv_s
    assert found.draft == ()


def test_a_long_context_is_bound_by_its_keys_and_values() -> None:
    found = step_limit(Server(LLAMA, PRECISIONS["fp8"]), limits(), sequences=16, context=32_768)
    assert found.target.bound == "KV cache"
    assert found.target.kv_s == pytest.approx(16 * 32_769 * 327_680 / 4.3e12)


def test_weight_only_fp8_multiplies_at_the_bfloat16_rate() -> None:
    work = work_of(LLAMA, PRECISIONS["fp8"], 1, 1, 0)
    native, marlin = (pass_time(work, PRECISIONS[name], limits()).products_s for name in ("fp8", "fp8-marlin"))
    assert marlin - native == pytest.approx(2 * 80 * 855_638_016 * (1 / 0.8e15 - 1 / 1.6e15))


def test_an_eagle_head_drafts_k_times_and_a_peagle_head_once() -> None:
    """A pass of the EAGLE-3 head: (939.5 + 262.1 million) x 2 bytes; fc, 201.3 million, in the first."""
    server = Server(LLAMA, PRECISIONS["fp8"], method="eagle3", draft=EAGLE, k=3)
    found = step_limit(server, limits(), sequences=1, context=0)
    assert (found.tokens, len(found.draft)) == (4, 3)
    later = 2 * (939_524_096 + 262_144_000 + 4 * 8_192)
    assert [one.weights_s for one in found.draft] == pytest.approx([(later + 2 * 201_326_592) / 4.3e12, later / 4.3e12, later / 4.3e12])
    assert found.total_s == pytest.approx(found.target.total_s + sum(one.total_s for one in found.draft))
    parallel = Server(GPT_OSS, PRECISIONS["mxfp4"], method="peagle", draft=PEAGLE, k=5)
    (only,) = step_limit(parallel, limits(), sequences=2, context=0).draft
    assert only.products_s == pytest.approx(2 * 10 * (weights_of(PEAGLE).linear + weights_of(PEAGLE).lm_head + weights_of(PEAGLE).fc) / 0.8e15)
    assert step_limit(replace(parallel, method="ngram", draft=None), limits(), 2, 0).draft == ()


def test_a_dflash_head_drafts_once_too() -> None:
    """As vLLM's table of drafting methods has it: DFlash is parallel."""
    server = Server(LLAMA, PRECISIONS["fp8"], method="dflash", draft=EAGLE, k=3)
    assert step_limit(server, limits(), 1, 0).draft == step_limit(replace(server, method="peagle"), limits(), 1, 0).draft
    assert len(step_limit(server, limits(), 1, 0).draft) == 1


def test_a_draft_beside_a_float32_target_has_four_bytes_a_weight() -> None:
    half, whole = (step_limit(Server(LLAMA, PRECISIONS[name], method="eagle3", draft=EAGLE, k=1), limits(), 1, 0) for name in ("bf16", "float32"))
    assert whole.draft[0].weights_s == pytest.approx(2 * half.draft[0].weights_s)


def test_where_products_take_over() -> None:
    """Without a context: n (2 x 68.45e9 / 1.6e15 + 2.10e9 / 0.8e15) s of products against 16.41 ms + n x 76 ns of memory, so n = 186.3."""
    fp8 = Server(LLAMA, PRECISIONS["fp8"])
    per_token = 2 * 80 * 855_638_016 / 1.6e15 + 2 * 128_256 * 8_192 / 0.8e15 - 327_680 / 4.3e12
    n = (80 * 855_638_016 + 2 * (128_256 * 8_192 + 161 * 8_192)) / 4.3e12 / per_token
    assert 186 < n < 187
    assert turning_point(fp8, limits(), 0) == 187
    # With K = 3 four tokens of a sequence are verified: a quarter of the sequences, rounded up.
    assert turning_point(replace(fp8, k=3, method="ngram"), limits(), 0) == 47
    # A sequence of 128k tokens brings 43 GB of keys and values with it: one more never makes products the bound.
    assert turning_point(fp8, limits(), 131_072) is None


def test_the_limit_is_the_best_of_what_was_measured() -> None:
    found = limits(read_bytes_per_s={"sum": (4.0e12, 4.4e12), "vector": (4.2e12,)})
    assert (found.read_limit, found.copy_limit, found.bandwidth) == (4.4e12, 4.3e12, 4.4e12)
    assert limits(fp8_flop_per_s=None).fp8_limit == limits().bf16_limit
