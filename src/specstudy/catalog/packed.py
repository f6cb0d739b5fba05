"""A packed draft head: how it is stored, and back to the folder that an engine loads. Needs torch.

A matrix of 8 bits is `NAME.q8`, int8 [out, in]; one of 4 bits is `NAME.q4`, uint8 [out, in / 2], two values a byte, the even
column in the low half, each stored as value + 8. Both have `NAME.scale`, bf16 [out, in / group]: a value is its integer times the
scale of its group, and groups run along the input dimension. What has 16 bits is stored as it is, in bf16. `d2t` is
`d2t.ids`, the sorted ids of the target's tokens that the head can draft, int32. `lm_head.weight` isn't stored where its rows
are the target's. The safetensors header holds a `Header`, and the file is compressed with xz, which takes off another 8 %.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save, save_file

from specstudy.catalog.models import StrictModel
from specstudy.catalog.packed_files import CONFIG, WEIGHTS
from specstudy.errors import AssetError

Tensors = Mapping[str, torch.Tensor]
Bits = Literal[4, 8, 16]

HEADER_KEY = "specstudy"  # one key only: safetensors writes several in no fixed order
FORMAT_VERSION = 1
GROUP: dict[int, int] = {8: 64, 4: 32}
LM_HEAD, D2T, D2T_IDS = "lm_head.weight", "d2t", "d2t.ids"


class Stored(StrictModel):
    """How one tensor is kept."""

    shape: tuple[int, ...]
    bits: Bits


class Header(StrictModel):
    """What the file says about itself. Hashes are of the unpacked content, see `content_sha256`."""

    version: Literal[1] = 1
    tensors: dict[str, Stored]
    lm_head: Literal["target", "stored"]
    content_sha256: str
    lm_head_sha256: str
    config_sha256: str


def content_sha256(tensors: Tensors) -> str:
    """SHA-256 over names, types, shapes and bytes, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def weights_sha256(tensors: Tensors) -> str:
    """The same over a head's tensors but the output rows, which are the target's."""
    return content_sha256({name: tensor for name, tensor in tensors.items() if name != LM_HEAD})


def target_lm_head(folder: Path) -> torch.Tensor:
    """The target's output matrix in bf16 [vocab, H]: lm_head.weight, or the embeddings where the two are tied. Raises AssetError."""
    for name in (LM_HEAD, "model.embed_tokens.weight"):
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, framework="pt") as content:
                if name in set(content.keys()):
                    found: torch.Tensor = content.get_tensor(name)
                    return found.to(torch.bfloat16)
    raise AssetError(f"{folder} holds no lm_head.weight and no model.embed_tokens.weight in safetensors")


def target_rows(target_folder: Path, ids: torch.Tensor | None) -> torch.Tensor:
    """Rows of the target's output matrix for the draft vocabulary [DV, H]; all of them without ids. Raises AssetError."""
    whole = target_lm_head(target_folder)
    if ids is None:
        return whole
    if int(ids.max()) >= len(whole):
        raise AssetError(f"{target_folder} has {len(whole)} output rows; the head's vocabulary needs row {int(ids.max())}: it belongs to another target")
    return whole[ids.long()].contiguous()


def dequantise(integers: torch.Tensor, scale: torch.Tensor, bits: int) -> torch.Tensor:
    """Stored integers [out, in or in / 2] and scales [out, in / group] to bf16 [out, in]."""
    if bits == 4:
        halves = torch.stack((integers & 0xF, integers >> 4), dim=-1).flatten(-2)
        integers = halves.to(torch.int8) - 8
    rows, columns = integers.shape
    grouped = integers.float().view(rows, columns // GROUP[bits], GROUP[bits])
    return (grouped * scale.float().unsqueeze(-1)).view(rows, columns).to(torch.bfloat16)


def write_packed(path: Path, tensors: Tensors, header: Header) -> None:
    """Write the stored tensors and what the file says about itself. Raises OSError."""
    said = {HEADER_KEY: json.dumps(header.model_dump(mode="json"), sort_keys=True)}
    path.write_bytes(lzma.compress(save(dict(tensors), metadata=said), preset=9 | lzma.PRESET_EXTREME))


def _content(folder: Path) -> tuple[Header, dict[str, torch.Tensor]]:
    """(header, tensors as stored). Raises AssetError naming the file."""
    path = folder / WEIGHTS
    try:
        content = lzma.decompress(path.read_bytes())
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])  # safetensors: 8 bytes of length, JSON, content
        tensors = load(content)
    except (OSError, EOFError, lzma.LZMAError, SafetensorError, ValueError) as error:
        raise AssetError(f"{path} isn't a whole packed safetensors file ({error})") from error
    said = header.get("__metadata__", {}).get(HEADER_KEY)
    if said is None:
        raise AssetError(f"{path} isn't a packed head: its header has no {HEADER_KEY}")
    try:
        return Header.model_validate_json(said), tensors
    except ValidationError as error:
        raise AssetError(f"{path}: its header doesn't fit version {FORMAT_VERSION} ({error.errors()[0]['msg']})") from error


def read_packed(folder: Path) -> tuple[Header, bytes, dict[str, torch.Tensor]]:
    """(header, config.json, tensors in bf16) of the packed head in `folder`, without output rows that are the target's.

    Raises AssetError naming the file that is missing, cut off, or not what the header's hashes say.
    """
    header, stored = _content(folder)
    tensors = _unpacked(folder / WEIGHTS, header, stored)
    if weights_sha256(tensors) != header.content_sha256:
        raise AssetError(f"{folder / WEIGHTS} was altered: its content isn't what its header's hash says")
    if LM_HEAD in tensors and content_sha256({LM_HEAD: tensors[LM_HEAD]}) != header.lm_head_sha256:
        raise AssetError(f"{folder / WEIGHTS} was altered: its output rows aren't those that the head was packed with")
    try:
        config = (folder / CONFIG).read_bytes()
    except OSError as error:
        raise AssetError(f"{folder / CONFIG} can't be read ({error.strerror})") from error
    if hashlib.sha256(config).hexdigest() != header.config_sha256:
        raise AssetError(f"{folder / CONFIG} was altered: it isn't the one that the head was packed with")
    return header, config, tensors


def unpack_head(folder: Path, target_folder: Path, out: Path) -> None:
    """Write the bf16 folder of the packed head in `folder` to `out`, with the target's output rows.

    Raises AssetError as `read_packed` does, and where the target isn't the one that the head was packed for.
    """
    header, config, tensors = read_packed(folder)
    if header.lm_head == "target":
        tensors[LM_HEAD] = target_rows(target_folder, ids_of(tensors.get(D2T)))
        if content_sha256({LM_HEAD: tensors[LM_HEAD]}) != header.lm_head_sha256:
            raise AssetError(f"{target_folder}: the output rows aren't those that the head in {folder} was packed with")
    write_folder(out, config, tensors)


def write_folder(out: Path, config: bytes, tensors: Tensors) -> None:
    """A head's folder as an engine loads it: config.json and model.safetensors."""
    out.mkdir(parents=True, exist_ok=True)
    (out / CONFIG).write_bytes(config)
    save_file({name: tensor.contiguous() for name, tensor in sorted(tensors.items())}, out / "model.safetensors", metadata={"format": "pt"})


def _unpacked(path: Path, header: Header, stored: Tensors) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    try:
        for name, how in header.tensors.items():
            if name == D2T:
                ids = stored[D2T_IDS].long()
                found[name] = ids - torch.arange(len(ids))
            elif how.bits == 16:
                found[name] = stored[name]
            else:
                found[name] = dequantise(stored[f"{name}.q{how.bits}"], stored[f"{name}.scale"], how.bits)
    except (KeyError, RuntimeError) as error:
        raise AssetError(f"{path} doesn't hold what its header says ({error})") from error
    for name, how in header.tensors.items():
        if tuple(found[name].shape) != how.shape:
            raise AssetError(f"{path}: {name} has shape {list(found[name].shape)}, its header says {list(how.shape)}")
    return found


def ids_of(d2t: torch.Tensor | None) -> torch.Tensor | None:
    """Target ids of the draft vocabulary [DV] from the offsets that vLLM reads: id = i + d2t[i]."""
    return None if d2t is None else d2t.long() + torch.arange(len(d2t))
