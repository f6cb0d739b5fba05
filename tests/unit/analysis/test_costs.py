"""Memory, first token, tail: by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.standin.synthetic import cell, record, request

from specstudy.analysis import Cell, latency_changes, memory, p99_ratio, rejections

HEAD: dict[str, Any] = {"method": "eagle3", "draft": "e", "num_speculative_tokens": 3}


def timed(e2e_ms: list[list[float]], **what: Any) -> Cell:
    """A cell whose repeat i has requests that take e2e_ms[i]."""
    records = [record(repeat=i, record_id=f"{i:08x}{what.get('method', 'none')[:8]:0>8}", **what) for i in range(len(e2e_ms))]
    rows = [request(one.record_id, j, first_token_s=0.0, last_token_s=ms / 1e3) for one, mine in zip(records, e2e_ms, strict=True) for j, ms in enumerate(mine)]
    return cell(records, rows)


def test_memory_is_the_difference_of_what_the_logs_say() -> None:
    baseline = cell([record(weights_gib=0.25, kv_cache_tokens=1_000_000)])
    (found,) = memory([baseline, cell([record(**HEAD, weights_gib=0.30, kv_cache_tokens=950_000)])])
    assert found.draft_gib == pytest.approx(0.05)
    assert found.draft_share == pytest.approx(0.2)
    assert found.kv_share_lost == pytest.approx(0.05)


def test_memory_is_not_told_where_a_log_says_nothing() -> None:
    assert memory([cell([record()]), cell([record(**HEAD, weights_gib=0.3)])]) == []
    (found,) = memory([cell([record(weights_gib=0.25)]), cell([record(**HEAD, weights_gib=0.3)])])
    assert found.kv_share_lost is None


def given(gib: int) -> dict[str, Any]:
    return {"server_argv": ("python", "--kv-cache-memory-bytes", str(gib * 2**30), "--port", "1"), "weights_gib": 0.3, "idle_neighbours": 3}


def test_in_a_cache_of_one_size_what_is_lost_is_the_drafts_own_room() -> None:
    (found,) = memory([cell([record(**given(8), kv_cache_tokens=100_000)]), cell([record(**HEAD, **given(8), kv_cache_tokens=75_000)])])
    assert (found.cache_gib, found.draft_kv_gib) == (8, 2)


@pytest.mark.parametrize(("words", "gib"), [(str(2**33), 8), ("8G", 8), ("8.0g", 8e9 / 2**30), ("512M", 0.5)])
def test_a_caches_size_may_be_given_as_vllm_takes_it(words: str, gib: float) -> None:
    both = {"server_argv": ("python", "--kv-cache-memory-bytes", words), "weights_gib": 0.3}
    (found,) = memory([cell([record(**both, kv_cache_tokens=100)]), cell([record(**HEAD, **both, kv_cache_tokens=75)])])
    assert found.cache_gib == pytest.approx(gib)


def test_a_cache_that_others_shared_is_not_told_unless_its_size_was_given() -> None:
    shared = {"weights_gib": 0.3, "kv_cache_tokens": 100, "idle_neighbours": 3}
    (found,) = memory([cell([record(**shared)]), cell([record(**HEAD, **shared)])])
    assert (found.kv_share_lost, found.draft_kv_gib) == (None, None)
    (found,) = memory([cell([record(**given(8), kv_cache_tokens=100)]), cell([record(**HEAD, **given(4), kv_cache_tokens=100)])])
    assert (found.kv_share_lost, found.cache_gib) == (None, None)


def test_the_change_of_the_first_token_is_paired_by_repeat() -> None:
    baseline = cell([record(repeat=i, ttft_ms_p50=value) for i, value in enumerate((10.0, 20.0))])
    (found,) = latency_changes([baseline, cell([record(repeat=i, ttft_ms_p50=value, **HEAD) for i, value in enumerate((12.0, 24.0))])])
    assert found.ttft_ms is not None and found.ttft_ms.estimate == pytest.approx(3.0)
    assert found.ttft_p50 is not None and (found.ttft_p50.low, found.ttft_p50.high) == pytest.approx((1.2, 1.2))
    assert found.tpot_p99 is None and found.chunk_gap_p99 is None


def test_a_p99_ratio_is_numpys_and_needs_300_requests() -> None:
    rng = np.random.default_rng(5)
    plain = [list(rng.uniform(100, 200, 150)) for _ in range(2)]
    halved = [[ms / 2 for ms in mine] for mine in plain]
    baseline, fast = timed(plain), timed(halved, **HEAD)
    found = p99_ratio(fast, baseline, "e2e_ms")
    assert found is not None
    # Each request takes half as long, whichever repeat is left out.
    assert (found.low, found.estimate, found.high, found.n) == pytest.approx((0.5, 0.5, 0.5, 2))
    assert p99_ratio(timed([halved[0]], **HEAD), baseline, "e2e_ms") is None


def test_repeats_that_disagree_widen_a_p99_ratios_interval_however_many_requests_they_hold() -> None:
    """All requests of a repeat alike: p99 is the slowest repeat's. Log2 ratio 2 with all three and without the first or second, 1 without the third:
    the jackknife's error is sqrt(2/3 (1/9 + 1/9 + 4/9)) = 2/3, and t(0.975, 2) is 4.303."""
    fast, plain = timed([[200.0] * 400, [200.0] * 400, [400.0] * 400], **HEAD), timed([[100.0] * 400] * 3)
    found = p99_ratio(fast, plain, "e2e_ms")
    assert found is not None
    assert (np.log2(found.estimate), found.n) == (pytest.approx(2.0), 3)
    assert (np.log2(found.low), np.log2(found.high)) == pytest.approx((2 - 4.303 * 2 / 3, 2 + 4.303 * 2 / 3), abs=1e-3)
    assert not found.excludes(1.0)


def test_only_requests_that_both_have_are_compared() -> None:
    plain = [[100.0] * 299 + [900.0], [100.0] * 300]
    found = p99_ratio(timed([[50.0] * 300], **HEAD), timed(plain), "e2e_ms")
    assert found is not None and (found.n, np.isnan(found.low)) == (1, True)
    assert found.estimate == pytest.approx(0.5)


def test_rejection_is_read_from_the_chunks_after_the_first() -> None:
    one = record(**HEAD)
    # 75 answers of four steps after the first chunk: tokens 1, 4, 1, 3 after pauses of 10, 20, 12, 24 ms.
    chunks = {"chunk_tokens": (1, 1, 4, 1, 3), "chunk_gap_us": (10_000, 20_000, 12_000, 24_000), "chunks": 5, "completion_tokens": 10}
    (found,) = rejections([cell([one], [request(one.record_id, i, **chunks) for i in range(75)])])
    assert (found.chunks, found.single) == (300, 0.5)
    assert (found.single_gap_p50, found.fuller_gap_p50) == (11.0, 22.0)
    assert (found.gap_p99, found.per_token_p99) == (24.0, 12.0)  # per token: 10, 5, 12, 8


def test_a_tail_needs_300_chunks() -> None:
    one = record(**HEAD)
    assert rejections([cell([one], [request(one.record_id, i) for i in range(299)])]) == []


def test_a_chunk_gap_isnt_compared_with_a_baselines_whose_chunks_were_merged() -> None:
    baseline = [record(repeat=i, chunk_gap_ms_p99=10.0, tokens_per_chunk_mean=1.14) for i in range(2)]
    ours = cell([record(repeat=i, chunk_gap_ms_p99=20.0, **HEAD) for i in range(2)])
    (found,) = latency_changes([cell(baseline), ours])
    assert found.chunk_gap_p99 is None
    (found,) = latency_changes([cell([one.model_copy(update={"tokens_per_chunk_mean": 1.04}) for one in baseline]), ours])
    assert found.chunk_gap_p99 is not None and found.chunk_gap_p99.estimate == pytest.approx(2.0)


def test_a_tail_says_how_many_repeats_kept_their_chunks() -> None:
    kept, bare = record(repeat=0), record(repeat=1, record_id="b" * 16)
    rows = [request(kept.record_id, i, chunk_tokens=(1, 1, 1), chunk_gap_us=(10_000, 10_000)) for i in range(150)]
    (found,) = rejections([cell([kept, bare], [*rows, request(bare.record_id, 0, chunk_tokens=(), chunk_gap_us=())])])
    assert found.repeats == 1
