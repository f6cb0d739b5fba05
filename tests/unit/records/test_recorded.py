"""The results kept in the repository: every line a record, every request joined, every percentile found again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from specstudy.records import Record, load_records, load_requests

RESULTS = Path(__file__).parents[3] / "data" / "results"
# Scaling runs have a schema, and a test, of their own.
KEPT = sorted(path for path in RESULTS.rglob("*.jsonl") if path.stem != "08_hpa_scaling")


def latencies_ms(requests: pd.DataFrame) -> dict[str, list[float]]:
    """TTFT, TPOT, E2E and chunk gaps of one record's good requests, as the design defines them."""
    answered = requests[requests["completion_tokens"] > 1]
    return {
        "ttft": list((requests["first_token_s"] - requests["scheduled_s"]) * 1e3),
        "e2e": list((requests["last_token_s"] - requests["scheduled_s"]) * 1e3),
        "tpot": list((answered["last_token_s"] - answered["first_token_s"]) * 1e3 / (answered["completion_tokens"] - 1)),
        "chunk_gap": [gap / 1e3 for gaps in requests["chunk_gap_us"] for gap in gaps],
    }


def check(record: Record, requests: pd.DataFrame) -> None:
    """Compare one record with its rows. Times and gaps are kept to the microsecond, so a difference of two times may be 1 us off."""
    assert len(requests) == record.num_prompts
    assert sorted(requests["index"]) == list(range(record.num_prompts))
    assert requests["completion_tokens"].sum() == record.output_tokens
    for kind, values in latencies_ms(requests).items():
        if not values:
            continue
        for percent in (50, 90, 99):
            kept = getattr(record, f"{kind}_ms_p{percent}")
            if percent == 99 and len(values) < 300:
                assert kept is None, "a p99 needs 300 values"
            else:
                assert kept == pytest.approx(float(np.percentile(values, percent)), rel=1e-9, abs=1e-3)


@pytest.mark.parametrize("path", KEPT, ids=[str(path.relative_to(RESULTS)) for path in KEPT])
def test_a_kept_results_file_is_whole_and_agrees_with_its_requests(path: Path) -> None:
    loaded = load_records(path)
    assert loaded.skipped == ()
    assert loaded.records
    assert {record.chapter for record in loaded.records} == {path.stem}
    assert {record.profile for record in loaded.records} == {path.parent.name}
    assert len({record.record_id for record in loaded.records}) == len(loaded.records)
    requests = load_requests(path.with_suffix(".requests.parquet")).to_pandas()
    for record in loaded.records:
        if record.status == "ok" and record.evidence != "published":
            check(record, requests[requests["record_id"] == record.record_id])


@pytest.mark.parametrize("path", KEPT, ids=[str(path.relative_to(RESULTS)) for path in KEPT])
def test_a_kept_results_file_names_nobodys_disk(path: Path) -> None:
    for record in load_records(path).records:
        named = [word for word in record.server_argv if word.startswith("/") or '"/' in word]
        assert named == [], record.record_id
