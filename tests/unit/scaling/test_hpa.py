"""The autoscaler's algorithm against Kubernetes' documentation, Kubernetes' own test tables, and hand calculations."""

from __future__ import annotations

import pytest

from specstudy.scaling.hpa import Autoscaler, Event, Release, down_limit, recommend, up_limit
from specstudy.scaling.policy import Direction, HpaPolicy, MetricTarget, RateLimit

ALWAYS = Direction(window_s=0, limits=(RateLimit(kind="Percent", value=900, period_s=15),))
AT_ONCE = Direction(window_s=0, limits=(RateLimit(kind="Percent", value=100, period_s=15),))
# The documentation's example of two policies: 4 pods or 10 per cent a minute, whichever is more.
TEN_PERCENT = Direction(window_s=0, limits=(RateLimit(kind="Pods", value=4, period_s=60), RateLimit(kind="Percent", value=10, period_s=60)))


def wait(target: float) -> MetricTarget:
    return MetricTarget(metric="queue_wait_ms", kind="Value", target=target)


def slots(target: float) -> MetricTarget:
    return MetricTarget(metric="slots_in_use", kind="AverageValue", target=target)


def policy(*metrics: MetricTarget, up: Direction = ALWAYS, down: Direction = AT_ONCE, low: int = 1, high: int = 100) -> HpaPolicy:
    return HpaPolicy(name="test", metrics=metrics, up=up, down=down, min_replicas=low, max_replicas=high)


@pytest.mark.parametrize(
    ("value", "target", "current", "ready", "wanted"),
    [
        # kubernetes.io, "Algorithm details": 200m against 100m doubles, 50m halves.
        (0.2, 0.1, 4, 4, 8),
        (0.05, 0.1, 4, 4, 2),
        # replica_calculator_test.go, the external metric's cases; their levels are thousandths.
        (8.6, 4.4, 1, 1, 2),
        (8.6, 4.4, 3, 1, 2),  # "Would expect 6 if we didn't ignore unready pods"
        (8.6, 14.334, 5, 5, 3),
        (8.6, 8.888, 3, 3, 3),  # within the tolerance
        # By hand: 1.098 is within the tolerance, 1.11 isn't.
        (549, 500, 10, 10, 10),
        (555, 500, 10, 10, 12),
        (0, 500, 7, 7, 0),
        (1000, 500, 5, 0, 0),  # nobody is ready: nothing to multiply
    ],
)
def test_a_value_target_multiplies_the_ready_pods(value: float, target: float, current: int, ready: int, wanted: int) -> None:
    assert recommend(wait(target), value, current=current, ready=ready, listed=current) == wanted


@pytest.mark.parametrize(
    ("value", "target", "listed", "wanted"),
    [
        # replica_calculator_test.go, the external metric's cases with a target per pod.
        (8.6, 2.15, 3, 4),
        (8.6, 2.867, 5, 3),
        (8.6, 2.9, 3, 3),
        # By hand: 6 slots of 2.8 wanted on each of 2 is a ratio of 1.07, on each of 4 one of 0.54, so 3.
        (6, 2.8, 2, 2),
        (6, 2.8, 4, 3),
    ],
)
def test_an_average_target_divides_by_the_target(value: float, target: float, listed: int, wanted: int) -> None:
    assert recommend(slots(target), value, current=listed, ready=listed, listed=listed) == wanted


def test_the_documentations_walk_from_80_to_10() -> None:
    """80, 72, 64, 57.6, 51.3, 45.9, 40.5: a tenth, rounded so that it moves; 4 pods once that is more; 10 at the end."""
    controller, counts, now = Autoscaler(policy(slots(1), down=TEN_PERCENT)), [80], 0
    while counts[-1] > 10:
        now += 61
        counts.append(controller.sync(now, {"slots_in_use": 10}, current=counts[-1], ready=counts[-1]).desired)
    assert counts[:7] == [80, 72, 64, 57, 51, 45, 40]
    assert counts[-8:] == [36, 32, 28, 24, 20, 16, 12, 10]


def test_a_period_remembers_what_was_already_taken() -> None:
    """10 per cent of 80 within a minute, however often it is asked."""
    controller = Autoscaler(policy(slots(1), down=TEN_PERCENT))
    assert [controller.sync(now, {"slots_in_use": 10}, current=current, ready=current).desired for now, current in ((0, 80), (15, 72), (30, 72), (61, 72))] == [
        72,
        72,
        72,
        64,
    ]


@pytest.mark.parametrize(
    ("way", "current", "added", "wanted"),
    [
        (RateLimit(kind="Pods", value=4, period_s=60), 10, 0, 14),
        (RateLimit(kind="Pods", value=4, period_s=60), 10, 3, 11),  # 7 at the begin, plus 4
        (RateLimit(kind="Percent", value=200, period_s=60), 1, 0, 3),
        (RateLimit(kind="Percent", value=200, period_s=60), 3, 2, 3),  # 1 at the begin, tripled
        (RateLimit(kind="Percent", value=1, period_s=60), 10, 0, 11),  # rounded up, or it would never move
    ],
)
def test_limits_of_scaling_up_by_hand(way: RateLimit, current: int, added: int, wanted: int) -> None:
    events = [Event(100, added)] if added else []
    assert up_limit(Direction(window_s=0, limits=(way,)), current, events, [], 130) == wanted


def test_an_event_leaves_its_period() -> None:
    way = Direction(window_s=0, limits=(RateLimit(kind="Pods", value=2, period_s=60),))
    assert [up_limit(way, 5, [Event(100, 2)], [], now) for now in (159.9, 160.0)] == [5, 7]
    assert [down_limit(way, 5, [], [Event(100, 2)], now) for now in (159.9, 160.0)] == [5, 3]


def test_select_min_takes_the_smaller_change() -> None:
    limits = (RateLimit(kind="Pods", value=4, period_s=60), RateLimit(kind="Percent", value=10, period_s=60))
    assert up_limit(Direction(window_s=0, limits=limits, select="Min"), 80, [], [], 0) == 84
    assert down_limit(Direction(window_s=0, limits=limits, select="Min"), 80, [], [], 0) == 76


def test_scaling_down_waits_for_its_window() -> None:
    """The highest answer of the last 60 s counts: the 5 of second 0 until second 60."""
    controller = Autoscaler(policy(slots(1), down=Direction(window_s=60, limits=AT_ONCE.limits)))
    answers = [controller.sync(now, {"slots_in_use": used}, current=5, ready=5).desired for now, used in ((0, 5), (15, 2), (45, 2), (59, 2), (60, 2))]
    assert answers == [5, 5, 5, 5, 2]


def test_scaling_up_waits_for_its_window() -> None:
    """The lowest answer of the last 30 s counts; the count at the first sync is an answer too."""
    controller = Autoscaler(policy(slots(1), up=Direction(window_s=30, limits=ALWAYS.limits)))
    assert [controller.sync(now, {"slots_in_use": 6}, current=2, ready=2).desired for now in (0, 15, 29, 30)] == [2, 2, 2, 6]


def test_the_larger_of_two_metrics_counts() -> None:
    controller = Autoscaler(policy(wait(500), slots(2.8)))
    assert controller.sync(0, {"queue_wait_ms": 10, "slots_in_use": 7.5}, current=3, ready=3).desired == 3
    assert controller.sync(15, {"queue_wait_ms": 1000, "slots_in_use": 7.5}, current=3, ready=3).desired == 6


@pytest.mark.parametrize("release", ["v1_20", "current"])
def test_without_any_metric_it_holds_and_says_so(release: Release) -> None:
    decision = Autoscaler(policy(wait(500), slots(2.8)), release).sync(0, {"queue_wait_ms": None}, current=5, ready=5)
    assert (decision.desired, decision.recommended, decision.reason) == (5, None, "FailedGetExternalMetric")


def test_with_one_metric_missing_only_the_old_release_scales_down() -> None:
    missing = {"queue_wait_ms": None, "slots_in_use": 2.0}
    assert Autoscaler(policy(wait(500), slots(2.8)), "current").sync(0, missing, current=5, ready=5).desired == 5
    assert Autoscaler(policy(wait(500), slots(2.8)), "v1_20").sync(0, missing, current=5, ready=5).desired == 1


@pytest.mark.parametrize("release", ["v1_20", "current"])
def test_with_one_metric_missing_both_scale_up(release: Release) -> None:
    missing = {"queue_wait_ms": None, "slots_in_use": 20.0}
    assert Autoscaler(policy(wait(500), slots(2.8)), release).sync(0, missing, current=5, ready=5).desired == 8


def test_only_the_old_release_takes_an_old_answer_up_again() -> None:
    """9 was asked and cut to 3; when 1 is asked within the window, 1.20 goes to what the window's highest answer and the limit allow."""
    limited = Direction(window_s=0, limits=(RateLimit(kind="Percent", value=200, period_s=15),))
    slow = Direction(window_s=60, limits=AT_ONCE.limits)
    for release, wanted in (("v1_20", 9), ("current", 3)):
        controller = Autoscaler(policy(slots(1), up=limited, down=slow), release)
        assert controller.sync(0, {"slots_in_use": 9}, current=1, ready=1).desired == 3
        assert controller.sync(16, {"slots_in_use": 1}, current=3, ready=3).desired == wanted


def test_bounds() -> None:
    controller = Autoscaler(policy(slots(1), low=2, high=6))
    assert controller.sync(0, {"slots_in_use": 50}, current=3, ready=3).desired == 6
    assert controller.sync(15, {"slots_in_use": 0}, current=6, ready=6).desired == 2
    assert controller.sync(30, {"slots_in_use": 4}, current=9, ready=9).desired == 6
    assert controller.sync(45, {}, current=1, ready=1).desired == 2
    assert controller.sync(60, {"slots_in_use": 4}, current=0, ready=0).desired == 0
