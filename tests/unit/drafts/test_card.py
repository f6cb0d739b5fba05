"""The card: strict, whole after a round trip, and readable."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.standin.heads import card_for
from tests.unit.drafts.conftest import MakeHead

from specstudy.drafts.card import Acceptance, Card, Packing, StartedFrom, Tried, acceptance_table, card_text, facts_table, read_card, write_card
from specstudy.errors import ConfigError


@pytest.fixture
def card(make_head: MakeHead, target: Path) -> Card:
    return card_for("eagle3", make_head("eagle3"), target)


def test_a_card_comes_back_as_it_was(card: Card, tmp_path: Path) -> None:
    full = card.model_copy(update={"packing": Packing(bits={"mlp": 4}, bytes=7), "tried": (Tried(what="a | b", gave="3 % more"),)})
    write_card(full, tmp_path)
    assert read_card(tmp_path) == full
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["card.json"]


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        (("colour",), "red", "colour"),
        (("training", "loss_rate"), 1, "training.loss_rate"),
        (("method",), "medusa", "method"),
        (("training", "learning_rate"), float("nan"), "training.learning_rate"),
        (("data", "prompts_sha256"), "abc", "data.prompts_sha256"),
        (("data", "evaluation_share"), 1.5, "data.evaluation_share"),
        (("acceptance", 0, "acceptance_length"), 0.9, "acceptance.0.acceptance_length"),
        (("acceptance", 0, "per_position"), [1.2], "acceptance.0.per_position.0"),
        (("training", "loss_curve", 0), [0, float("inf")], "training.loss_curve.0.1"),
    ],
)
def test_a_card_that_does_not_fit_is_refused_with_its_field(card: Card, tmp_path: Path, path: tuple[str | int, ...], value: object, field: str) -> None:
    content = card.model_dump(mode="json")
    inside = content
    for step in path[:-1]:
        inside = inside[step]
    inside[path[-1]] = value
    (tmp_path / "card.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError) as refused:
        read_card(tmp_path)
    assert refused.value.field == f"card.json: {field}"


def test_no_card_or_half_a_card_is_refused(card: Card, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"card\.json"):
        read_card(tmp_path)
    path = write_card(card, tmp_path)
    path.write_text(path.read_text()[:-50])
    with pytest.raises(ConfigError, match=r"card\.json"):
        read_card(tmp_path)


def test_the_tables(card: Card) -> None:
    other = card.model_copy(update={"name": "other", "acceptance": card.acceptance * 2})
    table = acceptance_table([card, other])
    assert list(table["head"]) == [card.name, "other", "other"]
    row = dict(table.iloc[0])
    assert (row["K"], row["acceptance length"], row["half-width"], row["per position"], row["drafts"]) == (3, 2.5, 0.05, "0.70 0.50 0.30", 1000)
    facts = facts_table([card, other])
    assert list(facts.columns) == [card.name, "other"]
    assert facts.loc["loss", "other"] == "5.500 at step 0, 5.250 at step 2"
    assert facts.loc["answers by", "other"] == "vllm 0.26.0, T = 0, 0.7"


def test_the_text_holds_facts_acceptance_and_what_was_tried(card: Card) -> None:
    packing = Packing(bits={"attention": 8, "mlp": 4}, bytes=3_250_000, acceptance_length_unpacked=2.5, acceptance_length_packed=2.45)
    unsure: Acceptance = card.acceptance[0].model_copy(update={"half_width": None, "workload": "code"})
    tried = (Tried(what="two | layers", gave="nothing"),)
    lines = card_text(card.model_copy(update={"packing": packing, "acceptance": (*card.acceptance, unsure), "tried": tried})).splitlines()
    assert "| stored in | 3.2 MB (attention 8 bits, mlp 4 bits) |" in lines
    assert "| packed over unpacked acceptance | 0.980 |" in lines
    assert "| chat | 3 | 1 | 0 | 2.5 | 0.05 | 0.70 0.50 0.30 | 1000 |" in lines
    assert "| code | 3 | 1 | 0 | 2.5 |  | 0.70 0.50 0.30 | 1000 |" in lines
    assert "| two / layers | nothing |" in lines


def test_the_card_of_a_head_that_was_trained_further_holds_every_training(card: Card) -> None:
    def further(before: Card, command: str, tokens: int) -> Card:
        start = StartedFrom(name=before.name, weights_sha256="b" * 64, tokens_seen=before.training.tokens_in_all, stages=before.stages or ())
        training = before.training.model_copy(update={"tokens_seen": tokens, "seconds": 3.0, "started_from": start})
        return before.model_copy(update={"command": command, "training": training})

    second = further(card, "train --from one", 1_000)
    third = further(second, "train --from two", 20)
    assert [one.command for one in third.stages or ()] == ["none: random weights", "train --from one", "train --from two"]
    facts = dict(facts_table([third])[card.name])
    assert facts["trained before by"] == (
        "none: random weights (3 steps, 1,536 tokens, 2 s on cpu; 200 prompts, aaaaaaaaaaaa); "
        "then train --from one (3 steps, 1,000 tokens, 3 s on cpu; 200 prompts, aaaaaaaaaaaa)"
    )
    assert (facts["tokens seen"], facts["tokens seen in all"], facts["training time in all"]) == ("20", "2,556", "8 s")
    assert facts["command"] == "train --from two"
    assert "started from" not in facts_table([card]).index


def test_a_card_that_keeps_no_earlier_training_says_so(card: Card) -> None:
    start = {"name": "one", "weights_sha256": "b" * 64, "tokens_seen": 1536}  # as cards were written before they kept the trainings
    older = Card.model_validate({**card.model_dump(), "training": {**card.training.model_dump(), "started_from": start}})
    facts = dict(facts_table([older])[card.name])
    assert older.stages is None
    assert (facts["trained before by"], facts["tokens seen in all"]) == ("not kept on this card", "3,072")
    assert "training time in all" not in facts
