"""What came of a load, on a run made by hand."""

from __future__ import annotations

import math

import pytest

from specstudy.records import RequestRow
from specstudy.scaling.outcomes import fewest, full_service_time_s, late_share, outcomes, recovery_s, service_time_s, within_slo
from specstudy.scaling.record import Sample

STAGES = ((2.0, 10.0), (6.0, 60.0), (2.0, 30.0))


def row(scheduled_s: float, ttft_s: float | None = 0.1, service_s: float = 1.0) -> RequestRow:
    first = None if ttft_s is None else scheduled_s + ttft_s
    return RequestRow(
        record_id="r",
        index=int(scheduled_s * 10),
        prompt_id="p",
        scheduled_s=scheduled_s,
        sent_s=scheduled_s,
        first_token_s=first,
        last_token_s=None if first is None else first + service_s - 0.1,
        chunks=0,
        chunk_tokens=(),
        chunk_gap_us=(),
        status="ok" if first is not None else "failed",
        error=None if first is not None else "lost",
        resent=False,
    )


def sample(at_s: float, replicas: int, ready: int) -> Sample:
    return Sample("r", at_s, replicas, replicas, ready, replicas, 0.0, 0.0, 0.0)


# The load triples at 10 and falls at 70. Asked for 3 at 14, ready at 24; 2 at 85, 1 at 95.
SAMPLES = [sample(at, 1 if at < 14 else 3 if at < 85 else 2 if at < 95 else 1, 1 if at < 24 else 3 if at < 85 else 2 if at < 95 else 1) for at in range(100)]


def good_but(bad: dict[float, float | None]) -> list[RequestRow]:
    """A request a second for 100 s; those of `bad` have that TTFT."""
    return [row(float(at), bad.get(float(at), 0.1)) for at in range(100)]


def test_every_figure_by_hand() -> None:
    """Slow from 12 to 29: the first window of 15 requests with at most none of them late begins at 30."""
    found = outcomes(good_but({float(at): 3.0 for at in range(12, 30)}), SAMPLES, STAGES, slots=4, slo_ttft_ms=500, minimum=1)
    assert found == {
        "service_s_mean": pytest.approx(1.0),
        "service_full_s_mean": None,  # 18 had to wait: too few to tell
        "replicas_needed": 3,  # 6 requests/s of 1 s in 8 slots: 13 % wait over 0.5 s, see below
        "replicas_max": 3,
        "replicas_low_while_high": 3,
        "decided_s": 4,
        "enough_ready_s": 14,
        "recovered_s": 20,
        "back_to_min_s": 25,
        "scale_downs": 2,
        "goodput_share": pytest.approx(0.82),
    }


def test_what_never_happened_is_none() -> None:
    flat = [sample(at, 1, 1) for at in range(100)]
    found = outcomes(good_but({float(at): 3.0 for at in range(100)}), flat, STAGES, slots=4, slo_ttft_ms=500, minimum=1)
    assert [found[name] for name in ("decided_s", "enough_ready_s", "recovered_s", "replicas_low_while_high")] == [None] * 4
    assert found["goodput_share"] == 0


def test_a_dip_below_the_need_shows() -> None:
    dipped = [sample(one.at_s, 1 if 40 <= one.at_s < 45 else one.replicas, one.ready) for one in SAMPLES]
    assert outcomes(good_but({}), dipped, STAGES, slots=4, slo_ttft_ms=500, minimum=1)["replicas_low_while_high"] == 1


def test_the_need_is_reckoned_with_a_full_replicas_service_time() -> None:
    """Alone a request takes 1 s; those that wait 3 s for a slot take 0.1 s to prefill and 1.9 s from first to last token. 12 of 16 slots
    busy leave 10 % beyond the SLO, 12 of 20 next to none."""
    assert [late_share(6, 2.0, slots, 0.5) > 0.05 for slots in (16, 20)] == [True, False]
    rows = [row(float(at), 3.0, 2.0) if 12 <= at < 32 else row(float(at)) for at in range(100)]
    assert full_service_time_s(rows, 10) == pytest.approx(2.0)
    assert full_service_time_s(rows[:31], 10) is None  # 19 that waited
    found = outcomes(rows, SAMPLES, STAGES, slots=4, slo_ttft_ms=500, minimum=1)
    assert (found["service_s_mean"], found["service_full_s_mean"], found["replicas_needed"]) == (pytest.approx(1.0), pytest.approx(2.0), 5)


def erlang_c(slots: int, busy: float) -> float:
    """As a textbook has it, by the sum of the states' weights."""
    full = busy**slots / math.factorial(slots) / (1 - busy / slots)
    return full / (sum(busy**k / math.factorial(k) for k in range(slots)) + full)


@pytest.mark.parametrize(("slots", "busy"), [(1, 0.8), (2, 1.0), (8, 6.0), (64, 60.0)])
def test_the_share_that_waits_too_long(slots: int, busy: float) -> None:
    """One server at 80 %: 80 % wait at all. Two at half: a third. Over 0.5 s of a service of 1 s: by e to the -(slots - busy)/2."""
    assert {(1, 0.8): 0.8, (2, 1.0): 1 / 3}.get((slots, busy), erlang_c(slots, busy)) == pytest.approx(erlang_c(slots, busy))
    assert late_share(busy, 1.0, slots, 0) == pytest.approx(erlang_c(slots, busy))
    assert late_share(busy, 1.0, slots, 0.5) == pytest.approx(erlang_c(slots, busy) * math.exp(-(slots - busy) / 2))


def test_the_fewest_that_hold_the_slo() -> None:
    """8 slots at 6 busy leave 13 % beyond half a second, 12 slots next to none; a load of all slots is never held."""
    assert late_share(6, 1.0, 8, 0.5) == pytest.approx(0.131, abs=0.001)
    assert late_share(8, 1.0, 8, 0.5) == 1
    assert [fewest(rate, 1.0, 4, 0.5) for rate in (1, 6, 8)] == [1, 3, 3]


def test_a_lost_request_is_never_within_the_slo() -> None:
    assert [within_slo(row(0, ttft), 500) for ttft in (0.5, 0.501, None)] == [True, False, False]


def test_recovery_needs_two_good_windows_in_a_row() -> None:
    """Good from 20 to 35, bad at 40 to 44, good after: two windows of 15 s from 45 on."""
    bad = {float(at): 3.0 for at in (*range(10, 20), *range(40, 45))}
    assert recovery_s(good_but(bad), 10, 100, 500) == 45
    assert recovery_s(good_but(bad), 10, 100, 500, enough=70) == 55


def test_service_time_is_of_those_that_found_a_slot_free() -> None:
    rows = [row(1, 0.1, 1.0), row(2, 0.1, 1.2), row(3, 2.0, 9.0), row(4, None)]
    assert service_time_s(rows) == pytest.approx(1.0)  # the sooner half of the three good ones
    assert service_time_s([row(1, None)]) is None
