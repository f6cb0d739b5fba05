"""What single columns and lines hold: gap percentiles, processors, one head over another."""

from __future__ import annotations

from tests.standin.synthetic import cell, record, repeats, request

from specstudy import figures
from specstudy.analysis import Cell, Family, same_k
from specstudy.figures.acceptance import heads_lines


def families_of(*drafts: str) -> tuple[Family, Family]:
    ours, theirs = (Family("eagle3", draft) for draft in drafts)
    return ours, theirs


def test_two_heads_are_compared_on_chat_in_acceptance_and_in_throughput() -> None:
    """EAGLE 3.1 over EAGLE-3 at K = 3: 2.2 over 2.0 tokens a step in each repeat, and 90 over 100 tokens/s."""

    def head(draft: str, rate: float, length: float) -> Cell:
        own = [
            record(repeat=i, method="eagle3", draft=draft, num_speculative_tokens=3, output_tokens_per_s=rate + i, acceptance_length=length) for i in range(3)
        ]
        return cell(own)

    lines = heads_lines(same_k([head("three", 100, 2.0), head("three-one", 90, 2.2)], *families_of("three-one", "three")))
    assert lines[0].startswith("3.1 over 3 on chat, K and load alike: acceptance length higher in 1 of 1 cells; throughput lower in 1 of 1 cells, from 0.90 (")
    assert heads_lines([]) == []


def test_the_pause_between_chunks_is_every_repeats_not_that_of_the_repeats_whose_chunks_were_kept() -> None:
    """Records of 10, 20 and 30 ms: 20 ± 4.303 x 10 / sqrt(3) = 24.8, whatever the requests hold."""
    records = [record(repeat=i, record_id=f"{i:016x}", chunk_gap_ms_p50=value, chunk_gap_ms_p99=2 * value) for i, value in enumerate((10.0, 20.0, 30.0))]
    table = figures.latency_table([cell(records, [request(records[0].record_id, 0, chunk_gap_us=(1_000,), chunk_tokens=(1, 2))])])
    assert isinstance(table, figures.Table)
    assert table.frame.iloc[0][["chunk gap p50 ms", "chunk gap p99 ms"]].tolist() == ["20.0 ± 24.8", "40.0 ± 49.7"]


def test_processors_are_shown_where_records_have_them() -> None:
    plain = figures.throughput_table([repeats([100.0, 100.0])])
    assert isinstance(plain, figures.Table) and "engine, processors" not in plain.frame and "Processors" not in plain.note
    table = figures.throughput_table([repeats([0.9, 1.0], "engine_cores", api_server_cores=0.25)])
    assert isinstance(table, figures.Table) and "one at about 1 is busy throughout, or waits" in table.note
    # Student's t for one degree of freedom is 12.71: 0.95 ± 12.71 x 0.0707 / sqrt(2).
    assert table.frame.iloc[0][["engine, processors", "API server, processors", "load generator, processors"]].tolist() == ["0.95 ± 0.64", "0.25 ± 0.00", "–"]
