from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from specstudy.records import portable, provenance
from specstudy.records.provenance import PACKAGES, allocation_id, cpu_model, git_sha, package_versions


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder of this test's own."""
    monkeypatch.setenv("HOME", str(tmp_path / "someone"))
    return tmp_path / "someone"


def test_a_command_line_names_neither_cache_nor_home(home: Path) -> None:
    cache = home / ".cache" / "specstudy"
    argv = [f"{home}/venv/bin/python", "--model", f"{cache}/models/tiny", "--speculative-config", f'{{"model": "{cache}/drafts/d"}}', "--port", "8123"]
    assert portable(argv, cache) == (
        "~/venv/bin/python",
        "--model",
        "$SPECSTUDY_CACHE/models/tiny",
        "--speculative-config",
        '{"model": "$SPECSTUDY_CACHE/drafts/d"}',
        "--port",
        "8123",
    )


def test_a_cache_outside_the_home_folder_is_hidden_too(home: Path, tmp_path: Path) -> None:
    assert portable([f"{tmp_path}/cache/models/tiny"], tmp_path / "cache") == ("$SPECSTUDY_CACHE/models/tiny",)


def test_a_home_folder_at_the_root_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/")
    assert portable(["/opt/model"], Path("/cache")) == ("/opt/model",)


def test_a_folder_whose_name_begins_like_the_home_folders_is_another(home: Path) -> None:
    assert portable([f"{home}-else/model"], home / "cache") == (f"{home}-else/model",)


def test_the_interpreter_is_hidden_wherever_it_lies(home: Path) -> None:
    assert sys.prefix not in portable([sys.executable, "-m", "vllm"], home / "cache")[0]


def test_an_allocation_is_named_by_twelve_digits_that_change_with_its_gpus() -> None:
    seen = {allocation_id(uuids) for uuids in ((), ("GPU-a",), ("GPU-b",), ("GPU-a", "GPU-b"), ("GPU-aGPU-b",))}
    assert len(seen) == 5
    assert all(len(name) == 12 and int(name, 16) >= 0 for name in seen)
    assert allocation_id(("GPU-a",)) == allocation_id(["GPU-a"])
    assert "GPU" not in allocation_id(("GPU-a",))


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git repository with one commit of one file."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:  # a hook sets some
        monkeypatch.delenv(name)
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "test")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "test@example.org")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    root = tmp_path / "repository"
    git(tmp_path, "init", "--quiet", str(root))
    (root / "file.txt").write_text("one")
    git(root, "add", "file.txt")
    git(root, "commit", "--quiet", "--message", "one")
    return root


def git(root: Path, *words: str) -> str:
    """Run git in `root`; its output."""
    return subprocess.run(["git", "-C", str(root), *words], check=True, capture_output=True, text=True).stdout.strip()


def test_a_clean_checkout_gives_the_commits_first_twelve_digits(repository: Path) -> None:
    assert git_sha(repository) == git(repository, "rev-parse", "HEAD")[:12]


def test_an_untracked_file_leaves_a_checkout_clean(repository: Path) -> None:
    (repository / "results.jsonl").write_text("")
    assert not git_sha(repository).endswith("-dirty")


@pytest.mark.parametrize("staged", [True, False])
def test_a_changed_file_makes_it_dirty(repository: Path, staged: bool) -> None:
    (repository / "file.txt").write_text("two")
    if staged:
        git(repository, "add", "file.txt")
    assert git_sha(repository) == git(repository, "rev-parse", "HEAD")[:12] + "-dirty"


def test_a_deleted_file_makes_it_dirty(repository: Path) -> None:
    (repository / "file.txt").unlink()
    assert git_sha(repository).endswith("-dirty")


def test_outside_a_checkout_the_commit_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_sha(tmp_path) == "unknown"
    assert git_sha(tmp_path / "gone") == "unknown"


def test_without_git_the_commit_is_unknown(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert git_sha(repository) == "unknown"


def test_versions_are_those_of_the_installed_packages() -> None:
    found = package_versions()
    assert set(found) <= set(PACKAGES)
    assert found["numpy"] == version("numpy")
    assert found["specstudy"] == version("specstudy")


def test_provenance_is_read_once_per_folder_and_gpus(repository: Path) -> None:
    first = provenance(repository, ("GPU-a",))
    assert (first.git_sha, first.allocation) == (git_sha(repository), allocation_id(("GPU-a",)))
    assert first.host_cpus == len(os.sched_getaffinity(0))
    assert first.host_cpu == cpu_model() != ""
    (repository / "file.txt").write_text("two")
    assert provenance(repository, ("GPU-a",)) is first
    assert provenance(repository, ("GPU-b",)).allocation != first.allocation
