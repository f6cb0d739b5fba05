"""Published figures against what their sources say: SpecForge's against its own file, the others copied from there by hand."""

from __future__ import annotations

import json
import lzma
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


# SpecForge's docs/spec_bundle/public/raw_data/data.json as it was on 2026-11-29, compressed (MIT licence).
SPECFORGE = Path(__file__).with_name("specforge_data.json.xz")
SPECFORGE_DATASETS = {
    "gsm8k": "GSM8K",
    "math500": "MATH-500",
    "mtbench": "MT-Bench",
    "humaneval": "HumanEval",
    "livecodebench": "LiveCodeBench",
    "financeqa": "FinanceQA",
    "gpqa": "GPQA",
}


def specforge_rows() -> dict[tuple[str, str, str, int], tuple[float, float, int]]:
    """(target, head, dataset, K) to (acceptance length, throughput over the same run's baseline, batch) of every linear draft in the file."""
    found = {}
    for target, datasets in json.loads(lzma.decompress(SPECFORGE.read_bytes())).items():
        for dataset, content in datasets.items():
            for run in content["results"]:
                baseline, *heads = run["metrics"]
                assert baseline["Name"] == "Wihtout EAGLE3"
                for head in heads if run["topk"] == 1 else []:
                    # One head's name ends in three ways in the file; its repository is the last.
                    name = head["Name"].replace("Spec for ge", "SpecForge").replace("Specforge", "SpecForge")
                    ratio = head["output_throughput"] / baseline["output_throughput"]
                    found[target, name, SPECFORGE_DATASETS[dataset], run["steps"]] = (head["accept_length"], ratio, run["batch_size"])
    return found


def test_every_linear_row_of_specforge_is_here_with_its_figures_and_no_other() -> None:
    wanted = specforge_rows()
    rows = {(row.target, row.head, row.dataset, row.num_speculative_tokens): row for row in published_acceptance() if "SpecForge/blob" in row.source}
    assert len(wanted) == 264
    assert rows.keys() == wanted.keys()
    for key, (length, ratio, batch) in wanted.items():
        row = rows[key]
        assert (row.acceptance_length, row.speedup) == (pytest.approx(length, abs=5.1e-4), pytest.approx(ratio, abs=5.1e-4)), key
        assert row.setup == f"SGLang; linear drafts; batch {batch}", key


@pytest.mark.parametrize(
    ("row_id", "length"),
    [
        ("llama-3.3-70b/specforge-eagle3/mtbench/k5", 3.62),  # data.json, read by hand
        ("llama-3.3-70b/lmsys-eagle3/gsm8k/k5", 1.28),
        ("qwen3-coder-30b-a3b/specforge-eagle3/humaneval/k7", 5.31),
        ("gpt-oss-20b/amazon-peagle/mtbench/k7", 3.70),  # the P-EAGLE announcement's tables
        ("gpt-oss-20b/amazon-peagle/speedbench-code/k3", 2.87),
        ("gpt-oss-20b/redhat-eagle3/humaneval/k3", 2.65),
        ("gpt-oss-20b/redhat-eagle3/speedbench-code/k7", 2.59),
        ("gpt-oss-120b/amazon-peagle/gsm8k/k5", 3.55),  # its card
        ("gpt-oss-20b/nebius-eagle3-t1/gsm8k/k7", 3.65),  # Nebius's cards
        ("llama-3.3-70b/redhat-eagle3-t1/humaneval/k7", 3.62),
        ("llama-4-maverick/redhat-eagle3/cnndm/k3", 2.37),  # Red Hat's card
        ("kimi-k2.5/inferencex-eagle3/speedbench-code/k8", 3.77),  # the golden curves' YAML
        ("kimi-k2.5/inferencex-eagle3-off/speedbench-code/k5", 3.25),
        ("minimax-m3/inferencex-eagle3-off/speedbench-code/k6", 3.57),
        ("minimax-m3/amd-eagle3.1/speedbench-roleplay/k3", 2.01),  # AMD's post
        ("llama-3.1-8b/paper-eagle3/mtbench/tree", 6.13),  # the EAGLE-3 paper's table
    ],
)
def test_an_id_names_one_row_with_its_sources_figure(row_id: str, length: float) -> None:
    (row,) = [row for row in published_acceptance() if row.id == row_id]
    assert row.acceptance_length == pytest.approx(length, abs=0.005)


def test_the_issue_on_llama_8b_is_here_whole() -> None:
    lengths = {row.id: row.acceptance_length for row in published_acceptance()}
    assert [lengths[f"llama-3.1-8b/vllm20780-eagle3/mtbench/k{k}"] for k in range(2, 8)] == [2.36, 2.79, 3.08, 3.32, 3.46, 3.54]


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


ACCEPTANCE_HEADER = "id,target,head,method,dataset,num_speculative_tokens,acceptance_length,acceptance_per_position,speedup,setup,source"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["m/h/d/k3,m,h,eagle3,d,5,2.5,,,s,https://a"], "line 2: id: got 'm/h/d/k3'; must end with the row's K, 5"),
        (["m/h/d/k3,m,h,eagle3,d,3,4.1,,,s,https://a"], "line 2: acceptance_length: got 4.1; at most K"),
        (["m/h/d/k3,m,h,eagle3,d,3,2.8,0.7;0.8;0.3,,s,https://a"], "line 2: acceptance_per_position"),  # a rise
        (["m/h/d/k3,m,h,eagle3,d,3,2.8,0.9;0.9,,s,https://a"], "line 2: acceptance_per_position"),  # two for K=3
        (["m/h/d/k3,m,h,eagle3,d,3,2.8,0.8;0.5;0.3,,s,https://a"], "line 2: acceptance_per_position"),  # sums to 1.6, not 1.8
        (["m/h/d/k3,m,h,eagle3,d,3,2.8,,,s,https://a"] * 2, "acceptance.csv: id: got 'm/h/d/k3'; each id once"),
    ],
)
def test_an_acceptance_that_contradicts_itself_is_refused(lines: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data" / "profiles").mkdir(parents=True)
    (tmp_path / "data" / "published").mkdir()
    (tmp_path / "data" / "published" / "acceptance.csv").write_text("\n".join([ACCEPTANCE_HEADER, *lines]))
    monkeypatch.setenv("SPECSTUDY_ROOT", str(tmp_path))
    with pytest.raises(ConfigError) as caught:
        published_acceptance()
    assert message in str(caught.value)
