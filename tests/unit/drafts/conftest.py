"""A tiny target and good heads for it, on disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from tests.standin.heads import Kind, write_random_head
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM

HIDDEN, VOCAB, LAYERS = 64, 256, 4
MakeHead = Callable[[Kind], Path]


def word_tokenizer(size: int = VOCAB) -> Tokenizer:
    """One token for each of w0, w1, …"""
    return Tokenizer(WordLevel({f"w{i}": i for i in range(size)}, unk_token="w0"))


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with tied embeddings and a tokenizer. Not to be written to."""
    folder = tmp_path_factory.mktemp("target")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=96,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
    )
    LlamaForCausalLM(config).bfloat16().save_pretrained(folder)
    word_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def make_head(target: Path, tmp_path: Path) -> MakeHead:
    """`make_head("peagle")`: a good head's folder of this test's own."""
    return lambda kind: write_random_head(kind, target, tmp_path / f"tiny-{kind}")


@pytest.fixture
def checkout(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose catalog has the tiny target and a packed draft, its head yet to be put into data/drafts/tiny-head."""
    root = tmp_path / "project"
    for name in ("profiles", "targets", "drafts"):
        (root / "data" / name).mkdir(parents=True)
    common = {"title": "", "licence": "MIT"}
    tiny = {"name": "tiny", **common, "source": {"kind": "folder", "path": str(target)}}
    draft = {"name": "tiny-head", **common, "method": "eagle3", "target": "tiny", "source": {"kind": "packed", "path": "data/drafts/tiny-head"}}
    (root / "data/targets/tiny.yaml").write_text(yaml.safe_dump(tiny))
    (root / "data/drafts/tiny-head.yaml").write_text(yaml.safe_dump(draft))
    monkeypatch.setenv("SPECSTUDY_ROOT", str(root))
    monkeypatch.setenv("SPECSTUDY_CACHE", str(tmp_path / "cache"))
    return root


def edit_config(folder: Path, **changes: object) -> None:
    """Set keys of config.json; None takes a key out."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
