"""Measured acceptance against the card: which claim, and when it counts as broken."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.standin.heads import card_for
from tests.unit.drafts.conftest import MakeHead

from specstudy.drafts.card import Acceptance, Card
from specstudy.drafts.live import acceptance_finding, claim_of
from specstudy.errors import ConfigError
from specstudy.measure import Counters


@pytest.fixture
def card(make_head: MakeHead, target: Path) -> Card:
    return card_for("eagle3", make_head("eagle3"), target)


def counted(drafts: int, accepted: int) -> Counters:
    """What a server's counters gain; acceptance length 1 + accepted / drafts."""
    return Counters(
        requests_finished=8,
        generation_tokens=drafts + accepted,
        queue_sum_s=0,
        queue_count=8,
        queue_buckets={},
        drafts=drafts,
        draft_tokens=3 * drafts,
        accepted_tokens=accepted,
        accepted_per_position=(accepted, 0, 0),
    )


@pytest.mark.parametrize(
    ("drafts", "accepted", "verdict"),
    [
        (1000, 1500, "ok"),  # 2.5, as the card says
        (1000, 1250, "ok"),  # 2.25, 10 % below
        (1000, 1240, "fail"),  # 2.24
        (1000, 2500, "ok"),  # better than claimed
        (1000, 0, "fail"),
        (0, 0, "fail"),
        (199, 0, "not checked"),  # too few to say
        (200, 0, "fail"),
    ],
)
def test_ten_per_cent_below_the_card_is_allowed(card: Card, drafts: int, accepted: int, verdict: str) -> None:
    finding = acceptance_finding(counted(drafts, accepted), card.acceptance[0])
    assert (finding.check, finding.verdict) == ("acceptance", verdict)
    assert f"{drafts:,} drafts" in finding.found or drafts == 0


def test_the_claim_is_greedy_on_a_workload_of_the_profile_with_the_fewest_requests_at_once(card: Card) -> None:
    one: Acceptance = card.acceptance[0]
    variants = [
        {"concurrency": 8, "num_speculative_tokens": 7},
        {"temperature": 1.0, "num_speculative_tokens": 6},
        {"workload": "code", "num_speculative_tokens": 8},
        {"num_speculative_tokens": 5},
    ]
    many = card.model_copy(update={"acceptance": (*(one.model_copy(update=change) for change in variants), one)})
    assert claim_of(many, ["chat"]).num_speculative_tokens == 5
    with pytest.raises(ConfigError, match="maths"):
        claim_of(many, ["maths"])
