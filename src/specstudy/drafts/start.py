"""Training that begins with the weights of a head that is there already, to train it further or for a domain."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from specstudy.catalog import load_draft, project_root
from specstudy.catalog.assets import Say
from specstudy.catalog.materialise import draft_folder
from specstudy.catalog.models import PackedSource, Target
from specstudy.catalog.packed import D2T, LM_HEAD, ids_of, target_rows, unpack_head, weights_sha256
from specstudy.catalog.packed_files import WEIGHTS
from specstudy.drafts.card import Card, NormFlags, StartedFrom, read_card
from specstudy.drafts.check import check_head, failures
from specstudy.drafts.checkpoint import PARALLEL_TOKENS, Head, read_head
from specstudy.drafts.head import build_head, trainable
from specstudy.drafts.recipe import HeadMethod, Recipe
from specstudy.errors import ConfigError


@dataclass(frozen=True)
class Start:
    """A head to begin with: what the card says of it, the recipe with its shape, its draft vocabulary [V], its mask token."""

    said: StartedFrom
    recipe: Recipe
    vocabulary: Tensor
    mask_token: int
    head: Head

    def build(self, target_folder: Path) -> Any:
        """A head in training with these weights. Raises ConfigError where a tensor is missing or of another shape."""
        built = build_head(self.recipe, target_folder, self.vocabulary, self.mask_token)
        trainable(built)  # says which parameters are learned
        with torch.no_grad():
            for name, parameter in built.named_parameters():
                if parameter.requires_grad:
                    parameter.copy_(self._weights(name, parameter.shape))
        return built

    def _weights(self, name: str, shape: torch.Size) -> Tensor:
        found = self.head.tensors.get(name)
        if found is None or found.numel() != shape.numel():
            raise ConfigError(f"from: {name}", "nothing" if found is None else list(found.shape), f"a tensor of shape {list(shape)}")
        return found.reshape(shape)


def read_start(given: str, target: Target, target_folder: Path, recipe: Recipe, say: Say) -> Start:
    """A name in data/drafts or a head's folder, packed or not; `recipe` gives the method and all but the shape.

    Raises ConfigError for a head of another method or another target, and for one that fails a check of `drafts check`.
    """
    with tempfile.TemporaryDirectory(prefix="specstudy-from-") as scratch:
        folder, beside = _folders(given, target, target_folder, Path(scratch), say)
        card = read_card(beside) if (beside / "card.json").is_file() else None
        if card is not None and card.target.name != target.name:
            raise ConfigError("from", given, f"a head for {target.name}; this one is for {card.target.name}")
        head = read_head(folder)
        if failed := list(failures(check_head(folder, target_folder, card))):
            raise ConfigError(
                "from", given, "a head that passes every check; " + "; ".join(f"{one.check}: {one.found}, allowed {one.allowed}" for one in failed)
            )
    _same_method(given, head, recipe)
    ids = ids_of(head.tensors.get(D2T))
    if not torch.equal(head.tensors[LM_HEAD], target_rows(target_folder, ids)):
        raise ConfigError("from", given, f"a head with the output rows of {target.name}; training leaves them as they are")
    vocabulary = torch.arange(len(head.tensors[LM_HEAD])) if ids is None else ids
    name = Path(given).resolve().name if card is None else card.name
    return Start(_said(name, head, card), _shaped(recipe, head, len(vocabulary)), vocabulary, _mask_token(head), head)


def _folders(given: str, target: Target, target_folder: Path, scratch: Path, say: Say) -> tuple[Path, Path]:
    """(folder of the unpacked head, folder where its card would be)."""
    if Path(given).is_dir():
        folder = Path(given)
        if not (folder / WEIGHTS).is_file():
            return folder, folder
        unpack_head(folder, target_folder, scratch / "head")
        return scratch / "head", folder
    draft = load_draft(given)
    if draft.target != target.name:
        raise ConfigError("from", given, f"a head for {target.name}; this one is for {draft.target}")
    folder = draft_folder(draft, say)
    return folder, project_root() / draft.source.path if isinstance(draft.source, PackedSource) else folder


def _same_method(given: str, head: Head, recipe: Recipe) -> None:
    flags = NormFlags.of(head.config)
    parallel = "mask_hidden" in head.tensors or bool(head.config.get("parallel_drafting"))
    found: HeadMethod = "peagle" if parallel else "eagle3.1" if flags.norm_output else "eagle3"
    if found != recipe.method:
        raise ConfigError("method", recipe.method, f"{found}, which is the method of {given}")
    switches = NormFlags(norm_before_residual=False, **recipe.switches)
    if flags != switches:
        raise ConfigError("from", given, f"a head with the norms that training gives to {recipe.method}: {switches}; this one has {flags}")


def _shaped(recipe: Recipe, head: Head, vocabulary: int) -> Recipe:
    """Raises ConfigError for a shape that isn't said, and for one that no recipe has."""
    changes = {"layers": head.config.get("num_hidden_layers"), "intermediate_size": head.config.get("intermediate_size"), "draft_vocab_size": vocabulary}
    try:
        return Recipe.model_validate({**recipe.model_dump(), **changes, "aux_layers": tuple(head.aux_layers)})
    except ValidationError as error:
        raise ConfigError.from_pydantic(error, "from: config.json") from error


def _mask_token(head: Head) -> int:
    return next((int(head.config[name]) for name in PARALLEL_TOKENS if head.config.get(name) is not None), 0)


def _said(name: str, head: Head, card: Card | None) -> StartedFrom:
    tokens, stages = (None, None) if card is None else (card.training.tokens_in_all, card.stages)
    return StartedFrom(name=name, weights_sha256=weights_sha256(head.tensors), tokens_seen=tokens, stages=stages or ())
