"""A head's folder as vLLM loads it: config.json and model.safetensors, and what each tensor is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file

from specstudy.catalog.packed import D2T, LM_HEAD, write_folder
from specstudy.catalog.packed_files import WEIGHTS
from specstudy.errors import ConfigError

Group = Literal["attention", "fc", "mlp", "lm_head", "d2t", "other"]
AUX_IDS = "eagle_aux_hidden_state_layer_ids"
PARALLEL_TOKENS = ("pard_token", "ptd_token_id", "mask_token_id")
Size = Annotated[int, Field(gt=0, lt=2**31)]
# What the checks can read; a head in FP8 isn't one of the study's.
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64, torch.int32, torch.bool)
MOST_LAYERS = 1024  # a check makes a list of what each layer must hold


class ConfigView(BaseModel):
    """Types of what is read from a config.json; a model's other fields are its own affair.

    The ids of the auxiliary layers aren't here: a check of its own says what is wrong with them.
    """

    model_config = ConfigDict(strict=True, extra="ignore")

    architectures: list[str] | None = None
    hidden_size: Size | None = None
    intermediate_size: Size | None = None
    num_hidden_layers: Annotated[int, Field(gt=0, le=MOST_LAYERS)] | None = None
    num_attention_heads: Size | None = None
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    vocab_size: Size | None = None
    draft_vocab_size: Size | None = None
    max_position_embeddings: Size | None = None
    rope_theta: float | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    pard_token: int | None = None
    ptd_token_id: int | None = None
    mask_token_id: int | None = None
    eagle_config: dict[str, Any] | None = None
    fc_norm: bool | None = None
    norm_output: bool | None = None
    norm_before_residual: bool | None = None
    norm_before_fc: bool | None = None
    parallel_drafting: bool | None = None


@dataclass(frozen=True)
class Head:
    """config.json and weights. `midlayer.`, the published name of the first layer, reads as `layers.0.`."""

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, torch.Tensor]

    @property
    def aux_layers(self) -> list[int]:
        """Target layers that the head reads, as vLLM takes them: the top level first, then eagle_config; empty if neither says."""
        found = self.config.get(AUX_IDS) or self.eagle_config.get(AUX_IDS)
        return list(found) if isinstance(found, list) else []

    @property
    def eagle_config(self) -> dict[str, Any]:
        """The nested part of config.json; empty if there is none."""
        found = self.config.get("eagle_config")
        return found if isinstance(found, dict) else {}

    @property
    def num_aux(self) -> int:
        """How many hidden states of the target go into fc; vLLM's default is 3."""
        return len(self.aux_layers) or 3


def read_head(folder: Path) -> Head:
    """Config and weights of a head's folder.

    Raises ConfigError for one that can't be read, for a config.json with wrong types, and for a tensor that no head holds.
    """
    config = read_json(folder / "config.json", "head")
    check_types(config, "head: config.json")
    whole = folder / "model.safetensors"
    parts = [whole] if whole.is_file() else sorted(folder.glob("model-*-of-*.safetensors"))
    if not parts:
        packed = "; this one is packed: unpack it first" if (folder / WEIGHTS).is_file() else ""
        raise ConfigError("head", str(folder), f"a folder with model.safetensors, or with its parts model-*-of-*.safetensors{packed}")
    tensors: dict[str, torch.Tensor] = {}
    for path in parts:
        try:
            tensors |= load_file(path)
        except (OSError, SafetensorError) as error:
            raise ConfigError("head", str(path), f"a whole safetensors file ({error})") from error
    for name, tensor in tensors.items():
        if tensor.dim() == 0 or tensor.numel() == 0 or tensor.dtype not in DTYPES:
            allowed = f"at least one dimension, none of size 0, and one of {', '.join(map(str, DTYPES))}"
            raise ConfigError(f"head: {name}", f"{list(tensor.shape)} of {tensor.dtype}", allowed)
    return Head(folder, config, {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()})


def check_types(config: Mapping[str, Any], where: str) -> None:
    """Raises ConfigError naming the first field of a config.json that has another type than ConfigView's."""
    try:
        ConfigView.model_validate(dict(config))
    except ValidationError as error:
        raise ConfigError.from_pydantic(error, where) from error


def read_json(path: Path, field: str) -> dict[str, Any]:
    """A JSON object. Raises ConfigError naming `field`."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(field, str(path), f"a readable JSON file ({error})") from error
    if not isinstance(content, dict):
        raise ConfigError(field, str(path), "a JSON object")
    return content


def write_head(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Path:
    """Write config.json and model.safetensors as they are given."""
    write_folder(folder, (json.dumps(config, indent=2) + "\n").encode(), tensors)
    return folder


def group_of(name: str) -> Group:
    """What a tensor is, by its name; decides how it is stored."""
    if name in (LM_HEAD, D2T):
        return "lm_head" if name == LM_HEAD else "d2t"
    if name.endswith("_proj.weight"):
        return "attention" if ".self_attn." in name else "mlp"
    return "fc" if name == "fc.weight" else "other"


def head_dim(config: Mapping[str, Any]) -> int | None:
    """Width of one attention head; by default hidden_size over the number of heads."""
    if config.get("head_dim"):
        return int(config["head_dim"])
    if config.get("hidden_size") and config.get("num_attention_heads"):
        return int(config["hidden_size"]) // int(config["num_attention_heads"])
    return None


def rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary parameters in one form: newer configs have rope_parameters, older ones rope_theta and rope_scaling.

    transformers' default for a Llama that says nothing is theta 10,000 without scaling.
    """
    old = {"rope_theta": config.get("rope_theta", 10000.0), **(config.get("rope_scaling") or {})}
    found = {**old, **(config.get("rope_parameters") or {})}
    kind = found.pop("rope_type", None) or found.pop("type", None) or "default"
    found.pop("type", None)
    return {"rope_type": kind, **{key: float(value) if isinstance(value, int) else value for key, value in sorted(found.items())}}


def tokenizer_sha256(folder: Path) -> str | None:
    """SHA-256 over vocabulary, merges and added tokens of tokenizer.json; None without that file.

    Not over the file: libraries write the same tokenizer in different ways. Token ids are what a head depends on.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None
    content = read_json(path, "tokenizer")
    model = content.get("model") or {}
    vocabulary = model.get("vocab") or {}
    pairs = vocabulary.items() if isinstance(vocabulary, dict) else enumerate(piece for piece, *_ in vocabulary)
    merges = [" ".join(merge) if isinstance(merge, list) else merge for merge in model.get("merges") or []]
    added = sorted((token["id"], token["content"]) for token in content.get("added_tokens") or [])
    canonical = json.dumps([sorted(map(list, pairs)), merges, added], ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
