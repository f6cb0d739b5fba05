"""A measured step beside its limit, by hand for the 70B shape in FP8."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.standin.synthetic import LIMITS, cell, record, request

from specstudy.analysis.cells import Cell
from specstudy.analysis.shares import draft_shape, share_of, shares, step_ms
from specstudy.analysis.weights import PRECISIONS, weights_of
from specstudy.records.machine import MachineLimits

MACHINE = MachineLimits.model_validate(LIMITS)
PLAIN = {"method": "none", "draft": None, "num_speculative_tokens": None, "acceptance_length": None, "acceptance_rate": None, "acceptance_per_position": None}
LLAMA: dict[str, Any] = {"target": "llama-3.3-70b-shape", "quantization": "fp8", "dtype": "bfloat16", "concurrency": 1, "allocation": "a" * 12}


def measured(gaps: list[float], **changes: Any) -> Cell:
    """Repeats with these median pauses; one request each of 512 tokens in and 256 out."""
    fixed = {**PLAIN, **LLAMA, "tokens_per_chunk_mean": 1.0, "queue_wait_ms_mean": 0.0, "e2e_ms_mean": 5_000.0, **changes}
    records = [record(repeat=i, record_id=f"{i:016x}", chunk_gap_ms_p50=gap, **fixed) for i, gap in enumerate(gaps)]
    return cell(records, [request(one.record_id, 0, prompt_tokens=512, completion_tokens=256) for one in records])


def test_the_share_of_a_step() -> None:
    """70.55 GB of weights (the embedding isn't read) and 641 tokens of cache over 4.3 TB/s: 16.46 ms, of a step of 20 ms."""
    found = share_of(measured([20.0, 20.0]), MACHINE)
    assert found is not None
    least = (80 * 855_638_016 + 2 * (128_256 * 8_192 + 161 * 8_192) + (512 + 128 + 1) * 327_680) / 4.3e9
    assert found.share.estimate == pytest.approx(least / 20)
    assert found.share.estimate == pytest.approx(0.823, abs=0.001)
    assert (found.bound, found.context) == ("weights", 640)


def test_the_interval_is_turned_over() -> None:
    found = share_of(measured([19.0, 21.0]), MACHINE)
    assert found is not None
    assert found.share.low < found.share.estimate < found.share.high
    assert found.share.low == pytest.approx(found.limit.total_s * 1e3 / found.step_ms.high)


def test_a_step_that_may_take_no_time_leaves_the_share_open_upwards() -> None:
    """10 and 30 ms: mean 20, standard error 10; t(0.975, 1) = 12.706, so the lower end is -107."""
    found = share_of(measured([10.0, 30.0]), MACHINE)
    assert found is not None
    assert (found.share.estimate, found.share.high) == (pytest.approx(0.823, abs=0.001), math.inf)
    assert 0 < found.share.low < found.share.estimate


def test_most_of_a_slow_step_is_overhead() -> None:
    found = share_of(measured([40.0]), MACHINE)
    assert found is not None
    assert found.bound == "overhead"


def test_requests_that_wait_for_a_place_are_not_decoding() -> None:
    found = share_of(measured([30.0], concurrency=32, queue_wait_ms_mean=1_250.0), MACHINE)
    assert found is not None
    assert found.sequences == 24


@pytest.mark.parametrize(
    ("fields", "step"),
    [
        ({"chunk_gap_ms_p50": 21.0, "tokens_per_chunk_mean": 1.0, "tpot_ms_mean": 25.0}, 21.0),
        # Chunks that were merged aren't steps.
        ({"chunk_gap_ms_p50": 42.0, "tokens_per_chunk_mean": 1.9, "tpot_ms_mean": 25.0}, 25.0),
    ],
)
def test_a_step_without_speculation(fields: dict[str, float], step: float) -> None:
    found = step_ms(cell([record(**{**PLAIN, **fields})]))
    assert found is not None
    assert found.estimate == step


def test_a_step_with_speculation_delivers_the_acceptance_length() -> None:
    """2.5 tokens at 10 ms each; where a chunk has 2.4 of them it is a step."""
    fields = {"method": "eagle3", "num_speculative_tokens": 3, "acceptance_length": 2.5, "tpot_ms_mean": 10.0, "chunk_gap_ms_p50": 24.5}
    merged, single = (step_ms(cell([record(tokens_per_chunk_mean=carried, **fields)])) for carried in (3.1, 2.4))
    assert merged is not None and single is not None
    assert (merged.estimate, single.estimate) == (25.0, 24.5)


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_a_method_that_drafts_in_some_steps_only_has_no_step_of_its_own(method: str) -> None:
    """Its acceptance length is that of the steps with a draft: times TPOT it would be more than two steps here."""
    found = measured([17.0], method=method, num_speculative_tokens=3, acceptance_length=2.3, tpot_ms_mean=16.6, tokens_per_chunk_mean=1.1)
    assert step_ms(found) is share_of(found, MACHINE) is None


def test_what_the_log_says_of_the_kernel_decides_the_rate() -> None:
    marlin = share_of(measured([20.0], linear_kernel="MarlinFP8ScaledMMLinearKernel"), MACHINE)
    native = share_of(measured([20.0], linear_kernel="CutlassFP8ScaledMMLinearKernel"), MACHINE)
    assert marlin is not None and native is not None
    assert (marlin.server.precision, native.server.precision) == (PRECISIONS["fp8-marlin"], PRECISIONS["fp8"])


def test_no_share_without_limits_of_the_same_allocation_or_sizes() -> None:
    one = measured([20.0])
    assert shares([one], {}) == shares([one], {"b" * 12: MACHINE}) == []
    assert len(shares([one], {"a" * 12: MACHINE})) == 1
    assert share_of(measured([20.0], target="somebody-elses"), MACHINE) is None


def test_the_studys_own_drafts_have_their_sizes() -> None:
    """The P-EAGLE head: 4 layers of width 576, the first with twice the inputs. The pruned model: 23 of the target's 30 layers."""
    peagle, pruned = draft_shape("smollm2-135m-peagle"), draft_shape("smollm2-135m-pruned")
    assert peagle is not None and pruned is not None
    each = 576 * (576 + 2 * 192) + 576 * 576 + 3 * 576 * 1_536
    assert weights_of(peagle).linear == 4 * each + 576 * (576 + 2 * 192)
    assert weights_of(peagle).lm_head == 576 * 24_576
    assert weights_of(pruned).linear == 23 * each
    assert draft_shape(None) is draft_shape("somebody-elses") is None


def test_a_pruned_draft_keeps_the_kinds_of_its_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPT-OSS alternates: layers 0 and 2 look at a window, 1 and 3 at everything."""
    source = {"kind": "pruned", "of": "big", "layers": [0, 2, 3]}
    named = {
        "targets": {"name": "big", "title": "Big", "licence": "MIT", "source": {"kind": "shape", "shape": "gpt-oss-20b"}},
        "drafts": {"name": "few", "title": "Few", "method": "draft_model", "target": "big", "licence": "MIT", "source": source},
        "shapes": yaml.safe_load((Path(__file__).parents[3] / "data" / "shapes" / "gpt-oss-20b.yaml").read_text()),
    }
    (tmp_path / "data" / "profiles").mkdir(parents=True)
    for folder, content in named.items():
        (tmp_path / "data" / folder).mkdir()
        (tmp_path / "data" / folder / f"{content['name']}.yaml").write_text(yaml.safe_dump(content))
    monkeypatch.setenv("SPECSTUDY_ROOT", str(tmp_path))
    found = draft_shape("few")
    assert found is not None
    assert found.architecture.layer_types == ("sliding_attention", "sliding_attention", "full_attention")
