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


def test_a_step_is_what_lies_between_two_marks() -> None:
    """Two steps of 1,000 us: 600 and 700 us of products, 100 us of norms once, 50 of them beside the product; the last mark's own step is cut off."""
    steps = [kernel(0, 600), kernel(1000, 700), kernel(1650, 100, NORM), kernel(2000, 600)]
    found = traced([*steps, mark(0), mark(1000), mark(2000)])
    assert (found.steps, found.step_ms) == (2, 1.0)
    assert found.idle_ms == pytest.approx(0.325)  # 2,000 - 600 - 750, over 2
    assert [(one.name, one.launches, one.ms) for one in found.kernels] == [(GEMM, 1.0, pytest.approx(0.65)), (NORM, 0.5, pytest.approx(0.05))]


def test_a_kernel_that_runs_on_after_the_last_mark_covers_no_time_beyond_it() -> None:
    assert traced([mark(0), mark(1000), kernel(500, 900)]).idle_ms == pytest.approx(0.5)


def test_a_step_with_a_prompt_in_it_ends_a_row_and_the_longest_row_counts() -> None:
    marks = [mark(0), mark(10), mark(20, PREFILL), mark(30), mark(40), mark(50), mark(60, PREFILL)]
    assert decode_marks(marks) == [30, 40, 50]
    assert decode_marks([mark(20, PREFILL), {"cat": "gpu_user_annotation", "name": "something else", "ts": 1.0}]) == []


def test_marks_of_the_device_are_preferred_to_those_of_the_host() -> None:
    host = [mark(ts, cat="user_annotation") for ts in (0, 9, 18)]
    assert decode_marks(host) == [0, 9, 18]
    assert decode_marks([*host, mark(5), mark(14)]) == [5, 14]


@pytest.mark.parametrize("events", [[], [kernel(0, 5)], [mark(0), kernel(0, 5)], [mark(0), mark(10)]], ids=["nothing", "no mark", "one mark", "no kernel"])
def test_a_trace_without_a_whole_step_is_told(events: list[dict[str, Any]]) -> None:
    with pytest.raises(MeasurementError, match="trace"):
        traced(events)


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
