"""The same steps at another published acceptance length, by hand."""

from __future__ import annotations

from typing import Any

import pytest
from tests.standin.synthetic import repeats

from specstudy import figures
from specstudy.analysis import Cell, rivals, speedups
from specstudy.analysis.elsewhere import elsewhere

HEAD = "llama-3.3-70b/specforge-eagle3"
DRAFTED: dict[str, Any] = {"method": "eagle3", "draft": "a-head", "num_speculative_tokens": 5, "acceptance_length": 3.618, "evidence": "shape"}


def cells(source: str = f"{HEAD}/mtbench/k5, at a constant rate by position") -> list[Cell]:
    """The baseline decodes 100 tokens/s, 80 end to end; the head 300 and 150, at the length of MT-Bench, 3.618."""
    plain = repeats([80.0, 80.0], evidence="shape", decode_tokens_per_s=100.0, decode_share=0.8, concurrency=8)
    head = repeats([150.0, 150.0], decode_tokens_per_s=300.0, decode_share=0.5, concurrency=8, acceptance_source=source, **DRAFTED)
    return [plain, head]


def test_decoding_goes_with_the_length_and_the_rest_stays() -> None:
    """GSM8K at K = 5: SpecForge published 2.485. Rest: 1/150 - 1/300 s a token."""
    found = {one.row.dataset: one for one in elsewhere(cells())}
    assert len(found) == 7
    assert found["MT-Bench"].decode == pytest.approx(3.0) and found["MT-Bench"].end_to_end == pytest.approx(150 / 80)
    decode = 300 * 2.485 / 3.618
    assert found["GSM8K"].decode == pytest.approx(decode / 100)
    assert found["GSM8K"].end_to_end == pytest.approx(1 / (1 / 150 - 1 / 300 + 1 / decode) / 80)


def test_nothing_where_nothing_was_imposed_or_it_was_modelled_from_another_k() -> None:
    assert elsewhere(cells(f"{HEAD}/mtbench/k3, modelled at another K")) == []
    assert elsewhere([repeats([1.0, 1.0]), repeats([2.0, 2.0], method="eagle3", draft="a-head", num_speculative_tokens=5)]) == []
    assert isinstance(figures.elsewhere_table([]), figures.Text)


def test_the_table_is_computed_and_says_so() -> None:
    table = figures.elsewhere_table(cells())
    assert isinstance(table, figures.Table) and table.evidence == "simulated"
    assert table.frame["data set"].iloc[0] == "MT-Bench" and table.frame["its published speed-up"].iloc[0] == "2.61"
    assert "the shortest of 7" in figures.elsewhere_conclusion(cells()).markdown


def test_who_isnt_told_apart_from_the_highest() -> None:
    """Ratios with intervals: about 2.0 (1.9 to 2.1), 1.95 (1.85 to 2.05), and 1.5 sharp."""
    plain = repeats([100.0, 100.0, 100.0])
    same = {"method": "eagle3", "draft": "a-head"}
    wide, near, low = (
        repeats(values, **same, num_speculative_tokens=k) for k, values in ((3, [198.0, 200.0, 202.0]), (5, [196.0, 199.0, 201.0]), (7, [150.0, 150.0, 150.0]))
    )
    found = speedups([plain, wide, near, low])
    assert [one.cell.variant.num_speculative_tokens for one in rivals(found[0], found)] == [5]
    assert "not told apart from a-head K=5" in figures.speculation_conclusion([plain, wide, near, low]).markdown


def test_where_the_clock_fell_the_power_is_named() -> None:
    gpu = {"gpu_power_w_mean": 690.0}
    full = repeats([1900.0, 1900.0], "gpu_sm_clock_mhz_mean", concurrency=1, gpu_power_w_mean=500.0)
    held = repeats([1500.0, 1500.0], "gpu_sm_clock_mhz_mean", concurrency=32, **gpu)
    told = figures.power_note([full, held]).markdown
    assert "chat c=32 1,500 MHz" in told and "690 to 690 W" in told and "c=1 " not in told
    assert "stayed within 10%" in figures.power_note([full]).markdown
    assert "No GPU was sampled" in figures.power_note([repeats([1.0, 1.0])]).markdown
