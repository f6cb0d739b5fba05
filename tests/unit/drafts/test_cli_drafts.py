"""`specstudy drafts` as a user types it, in this process; what it prints and how it ends."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file
from tests.standin.heads import card_for
from tests.unit.catalog.conftest import PROFILE as TINY_PROFILE
from tests.unit.drafts.conftest import MakeHead, edit_config
from typer.testing import CliRunner

from specstudy.catalog import Draft
from specstudy.catalog.models import PackedSource
from specstudy.cli import app
from specstudy.drafts.card import read_card, write_card
from specstudy.errors import ConfigError

PROFILE = {**TINY_PROFILE, "chapters": {}}


@pytest.fixture
def catalog(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project with a profile of the tiny target, its prompts never read here."""
    (checkout / "data/profiles/tiny-cpu.yaml").write_text(yaml.safe_dump(PROFILE))
    monkeypatch.chdir(checkout)
    return checkout


@pytest.fixture
def packed(catalog: Path, make_head: MakeHead, target: Path) -> Path:
    """A good head, packed by the command."""
    source = make_head("eagle3")
    write_card(card_for("eagle3", source, target, name="tiny-head"), source)
    run("pack", str(source), "data/drafts/tiny-head", "--target", "tiny")
    return catalog / "data/drafts/tiny-head"


def run(*words: str, status: int = 0) -> str:
    done = CliRunner().invoke(app, ["drafts", *words])
    if isinstance(done.exception, ConfigError):
        raise done.exception
    assert done.exit_code == status, done.output
    return done.output


def test_pack_says_what_it_took(packed: Path) -> None:
    card = read_card(packed)
    assert card.packing is not None
    assert card.packing.bits == {"attention": 8, "fc": 8, "mlp": 4, "other": 16}


def test_pack_with_other_bits(packed: Path, make_head: MakeHead, catalog: Path) -> None:
    said = run("pack", str(make_head("eagle3")), "out", "--target", "tiny", "--mlp-bits", "16", "--attention-bits", "16")
    assert "mlp 16 bits" in said
    with pytest.raises(ConfigError) as refused:
        run("pack", str(make_head("eagle3")), "out", "--target", "tiny", "--mlp-bits", "5")
    assert (refused.value.field, refused.value.got, refused.value.allowed) == ("mlp_bits", 5, "one of 4, 8, 16")


def test_unpack_gives_a_folder_and_a_copy_where_asked(packed: Path, tmp_path: Path) -> None:
    folder = Path(run("unpack", "tiny-head").strip().splitlines()[-1])
    assert "fc.weight" in load_file(folder / "model.safetensors")
    run("unpack", "tiny-head", str(tmp_path / "copy"))
    assert (tmp_path / "copy" / "config.json").read_bytes() == (folder / "config.json").read_bytes()
    with pytest.raises(ConfigError, match="isn't there yet"):
        run("unpack", "tiny-head", str(tmp_path / "copy"))


def test_card_prints_the_card(packed: Path) -> None:
    assert run("card", "tiny-head").startswith("# tiny-head\n")


def test_check_of_a_good_head(packed: Path) -> None:
    said = run("check", "tiny-head", "--profile", "tiny-cpu")
    assert "lm_head rows" in said
    assert "fail" not in said


def test_check_of_a_bad_head_ends_with_1(packed: Path, tmp_path: Path) -> None:
    run("unpack", "tiny-head", str(tmp_path / "bad"))
    shutil.copy(packed / "card.json", tmp_path / "bad")
    edit_config(tmp_path / "bad", norm_before_residual=True)
    said = run("check", str(tmp_path / "bad"), "--profile", "tiny-cpu", status=1)
    assert said.count("fail") == 1


def test_a_bad_head_is_not_served(packed: Path, tmp_path: Path) -> None:
    run("unpack", "tiny-head", str(tmp_path / "bad"))
    edit_config(tmp_path / "bad", architectures=["GPT2LMHeadModel"])
    assert "acceptance isn't measured" in run("check", str(tmp_path / "bad"), "--profile", "tiny-cpu", "--live", status=1)


def test_live_needs_a_card_and_a_claim(packed: Path, tmp_path: Path) -> None:
    run("unpack", "tiny-head", str(tmp_path / "bare"))
    with pytest.raises(ConfigError, match=r"card\.json"):
        run("check", str(tmp_path / "bare"), "--profile", "tiny-cpu", "--live")
    write_card(read_card(packed).model_copy(update={"acceptance": ()}), packed)
    with pytest.raises(ConfigError, match="card: acceptance"):
        run("check", "tiny-head", "--profile", "tiny-cpu", "--live")


@pytest.mark.parametrize("command", ["check", "unpack", "card"])
def test_an_unknown_head_is_refused(command: str, packed: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        run(command, "no-such-head", *(["--profile", "tiny-cpu"] if command == "check" else []))
    assert refused.value.field == "draft"
    assert "tiny-head" in refused.value.allowed


def test_pack_keeps_a_measured_card_unless_told_to_replace_it(packed: Path, make_head: MakeHead) -> None:
    before = read_card(packed)
    source = make_head("eagle3")
    (source / "card.json").unlink()
    again = ("pack", str(source), "data/drafts/tiny-head", "--target", "tiny")
    with pytest.raises(ConfigError, match="--replace"):
        run(*again)
    assert read_card(packed) == before
    run(*again, "--replace")
    assert not (packed / "card.json").exists()


def test_check_of_a_config_with_a_wrong_type_names_the_field(packed: Path, tmp_path: Path) -> None:
    run("unpack", "tiny-head", str(tmp_path / "bad"))
    edit_config(tmp_path / "bad", num_attention_heads="x")
    with pytest.raises(ConfigError, match="num_attention_heads: got 'x'") as refused:
        run("check", str(tmp_path / "bad"), "--profile", "tiny-cpu")
    assert refused.value.exit_status == 2


def test_the_guides_entry_for_a_packed_head_is_one_that_the_catalog_takes() -> None:
    guide = (Path(__file__).parents[3] / "how-to" / "drafts.md").read_text()
    shown = Draft.model_validate(yaml.safe_load(guide.split("```yaml\n")[1].split("```")[0]))
    assert (shown.name, shown.source) == ("my-eagle3", PackedSource(kind="packed", path="data/drafts/my-eagle3"))


def test_unpack_into_a_place_that_cannot_be_written_is_refused(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match=r"out: got '.*below'; a folder that can be written to \("):
        run("unpack", "tiny-head", str(tmp_path / "file" / "below"))


def test_the_head_before_packing_is_looked_at_before_anything_is_measured(packed: Path, tmp_path: Path) -> None:
    words = ("measure", "tiny-head", "--profile", "tiny-cpu", "--unpacked")
    with pytest.raises(ConfigError, match="no such file"):
        run(*words, str(tmp_path / "nowhere"))
    write_card(read_card(packed).model_copy(update={"packing": None}), packed)
    with pytest.raises(ConfigError, match=r"unpacked: got .*wasn't packed"):
        run(*words, str(tmp_path / "nowhere"))
