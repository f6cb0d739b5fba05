"""Small valid heads with random weights, for any target on disk; and a card that fits them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import torch

from specstudy.catalog.packed import target_lm_head
from specstudy.drafts.card import Acceptance, Card, CardTarget, Data, DataSource, NormFlags, RegeneratedWith, Training
from specstudy.drafts.checkpoint import tokenizer_sha256, write_head

Kind = Literal["eagle3", "eagle3.1", "peagle"]
KINDS: tuple[Kind, ...] = ("eagle3", "eagle3.1", "peagle")
COPIED = (
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
    "rope_parameters",
    "rope_theta",
    "max_position_embeddings",
    "vocab_size",
)


def head_config(kind: Kind, target: dict[str, Any], *, inner: int, draft_vocab: int) -> dict[str, Any]:
    """config.json of a head for a target's config."""
    layers = target["num_hidden_layers"]
    aux = [1, layers // 2, layers - 1]
    config = {
        **{name: target[name] for name in COPIED if name in target},
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "num_hidden_layers": 2 if kind == "peagle" else 1,
        "intermediate_size": inner,
        "draft_vocab_size": draft_vocab,
        "tie_word_embeddings": False,
        "norm_before_residual": False,
        "eagle_aux_hidden_state_layer_ids": aux,
        "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": list(aux)},
    }
    if kind == "eagle3.1":
        config |= {"fc_norm": True, "norm_output": True}
    if kind == "peagle":
        config |= {"pard_token": 5, "parallel_drafting": True}
    return config


def head_tensors(config: dict[str, Any], rows: torch.Tensor, *, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random bf16 weights for `config`; lm_head takes its rows from `rows`, the target's, for every third token."""
    made = torch.Generator().manual_seed(seed)
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["draft_vocab_size"]
    width = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries, keys = config["num_attention_heads"] * width, config["num_key_value_heads"] * width

    def matrix(out: int, into: int) -> torch.Tensor:
        return (torch.randn(out, into, generator=made) / into**0.5).bfloat16()

    ids = torch.arange(vocab) * len(rows) // vocab
    tensors = {
        "fc.weight": matrix(hidden, 3 * hidden),
        "norm.weight": torch.ones(hidden, dtype=torch.bfloat16),
        "lm_head.weight": rows[ids].clone(),
        "d2t": ids - torch.arange(vocab),
        "layers.0.hidden_norm.weight": torch.ones(hidden, dtype=torch.bfloat16),
    }
    for i in range(config["num_hidden_layers"]):
        at, read = f"layers.{i}", 2 * hidden if i == 0 else hidden
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}.{norm}.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
        shapes = {"q": (queries, read), "k": (keys, read), "v": (keys, read), "o": (hidden, queries)}
        tensors |= {f"{at}.self_attn.{name}_proj.weight": matrix(*shape) for name, shape in shapes.items()}
        shapes = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
        tensors |= {f"{at}.mlp.{name}_proj.weight": matrix(*shape) for name, shape in shapes.items()}
    if config.get("fc_norm"):
        tensors |= {f"fc_norm.{i}.weight": torch.ones(hidden, dtype=torch.bfloat16) for i in range(3)}
    if config.get("parallel_drafting"):
        tensors["mask_hidden"] = matrix(1, 3 * hidden).flatten()
    return tensors


def write_random_head(kind: Kind, target_folder: Path, folder: Path, *, inner: int = 128, draft_vocab: int = 128) -> Path:
    """A head's folder that vLLM loads for the target in `target_folder`."""
    config = head_config(kind, json.loads((target_folder / "config.json").read_text()), inner=inner, draft_vocab=draft_vocab)
    return write_head(folder, config, head_tensors(config, target_lm_head(target_folder)))


def card_for(kind: Kind, folder: Path, target_folder: Path, **changes: Any) -> Card:
    """A card that the head in `folder` keeps."""
    config, target = (json.loads((one / "config.json").read_text()) for one in (folder, target_folder))
    card = Card(
        name=folder.name,
        method=kind,
        target=CardTarget(
            name="tiny",
            hidden_size=target["hidden_size"],
            num_hidden_layers=target["num_hidden_layers"],
            vocab_size=target["vocab_size"],
            tokenizer_sha256=tokenizer_sha256(target_folder) or "0" * 64,
        ),
        aux_layers=config["eagle_aux_hidden_state_layer_ids"],
        norm_flags=NormFlags.of(config),
        licence="Apache-2.0",
        command="none: random weights",
        data=Data(
            sources=(DataSource(name="sharegpt", prompts=200, answers=190, answer_tokens=40_000),),
            evaluation_share=0.25,
            temperatures=(0.0, 0.7),
            regenerated_with=RegeneratedWith(engine="vllm", version="0.26.0"),
            prompts_sha256="a" * 64,
        ),
        training=Training(
            method=kind,
            library="none",
            steps=3,
            tokens_per_step=512,
            tokens_seen=1536,
            epochs=0.04,
            seconds=2.0,
            device="cpu",
            learning_rate=1e-3,
            loss="kl",
            seed=0,
            parameters=1000,
            loss_curve=((0, 5.5), (2, 5.25)),
        ),
        acceptance=(
            Acceptance(
                workload="chat",
                num_speculative_tokens=3,
                concurrency=1,
                temperature=0,
                dtype="bfloat16",
                engine_version="0.26.0",
                acceptance_length=2.5,
                half_width=0.05,
                per_position=(0.7, 0.5, 0.3),
                drafts=1000,
            ),
        ),
    )
    return card.model_copy(update=changes)
