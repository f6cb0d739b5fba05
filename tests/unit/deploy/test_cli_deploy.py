"""`specstudy deploy render` and `specstudy lab build` as a shell sees them: files or a reason, and an exit status."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import yaml

from specstudy.catalog import recorded_dir
from specstudy.cli import main
from specstudy.errors import ConfigError
from specstudy.scaling import recipe
from specstudy.scaling.binaries import VARIABLE, need

EAGLE3 = ["--method", "eagle3", "--draft", "smollm2-135m-eagle3", "-k", "5"]


def specstudy(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["specstudy", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_it_writes_a_tree_and_says_how_to_apply_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mine"
    assert specstudy(monkeypatch, "deploy", "render", *EAGLE3, "--out", str(out)) == 0
    assert capsys.readouterr().out == f"kubectl apply -k {out}/overlays/eagle3\n"
    assert [path.name for path in (out / "overlays").iterdir()] == ["eagle3"]
    assert (out / "components" / "hpa" / "hpa.yaml").is_file()


def test_records_of_ones_own_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder without any holds no evidence; with the recorded file in it, it does."""
    words = ["deploy", "render", *EAGLE3, "--results-dir", str(tmp_path / "results"), "--out", str(tmp_path / "out")]
    assert specstudy(monkeypatch, *words) == 2
    assert "what a record of h200-smollm2 measured" in capsys.readouterr().err
    (tmp_path / "results" / "h200-smollm2").mkdir(parents=True)
    shutil.copy(recorded_dir() / "h200-smollm2" / "04_eagle3.jsonl", tmp_path / "results" / "h200-smollm2")
    assert specstudy(monkeypatch, *words) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*EAGLE3[:-1], "11"], "--unmeasured renders it all the same"),
        ([*EAGLE3[:-1], "0"], "num_speculative_tokens: got 0"),
        (["--method", "magic"], "method: got 'magic'"),
        (["--profile", "cpu-smollm2"], "a profile for a GPU"),
        (["--profile", "nope"], "profile: got 'nope'; known: "),
        ([*EAGLE3[:-1], "11"], "smollm2-135m-eagle3 K=1, 2, 3, 4, 5, 6, 7"),
        (["--cold-start-s", "inf"], "cold_start_s: got inf"),
        (["--cold-start-s", "600"], "cold_start_s: got 600.0; less than 600, the start_timeout_s of h200-smollm2"),
        (["--cold-start-s", "851"], "cold_start_s: got 851.0"),
        (["--largest-step", "1"], "largest_step: got 1"),
        (["--longest-request-s", "inf"], "longest_request_s: got inf"),
        (["--weights-gib", "inf"], "weights_gib: got inf"),
        (["--max-replicas", "2147483648"], "max_replicas: got 2147483648"),
        (["--engine-version", "latest", "--unmeasured"], "engine_version: got 'latest'"),
        (["--max-replicas", "1", "--min-replicas", "2"], "max_replicas: got 1; at least min_replicas, 2"),
    ],
)
def test_bad_input_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert specstudy(monkeypatch, "deploy", "render", *words, "--out", str(tmp_path / "out")) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_place_where_nothing_can_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A file, a folder under a file, and a kernel's folder, where even root makes none."""
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "under", Path("/proc/deploy")):
        assert specstudy(monkeypatch, "deploy", "render", "--out", str(out)) == 2
        assert f"out: got '{out}'; a folder that can be written to (" in capsys.readouterr().err
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "mine")]


def test_the_real_weights_on_two_gpus_ask_for_two_and_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing of that profile was recorded: what the records would say must be given, one after the other."""
    words = ["deploy", "render", "--profile", "h100-llama-3.3-70b", "--unmeasured", "--out", str(tmp_path / "out")]
    for missing, value in (("engine_version", "0.26.0"), ("longest_request_s", "300"), ("weights_gib", "70.5")):
        assert specstudy(monkeypatch, *words) == 2
        assert f"{missing}: got None" in capsys.readouterr().err
        words += [f"--{missing.replace('_', '-')}", value]
    assert specstudy(monkeypatch, *words) == 0
    (container,) = yaml.safe_load((tmp_path / "out/base/deployment.yaml").read_text())["spec"]["template"]["spec"]["containers"]
    assert container["args"][container["args"].index("--tensor-parallel-size") + 1] == "2"
    assert container["resources"]["limits"] == {"memory": "153Gi", "nvidia.com/gpu": "2"}  # 8 + 2 x 70.5 + 2 x 2 for /dev/shm
    volume = yaml.safe_load((tmp_path / "out/base/models.yaml").read_text())
    assert volume["spec"]["resources"]["requests"]["storage"] == "146Gi"  # 2 x 70.5 + 5


def test_all_overlays_at_once_are_the_checkouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert specstudy(monkeypatch, "deploy", "shipped", "--out", str(tmp_path / "out")) == 0
    names = ["none", "eagle3", "peagle", "ngram", "tensor-parallel"]
    assert capsys.readouterr().out == "".join(f"kubectl apply -k {tmp_path}/out/overlays/{name}\n" for name in names)


def test_a_machine_that_cannot_build_is_told_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SPECSTUDY_CACHE", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(recipe, "KEYRING", tmp_path / "no-keyring.gpg")
    assert specstudy(monkeypatch, "lab", "build") == 2
    said = capsys.readouterr().err
    assert "apt-get, dpkg-deb, nice" in said and "no-keyring.gpg" in said and VARIABLE in said
    assert list(tmp_path.iterdir()) == []


def test_what_was_never_built_says_how_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECSTUDY_CACHE", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(ConfigError, match="specstudy lab build"):
        need()
