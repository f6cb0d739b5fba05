from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from specstudy.catalog import cache_dir, load_draft, load_profile, load_target, names_in, project_root, recorded_dir
from specstudy.catalog.load import read_yaml
from specstudy.catalog.models import Profile, Target
from specstudy.errors import ConfigError

Write = Callable[[str, dict[str, object]], Path]
ProfileWith = Callable[..., dict[str, object]]

CHAPTER = {"workloads": ["chat"], "arrivals": {"concurrencies": [1]}}
DRAFTED = {"method": "draft_model", "draft": "tiny-pruned", "num_speculative_tokens": [3]}


@pytest.mark.parametrize(
    ("load", "field", "known"),
    [(load_target, "target", "tiny"), (load_draft, "draft", "tiny-pruned"), (load_profile, "profile", "tiny-cpu")],
)
@pytest.mark.parametrize("name", ["nope", "../targets/tiny", "", "tiny.yml/x"])
def test_an_unknown_name_says_what_is_known(tiny_catalog: Path, load: Callable[[str], object], field: str, known: str, name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(name)
    assert (refused.value.field, refused.value.got, refused.value.allowed) == (field, name, f"known: {known}")
    assert refused.value.exit_status == 2


def test_names_come_sorted_and_without_their_ending(root: Path, write: Write) -> None:
    for name in ("b", "a"):
        write(f"targets/{name}.yaml", {})
    (root / "data" / "targets" / "notes.txt").write_text("")
    assert names_in("targets") == ["a", "b"]


def test_an_empty_catalog_says_that_nothing_is_known(root: Path) -> None:
    with pytest.raises(ConfigError, match="known: none"):
        load_target("tiny")


def test_a_file_that_names_something_else_is_refused(root: Path, write: Write) -> None:
    write("targets/tiny.yaml", {"name": "huge", "title": "", "licence": "", "source": {"kind": "folder", "path": "x"}})
    with pytest.raises(ConfigError) as refused:
        load_target("tiny")
    assert (refused.value.field, refused.value.got) == ("tiny.yaml: name", "huge")
    assert "tiny" in refused.value.allowed


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"dtpye": "float32"}, "dtpye"),
        ({"engine": {"max_model_len": 64, "max_num_seqs": 2, "max_num_seq": 2}}, "engine.max_num_seq"),
        ({"measuring": {"min_repeat": 3}}, "measuring.min_repeat"),
        ({"workloads": {"chat": {"dataset": "humaneval", "max_prompt_tokens": 32, "max_tokens": 8, "min_tokens": 1}}}, "workloads.chat.min_tokens"),
        ({"chapters": {"03_baseline": {**CHAPTER, "methods": [{"method": "none", "k": 1}]}}}, "chapters.03_baseline.methods.0.k"),
        ({"chapters": {"03_baseline": {**CHAPTER, "methods": [{"method": "none"}], "arrivals": {"rate": 1}}}}, "chapters.03_baseline.arrivals.rate"),
    ],
)
def test_an_unknown_key_is_refused_with_its_path(tiny_catalog: Path, write: Write, profile_with: ProfileWith, change: dict[str, object], field: str) -> None:
    path = write("profiles/tiny-cpu.yaml", profile_with(**change))
    with pytest.raises(ConfigError, match="Extra inputs are not permitted") as refused:
        load_profile("tiny-cpu")
    assert refused.value.field == f"{path.name}: {field}"


@pytest.mark.parametrize("content", ["a: [1", "\tx: 1", "a: b: c"])
def test_broken_yaml_is_a_config_error_that_names_the_file(tmp_path: Path, content: str) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError) as refused:
        read_yaml(path, Target)
    assert refused.value.field == str(path)


def test_bytes_that_are_no_text_are_a_config_error(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"title: \xff\xfe")
    with pytest.raises(ConfigError, match="unreadable"):
        read_yaml(path, Target)


@pytest.mark.parametrize("content", ["", "- 1\n", "just words"])
def test_yaml_that_is_no_mapping_is_a_config_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"odd\.yaml: \(whole\)"):
        read_yaml(path, Target)


def test_a_missing_field_is_named_and_the_others_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text("name: tiny\nsource: {kind: folder, path: x}\n")  # title and licence are missing
    with pytest.raises(ConfigError) as refused:
        read_yaml(path, Target)
    assert refused.value.field == "tiny.yaml: title"
    assert refused.value.allowed == "Field required (and 1 more)"


@pytest.mark.parametrize("ending", [".yaml", ".yml"])
def test_a_profile_may_lie_anywhere_and_is_given_by_path(tiny_catalog: Path, tmp_path: Path, profile_with: ProfileWith, ending: str) -> None:
    path = tmp_path / f"mine{ending}"
    path.write_text(yaml.safe_dump(profile_with(name="my-own")))
    assert load_profile(str(path)).name == "my-own"


def test_a_profile_path_that_is_not_there_is_a_config_error(tiny_catalog: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load_profile(str(tmp_path / "gone.yaml"))
    assert refused.value.field == str(tmp_path / "gone.yaml")


def test_a_profile_of_an_unknown_target_is_refused(tiny_catalog: Path, write: Write, profile_with: ProfileWith) -> None:
    write("profiles/tiny-cpu.yaml", profile_with(target="huge"))
    with pytest.raises(ConfigError) as refused:
        load_profile("tiny-cpu")
    assert (refused.value.field, refused.value.got, refused.value.allowed) == ("target", "huge", "known: tiny")


@pytest.fixture
def load_with_method(tiny_catalog: Path, write: Write, profile_with: ProfileWith) -> Callable[..., Profile]:
    """Load the tiny profile with one method beside the baseline."""

    def load(**spec: object) -> Profile:
        write("profiles/tiny-cpu.yaml", profile_with(chapters={"04_eagle3": {**CHAPTER, "methods": [{"method": "none"}, spec]}}))
        return load_profile("tiny-cpu")

    return load


def test_a_draft_of_the_right_target_and_method_is_taken(load_with_method: Callable[..., Profile]) -> None:
    assert load_with_method(**DRAFTED).chapters["04_eagle3"].methods[1].draft == "tiny-pruned"


def test_a_draft_that_is_not_in_the_catalog_is_refused(load_with_method: Callable[..., Profile]) -> None:
    with pytest.raises(ConfigError) as refused:
        load_with_method(**{**DRAFTED, "draft": "nope"})
    assert (refused.value.field, refused.value.got) == ("draft", "nope")


@pytest.mark.parametrize("method", ["eagle3", "peagle", "dflash", "ngram", "suffix"])
def test_a_draft_for_another_method_is_refused(load_with_method: Callable[..., Profile], method: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_with_method(**{**DRAFTED, "method": method})
    assert (refused.value.field, refused.value.got) == ("chapters.04_eagle3.methods.draft", "tiny-pruned")
    assert refused.value.allowed == f"a draft for {method}; this one is for draft_model"


def test_a_draft_of_another_target_is_refused(load_with_method: Callable[..., Profile], write: Write) -> None:
    other = {"name": "tiny-pruned", "title": "", "method": "draft_model", "target": "huge", "licence": "MIT", "source": {"kind": "folder", "path": "x"}}
    write("drafts/tiny-pruned.yaml", other)
    with pytest.raises(ConfigError) as refused:
        load_with_method(**DRAFTED)
    assert refused.value.field == "chapters.04_eagle3.methods.draft"
    assert refused.value.allowed == "a draft of tiny; this one belongs to huge"


def test_the_project_must_hold_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECSTUDY_ROOT", str(tmp_path))
    with pytest.raises(ConfigError) as refused:
        project_root()
    assert (refused.value.field, refused.value.got) == ("SPECSTUDY_ROOT", str(tmp_path))


def test_without_a_variable_the_project_is_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECSTUDY_ROOT", raising=False)
    monkeypatch.delenv("SPECSTUDY_RESULTS", raising=False)
    checkout = Path(__file__).resolve().parents[3]
    assert project_root() == checkout
    assert recorded_dir() == checkout / "data" / "results"


def test_variables_move_the_results_and_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECSTUDY_RESULTS", str(tmp_path / "r"))
    monkeypatch.setenv("SPECSTUDY_CACHE", str(tmp_path / "c"))
    assert (recorded_dir(), cache_dir()) == ((tmp_path / "r").resolve(), (tmp_path / "c").resolve())


def test_without_a_variable_the_cache_is_the_platforms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECSTUDY_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "specstudy"


def test_an_impossible_date_is_a_config_error(tmp_path: Path) -> None:
    path = tmp_path / "dated.yaml"
    path.write_text("name: 2026-13-45\n")
    with pytest.raises(ConfigError):
        read_yaml(path, Target)


def test_a_refusal_inside_a_profile_says_where_in_the_profile(tiny_catalog: Path, write: Write, profile_with: ProfileWith) -> None:
    chat = {"dataset": "humaneval", "min_prompt_tokens": 64, "max_prompt_tokens": 32, "max_tokens": 8}
    write("profiles/tiny-cpu.yaml", profile_with(workloads={"chat": chat}))
    with pytest.raises(ConfigError) as refused:
        load_profile("tiny-cpu")
    assert "workloads.chat" in refused.value.field
