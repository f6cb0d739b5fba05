"""Refuse, before launch, what the model's own files say can't work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specstudy.errors import ConfigError
from specstudy.serving.deployment import Deployment

HEAD_METHODS = frozenset({"eagle3", "peagle", "dflash"})


def read_config(folder: str, field: str) -> dict[str, Any]:
    """config.json of a model folder. Raises ConfigError naming `field` if there is none."""
    path = Path(folder) / "config.json"
    try:
        config = json.loads(path.read_text())
        if not isinstance(config, dict):
            raise ValueError("not a JSON object")
    except (OSError, ValueError) as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else str(error)
        raise ConfigError(field, folder, f"a model folder with a config.json ({reason})") from None
    # A speculators-format head keeps the decoder layer's facts one level down.
    return {**config.get("transformer_layer_config", {}), **config}


def check_files(deployment: Deployment) -> None:
    """Compare the deployment with config.json of target and draft. Raises ConfigError."""
    target = read_config(deployment.target_path, "target")
    limit = target.get("max_position_embeddings")
    if limit is not None and deployment.max_model_len > limit:
        raise ConfigError("max_model_len", deployment.max_model_len, f"at most the model's context, {limit}")
    if deployment.draft_path is None:
        return
    draft = read_config(deployment.draft_path, "draft")
    _check_architecture(deployment.method, draft)
    _same(draft, target, "vocab_size", "the target's vocabulary: acceptance compares token ids")
    if deployment.method in HEAD_METHODS:
        _same(draft, target, "hidden_size", "the target's hidden size: a head reads its hidden states")
    _check_parallel(deployment, draft)


def _check_architecture(method: str, draft: dict[str, Any]) -> None:
    """Whether vLLM can load it as this method at all.

    vLLM puts Eagle3 before a plain name, as some published heads have it, so a whole model would pass for a
    head; only a head's config has a draft vocabulary or eagle_config.
    """
    names = [str(name) for name in draft.get("architectures") or []]
    if not names:
        return
    head = {kind for kind in ("eagle3", "peagle", "dflash") for name in names if kind in name.lower()}
    plain = not any("eagle" in name.lower() for name in names) and not head
    if method == "draft_model" and not plain:
        raise ConfigError("draft: architectures", names, "a whole model for method draft_model; this is a head")
    if method in ("eagle3", "peagle") and not head & {"eagle3", "peagle"} and not (plain and {"draft_vocab_size", "eagle_config"} & draft.keys()):
        raise ConfigError("draft: architectures", names, f"an EAGLE-3 head, like LlamaForCausalLMEagle3, for method {method}")
    if method == "dflash" and "dflash" not in head and "dflash_config" not in draft:
        raise ConfigError("draft: architectures", names, "a DFlash head, like DFlashDraftModel, for method dflash")


def _same(draft: dict[str, Any], target: dict[str, Any], key: str, why: str) -> None:
    theirs, ours = target.get(key), draft.get(key)
    if theirs is not None and ours is not None and ours != theirs:
        raise ConfigError(f"draft: {key}", ours, f"must be {theirs}, {why}")


def _check_parallel(deployment: Deployment, draft: dict[str, Any]) -> None:
    mask_token = draft.get("pard_token", draft.get("ptd_token_id", draft.get("mask_token_id")))
    if deployment.method == "peagle" and mask_token is None:
        raise ConfigError("draft: pard_token", None, "a P-EAGLE head with pard_token or ptd_token_id in its config.json")
