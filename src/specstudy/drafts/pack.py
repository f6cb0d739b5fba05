"""A trained bf16 head into 8 and 4 bits, small enough for the repository. Back again: `specstudy.catalog.packed`."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError

from specstudy.catalog.packed import (
    D2T,
    D2T_IDS,
    GROUP,
    LM_HEAD,
    Bits,
    Header,
    Stored,
    content_sha256,
    dequantise,
    ids_of,
    target_rows,
    weights_sha256,
    write_packed,
)
from specstudy.catalog.packed_files import CONFIG, WEIGHTS
from specstudy.drafts.card import Packing, read_card, write_card
from specstudy.drafts.checkpoint import Group, group_of, read_head
from specstudy.errors import ConfigError

CARD, FINDINGS = "card.json", "checks.csv"  # the latter is what the checks found, kept for the book

# Divisors of a group's largest magnitude that are tried as its scale. 8 bits: the integers end at 127, and cutting off pays
# little. 4 bits: from -8 to 7, so the sign decides which end has the extra step, and cutting off the outliers pays.
DIVISORS: dict[int, tuple[float, ...]] = {
    8: (127.0, 130.0, 134.0),
    4: tuple(sign * divisor for divisor in (7.0, 7.5, 8.0, 8.5, 9.0, 9.5) for sign in (1.0, -1.0)),
}
LIMITS: dict[int, tuple[int, int]] = {8: (-127, 127), 4: (-8, 7)}


def quantise(weight: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(integers, bf16 scales) of a matrix [out, in], as `catalog.packed` stores them.

    For each group the scale with the least squared error is chosen, among the largest magnitude over each of
    DIVISORS and, for each of those, the least-squares scale of the integers that it gives. The first candidate
    alone cuts nothing off, so a group of n values never has more than n (s / 2)² of squared error, with s that scale.
    Raises ConfigError where the groups don't divide the input dimension.
    """
    rows, columns = weight.shape
    if columns % GROUP[bits]:
        raise ConfigError("bits", bits, f"16 for a matrix with {columns} input columns: they aren't a multiple of {GROUP[bits]}")
    grouped = weight.float().reshape(rows, -1, GROUP[bits])
    peak = grouped.abs().amax(-1, keepdim=True)
    best_scale = _upwards(peak / DIVISORS[bits][0])
    best = _round(grouped, best_scale, bits)
    best_error = _error(grouped, best, best_scale)
    for divisor in DIVISORS[bits]:
        scale = (peak / divisor).bfloat16().float()
        for _ in range(2):
            integers = _round(grouped, scale, bits)
            error = _error(grouped, integers, scale)
            better = error < best_error
            best, best_scale, best_error = torch.where(better, integers, best), torch.where(better, scale, best_scale), torch.where(better, error, best_error)
            square = integers.square().sum(-1, keepdim=True)
            scale = torch.where(square > 0, (grouped * integers).sum(-1, keepdim=True) / square.clamp(min=1), scale).bfloat16().float()
    return _stored(best.reshape(rows, columns).to(torch.int8), bits), best_scale.squeeze(-1).bfloat16()


def _upwards(scale: torch.Tensor) -> torch.Tensor:
    """The next bf16 at or above: with it no value is cut off."""
    nearest = scale.bfloat16()
    above = (nearest.view(torch.int16) + 1).view(torch.bfloat16)  # the next bit pattern of a positive float is the next float
    return torch.where(nearest.float() < scale, above, nearest).float()


def _round(grouped: torch.Tensor, scale: torch.Tensor, bits: int) -> torch.Tensor:
    low, high = LIMITS[bits]
    return torch.where(scale == 0, 0.0, (grouped / torch.where(scale == 0, 1.0, scale)).round()).clamp(low, high)


def _error(grouped: torch.Tensor, integers: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (grouped - integers * scale).square().sum(-1, keepdim=True)


def _stored(integers: torch.Tensor, bits: int) -> torch.Tensor:
    if bits == 8:
        return integers
    halves = (integers + 8).to(torch.uint8)
    return halves[:, 0::2] | (halves[:, 1::2] << 4)


def pack_head(folder: Path, out: Path, target_folder: Path, *, mlp_bits: Bits = 4, attention_bits: Bits = 8, replace: bool = False) -> Packing:
    """Pack the bf16 head of `folder` into `out`, and say what that took.

    fc is stored like attention. `lm_head.weight` isn't stored where its rows are the target's, else in 8 bits.
    A card.json is taken along, with its `packing` filled in and the hash of the packed weights. A packed head that is in `out`
    already gives way only with `replace`, and then whole: nothing of it is kept, its card neither. After a failure it is still there.
    Raises ConfigError for weights that aren't finite or not bf16, for embeddings, for a vocabulary map that isn't
    strictly rising, for dimensions that the groups don't divide, and for an `out` that is taken or can't be written.
    """
    _refuse_taken(folder, out, replace=replace)
    head = read_head(folder)
    ids = _checked(head.tensors)
    bits: dict[Group, Bits] = {"attention": attention_bits, "fc": attention_bits, "mlp": mlp_bits, "lm_head": 8, "d2t": 16, "other": 16}
    own_rows = not torch.equal(head.tensors[LM_HEAD], target_rows(target_folder, ids))
    stored: dict[str, torch.Tensor] = {}
    unpacked: dict[str, torch.Tensor] = {}
    entries: dict[str, Stored] = {}
    for name, tensor in sorted(head.tensors.items()):
        if name == LM_HEAD and not own_rows:
            unpacked[name] = tensor
            continue
        width = bits[group_of(name)]
        entries[name] = Stored(shape=tuple(tensor.shape), bits=width)
        unpacked[name] = _store(name, tensor, width, stored)
    config = (folder / CONFIG).read_bytes()
    header = Header(
        tensors=entries,
        lm_head="stored" if own_rows else "target",
        content_sha256=weights_sha256(unpacked),
        lm_head_sha256=content_sha256({LM_HEAD: unpacked[LM_HEAD]}),
        config_sha256=hashlib.sha256(config).hexdigest(),
    )
    kept: dict[str, int] = {group: width for group, width in bits.items() if group != "d2t" and (group != "lm_head" or own_rows)}
    card = read_card(folder) if (folder / CARD).is_file() else None

    def write(made: Path) -> Packing:
        write_packed(made / WEIGHTS, stored, header)
        (made / CONFIG).write_bytes(config)
        packing = Packing(bits=kept, bytes=packed_bytes(made))
        if card is not None:
            write_card(card.model_copy(update={"packing": packing, "weights_sha256": header.content_sha256}), made)
        return packing

    try:
        return _written_whole(out.resolve(), write)
    except (OSError, SafetensorError) as error:
        raise _unwritable(out, error) from error


def _refuse_taken(folder: Path, out: Path, *, replace: bool) -> None:
    """Raises ConfigError for an `out` that would cost the user something, or that no folder can be put at."""
    if out.resolve() == folder.resolve():
        raise ConfigError("out", str(out), "another folder than the head's own: packing would spoil it")
    try:
        held = sorted(path.name for path in out.iterdir()) if out.exists() else []
    except OSError as error:
        raise _unwritable(out, error) from error
    if strangers := [name for name in held if name not in (WEIGHTS, CONFIG, CARD, FINDINGS)]:
        raise ConfigError("out", str(out), f"a new folder, an empty one or a packed head's; this one holds {', '.join(strangers[:3])}")
    if held and not replace:
        raise ConfigError("out", str(out), f"a folder without {' and '.join(held)}; --replace puts the new head in their place, and what the card says is lost")


def _written_whole(out: Path, write: Callable[[Path], Packing]) -> Packing:
    """Let `write` fill a folder beside `out` and put it there by rename, so that `out` is the old one or the new one."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".pack-", ignore_cleanup_errors=True) as scratch:
        made, old = Path(scratch) / "new", Path(scratch) / "old"
        made.mkdir()
        packing = write(made)
        try:
            if out.exists():
                out.rename(old)
            made.rename(out)
        except BaseException:
            if old.exists() and not out.exists():
                old.rename(out)
            raise
    return packing


def _unwritable(out: Path, error: Exception) -> ConfigError:
    return ConfigError("out", str(out), f"a folder that can be written ({getattr(error, 'strerror', None) or error})")


def _checked(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    """Ids of the draft vocabulary. Raises ConfigError for what can't be packed without loss of meaning."""
    if LM_HEAD not in tensors:
        raise ConfigError("head", sorted(tensors), f"a head with {LM_HEAD}")
    if embeddings := [name for name in tensors if "embed_tokens" in name]:
        raise ConfigError("head", embeddings, "a head without embeddings of its own: it shares the target's")
    for name, tensor in tensors.items():
        wanted = torch.int64 if name == D2T else torch.bfloat16
        if tensor.dtype != wanted:
            raise ConfigError(f"head: {name}", str(tensor.dtype), f"must be {wanted}")
        if not tensor.isfinite().all():
            raise ConfigError(f"head: {name}", "nan or inf", "finite weights")
        if group_of(name) not in ("other", "d2t") and tensor.dim() != 2:
            raise ConfigError(f"head: {name}", list(tensor.shape), "a matrix")
    ids = ids_of(tensors.get(D2T))
    if ids is not None and (int(ids[0]) < 0 or not bool((ids.diff() > 0).all())):
        raise ConfigError(f"head: {D2T}", "ids out of order", "each token of the target once, in rising order")
    if ids is not None and len(ids) != len(tensors[LM_HEAD]):
        raise ConfigError(f"head: {LM_HEAD}", len(tensors[LM_HEAD]), f"a row for each of the {len(ids)} entries of d2t")
    return ids


def _store(name: str, tensor: torch.Tensor, bits: Bits, stored: dict[str, torch.Tensor]) -> torch.Tensor:
    """Put the stored form of one tensor into `stored`, and give what unpacking will make of it."""
    if name == D2T:
        ids = ids_of(tensor)
        assert ids is not None
        stored[D2T_IDS] = ids.to(torch.int32)
        return tensor
    if bits == 16:
        stored[name] = tensor.contiguous()
        return tensor
    integers, scale = quantise(tensor, bits)
    stored[f"{name}.q{bits}"], stored[f"{name}.scale"] = integers.contiguous(), scale.contiguous()
    return dequantise(integers, scale, bits)


def packed_bytes(folder: Path) -> int:
    """Bytes of a packed head, weights and config."""
    return sum((folder / name).stat().st_size for name in (WEIGHTS, CONFIG))
