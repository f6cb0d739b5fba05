"""Decode throughput by hand: what belongs to a prefill, the ramp or the drain isn't in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.standin.synthetic import REQUEST, cell, record

from specstudy.analysis import Cell, decode_speedups, decode_throughput
from specstudy.catalog import load_profile
from specstudy.measure import cell as measuring
from specstudy.records import RequestRow
from specstudy.study import read_study
from specstudy.workloads import Closed

RESULTS = Path(__file__).parents[3] / "data" / "results"


def request(index: int, sent_s: float, first_s: float, gaps_s: list[float], tokens: list[int], **more: Any) -> RequestRow:
    gaps = tuple(round(gap * 1e6) for gap in gaps_s)
    fields = {
        "index": index,
        "scheduled_s": sent_s,
        "sent_s": sent_s,
        "first_token_s": first_s,
        "last_token_s": first_s + sum(gaps_s),
        "chunk_gap_us": gaps,
        "chunk_tokens": tuple(tokens),
        "chunks": len(tokens),
        "completion_tokens": sum(tokens),
    }
    return RequestRow.model_validate({**REQUEST, **fields, **more})


def two_slots() -> Cell:
    """Slot A: first token at 1.0, then one each 0.1 s to 2.0; after a prefill of 0.5 s again 2.5 to 3.0.
    Slot B: first token at 1.4, then two each 0.1 s to 2.9."""
    rows = [
        request(0, 0.0, 1.0, [0.1] * 10, [1] * 11),
        request(1, 0.0, 1.4, [0.1] * 15, [1] + [2] * 15),
        request(2, 2.0, 2.5, [0.1] * 5, [1] * 6),
    ]
    return cell([record(concurrency=2, num_prompts=3, completed=3)], rows)


def test_only_time_in_which_every_slot_decodes_counts() -> None:
    # Both decode from 1.4 to 2.0 (6 steps of 1 + 2 tokens) and from 2.5 to 2.9 (4 steps): 30 tokens in 1.0 s.
    found = decode_throughput(two_slots())
    assert found is not None
    assert found.tokens_per_s.estimate == pytest.approx(30.0)
    assert found.share == pytest.approx(1.0 / 3.0)


def test_an_answer_of_one_chunk_is_no_step_and_no_obstacle() -> None:
    rows = [request(0, 0.0, 0.8, [0.05] * 10, [1] * 11), request(1, 1.3, 2.1, [], [1]), request(2, 2.1, 2.5, [], [], completion_tokens=1, chunks=1)]
    found = decode_throughput(cell([record(concurrency=1)], rows))
    assert found is not None
    assert found.tokens_per_s.estimate == pytest.approx(20.0)


def test_one_slot_is_the_inverse_of_tpot() -> None:
    # 0.8 s of prefill before each answer; 10 tokens in 0.5 s after the first one, twice.
    rows = [request(0, 0.0, 0.8, [0.05] * 10, [1] * 11), request(1, 1.3, 2.1, [0.05] * 10, [1] * 11)]
    found = decode_throughput(cell([record(concurrency=1)], rows))
    assert found is not None
    assert found.tokens_per_s.estimate == pytest.approx(20.0)
    assert found.share == pytest.approx(1.0 / 2.6)


def test_a_stretch_is_counted_in_whole_steps_of_each_slot() -> None:
    """A step takes 0.4 s and gives each of two slots 2 tokens: 10 tokens/s. Slot B's reach the client 0.05 s after slot A's.

    Both decode from 1.05 to 2.2 and from 4.25 to 5.4: three steps, of which a count by the clock would have 3 chunks of A and 2 of B
    in 1.15 s, 8.7 tokens/s.
    """
    rows = [
        request(0, 0.0, 0.6, [0.4] * 4, [1, 2, 2, 2, 2]),
        request(1, 0.0, 1.05, [0.4] * 5, [1] + [2] * 5),
        request(2, 2.2, 3.8, [0.4] * 4, [1, 2, 2, 2, 2]),
        request(3, 3.05, 4.25, [0.4] * 5, [1] + [2] * 5),
    ]
    found = decode_throughput(cell([record(concurrency=2, num_prompts=4, completed=4)], rows))
    assert found is not None
    assert found.tokens_per_s.estimate == pytest.approx(10.0)


def test_slots_that_never_decode_together_have_no_rate() -> None:
    rows = [request(0, 0.0, 0.1, [0.1] * 3, [1] * 4), request(1, 0.0, 0.5, [0.1] * 3, [1] * 4)]
    assert decode_throughput(cell([record(concurrency=2)], rows)) is None


def test_an_open_loop_has_no_slots() -> None:
    rows = [request(0, 0.0, 0.1, [0.1] * 3, [1] * 4)]
    assert decode_throughput(cell([record(concurrency=None, pattern="poisson", request_rate=1.0)], rows)) is None


def test_the_speedup_is_that_of_decoding_alone() -> None:
    # Prefill takes 1 s on both sides. Decoding gives 10 tokens/s against 40: 4 times, though end to end it is less.
    def one(step_tokens: int, gap_s: float, steps: int, **more: Any) -> Cell:
        rows = [
            request(i, i * 10.0, i * 10.0 + 1.0, [gap_s] * steps, [1] + [step_tokens] * steps, record_id=f"{number:016x}")
            for number in range(2)
            for i in range(2)
        ]
        return cell([record(concurrency=1, repeat=number, record_id=f"{number:016x}", **more) for number in range(2)], rows)

    plain = one(1, 0.1, 20)
    drafted = one(4, 0.1, 5, method="eagle3", draft="e", num_speculative_tokens=3)
    (found,) = decode_speedups([plain, drafted])
    assert found.ratio.estimate == pytest.approx(4.0)
    assert found.verdict == "faster"


def test_what_is_stored_when_measuring_is_what_the_gaps_give() -> None:
    """On real records with gaps: the fields as they are made from a repeat's requests, then the same table without any gap."""
    cells = read_study(load_profile("h200-llama-3.3-70b-shape"), "04_eagle3", RESULTS).cells
    compared = 0
    for kept in cells:
        # Older records may have been kept without their gaps; those have nothing to compare.
        records = tuple(record.model_copy(update={"decode_tokens_per_s": None, "decode_share": None}) for record in kept.records)
        by_gaps = decode_throughput(Cell(kept.variant, kept.load, records, kept.requests))
        if by_gaps is None:
            continue
        stored = []
        for one in records:
            rows = kept.requests[kept.requests["record_id"] == one.record_id].sort_values("index")
            requests = [RequestRow.model_validate({**row, "error": None}) for row in rows.to_dict("records")]
            assert one.concurrency is not None
            stored.append(one.model_copy(update=measuring._decode(requests, Closed(one.concurrency))))
        without = kept.requests.assign(chunk_gap_us=[()] * len(kept.requests), chunk_tokens=[()] * len(kept.requests))
        by_fields = decode_throughput(Cell(kept.variant, kept.load, tuple(stored), without))
        assert by_fields is not None
        assert (by_fields.by_repeat, by_fields.share) == (by_gaps.by_repeat, by_gaps.share)
        compared += len(by_gaps.by_repeat)
    assert compared >= 30


def test_a_stored_rate_comes_before_the_gaps() -> None:
    stored = two_slots().records[0].model_copy(update={"decode_tokens_per_s": 7.0, "decode_share": 0.5})
    found = decode_throughput(cell([stored], [request(0, 0.0, 1.0, [0.1] * 10, [1] * 11)]))
    assert found is not None
    assert (found.tokens_per_s.estimate, found.share) == (7.0, 0.5)
