"""Shapes: what is refused, what a folder holds, and that the kept ones are the published models."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from specstudy.catalog.load import names_in, read_yaml
from specstudy.catalog.shapes import Shape, load_shape
from specstudy.catalog.shapes_make import shape_folder, write_shape
from specstudy.cli import app, main
from specstudy.errors import ConfigError

DATA = Path(__file__).parents[3] / "data"


@pytest.fixture(autouse=True)
def _this_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPECSTUDY_ROOT", str(DATA.parent))
    monkeypatch.setenv("SPECSTUDY_CACHE", str(tmp_path / "cache"))


def changed(tmp_path: Path, name: str, **changes: Any) -> Path:
    content = yaml.safe_load((DATA / "shapes" / f"{name}.yaml").read_text())
    for key, value in changes.items():
        part, _, rest = key.partition("__")
        if rest:
            content[part][rest] = value
        else:
            content[part] = value
    path = tmp_path / f"{name}.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("llama-tiny", {"config__hidden_size": 64}, "config: got .'hidden_size'.*only what architecture doesn't hold"),
        ("llama-tiny", {"architecture__num_key_value_heads": 3}, "num_key_value_heads: got 3; a divisor of the 4 heads"),
        ("llama-tiny", {"architecture__num_local_experts": 8}, "num_experts_per_tok: got None; given together"),
        ("llama-tiny", {"architecture__layer_types": ["full_attention"]}, "layer_types: got 1; one for each of the 4 layers"),
        ("llama-tiny", {"hidden_states_read": 3}, "hidden_states_read: got 3; given for a head, and only there"),
        ("llama-tiny-eagle3", {"hidden_states_read": None}, "hidden_states_read: got None; given for a head"),
        (
            "llama-tiny",
            {"architecture__num_local_experts": 4, "architecture__num_experts_per_tok": 8},
            "per_tok: got 8; at most num_local_experts, 4",
        ),
        ("llama-tiny", {"architecture__draft_vocab_size": 512}, "draft_vocab_size: got 512; given for heads only"),
        ("llama-tiny-eagle3", {"architecture__draft_vocab_size": 1025}, "draft_vocab_size: got 1025; .*at most vocab_size, 1024"),
        ("llama-tiny", {"architecture__vocab_size": 200}, "vocab_size: got 200; at least 256"),
        ("llama-tiny", {"tokens": {"<|end|>": 1024}}, "tokens: got .*each id once, from 256 to vocab_size - 1 = 1023"),
        ("llama-tiny", {"tokens": {"<|end|>": 300, "<|call|>": 300}}, "tokens: got .*each id once"),
        ("llama-tiny-eagle3", {"tokens": {"<|end|>": 300}}, "tokens: got .*given for targets only"),
        ("llama-tiny", {"config__released": datetime.date(2024, 12, 6)}, "config: got .*what JSON can hold"),
        ("llama-tiny", {"quantizations": {"odd": {"bits": float("nan")}}}, "quantizations: got .*what JSON can hold"),
        ("llama-tiny", {"quantizations": {"../up": {}}}, "quantizations"),
        ("llama-tiny", {"architecture__hidden_size": 0}, "architecture.hidden_size: got 0"),
        ("llama-tiny", {"architecture__hiden_size": 64}, "architecture.hiden_size"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, name: str, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_yaml(changed(tmp_path, name, **changes), Shape)


def test_an_unknown_shape_or_form_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"shape: got 'nope'; known: .*llama-tiny"):
        load_shape("nope")
    with pytest.raises(ConfigError, match="quantization: got 'int3'; known: mxfp4"):
        load_shape("gpt-oss-20b").config_json("int3")


@pytest.mark.parametrize("name", names_in("shapes"))
def test_every_kept_shape_is_a_config_that_transformers_reads(name: str, tmp_path: Path) -> None:
    from transformers import AutoConfig

    shape = load_shape(name)
    write_shape(shape, tmp_path / name)
    config = AutoConfig.from_pretrained(tmp_path / name)
    for key, value in shape.architecture.model_dump(mode="json", exclude_none=True).items():
        assert getattr(config, key) == value, key
    assert shape.sources and all(source.startswith("https://") for source in shape.sources)


@pytest.mark.parametrize(("name", "parameters"), [("llama-3.3-70b", 70_553_706_496), ("gpt-oss-20b", 20_914_757_184)])
def test_the_large_shapes_have_the_published_number_of_parameters(name: str, parameters: int, tmp_path: Path) -> None:
    """Counted by transformers on a model without memory; the numbers are those that the hub states for the published weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    write_shape(load_shape(name), tmp_path)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path))
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_a_quantized_form_says_so_and_nothing_else_changes() -> None:
    plain, packed = load_shape("gpt-oss-20b").config_json(), load_shape("gpt-oss-20b").config_json("mxfp4")
    assert packed.pop("quantization_config")["quant_method"] == "mxfp4"
    assert packed == plain


def test_the_tokenizer_has_a_text_for_every_id_and_an_id_for_every_text(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    write_shape(load_shape("llama-tiny"), tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer) == 1024
    text = "Größe: 3 µm\n"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert all(tokenizer.decode([number]) for number in (0, 255, 256, 1023))
    assert "assistant" in tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False, add_generation_prompt=True)


def test_named_tokens_have_their_published_ids(tmp_path: Path) -> None:
    write_shape(load_shape("gpt-oss-20b"), tmp_path)
    vocabulary = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]
    assert (vocabulary["<|end|>"], vocabulary["<|channel|>"], len(vocabulary)) == (200007, 200005, 201088)


def test_a_head_brings_no_tokenizer(tmp_path: Path) -> None:
    write_shape(load_shape("llama-tiny-eagle3"), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_a_shape_that_changed_is_made_anew(tmp_path: Path) -> None:
    first = shape_folder(load_shape("llama-tiny"))
    other = read_yaml(changed(tmp_path, "llama-tiny", architecture__hidden_size=256), Shape)
    assert shape_folder(load_shape("llama-tiny")) == first != shape_folder(other)
    assert json.loads((first / "config.json").read_text())["hidden_size"] == 128


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nope"], "shape: got 'nope'; known: gpt-oss-20b"),
        (["../shapes/llama-tiny"], "shape: got '../shapes/llama-tiny'; known:"),
        (["llama-tiny", "--quantization", "int3"], "quantization: got 'int3'; known: none"),
        (["llama-tiny", "--out", "file"], "out: got 'file'; an empty or new folder"),
        (["llama-tiny", "--out", "full"], "out: got 'full'; an empty or new folder"),
        (["llama-tiny", "--out", "file/below"], "out: got 'file/below'; a folder that can be written to ("),
    ],
)
def test_make_refuses_and_leaves_what_is_there(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "full").mkdir()
    for path in (tmp_path / "file", tmp_path / "full" / "mine"):
        path.write_text("mine")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["specstudy", "shapes", "make", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert f"specstudy: {says}" in capsys.readouterr().err
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == ["file", "full/mine"]


@pytest.mark.parametrize(("words", "folder"), [(["shapes", "list"], "shapes"), (["profiles"], "profiles")])
def test_a_list_has_whole_names_on_a_narrow_screen(words: list[str], folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name is there to be typed."""
    monkeypatch.setenv("COLUMNS", "80")
    said = CliRunner().invoke(app, words).output
    assert set(names_in(folder)) <= set(said.split())
    assert "…" not in said
