"""The heads that the repository ships: whole, described by their cards, and small enough."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specstudy.catalog import load_draft
from specstudy.catalog.packed import read_packed
from specstudy.catalog.packed_files import WEIGHTS
from specstudy.drafts.card import NormFlags, read_card
from specstudy.drafts.checkpoint import AUX_IDS
from specstudy.drafts.pack import packed_bytes

DRAFTS = Path(__file__).parents[3] / "data" / "drafts"
SHIPPED = sorted(path.parent.name for path in DRAFTS.glob(f"*/{WEIGHTS}"))
# A head of the method `eagle3.1` is served as eagle3: its switches lie in config.json.
SERVED_AS = {"eagle3": "eagle3", "eagle3.1": "eagle3", "peagle": "peagle"}

pytestmark = pytest.mark.parametrize("name", SHIPPED)


@pytest.fixture(autouse=True)
def _this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECSTUDY_ROOT", str(DRAFTS.parents[1]))


def test_it_is_whole_and_nothing_else_lies_there(name: str) -> None:
    assert {path.name for path in (DRAFTS / name).iterdir()} == {WEIGHTS, "config.json", "card.json", "checks.csv"}
    header, _, tensors = read_packed(DRAFTS / name)
    assert header.lm_head == "target"
    assert all(bool(tensor.isfinite().all()) for tensor in tensors.values())


def test_its_card_is_about_this_head(name: str) -> None:
    card, draft = read_card(DRAFTS / name), load_draft(name)
    config = json.loads((DRAFTS / name / "config.json").read_text())
    assert (card.name, card.target.name, SERVED_AS[card.method], card.licence) == (name, draft.target, draft.method, draft.licence)
    assert list(card.aux_layers) == config[AUX_IDS]
    assert card.norm_flags == NormFlags.of(config)
    assert card.weights_sha256 in (None, read_packed(DRAFTS / name)[0].content_sha256)  # None: packed before cards stated it
    if card.training.started_from is None:  # a head that was trained further begins with a low loss, of one batch
        assert card.training.loss_curve[-1][1] < card.training.loss_curve[0][1]
    else:
        assert card.stages is not None, "its card lacks the trainings before the last"
    assert card.packing is not None
    assert card.packing.bytes == packed_bytes(DRAFTS / name)


def test_packing_cost_at_most_two_per_cent_of_its_acceptance(name: str) -> None:
    packing = read_card(DRAFTS / name).packing
    assert packing is not None
    if packing.acceptance_length_unpacked is None:
        pytest.skip("the card doesn't state it: the head before packing wasn't kept")
    assert packing.acceptance_length_packed is not None
    assert packing.acceptance_length_packed >= 0.98 * packing.acceptance_length_unpacked


def test_its_acceptance_is_stated_by_workload_and_position(name: str) -> None:
    acceptance = read_card(DRAFTS / name).acceptance
    assert len({one.workload for one in acceptance}) >= 2
    for one in acceptance:
        # Tokens per step are the target's own and one for each accepted position.
        assert one.acceptance_length == pytest.approx(1 + sum(one.per_position), abs=0.02)
        assert len(one.per_position) == one.num_speculative_tokens
        assert list(one.per_position) == sorted(one.per_position, reverse=True)
