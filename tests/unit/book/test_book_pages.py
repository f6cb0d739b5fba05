"""Pages read before everything is measured: a chapter, a card or an answer that isn't there is a sentence."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.standin.synthetic import chapter_04, chapter_05, repeats, write

from specstudy.book import answers, baseline_note, open_chapter, runner_note, shipped_heads
from specstudy.catalog.packed_files import packed_sha256
from specstudy.errors import ConfigError
from specstudy.figures import Picture, Table

ROOT = Path(__file__).parents[3]
SHA = "0" * 64
CARD: dict[str, Any] = {
    "name": "made-up",
    "method": "eagle3",
    "target": {"name": "tiny", "hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 16, "tokenizer_sha256": SHA},
    "aux_layers": [0, 1, 2],
    "licence": "Apache-2.0",
    "command": "specstudy drafts train --method eagle3",
    "data": {
        "sources": [{"name": "sharegpt", "prompts": 10, "answers": 10, "answer_tokens": 100}],
        "evaluation_share": 0.1,
        "temperatures": [0],
        "regenerated_with": {"engine": "vllm", "version": "0"},
        "prompts_sha256": SHA,
    },
    "training": {
        "method": "training-time test",
        "library": "speculators 0.9.0",
        "steps": 20,
        "tokens_per_step": 10,
        "tokens_seen": 200,
        "epochs": 1,
        "seconds": 3,
        "device": "a processor",
        "learning_rate": 0.001,
        "loss": "cross entropy",
        "seed": 0,
        "parameters": 12,
        "loss_curve": [[0, 9.5], [10, 4.0], [20, 2.25]],
        "validation": [{"step": 20, "accuracy_per_position": [0.5, 0.25], "expected_acceptance_length": 1.75}],
    },
    "acceptance": [
        {
            "workload": "chat",
            "num_speculative_tokens": 2,
            "concurrency": 1,
            "temperature": 0,
            "dtype": "bfloat16",
            "engine_version": "0",
            "acceptance_length": 1.75,
            "per_position": [0.5, 0.25],
            "drafts": 100,
        }
    ],
}


@pytest.fixture(autouse=True)
def _this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECSTUDY_ROOT", str(ROOT))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Results of the CPU's and the GPU's profile, by rule."""
    for profile in ("cpu-smollm2", "h200-smollm2"):
        write(tmp_path, chapter_04(small=True), profile)
    return tmp_path


def test_without_a_name_the_gpus_records_are_shown(results: Path) -> None:
    assert "h200-smollm2" in open_chapter("04_eagle3", results_dir=str(results)).note.markdown
    assert "cpu-smollm2" in open_chapter("04_eagle3", "cpu-smollm2", results_dir=str(results)).note.markdown


def test_the_main_cells_are_those_of_chat(results: Path) -> None:
    assert {cell.load.workload for cell in open_chapter("04_eagle3", results_dir=str(results)).main} == {"chat"}


@pytest.mark.parametrize(
    ("chapter", "profile", "said"),
    [
        ("04_eagle3", None, "No profile has records"),
        ("04_eagle3", "cpu-smollm2", "nothing to show"),
        ("99_none", "cpu-smollm2", "doesn't measure chapter 99_none"),
    ],
)
def test_a_chapter_without_records_is_a_sentence(chapter: str, profile: str | None, said: str, tmp_path: Path) -> None:
    found = open_chapter(chapter, profile, results_dir=str(tmp_path))
    assert said in found.note.markdown and found.cells == []


def test_wrong_words_are_still_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="profile"):
        open_chapter("04_eagle3", "no-such", results_dir=str(tmp_path))
    with pytest.raises(ConfigError, match="mode"):
        open_chapter("04_eagle3", mode="dead", results_dir=str(tmp_path))


def test_the_answers_name_each_profile_with_its_evidence(results: Path) -> None:
    told = answers(str(results)).markdown
    assert "SmolLM2-135M-Instruct on one H200" in told and "SmolLM2-135M-Instruct on a CPU" in told
    assert told.count("evidence: real") == 2
    assert re.search(r"<td>chat c=1</td>\s*<td>EAGLE-3 K=3</td>\s*<td>\d\.\d\d \(", told)
    assert "\n\n<div" in told and "\n\n" not in told[told.index("<table") : told.index("</table>")], "a blank line would end the table"


def test_a_chapter_bound_to_one_runner_says_what_the_other_gives(tmp_path: Path) -> None:
    """Chapter 04's records are made for V1 as chapter 05's are; with V2 in one of them the two are set side by side."""
    write(tmp_path, chapter_05(), "h200-smollm2")
    write(tmp_path, ((one.model_copy(update={"model_runner": "V2"}), rows) for one, rows in chapter_04()), "h200-smollm2")
    chapter = open_chapter("05_peagle", results_dir=str(tmp_path))
    told = runner_note(chapter, "04_eagle3", results_dir=str(tmp_path)).markdown
    assert "on model runner V1" in told and "on V2" in told and "in chapter 04, not against EAGLE-3 here" in told
    assert "wasn't recorded on another model runner" in runner_note(chapter, "05_peagle", results_dir=str(tmp_path)).markdown
    told = answers(str(tmp_path)).markdown
    assert "Bound to a model runner: smollm2-135m-eagle3" in told
    assert "Which baseline? Median TPOT without speculation on model runner V2 (vLLM's own choice) in chapter 04 and on model runner V1" in told
    other = baseline_note(open_chapter("04_eagle3", results_dir=str(tmp_path)), "05_peagle", results_dir=str(tmp_path)).markdown
    assert other.startswith("**Which baseline?**") and "on model runner V2 (vLLM's own choice) here and on model runner V1" in other
    assert "No baseline is known to have run on another model runner" in baseline_note(chapter, "05_peagle", results_dir=str(tmp_path)).markdown


def test_heads_that_never_saw_a_long_prompt_say_so_beside_long_contexts(tmp_path: Path) -> None:
    cells = [repeats([1.0], method="eagle3", draft=name, num_speculative_tokens=3, workload="context-4k") for name in ("one", "two")]
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "card.json").write_text(json.dumps({**CARD, "name": name}))
    assert "None was trained on prompts over 1,100 tokens" in shipped_heads(tmp_path).data_note(cells).markdown
    chat = [repeats([1.0], method="eagle3", draft=name, num_speculative_tokens=3) for name in ("one", "two")]
    assert "1,100" not in shipped_heads(tmp_path).data_note(chat).markdown
    long = {**CARD["data"], "sources": [{**CARD["data"]["sources"][0], "long_answers": 3}]}
    (tmp_path / "two" / "card.json").write_text(json.dumps({**CARD, "name": "two", "data": long}))
    assert "Of these heads one was not trained on prompts over 1,100 tokens and the others were" in shipped_heads(tmp_path).data_note(cells).markdown
    (tmp_path / "one" / "card.json").write_text(json.dumps({**CARD, "name": "one", "data": long}))
    assert "1,100" not in shipped_heads(tmp_path).data_note(cells).markdown


def test_without_results_there_is_no_answer(tmp_path: Path) -> None:
    assert answers(str(tmp_path)).markdown == "No records yet."


def test_without_heads_each_part_is_a_sentence(tmp_path: Path) -> None:
    heads = shipped_heads(tmp_path)
    for part in (heads.facts(), heads.loss_curve(), heads.acceptance(), heads.tried(), heads.checks()):
        assert not isinstance(part, Picture | Table)


def test_whether_two_heads_learned_from_the_same_prompts_is_read_from_their_cards(tmp_path: Path) -> None:
    cells = [repeats([1.0], method="eagle3", draft=name, num_speculative_tokens=3) for name in ("one", "two")]
    for name, sha in (("one", "0" * 64), ("two", "0" * 64), ("other", "1" * 64)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "card.json").write_text(json.dumps({**CARD, "name": name, "data": {**CARD["data"], "prompts_sha256": sha}}))
    heads = shipped_heads(tmp_path)
    assert "learned from the same prompts" in heads.data_note(cells).markdown
    other = repeats([1.0], method="peagle", draft="other", num_speculative_tokens=3)
    assert "learned from different prompts" in heads.data_note([cells[0], other]).markdown
    unknown = repeats([1.0], method="eagle3", draft="nobody", num_speculative_tokens=3)
    assert "isn't on a card" in heads.data_note([cells[0], unknown]).markdown
    ngram = repeats([1.0], method="ngram", num_speculative_tokens=3)
    assert "none to compare" in heads.data_note([cells[0], ngram]).markdown


def test_a_card_is_shown_with_its_numbers(tmp_path: Path) -> None:
    folder = tmp_path / "made-up"
    folder.mkdir()
    (folder / "card.json").write_text(json.dumps(CARD))
    (folder / "checks.csv").write_text("check,verdict,found,allowed\nvocabulary,ok,vocab_size 16,the target's\n")
    heads = shipped_heads(tmp_path)
    curve, validation, acceptance, checks = heads.loss_curve(), heads.validation(), heads.acceptance(), heads.checks()
    assert isinstance(curve, Picture) and "made-up: 9.50 at step 0, 2.25 at step 20" in curve.alt
    assert isinstance(validation, Picture) and "1.75 at step 20" in validation.alt
    assert isinstance(acceptance, Table) and acceptance.frame["acceptance length"].tolist() == ["1.75"]
    assert "half-width" not in acceptance.frame and "vLLM 0 by specstudy drafts measure" in acceptance.note
    assert isinstance(checks, Table) and checks.frame["made-up"].tolist() == ["ok: vocab_size 16"]
    assert isinstance(heads.facts(), Table)


def served(folder: str) -> dict[str, Any]:
    """An EAGLE-3 server whose head lay in this folder."""
    config = json.dumps({"method": "eagle3", "model": f"$SPECSTUDY_CACHE/drafts/{folder}"})
    return {"method": "eagle3", "draft": "smollm2-135m-eagle3", "num_speculative_tokens": 3, "server_argv": ("python", "--speculative-config", config)}


@pytest.fixture
def folder() -> str:
    """Where the shipped EAGLE-3 head lies once it is unpacked."""
    return f"smollm2-135m-eagle3-{packed_sha256(ROOT / 'data/drafts/smollm2-135m-eagle3')[:16]}"


REPLACED = f"smollm2-135m-eagle3-{'0' * 16}"


def test_a_page_says_that_its_records_are_of_another_head_than_is_shipped(results: Path, folder: str) -> None:
    def note(served_from: str) -> str:
        one = repeats([1.0, 2.0, 3.0], chapter="04_eagle3", **served(served_from)).records
        write(results, ((record, []) for record in one), "h200-smollm2")
        return open_chapter("04_eagle3", "h200-smollm2", results_dir=str(results)).note.markdown

    told = note(REPLACED)
    assert f"**Measured with other drafts than are shipped now:** smollm2-135m-eagle3 was served from {REPLACED}, and data/drafts holds other files" in told
    for known in (folder, "smollm2-135m-eagle3"):  # the shipped one; and a folder whose name says nothing
        assert "other drafts" not in note(known)


def test_the_first_page_says_so_too(tmp_path: Path) -> None:
    write(
        tmp_path, ((record.model_copy(update={"server_argv": served(REPLACED)["server_argv"]} if record.draft else {}), rows) for record, rows in chapter_04())
    )
    told = answers(str(tmp_path)).markdown
    assert "Chapter 04: **Measured with other drafts" in told
    assert f"smollm2-135m-eagle3 was served from {REPLACED}" in told
    assert "Chapter 05: **Measured" not in told


def test_the_page_of_the_cards_names_the_chapters_that_were_measured_with_other_heads(results: Path, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECSTUDY_RESULTS", str(results))
    for profile, served_from in (("cpu-smollm2", folder), ("h200-smollm2", REPLACED)):
        write(results, ((record, []) for record in repeats([1.0], chapter="04_eagle3", **served(served_from)).records), profile)
    facts = shipped_heads().facts()
    assert isinstance(facts, Table) and facts.note is not None
    assert facts.note.endswith("which had other files: smollm2-135m-eagle3 in chapter 04 of h200-smollm2.")
    write(results, ((record, []) for record in repeats([1.0], chapter="04_eagle3", **served(folder)).records), "h200-smollm2")
    again = shipped_heads().facts()
    assert isinstance(again, Table) and again.note is not None and "other files" not in again.note


def test_a_card_says_nothing_of_a_head_that_was_replaced_since(folder: str) -> None:
    newer = repeats([1.0], method="eagle3", draft="smollm2-135m-eagle3.1", num_speculative_tokens=3)
    assert "By their cards" in shipped_heads().data_note([repeats([1.0], **served(folder)), newer]).markdown
    assert "isn't on a card" in shipped_heads().data_note([repeats([1.0], **served(REPLACED)), newer]).markdown


def test_heads_that_were_trained_further_are_told_with_all_they_learned_from(tmp_path: Path) -> None:
    """Tokens of both trainings; one whose first training isn't kept can't be said to have learned from the same prompts."""
    cells = [repeats([1.0], method="eagle3", draft=name, num_speculative_tokens=3) for name in ("one", "two")]
    stage = {"name": "two", "command": "train", "prompts": 10, "prompts_sha256": SHA, "steps": 5, "tokens_seen": 1_000_000, "seconds": 1, "device": "a"}
    start = {"name": "two", "weights_sha256": SHA, "tokens_seen": 1_000_000}

    def note(started: dict[str, Any]) -> str:
        for name, training in (("one", CARD["training"]), ("two", {**CARD["training"], "tokens_seen": 500_000, "started_from": started})):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / "card.json").write_text(json.dumps({**CARD, "name": name, "training": training}))
        return shipped_heads(tmp_path).data_note(cells).markdown

    told = note({**start, "stages": [{**stage, "learning_rate": 0.001}]})
    assert "learned from different prompts" in told and "two 1.5 million" in told
    assert "what they began with was trained on isn't kept" in note(start)
    assert "two an unknown number" in note({**start, "tokens_seen": None})
