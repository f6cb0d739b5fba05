"""Memory by hand, variants of one server side by side, and perplexity by its definition."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.standin.synthetic import QUALITY, record

from specstudy.analysis import Cell, group
from specstudy.analysis.quantization import H100, H200, fastest_at, headroom, of_variant, over_reference, quality_rows, variants
from specstudy.catalog.shapes import load_shape
from specstudy.records.quality import Quality, Scores
from specstudy.records.schema import Record
from specstudy.records.store import REQUESTS_SCHEMA

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)


def test_the_unquantized_70b_fits_on_one_h200_and_on_no_h100() -> None:
    """143,771 MiB less 141,107,412,992 bytes are 9,647,407,104: 29,441 tokens of 327,680 bytes. 81,559 MiB are less than the weights."""
    on_h200, on_h100 = headroom(load_shape("llama-3.3-70b"), ["bf16"], [H200, H100])
    assert on_h200.left_bytes == 143_771 * 2**20 - 2 * 70_553_706_496 == 9_647_407_104
    assert (on_h200.fits, on_h200.kv_tokens, on_h200.cards_needed) == (True, 29_441, 1)
    assert (on_h100.fits, on_h100.kv_tokens, on_h100.cards_needed) == (False, 0, 2)


def test_fp8_leaves_an_h100_little() -> None:
    (found,) = headroom(load_shape("llama-3.3-70b"), ["fp8"], [H100])
    assert found.fits
    assert found.kv_tokens == (81_559 * 2**20 - (80 * 855_638_016 + 2 * (2 * 128_256 * 8_192 + 161 * 8_192))) // 327_680


def series(name: str, minute: int, speeds: list[float], **changes: Any) -> list[Record]:
    """Repeats of one variant at concurrency 8, without speculation."""
    fixed = {"method": "none", "draft": None, "num_speculative_tokens": None, "concurrency": 8, "engine_variant": name}
    return [
        record(
            **{**fixed, **changes},
            repeat=repeat,
            record_id=f"{minute * 10 + repeat:016x}",
            started_at=NOON + timedelta(minutes=minute + repeat / 10),
            output_tokens_per_s=speed,
        )
        for repeat, speed in enumerate(speeds)
    ]


@pytest.fixture
def cells() -> list[Cell]:
    records = [*series("zeta", 0, [100.0, 110.0]), *series("alpha", 1, [200.0, 220.0]), *series("mid", 2, [150.0, 150.0])]
    return group(records, REQUESTS_SCHEMA.empty_table())


def test_variants_come_in_the_order_in_which_they_were_measured(cells: list[Cell]) -> None:
    assert variants(cells) == ["zeta", "alpha", "mid"]
    assert [cell.label for cell in of_variant(cells, "alpha")] == ["alpha"]


def test_ratios_are_paired_with_the_reference(cells: list[Cell]) -> None:
    found = {one.cell.label: one.ratio.estimate for one in over_reference(cells, "zeta")}
    assert found == pytest.approx({"alpha": 2.0, "mid": math.sqrt(1.5 * 150 / 110)})


def test_the_fastest_and_the_next(cells: list[Cell]) -> None:
    (one,) = fastest_at(cells)
    assert [one.cell.label, *(other.cell.label for other in one.others)] == ["alpha", "mid", "zeta"]


def test_the_fastest_variant_is_one_without_speculation(cells: list[Cell]) -> None:
    head = {"method": "eagle3", "draft": "e", "num_speculative_tokens": 3}
    records = [record for cell in cells for record in cell.records]
    (one,) = fastest_at(group([*records, *series("zeta", 3, [900.0, 910.0], **head)], REQUESTS_SCHEMA.empty_table()))
    assert [one.cell.label, *(other.cell.label for other in one.others)] == ["alpha", "mid", "zeta"]


def quality(**changes: Any) -> Quality:
    """Two texts of 10 and 30 tokens; 2 nats a token without quantization."""
    base = Scores(name="bf16", recipe="", weights_bytes=8, nll=(20.0, 60.0), agreed=(4, 4), same_until=(4, 4))
    worse = Scores(name="awq", recipe="", weights_bytes=2, nll=(22.0, 66.0), agreed=(2, 4), same_until=(1, 4))
    return Quality.model_validate({**QUALITY, "models": (base, worse), **changes})


def test_perplexity_and_agreement() -> None:
    before, after = quality_rows(quality())
    assert before.perplexity.estimate == pytest.approx(math.exp(2))
    assert before.perplexity_ratio is None
    assert after.perplexity.estimate == pytest.approx(math.exp(88 / 40))
    # The same 0.2 nats more in each text: whatever is resampled, the ratio stays.
    ratio = after.perplexity_ratio
    assert ratio is not None
    assert (ratio.estimate, ratio.low, ratio.high) == pytest.approx((math.exp(0.2),) * 3)
    assert (after.agreement.estimate, after.same_answers, after.answers) == (6 / 8, 1, 2)
    assert (before.agreement.estimate, before.same_answers) == (1.0, 2)


def test_texts_that_disagree_widen_the_interval() -> None:
    worse = Scores(name="awq", recipe="", weights_bytes=2, nll=(30.0, 60.0), agreed=(2, 4), same_until=(1, 4))
    ratio = quality_rows(quality(models=(quality().base, worse)))[1].perplexity_ratio
    assert ratio is not None
    # Resampled texts are both the first (e to 1), both the second (1) or both: the interval spans the extremes.
    assert (ratio.low, ratio.estimate, ratio.high) == pytest.approx((1.0, math.exp(10 / 40), math.e))
