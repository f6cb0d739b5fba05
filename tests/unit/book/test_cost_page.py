"""The page on cost: which records it prices, what it leaves out and says so, and kinds of evidence side by side, never in one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.standin.synthetic import chapter_04, chapter_05, write

from specstudy.book import open_costs
from specstudy.book.saving import saving
from specstudy.errors import ConfigError
from specstudy.figures import Panels, Picture, Stack, Table
from specstudy.records import Record, RequestRow

ROOT = Path(__file__).parents[3]
Made = Iterator[tuple[Record, list[RequestRow]]]


@pytest.fixture(autouse=True)
def _this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECSTUDY_ROOT", str(ROOT))


def changed(made: Made, **fields: Any) -> Made:
    for one, rows in made:
        yield one.model_copy(update=fields), rows


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The H200's small model, real; the CPU's; and Llama's shape, all by rule."""
    tmp_path = tmp_path_factory.mktemp("results")
    write(tmp_path, changed(chapter_04(small=True), gpu="NVIDIA H200"), "h200-smollm2")
    write(tmp_path, changed(chapter_05(), gpu="NVIDIA H200"), "h200-smollm2")
    write(tmp_path, changed(chapter_04(small=True), gpu=None), "cpu-smollm2")
    shape = {"gpu": "NVIDIA H200", "evidence": "shape", "target": "llama-3.3-70b-shape", "acceptance_source": "llama-3.3-70b/specforge-eagle3/mtbench/k3"}
    write(tmp_path, changed(chapter_04(small=True), **shape), "h200-llama-3.3-70b-shape")
    return tmp_path


def test_every_gpu_profile_with_records_is_priced_by_itself_and_the_cpu_is_said_not_to_be(results: Path) -> None:
    costs = open_costs(results_dir=str(results))
    assert [(part.profile.name, part.chapter) for part in costs.parts] == [
        ("h200-smollm2", "04_eagle3"),
        ("h200-smollm2", "05_peagle"),
        ("h200-llama-3.3-70b-shape", "04_eagle3"),
    ]
    assert "on a CPU: not priced, since no hourly price of its processor is on file" in costs.note.markdown
    assert costs.note.markdown.count("CPU") == 1
    assert "Acceptance is imposed: llama-3.3-70b/specforge-eagle3/mtbench/k3." in costs.note.markdown


def test_what_was_measured_with_another_head_than_is_shipped_is_priced_and_said_so(tmp_path: Path) -> None:
    replaced = f"smollm2-135m-eagle3-{'0' * 16}"

    def with_head(made: Made) -> Made:
        for one, rows in made:
            config = json.dumps({"method": "eagle3", "model": f"$SPECSTUDY_CACHE/drafts/{replaced}"})
            eagle = {"draft": "smollm2-135m-eagle3", "server_argv": ("python", "--speculative-config", config)}
            yield one.model_copy(update={"gpu": "NVIDIA H200", **(eagle if one.method == "eagle3" else {})}), rows

    write(tmp_path, with_head(chapter_04(small=True)), "h200-smollm2")
    note = open_costs("h200-smollm2", results_dir=str(tmp_path)).note.markdown
    assert f"chapter 04: **Measured with other drafts than are shipped now:** smollm2-135m-eagle3 was served from {replaced}" in note
    saved = saving("h200-smollm2", tmp_path)
    assert saved is not None and saved.conclusion().markdown.count("Measured with other drafts") == int(saved.best.cell.variant.method == "eagle3")


def test_each_part_keeps_its_evidence_and_only_what_is_sold_stands_beside_list_prices(results: Path) -> None:
    pictures = open_costs(results_dir=str(results)).pictures()
    assert isinstance(pictures, Stack)
    small, _, shape = (shown for _, shown in pictures.parts)
    assert isinstance(small, Picture) and small.evidence == "real"
    assert isinstance(shape, Panels)
    assert [picture.evidence for picture in shape.pictures] == ["shape", "published"]


def test_tables_are_of_one_kind_of_evidence_each(results: Path) -> None:
    costs = open_costs(results_dir=str(results))
    for shown in (costs.tables(), costs.changes(), costs.utilization()):
        assert isinstance(shown, Stack)
        assert [table.evidence for _, table in shown.parts if isinstance(table, Table)] == ["real", "real", "shape"]
    assert costs.bills().evidence == costs.gpu_prices().evidence == "published"
    assert "evidence: shape" in costs.conclusion().markdown and "evidence: real" in costs.conclusion().markdown
    assert "evidence: published" in costs.break_even()._repr_html_()


def test_the_bill_takes_each_workloads_own_ratio(results: Path) -> None:
    headings = list(open_costs("h200-smollm2", results_dir=str(results)).bills().frame.columns)
    assert len(headings) == 3 and headings[2].startswith("chat of h200-smollm2, ")


def test_one_profile_alone_when_it_is_asked_for(results: Path) -> None:
    assert [part.profile.name for part in open_costs("h200-llama-3.3-70b-shape", results_dir=str(results)).parts] == ["h200-llama-3.3-70b-shape"]


def test_a_baseline_chapter_stands_in_where_nothing_compares(tmp_path: Path) -> None:
    only = ((one, rows) for one, rows in changed(chapter_04(small=True), gpu="NVIDIA H200", chapter="03_baseline") if one.method == "none")
    write(tmp_path, only, "h200-smollm2")
    costs = open_costs(results_dir=str(tmp_path))
    assert [part.chapter for part in costs.parts] == ["03_baseline"]
    assert "nothing to compare" in repr(costs.changes())


def test_your_own_price_moves_every_cost_in_proportion(results: Path) -> None:
    listed, own = open_costs("h200-smollm2", results_dir=str(results)), open_costs("h200-smollm2", results_dir=str(results), usd_per_gpu_hour=9.0)
    assert {part.price.usd_per_gpu_hour for part in listed.parts} == {4.5}
    assert {part.price.usd_per_gpu_hour for part in own.parts} == {9.0}
    assert "$9.00 an hour (your own price)" in own.note.markdown


@pytest.mark.parametrize("gpu", ["NVIDIA GH200 480GB", "NVIDIA H200 NVL", "NVIDIA H100 PCIe"])
def test_a_gpu_without_a_price_is_left_out_and_named(gpu: str, tmp_path: Path) -> None:
    write(tmp_path, changed(chapter_04(small=True), gpu=gpu), "h200-smollm2")
    costs = open_costs(results_dir=str(tmp_path))
    assert not costs.parts
    assert f"no price of {gpu} is on file" in costs.note.markdown


def test_your_own_price_is_charged_for_a_gpu_that_nobody_lets(results: Path, tmp_path: Path) -> None:
    write(tmp_path, changed(chapter_04(small=True), gpu="NVIDIA L40S"), "h200-smollm2")
    costs, listed = open_costs(results_dir=str(tmp_path), usd_per_gpu_hour=4.5), open_costs("h200-smollm2", results_dir=str(results), usd_per_gpu_hour=4.5)
    assert costs.gpus == ("H200",)
    told = repr(costs.tables())
    assert "no offer of this GPU is on file" in told and "at $4.50/h" in told and "at $3.59/h" not in told
    assert costs.parts[0].price == listed.parts[0].price
    for shown in (costs.pictures(), costs.utilization(), costs.conclusion(), costs.break_even(), costs.gpu_prices()):
        assert repr(shown)


def test_without_records_the_price_lists_stand_alone(tmp_path: Path) -> None:
    costs = open_costs(results_dir=str(tmp_path))
    for shown in (costs.note, costs.pictures(), costs.tables(), costs.changes(), costs.utilization(), costs.conclusion()):
        assert "No profile has records of a GPU with a price on file" in repr(shown)
    assert costs.break_even().parts[0][0] == "One H200"
    assert len(costs.bills().frame.columns) == 2


def test_live_prices_what_lies_in_the_folder_and_measures_nothing(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_costs("h200-smollm2", "live", str(results)).parts
    monkeypatch.chdir(results.parent)
    assert not open_costs("h200-smollm2", "live").parts  # ./results isn't there


@pytest.mark.parametrize(
    ("arguments", "field"), [({"mode": "dead"}, "mode"), ({"usd_per_gpu_hour": 0.0}, "usd_per_gpu_hour"), ({"profile": "nobody"}, "profile")]
)
def test_what_cannot_be_meant_is_refused(arguments: dict[str, Any], field: str, results: Path) -> None:
    with pytest.raises(ConfigError, match=field):
        open_costs(**{"results_dir": str(results), **arguments})
