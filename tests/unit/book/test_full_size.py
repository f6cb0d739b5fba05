"""The full-size part of chapters 03 and 04, from the recorded 70B shape."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specstudy import figures
from specstudy.book import cell_shares, open_full_size
from specstudy.catalog import recorded_dir

PROFILE = "h200-llama-3.3-70b-shape"


def lines(chapter: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (recorded_dir() / PROFILE / f"{chapter}.jsonl").read_text().splitlines()]


def test_without_records_a_sentence_says_so(tmp_path: Path) -> None:
    found = open_full_size("03_baseline", str(tmp_path))
    assert found.cells == [] and "No full-size target" in found.note.markdown


@pytest.mark.parametrize("chapter", ["03_baseline", "04_eagle3"])
def test_only_random_weights_are_shown(chapter: str) -> None:
    assert {record.evidence for cell in open_full_size(chapter).cells for record in cell.records} == {"shape"}


def test_every_target_and_every_way_to_serve_is_named() -> None:
    found = open_full_size("03_baseline")
    for target in {str(line["target"]) for line in lines("03_baseline")}:
        assert f"{target}: " in found.note.markdown
    said = figures.baseline_conclusion(found.cells).markdown
    for variant in ("default", "static", "tuned"):
        assert said.count(f"- {variant}: At fixed c=1 a request takes") == 1


def test_both_readings_of_the_bandwidth_limit() -> None:
    """By hand: a step that reads 16 bits of lm_head and 8 of each other weight, against all weights that were loaded."""
    table = figures.two_limits_table(cell_shares(open_full_size("03_baseline").cells))
    assert isinstance(table, figures.Table)
    limits = json.loads((recorded_dir() / PROFILE / f"limits-{lines('03_baseline')[0]['allocation']}.json").read_text())
    linear = 80 * (8192 * (8192 + 2 * 1024) + 8192 * 8192 + 3 * 8192 * 28672)
    head = 128256 * 8192
    read = (linear + 2 * head) / max(max(rates) for rates in limits["read_bytes_per_s"].values()) * 1e3
    copied = 67.73 * 2**30 / max(limits["copy_bytes_per_s"]) * 1e3
    row = table.frame.set_index("served").loc["static"]
    assert float(row["what a step reads, at the read rate: ms"]) == pytest.approx(read, rel=0.005)  # the keys and values of 640 tokens come on top
    assert float(row["all weights, at the copy rate: ms"]) == pytest.approx(copied, abs=0.01)
    assert len(table.frame) == 3


def test_the_best_of_each_load_in_decoding_and_end_to_end() -> None:
    said = figures.decode_conclusion(open_full_size("04_eagle3").main).markdown.splitlines()
    assert [line.split(" is ")[0].rsplit(" ", 1)[1] for line in said] == [f"c={c}" for c in (1, 2, 4, 8, 16, 32, 64)]
    assert all("; end to end " in line for line in said)
    assert figures.decode_conclusion([]).markdown.startswith("*No method")
