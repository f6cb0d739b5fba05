"""The command line as a shell sees it: what is printed where, and the exit status."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.standin.synthetic import chapter_04, record, write

from specstudy.cli import main

Run = Callable[..., int]


@pytest.fixture
def specstudy(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command in this process; its exit status."""

    def run(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["specstudy", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)

    return run


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--method", "magic"], "lab run: method: got 'magic'"),
        (["--method", "ngram", "-k", "0"], "lab run: num_speculative_tokens.0: got 0"),
        (["--method", "ngram", "-k", "-1"], "lab run: num_speculative_tokens.0: got -1"),
        (["-k", "3"], "lab run: num_speculative_tokens: got (3,); nothing without a method"),
    ],
)
def test_a_lab_that_makes_no_sense_is_refused(specstudy: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str], said: str) -> None:
    assert specstudy("lab", "run", *words, "--results-dir", str(tmp_path / "out")) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_chapter_with_failed_records_alone_doesnt_hide_the_others(specstudy: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write(tmp_path, iter([(record(chapter="03_baseline", status="failed", error="no memory"), [])]))
    write(tmp_path, chapter_04(small=True))
    assert specstudy("summary", "--profile", "h200-smollm2", "--results-dir", str(tmp_path)) == 1
    said = capsys.readouterr()
    assert "smollm2-135m-eagle3 K=3" in said.out
    assert "Evidence: real" in said.out
    assert said.err == "specstudy: 03_baseline: no good record; the newest says: no memory\n"


def test_without_any_records_there_is_no_summary(specstudy: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert specstudy("summary", "--profile", "h200-smollm2", "--results-dir", str(tmp_path)) == 2
    assert "a folder with records of h200-smollm2" in capsys.readouterr().err


def test_a_record_of_quality_has_a_place_before_hours_of_work(specstudy: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for out, why in ((tmp_path / "file" / "below.json", "a place that can be written to"), (tmp_path, "a file's path")):
        assert specstudy("quantize", "smollm2-135m-instruct", "--out", str(out)) == 2
        assert f"out: got '{out}'; {why}" in capsys.readouterr().err


def test_limits_have_a_place_before_the_machine_is_measured(specstudy: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert specstudy("limits", "--results-dir", str(tmp_path / "file")) == 2
    assert "results_dir: got" in capsys.readouterr().err


def test_a_model_id_that_no_hub_has_is_refused(specstudy: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert specstudy("deploy", "render", "--profile", "h200-smollm2", "--model-id", "a b", "--out", str(tmp_path / "out")) == 2
    assert "deploy render: model_id: got 'a b'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_what_is_said_to_be_applied_can_be_pasted_into_a_shell(specstudy: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert specstudy("deploy", "shipped", "--out", str(tmp_path / "a place")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [shlex.split(line)[-1].startswith(str(tmp_path / "a place")) for line in lines] == [True] * len(lines) != []
