"""A trace in Chrome's format becomes the parts of a decode step: times by hand, names as vLLM 0.26.0's profiler gave them on an H200."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from specstudy.errors import MeasurementError
from specstudy.measure.trace import decode_marks, kind_of, read_events, traced

DECODE, PREFILL = "execute_context_0(0)_generation_1(1)", "execute_context_1(512)_generation_0(0)"
GEMM, NORM = "nvjet_sm90_tst_256x8_64x6_2x1_v_bz_TNT", "triton_red_fused__to_copy_clamp_cutlass_scaled_mm_fused_add_rms_norm_mul_reciprocal_3"


def mark(ts: float, name: str = DECODE, cat: str = "gpu_user_annotation") -> dict[str, Any]:
    return {"cat": cat, "name": name, "ts": ts, "dur": 1.0}


def kernel(ts: float, dur: float, name: str = GEMM, cat: str = "kernel") -> dict[str, Any]:
    return {"cat": cat, "name": name, "ts": ts, "dur": dur}


def steps(n: int, us: float = 1000, first: float = 0, **of: Any) -> list[dict[str, Any]]:
    """The marks of `n` steps of 1 ms, of which the first four are dropped."""
    return [mark(first + i * us, **of) for i in range(n)]


def test_a_step_is_what_lies_between_two_marks() -> None:
    """Of 18 marks 4 are dropped: 13 steps of 1,000 us from 4,000 to 17,000, with 600 us of products each, and once 100 us of norms, half beside one."""
    kernels = [kernel(1000 * i, 600) for i in range(18)]
    found = traced([*kernels, kernel(8550, 100, NORM), *steps(18)], 1)
    assert (found.steps, found.step_ms) == (13, 1.0)
    assert found.idle_ms == pytest.approx((13 * 400 - 50) / 13 / 1000)
    assert [(one.name, one.launches, one.ms) for one in found.kernels] == [
        (GEMM, 1.0, pytest.approx(0.6)),
        (NORM, pytest.approx(1 / 13), pytest.approx(0.1 / 13)),
    ]


def test_a_kernel_that_runs_on_after_the_last_mark_covers_no_time_beyond_it() -> None:
    assert traced([*steps(17), kernel(15_900, 900)], 1).idle_ms == pytest.approx((12 * 1000 - 100) / 12 / 1000)


def test_a_step_with_a_prompt_or_with_other_requests_ends_a_row_and_the_longest_row_counts() -> None:
    marks = [mark(0), mark(10), mark(20, PREFILL), mark(30), mark(40), mark(50), mark(60, "execute_context_0(0)_generation_2(2)"), mark(70)]
    assert decode_marks(marks, 1) == [30, 40, 50]
    assert decode_marks(marks, 2) == [60]
    assert decode_marks([mark(20, PREFILL), mark(1, "something else")], 1) == []


def test_marks_of_the_device_are_preferred_to_those_of_the_host() -> None:
    host = [mark(ts, cat="user_annotation") for ts in (0, 9, 18)]
    assert decode_marks(host, 1) == [0, 9, 18]
    assert decode_marks([*host, mark(5), mark(14)], 1) == [5, 14]


def test_a_step_that_touches_two_streams_is_one_step() -> None:
    """Each stream has a mark of its own; that of the stream with the kernels counts."""
    copies = [{**mark(1000 * i + 300), "tid": 9} for i in range(17)]
    busy = [{**one, "tid": 7} for one in [*steps(17), *(kernel(1000 * i, 500) for i in range(17))]]
    found = traced([*copies, *busy, {**kernel(5300, 2, "Memcpy DtoH", "gpu_memcpy"), "tid": 9}], 1)
    assert (found.steps, found.step_ms) == (12, 1.0)


def test_one_long_step_is_no_mean() -> None:
    late = [*steps(10), *steps(10, first=10_700)]  # one step of 700 us too long
    with pytest.raises(MeasurementError, match=r"took 1\.7 ms, the median 1\.0 ms"):
        traced([*late, kernel(0, 5)], 1)


@pytest.mark.parametrize("events", [[], [kernel(0, 5)], steps(16), [*steps(17), kernel(500, 5)]], ids=["nothing", "no mark", "too few", "no kernel"])
def test_a_trace_without_enough_whole_steps_is_told(events: list[dict[str, Any]]) -> None:
    with pytest.raises(MeasurementError, match="the trace"):
        traced(events, 1)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("void cutlass::device_kernel<vllm::cutlass_3x_gemm_sm90_fp8<cutlass::float_e4m3_t, cutlass::bfloat16_t, vllm::c3x::ScaledEpilogue", "matrix products"),
        (GEMM, "matrix products"),
        ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2", "attention"),
        ("void cutlass::device_kernel<flash::FlashAttnFwdCombine<cute::tuple<cute::C<8>, cute::C<128> >, 5, 256, 1, false", "attention"),
        ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, (vllm::Fp8KVCacheDataType)0>", "KV cache write"),
        (NORM, "elementwise and norms"),
        ("triton_poi_fused_4", "elementwise and norms"),
        ("_gumbel_sample_kernel", "sampling"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>, unsigned int", "sampling"),
        ("Memcpy DtoH (Device -> Pinned)", "copies"),
        ("Memset (Device)", "copies"),
        ("_compute_slot_mappings_kernel", "other"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>, std::array<char*, 1ul> >(int", "elementwise and norms"),
        # Not from that trace: names from the sources of vLLM and FlashInfer.
        ("void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024>", "sampling"),
        ("void flashinfer::norm::RMSNormKernel<8, __nv_bfloat16>", "elementwise and norms"),
        ("void flashinfer::BatchDecodeWithPagedKVCacheKernel<>", "attention"),
        ("kernel_unified_attention_3d", "attention"),
        ("fused_moe_kernel", "matrix products"),
        ("void vllm::moe::topkGatingSoftmax<>", "matrix products"),
    ],
)
def test_a_kernels_kind_is_told_from_its_name(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_traces_are_read_gzipped_or_not_and_what_is_none_is_told(tmp_path: Path) -> None:
    content = json.dumps({"traceEvents": [mark(0)]}).encode()
    plain, packed, cut, other = (tmp_path / name for name in ("a.json", "b.json.gz", "c.json.gz", "d.json"))
    plain.write_bytes(content)
    packed.write_bytes(gzip.compress(content))
    cut.write_bytes(gzip.compress(content)[:-9])
    other.write_bytes(b"[1, 2]")
    assert read_events(plain) == read_events(packed) == [mark(0)]
    for path in (cut, other, tmp_path / "gone.json"):
        with pytest.raises(MeasurementError, match="is no trace"):
            read_events(path)
