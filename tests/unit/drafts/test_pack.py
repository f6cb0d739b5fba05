"""A head into its packed form and back: sizes, what is kept, and what is refused."""

from __future__ import annotations

import errno
import hashlib
import json
import lzma
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, load_file, save, save_file
from tests.standin.heads import KINDS, Kind, card_for, head_config, head_tensors
from tests.unit.drafts.conftest import MakeHead, edit_config

from specstudy.catalog import load_draft
from specstudy.catalog.materialise import draft_folder, same_content
from specstudy.catalog.packed import GROUP, unpack_head
from specstudy.catalog.packed_files import WEIGHTS
from specstudy.drafts.card import read_card, write_card
from specstudy.drafts.check import check_head
from specstudy.drafts.checkpoint import group_of, read_head
from specstudy.drafts.pack import pack_head, packed_bytes
from specstudy.errors import AssetError, ConfigError

SMOLLM2 = {"hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "num_hidden_layers": 30, "vocab_size": 49152}
HALF_STEPS = {8: 127, 4: 7}


def expected_bytes(shapes: Mapping[str, tuple[int, ...]], *, mlp_bits: int = 4, own_lm_head: bool = False) -> dict[str, int]:
    """Bytes that each group of tensors of these shapes takes, before xz and without headers."""
    sizes: dict[str, int] = {}
    for name, shape in shapes.items():
        group, count = group_of(name), torch.Size(shape).numel()
        bits = {"attention": 8, "fc": 8, "mlp": mlp_bits, "lm_head": 8 if own_lm_head else 0, "d2t": 32, "other": 16}[group]
        scales = 2 * count // GROUP[bits] if bits in GROUP else 0
        sizes[group] = sizes.get(group, 0) + count * bits // 8 + scales
    return sizes


def set_tensor(folder: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors[name] = change(tensors[name]).contiguous()
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_comes_back_as_far_as_its_bits_allow(kind: Kind, make_head: MakeHead, target: Path, tmp_path: Path) -> None:
    folder = make_head(kind)
    pack_head(folder, tmp_path / "packed", target)
    unpack_head(tmp_path / "packed", target, tmp_path / "back")
    before, after = read_head(folder), read_head(tmp_path / "back")
    assert after.config == before.config
    assert after.tensors.keys() == before.tensors.keys()
    for name, tensor in before.tensors.items():
        back = after.tensors[name]
        bits = {"attention": 8, "fc": 8, "mlp": 4}.get(group_of(name), 16)
        assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(back, tensor) == (bits == 16), name
        if bits < 16:
            # Norm of the error of a group: see test_quantise. Summed over all groups with each group's own peak.
            peaks = tensor.double().view(len(tensor), -1, GROUP[bits]).abs().amax(-1)
            bound = GROUP[bits] ** 0.5 / 2 * 1.01 * (peaks / HALF_STEPS[bits]).norm() + 2**-8 * back.double().norm()
            assert (tensor.double() - back.double()).norm() <= bound, name


def test_sixteen_bits_are_the_head_itself(make_head: MakeHead, target: Path, tmp_path: Path) -> None:
    folder = make_head("peagle")
    packing = pack_head(folder, tmp_path / "packed", target, mlp_bits=16, attention_bits=16)
    unpack_head(tmp_path / "packed", target, tmp_path / "back")
    before, after = read_head(folder).tensors, read_head(tmp_path / "back").tensors
    assert {name for name in before if not torch.equal(before[name], after[name])} == set()
    assert set(packing.bits.values()) == {16}


def test_packing_twice_gives_the_same_bytes(make_head: MakeHead, target: Path, tmp_path: Path) -> None:
    folder = make_head("eagle3.1")
    for out in ("one", "two"):
        pack_head(folder, tmp_path / out, target)
    assert (tmp_path / "one" / WEIGHTS).read_bytes() == (tmp_path / "two" / WEIGHTS).read_bytes()


def test_the_targets_output_rows_are_not_stored(make_head: MakeHead, target: Path, tmp_path: Path) -> None:
    pack_head(make_head("eagle3"), tmp_path / "packed", target)
    stored = load(content_in(tmp_path / "packed"))
    assert not [name for name in stored if "lm_head" in name]
    ids = stored["d2t.ids"]
    assert (ids.dtype, ids.tolist()) == (torch.int32, list(range(0, 256, 2)))


def test_output_rows_of_the_heads_own_are_stored_in_8_bits(make_head: MakeHead, target: Path, tmp_path: Path) -> None:
    folder = make_head("eagle3")
    set_tensor(folder, "lm_head.weight", lambda rows: rows * 2)
    packing = pack_head(folder, tmp_path / "packed", target)
    unpack_head(tmp_path / "packed", target, tmp_path / "back")
    assert packing.bits["lm_head"] == 8
    before, after = (read_head(one).tensors["lm_head.weight"].double() for one in (folder, tmp_path / "back"))
    assert 0 < (before - after).norm() < 0.02 * before.norm()


def test_the_sizes_of_a_head_of_smollm2() -> None:
    # By hand. fc: 576 x 1,728. Attention: q 1,152 x 576, k and v 1,152 x 192 each, o 576 x 576. MLP: three of 576 x 1,536.
    # 8 bits: a byte a value and 2 bytes for each 64; 4 bits: half a byte and 2 bytes for each 32. d2t: 4 bytes an entry.
    config = head_config("eagle3", SMOLLM2, inner=1536, draft_vocab=8192)
    shapes = {name: tuple(tensor.shape) for name, tensor in head_tensors(config, torch.zeros(49152, 576)).items()}
    assert expected_bytes(shapes) == {
        "fc": 995_328 + 31_104,
        "attention": 1_437_696 + 44_928,
        "mlp": 1_327_104 + 165_888,
        "other": 2 * 4 * 576,
        "lm_head": 0,
        "d2t": 4 * 8192,
    }
    assert expected_bytes(shapes, mlp_bits=8)["mlp"] == 2_654_208 + 82_944
    assert expected_bytes(shapes, own_lm_head=True)["lm_head"] == 8192 * (576 + 18)


def test_the_file_is_as_large_as_foretold(make_head: MakeHead, target: Path, tmp_path: Path) -> None:
    folder = make_head("peagle")
    packing = pack_head(folder, tmp_path / "packed", target)
    shapes = {name: tuple(tensor.shape) for name, tensor in read_head(folder).tensors.items()}
    content = content_in(tmp_path / "packed")
    header_length = int.from_bytes(content[:8], "little")  # safetensors: 8 bytes, JSON, content
    assert len(content) == 8 + header_length + sum(expected_bytes(shapes).values())
    assert packing.bytes == packed_bytes(tmp_path / "packed") < len(content)


def test_a_card_is_taken_along_with_its_packing(make_head: MakeHead, target: Path, tmp_path: Path) -> None:
    folder = make_head("eagle3")
    write_card(card_for("eagle3", folder, target), folder)
    packing = pack_head(folder, tmp_path / "packed", target)
    card = read_card(tmp_path / "packed")
    assert card.packing == packing
    assert card.model_copy(update={"packing": None, "weights_sha256": None}) == read_card(folder)
    unpack_head(tmp_path / "packed", target, tmp_path / "again")
    verdicts = {one.check: one.verdict for one in check_head(tmp_path / "again", target, card)}
    assert verdicts["weights"] == "ok"
    write_card(card, folder)
    assert [one.check for one in check_head(folder, target, card) if one.verdict == "fail"] == ["weights"]  # 4 bits are other weights


@pytest.mark.parametrize(
    ("name", "change", "field"),
    [
        ("fc.weight", lambda tensor: tensor.index_fill(0, torch.tensor([3]), float("nan")), "head: fc.weight"),
        ("fc.weight", lambda tensor: tensor.float(), "head: fc.weight"),
        ("fc.weight", lambda tensor: tensor.flatten(), "head: fc.weight"),
        ("d2t", lambda tensor: tensor.flip(0), "head: d2t"),
        ("d2t", lambda tensor: tensor - 1, "head: d2t"),
        ("lm_head.weight", lambda tensor: tensor[:-1], "head: lm_head.weight"),
    ],
)
def test_what_cannot_be_packed_is_refused(
    name: str, change: Callable[[torch.Tensor], torch.Tensor], field: str, make_head: MakeHead, target: Path, tmp_path: Path
) -> None:
    folder = make_head("eagle3")
    set_tensor(folder, name, change)
    with pytest.raises(ConfigError) as refused:
        pack_head(folder, tmp_path / "packed", target)
    assert refused.value.field == field
    assert not (tmp_path / "packed").exists()


def test_embeddings_of_the_heads_own_are_refused(make_head: MakeHead, target: Path, tmp_path: Path) -> None:
    folder = make_head("eagle3")
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "embed_tokens.weight": torch.zeros(256, 64, dtype=torch.bfloat16)}, folder / "model.safetensors")
    with pytest.raises(ConfigError, match="shares the target's"):
        pack_head(folder, tmp_path / "packed", target)


@pytest.fixture
def packed(make_head: MakeHead, checkout: Path, target: Path) -> Path:
    """The catalog's head, packed."""
    folder = checkout / "data" / "drafts" / "tiny-head"
    pack_head(make_head("eagle3"), folder, target)
    return folder


def test_the_catalogs_head_is_unpacked_once(packed: Path) -> None:
    told: list[str] = []
    folder = draft_folder(load_draft("tiny-head"), told.append)
    assert folder == draft_folder(load_draft("tiny-head"), told.append)
    assert told == ["unpacking tiny-head to bfloat16"]
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors"}


def test_a_changed_head_is_unpacked_anew(packed: Path, make_head: MakeHead, target: Path) -> None:
    first = draft_folder(load_draft("tiny-head"))
    source = make_head("eagle3")
    set_tensor(source, "norm.weight", lambda tensor: tensor * 2)
    pack_head(source, packed, target, replace=True)
    second = draft_folder(load_draft("tiny-head"))
    assert second != first
    assert read_head(second).tensors["norm.weight"][0] == 2 * read_head(first).tensors["norm.weight"][0]


def test_a_changed_config_is_unpacked_anew(packed: Path, make_head: MakeHead, target: Path) -> None:
    first = draft_folder(load_draft("tiny-head"))
    source = make_head("eagle3")
    edit_config(source, norm_before_residual=True)
    pack_head(source, packed, target, replace=True)
    assert read_head(draft_folder(load_draft("tiny-head"))).config["norm_before_residual"] is True
    assert read_head(first).config["norm_before_residual"] is False


def test_a_folder_tells_by_its_name_whether_it_holds_the_head_of_this_checkout(packed: Path, make_head: MakeHead, target: Path) -> None:
    draft = load_draft("tiny-head")
    name = draft_folder(draft).name
    assert same_content(draft, name) is True
    assert same_content(draft, "tiny-head") is None and same_content(draft, "another-0123456789abcdef") is None
    # Before heads were compressed, the name was a hash of the plain file.
    plain = lzma.decompress((packed / WEIGHTS).read_bytes())
    older = f"tiny-head-{hashlib.sha256(plain + (packed / 'config.json').read_bytes()).hexdigest()[:16]}"
    assert older != name and same_content(draft, older) is True
    (packed / WEIGHTS).write_bytes(lzma.compress(plain, preset=0))
    assert (same_content(draft, older), same_content(draft, draft_folder(draft).name)) == (True, True)
    source = make_head("eagle3")
    set_tensor(source, "norm.weight", lambda tensor: tensor * 2)
    pack_head(source, packed, target, replace=True)
    assert same_content(draft, name) is False and same_content(draft, older) is False


def content_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_packed_head_is_not_overwritten_unasked(packed: Path, make_head: MakeHead, target: Path) -> None:
    (packed / "card.json").write_text("months of measurements")
    before = content_of(packed)
    with pytest.raises(ConfigError, match=r"^out: .*card\.json.*--replace"):
        pack_head(make_head("eagle3.1"), packed, target)
    assert content_of(packed) == before


def test_a_replaced_head_leaves_nothing(packed: Path, make_head: MakeHead, target: Path) -> None:
    for name in ("card.json", "checks.csv"):
        (packed / name).write_text("of the old head")
    pack_head(make_head("eagle3.1"), packed, target, replace=True)
    assert {path.name for path in packed.iterdir()} == {WEIGHTS, "config.json"}
    assert json.loads((packed / "config.json").read_text())["fc_norm"] is True
    assert sorted(path.name for path in packed.parent.iterdir()) == ["tiny-head", "tiny-head.yaml"]


@pytest.mark.parametrize("broken", ["write_packed", "write_card"])
def test_a_failure_in_writing_leaves_the_old_head_whole(broken: str, packed: Path, make_head: MakeHead, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_head("eagle3")
    write_card(card_for("eagle3", source, target), source)
    before = content_of(packed)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(f"specstudy.drafts.pack.{broken}", full)
    with pytest.raises(ConfigError, match=r"^out: .*No space left on device"):
        pack_head(source, packed, target, replace=True)
    assert content_of(packed) == before
    assert sorted(path.name for path in packed.parent.iterdir()) == ["tiny-head", "tiny-head.yaml"]


def test_a_failure_between_the_renames_brings_the_old_head_back(packed: Path, make_head: MakeHead, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, rename = content_of(packed), Path.rename

    def stop(path: Path, to: Path) -> Path:
        if path.name == "new":
            raise KeyboardInterrupt
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", stop)
    with pytest.raises(KeyboardInterrupt):
        pack_head(make_head("eagle3"), packed, target, replace=True)
    assert content_of(packed) == before


@pytest.mark.parametrize("replace", [False, True])
def test_a_head_is_not_packed_over_itself(replace: bool, make_head: MakeHead, target: Path, tmp_path: Path) -> None:
    folder = make_head("eagle3")
    before = content_of(folder)
    (tmp_path / "link").symlink_to(folder)
    for out in (folder, folder / ".." / folder.name, tmp_path / "link"):
        with pytest.raises(ConfigError, match=r"^out: .*the head's own"):
            pack_head(folder, out, target, replace=replace)
    assert content_of(folder) == before


@pytest.mark.parametrize("replace", [False, True])
def test_a_folder_with_other_files_is_left_alone(replace: bool, make_head: MakeHead, target: Path, tmp_path: Path) -> None:
    folder = make_head("eagle3")
    with pytest.raises(ConfigError, match=f"^out: .*this one holds .*{folder.name}"):
        pack_head(folder, tmp_path, target, replace=replace)


@pytest.mark.parametrize("out", ["file", "file/below", "x" * 300])
def test_where_nothing_can_be_written_is_refused(out: str, make_head: MakeHead, target: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"^out: .*a folder that can be written \("):
        pack_head(make_head("eagle3"), tmp_path / out, target)
    assert (tmp_path / "file").read_text() == ""


def content_in(packed: Path) -> bytes:
    return lzma.decompress((packed / WEIGHTS).read_bytes())


def change(packed: Path, content: bytes) -> None:
    (packed / WEIGHTS).write_bytes(lzma.compress(content))


def tamper_last_byte(packed: Path) -> None:
    content = bytearray(content_in(packed))
    content[-1] ^= 1
    change(packed, bytes(content))


def tamper_inside_the_compression(packed: Path) -> None:
    path = packed / WEIGHTS
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut_short_inside(packed: Path) -> None:
    change(packed, content_in(packed)[:-100])


def cut_short(packed: Path) -> None:
    path = packed / WEIGHTS
    path.write_bytes(path.read_bytes()[:-100])


def other_shape_in_the_header(packed: Path) -> None:
    content = content_in(packed)
    assert content.count(rb"\"shape\": [64, 192]") == 1
    change(packed, content.replace(rb"\"shape\": [64, 192]", rb"\"shape\": [64, 128]"))


def another_safetensors_file(packed: Path) -> None:
    change(packed, save({"fc.weight": torch.zeros(2, 2)}))


def not_compressed(packed: Path) -> None:
    (packed / WEIGHTS).write_bytes(content_in(packed))


def from_the_future(packed: Path) -> None:
    content = content_in(packed)
    assert content.count(rb"\"version\": 1") == 1
    change(packed, content.replace(rb"\"version\": 1", rb"\"version\": 2"))


@pytest.mark.parametrize(
    ("spoil", "file"),
    [
        (tamper_last_byte, WEIGHTS),
        (tamper_inside_the_compression, WEIGHTS),
        (cut_short, WEIGHTS),
        (cut_short_inside, WEIGHTS),
        (not_compressed, WEIGHTS),
        (other_shape_in_the_header, WEIGHTS),
        (another_safetensors_file, WEIGHTS),
        (from_the_future, WEIGHTS),
        (lambda packed: (packed / WEIGHTS).unlink(), WEIGHTS),
        (lambda packed: (packed / WEIGHTS).write_bytes(b""), WEIGHTS),
        (lambda packed: (packed / "config.json").unlink(), "config.json"),
        (lambda packed: edit_config(packed, norm_before_residual=True), "config.json"),
    ],
)
def test_a_spoilt_packed_head_is_an_error_that_names_the_file(spoil: Callable[[Path], None], file: str, packed: Path, tmp_path: Path) -> None:
    spoil(packed)
    with pytest.raises(AssetError) as failed:
        draft_folder(load_draft("tiny-head"))
    assert str(packed / file) in str(failed.value)
    made = tmp_path / "cache" / "drafts"
    assert not made.exists() or [path for path in made.iterdir() if path.is_dir()] == []


def test_another_target_is_an_error_that_names_it(packed: Path, target: Path, tmp_path: Path) -> None:
    other = tmp_path / "other-target"
    other.mkdir()
    rows = load_file(target / "model.safetensors")
    save_file({name: tensor * 1.5 for name, tensor in rows.items()}, other / "model.safetensors")
    with pytest.raises(AssetError, match="other-target: the output rows"):
        unpack_head(packed, other, tmp_path / "back")
    save_file({"model.embed_tokens.weight": rows["model.embed_tokens.weight"][:100]}, other / "model.safetensors")
    with pytest.raises(AssetError, match="100 output rows"):
        unpack_head(packed, other, tmp_path / "back")
    save_file({"x": torch.zeros(1)}, other / "model.safetensors")
    with pytest.raises(AssetError, match=r"no lm_head\.weight"):
        unpack_head(packed, other, tmp_path / "back")


def test_a_target_in_shards_gives_the_same_rows(packed: Path, target: Path, tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    shards.mkdir()
    rows = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    save_file({"other": torch.zeros(1)}, shards / "model-00001-of-00002.safetensors")
    save_file({"lm_head.weight": rows}, shards / "model-00002-of-00002.safetensors")
    unpack_head(packed, shards, tmp_path / "back")
    assert torch.equal(read_head(tmp_path / "back").tensors["lm_head.weight"], rows[::2])


def test_what_the_repository_keeps_is_within_its_limit() -> None:
    """Packed heads with all that lies beside them: 24 MB together."""
    folders = [path.parent for path in (Path(__file__).parents[3] / "data" / "drafts").glob(f"*/{WEIGHTS}")]
    assert len(folders) >= 3
    assert sum(path.stat().st_size for folder in folders for path in folder.iterdir()) <= 24 * 10**6


def test_the_metadata_is_one_json_object(packed: Path) -> None:
    content = content_in(packed)
    metadata = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    assert set(metadata) == {"specstudy"}
    assert json.loads(metadata["specstudy"])["tensors"]["fc.weight"] == {"shape": [64, 192], "bits": 8}
