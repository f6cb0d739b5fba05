"""The simulated fleet against hand calculations and queueing theory."""

from __future__ import annotations

import math

import numpy as np
import pytest

from specstudy.errors import ConfigError
from specstudy.scaling.fleet import Fleet
from specstudy.scaling.hpa import Release
from specstudy.scaling.policy import shipped_policy
from specstudy.scaling.scenarios import tried_policy
from specstudy.scaling.simulate import Scenario, fixed_fleet_waits, replicas_for, simulate


def fleet(replicas: int, slots: int = 1, cold_start_s: float = 0, horizon_s: float = 100) -> Fleet:
    made = Fleet(slots, cold_start_s, horizon_s)
    made.scale(replicas, 0, warm=True)
    return made


def served(made: Fleet, arrivals: list[float], services: list[float]) -> list[float]:
    made.run(np.array(arrivals), np.array(services))
    return made.started_s


def test_one_slot_serves_in_turn() -> None:
    assert served(fleet(1), [0, 1, 2, 20], [3, 3, 3, 3]) == [0, 3, 6, 20]


def test_two_slots_serve_two_at_once() -> None:
    assert served(fleet(1, slots=2), [0, 1, 2, 3], [10, 2, 5, 1]) == [0, 1, 3, 8]


def test_the_replica_with_the_fewest_requests_gets_the_next() -> None:
    """At 0 and 1 one each; at 2 both have one; at 2.5 the second is idle again, so it gets the one of 3."""
    made = fleet(2)
    assert served(made, [0, 1, 3], [10, 1, 1]) == [0, 1, 3]


def test_a_new_replica_doesnt_take_over_a_backlog() -> None:
    made = fleet(1, cold_start_s=5)
    made.run(np.array([0.0, 0.1, 0.2]), np.array([10.0, 10.0, 10.0]))
    made.scale(2, 1)
    made.run(np.array([7.0]), np.array([1.0]))
    assert made.started_s == [0, 10, 20, 7]


def test_what_leaves_finishes_and_gets_no_more() -> None:
    made = fleet(2)
    made.run(np.array([0.0, 0.0]), np.array([10.0, 10.0]))
    made.scale(1, 1)
    made.run(np.array([2.0]), np.array([1.0]))
    assert made.finished_s == [10, 10, 11]
    assert made.ready(2) == 1


def test_a_replica_that_isnt_ready_leaves_first() -> None:
    made = fleet(1, cold_start_s=50)
    made.scale(3, 1)
    assert (made.count, made.ready(2)) == (3, 1)
    made.scale(2, 2)
    made.scale(1, 2)
    assert (made.count, made.ready(60)) == (1, 1)


def test_with_nobody_ready_a_request_waits_for_the_first_to_come() -> None:
    made = Fleet(1, 5, 100)
    made.scale(1, 0)
    assert served(made, [1.0], [1.0]) == [5.0]
    with pytest.raises(ConfigError, match="at least one that is, or gets, ready"):
        served(Fleet(1, 0, 100), [1.0], [1.0])


def test_metrics_by_hand() -> None:
    """One slot: started at 0, 3, 6, ended at 3, 6, 9, waits of 0, 2 and 4 s."""
    made = fleet(1)
    served(made, [0, 1, 2], [3, 3, 3])
    assert made.metrics(2, 15)["queue_wait_ms"] is None  # one runs, two wait, none has ended
    assert made.metrics(4, 15)["queue_wait_ms"] == 0
    assert made.metrics(7, 15)["queue_wait_ms"] == pytest.approx(1000)
    assert made.metrics(10, 15)["queue_wait_ms"] == pytest.approx(2000)
    assert made.metrics(40, 15) == {"queue_wait_ms": 0.0, "slots_in_use": 0.0}
    assert made.metrics(9, 4)["slots_in_use"] == pytest.approx(1.0)


def test_the_mean_wait_is_that_of_an_mmc_queue() -> None:
    """Erlang's C for 8 slots at 6 erlang is 0.3570; with a mean service of 1 s the mean wait is C/(c - a) = 0.178 s."""
    a, c = 6.0, 8
    terms = [a**k / math.factorial(k) for k in range(c)]
    last = a**c / math.factorial(c) * c / (c - a)
    wanted = last / (sum(terms) + last) / (c - a)
    assert wanted == pytest.approx(0.178, abs=0.001)
    services = tuple(np.random.default_rng(5).exponential(1, 50_000))
    waits = fixed_fleet_waits(a / float(np.mean(services)), services, c, 1, requests=200_000, seed=2)
    assert float(waits.mean()) == pytest.approx(wanted, rel=0.08)


def test_more_replicas_until_the_wait_is_short_enough() -> None:
    services = (1.0,)
    enough = replicas_for(10, services, 4, 0.5, requests=5000)
    assert float(np.percentile(fixed_fleet_waits(10, services, 4, enough, requests=5000), 99)) <= 0.5
    assert enough == 3 or float(np.percentile(fixed_fleet_waits(10, services, 4, enough - 1, requests=5000), 99)) > 0.5


SERVICE_S = tuple(np.random.default_rng(3).gamma(9, 0.6 / 9, 400))


def step(cold_start_s: float, sync_s: float = 15) -> Scenario:
    """Two slots of four in use, then six, then two."""
    return Scenario(((3.3, 120), (9.9, 600), (3.3, 600)), SERVICE_S, 4, cold_start_s, 1, sync_s=sync_s)


@pytest.mark.parametrize("release", ["v1_20", "current"])
@pytest.mark.parametrize("cold_start_s", [5, 40, 120])
def test_the_shipped_policy_decides_in_time_holds_and_comes_back(cold_start_s: float, release: Release) -> None:
    """Needed by hand: 9.9 requests/s of 0.6 s in 4 slots are 1.5 replicas' worth, so 2."""
    found = simulate(shipped_policy(4, cold_start_s), step(cold_start_s), release)
    high = (found.at_s > 120) & (found.at_s <= 720)
    first = found.at_s[high & (np.append(found.replicas[1:], 0) > 1)][0]  # the count changes after the sync that decided
    assert first - 120 <= 30
    enough = found.at_s[high & (found.ready >= 2)][0]
    assert found.replicas[high & (found.at_s >= enough)].min() >= 2
    assert found.replicas.max() <= 4
    assert found.replicas[-1] == 1


def test_the_wait_alone_flaps() -> None:
    found = simulate(tried_policy("wait-alone", 4, 5), step(5))
    high = (found.at_s > 240) & (found.at_s <= 720)
    assert found.replicas[high].min() == 1
    assert (np.diff(found.replicas[high]) < 0).sum() >= 3


def test_a_thousand_replicas_take_seconds() -> None:
    """8 slots of 8 s at 40 per cent and then 80: from 500 replicas' worth to a thousand."""
    services = tuple(np.random.default_rng(4).gamma(9, 8 / 9, 400))
    scenario = Scenario(((350, 60), (700, 240)), services, 8, 30, 520)
    found = simulate(shipped_policy(8, 30, max_replicas=1000), scenario)
    assert 700 <= found.replicas[-1] <= 1000


def test_a_full_replica_is_slower() -> None:  # three slots: a quarter is one
    """Three slots, twice as slow when full: alone 4 s, beside one other 4 x 1.5, beside two 4 x 2; the one that waits takes the last free slot too."""
    made = Fleet(3, 0, 100, slowdown=2.0)
    made.scale(1, 0, warm=True)
    made.run(np.array([0.0, 1.0, 2.0, 3.0]), np.array([4.0, 4.0, 4.0, 4.0]))
    assert made.started_s == [0, 1, 2, 4]
    assert made.finished_s == [4, 7, 10, 12]


def test_one_slot_knows_no_slowdown_and_a_speedup_is_refused() -> None:
    made = Fleet(1, 0, 100, slowdown=2.0)
    made.scale(1, 0, warm=True)
    assert served(made, [0, 1], [3, 3]) == [0, 3]
    with pytest.raises(ConfigError, match="slowdown"):
        Fleet(1, 0, 100, slowdown=0.9)


def test_the_need_is_that_of_full_replicas() -> None:
    """6 requests/s of 1 s, 1.5 s where all four slots are busy: 6 x 1.5 / 4 = 2.25."""
    assert Scenario(((2, 60), (6, 60), (2, 60)), (1.0,), 4, 0, 1, slowdown=1.5).needed(6) == 3


def test_the_floor_must_allow_for_the_slowdown() -> None:
    """A load just above one full replica's capacity, where two replicas have a third of their slots busy: the linear floor lets one go again and again."""
    high = 1.02 * 4 / (0.6 * 2)
    scenario = Scenario(((high / 3, 60), (high, 1200), (high / 3, 15)), (0.6,), 4, 30, 1, slowdown=2.0)
    fewest = {}
    for name in ("floor-as-if-linear", "wait-and-slots"):
        found = simulate(tried_policy(name, 4, 30, 2.0), scenario)
        enough = found.at_s[(found.ready >= 2)][0]
        fewest[name] = int(found.replicas[(found.at_s >= enough) & (found.at_s <= 1260)].min())
    assert scenario.needed(high) == 2
    assert fewest == {"floor-as-if-linear": 1, "wait-and-slots": 2}
