"""Published figures against what their sources say; the numbers were copied from there by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from specstudy.catalog.published import published_acceptance, published_heads, published_ratios, silent_killers
from specstudy.errors import ConfigError


@pytest.fixture(autouse=True)
def _this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECSTUDY_ROOT", str(Path(__file__).parents[3]))


@pytest.mark.parametrize(
    ("benchmark", "ratios"),
    [
        ("MT-Bench", [1.55, 1.29, 1.35, 1.28, 1.27, 1.09, 1.05]),
        ("HumanEval", [1.55, 1.53, 1.45, 1.35, 1.31, 1.37, 1.23]),
        ("SPEED-Bench code", [1.69, 1.61, 1.54, 1.45, 1.40, 1.22, 1.25]),
    ],
)
def test_the_peagle_curve_is_the_announcements(benchmark: str, ratios: list[float]) -> None:
    rows = [row for row in published_ratios() if row.benchmark == benchmark]
    assert [row.concurrency for row in rows] == [1, 2, 4, 8, 16, 32, 64]
    assert [row.ratio for row in rows] == ratios
    assert all("2026-03-13-p-eagle" in row.source and "B200" in row.setup for row in rows)


@pytest.mark.parametrize(
    ("head", "dataset", "k", "length"),
    [
        ("amazon/GPT-OSS-20B-P-EAGLE", "HumanEval", 7, 3.94),
        ("RedHatAI/gpt-oss-20b-speculator.eagle3", "MT-Bench", 3, 2.70),
        ("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "MT-Bench", 5, 3.32),
        ("yuhuili/EAGLE3-LLaMA3.3-Instruct-70B", "GSM8K", None, 6.15),
        ("RedHatAI/Llama4-Maverick-17B-128E-Instruct-speculator.eagle3", "GSM8K", 7, 4.02),
        ("amazon/Qwen3-Coder-30B-A3B-Instruct-P-EAGLE", "HumanEval", 18, 7.51),
    ],
)
def test_an_acceptance_length_is_its_sources(head: str, dataset: str, k: int | None, length: float) -> None:
    (found,) = [row for row in published_acceptance() if (row.head, row.dataset, row.num_speculative_tokens) == (head, dataset, k)]
    assert found.acceptance_length == length


def test_a_specforge_row_holds_the_files_own_figures() -> None:
    # data.json, Llama-3.3-70B, gsm8k, steps 5, topk 1: 500.5534 over 453.2156 tokens/s and accept_length 1.28360;
    # SpecForge's own head 855.6400 tokens/s and 2.48514.
    rows = [row for row in published_acceptance() if "SpecForge/blob" in row.source and row.target == "Llama-3.3-70B-Instruct"]
    found = [(row.acceptance_length, row.speedup) for row in rows if (row.dataset, row.num_speculative_tokens) == ("GSM8K", 5)]
    assert found == [
        (pytest.approx(1.28360, abs=5e-4), pytest.approx(500.5534 / 453.2156, abs=5e-4)),
        (pytest.approx(2.48514, abs=5e-4), pytest.approx(855.64 / 453.2156, abs=5e-4)),
    ]


def test_a_linear_draft_never_delivers_more_than_k_and_one() -> None:
    assert all(row.acceptance_length <= row.num_speculative_tokens + 1 for row in published_acceptance() if row.num_speculative_tokens)


def test_every_target_of_the_study_has_a_head_and_every_killer_a_source() -> None:
    heads = published_heads()
    assert len({head.repo_id for head in heads}) == len(heads)
    for method, target in (
        ("eagle3", "Llama-3.3-70B-Instruct"),
        ("eagle3", "Qwen3-Coder-30B-A3B-Instruct"),
        ("peagle", "Qwen3-Coder-30B-A3B-Instruct"),
        ("peagle", "gpt-oss-120b"),
    ):
        assert any((head.method, head.target) == (method, target) for head in heads), target
    assert {"vllm#38111", "vllm#43482", "SpecForge#879", "vllm#40551"} <= {row.reference for row in silent_killers()}


@pytest.mark.parametrize(
    ("line", "field"),
    [("b,1,1.2,peagle,eagle3,s,no address", "source"), ("b,0,1.2,peagle,eagle3,s,https://a", "concurrency"), ("b,1,-1,peagle,eagle3,s,https://a", "ratio")],
)
def test_a_bad_row_is_refused_with_its_line(line: str, field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data" / "profiles").mkdir(parents=True)
    (tmp_path / "data" / "published").mkdir()
    (tmp_path / "data" / "published" / "peagle_over_eagle3.csv").write_text(f"benchmark,concurrency,ratio,method,over,setup,source\n{line}\n")
    monkeypatch.setenv("SPECSTUDY_ROOT", str(tmp_path))
    with pytest.raises(ConfigError, match=rf"peagle_over_eagle3.csv, line 2: {field}"):
        published_ratios()
