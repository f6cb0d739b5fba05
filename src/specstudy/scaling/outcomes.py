"""What came of a load that steps up and down again: when the scale-out was decided, when it sufficed, when latency was good again."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from specstudy.records import RequestRow
from specstudy.scaling.record import Sample

WINDOW_S = 15.0  # of the recovery
GOOD_SHARE = 0.95
WAITED = 3.0  # times the first token's usual time: whoever waited so long found no slot free
ENOUGH_WAITED = 20


def within_slo(row: RequestRow, slo_ttft_ms: float) -> bool:
    """Whether a request ended well and its first token came in time, counted from its scheduled arrival."""
    return row.status == "ok" and row.first_token_s is not None and (row.first_token_s - row.scheduled_s) * 1e3 <= slo_ttft_ms


def outcomes(
    requests: Sequence[RequestRow], samples: Sequence[Sample], stages: Sequence[tuple[float, float]], *, slots: int, slo_ttft_ms: float, minimum: int
) -> dict[str, Any]:
    """The computed fields of a ScalingRun; None where it never happened. `stages`: low, high, low."""
    step, fall = stages[0][1], stages[0][1] + stages[1][1]
    service = service_time_s([row for row in requests if row.scheduled_s < step])
    full = full_service_time_s(requests, step)
    needed = None if service is None else max(minimum, fewest(stages[1][0], max(service, full or 0.0), slots, slo_ttft_ms / 1e3))
    before = [sample.replicas for sample in samples if sample.at_s <= step]
    start = before[-1] if before else minimum
    high = [sample for sample in samples if step < sample.at_s <= fall]
    decided = next((sample.at_s for sample in high if sample.replicas > start), None)
    enough = None if needed is None else next((sample.at_s for sample in high if sample.ready >= needed), None)
    held = [sample.replicas for sample in high if enough is not None and sample.at_s >= enough]
    recovered = recovery_s(requests, step, fall, slo_ttft_ms, enough)
    back = next((sample.at_s for sample in samples if sample.at_s > fall and sample.replicas == minimum), None)
    return {
        "service_s_mean": service,
        "service_full_s_mean": full,
        "replicas_needed": needed,
        "replicas_max": max((sample.replicas for sample in samples), default=None),
        "replicas_low_while_high": min(held, default=None),
        "decided_s": _since(decided, step),
        "enough_ready_s": _since(enough, step),
        "recovered_s": _since(recovered, step),
        "back_to_min_s": _since(back, fall),
        "scale_downs": sum(later.replicas < earlier.replicas for earlier, later in itertools.pairwise(samples)),
        "goodput_share": float(np.mean([within_slo(row, slo_ttft_ms) for row in requests])) if requests else None,
    }


def fewest(rate: float, service_s: float, slots: int, slo_s: float) -> int:
    """Fewest replicas at which GOOD_SHARE of the requests wait no longer than the SLO for their slot.

    rate: requests/s. By Erlang's second formula, all slots pooled: random arrivals, exponential service times. Real ones vary less, and a balancer
    pools somewhat worse; the first makes it too many, the second too few.
    """
    replicas = 1
    while late_share(rate, service_s, replicas * slots, slo_s) > 1 - GOOD_SHARE:
        replicas += 1
    return replicas


def late_share(rate: float, service_s: float, slots: int, longest_s: float) -> float:
    """Share of requests that wait longer than `longest_s` for one of `slots`: M/M/c, first come first served; 1 where the queue grows without end.

    Kleinrock, Queueing Systems, volume 1 (1975), section 3.5; the probability of a wait by the recursion of Erlang's first formula.
    """
    busy = rate * service_s
    if busy >= slots:
        return 1.0
    refused = 1.0
    for slot in range(1, slots + 1):
        refused = busy * refused / (slot + busy * refused)
    waits = refused / (1 - busy / slots * (1 - refused))
    return waits * math.exp(-(slots - busy) * longest_s / service_s)


def service_time_s(requests: Sequence[RequestRow]) -> float | None:
    """Mean time in a slot: arrival to last token, of the half of the requests whose first token came soonest, which found a slot free.

    None without a good request.
    """
    soonest = _soonest(requests)
    return float(np.mean([last - sent for sent, _, last in soonest])) if soonest else None


def full_service_time_s(requests: Sequence[RequestRow], step: float) -> float | None:
    """Mean time in a slot of the requests that waited for one, so that every slot was busy: first to last token, and the others' prefill.

    None where fewer than ENOUGH_WAITED did.
    """
    soonest = _soonest([row for row in requests if row.scheduled_s < step])
    if not soonest:
        return None
    prefill = float(np.median([first - sent for sent, first, _ in soonest]))
    waited = [last - first for sent, first, last in _timed(requests) if first - sent > WAITED * prefill]
    return prefill + float(np.mean(waited)) if len(waited) >= ENOUGH_WAITED else None


def _timed(requests: Sequence[RequestRow]) -> list[tuple[float, float, float]]:
    """(sent, first token, last token) of the good ones."""
    return [
        (row.sent_s, row.first_token_s, row.last_token_s)
        for row in requests
        if row.status == "ok" and row.first_token_s is not None and row.last_token_s is not None
    ]


def _soonest(requests: Sequence[RequestRow]) -> list[tuple[float, float, float]]:
    good = _timed(requests)
    return sorted(good, key=lambda times: times[1] - times[0])[: max(1, len(good) // 2)]


def recovery_s(requests: Sequence[RequestRow], step: float, fall: float, slo_ttft_ms: float, enough: float | None = None) -> float | None:
    """`recovery` of rows; `enough`: when the needed replicas were ready, by default the step."""
    due = np.array([row.scheduled_s for row in requests])
    return recovery(due, np.array([within_slo(row, slo_ttft_ms) for row in requests]), step, fall, step if enough is None else enough)


def recovery(due_s: np.ndarray, good: np.ndarray, step: float, fall: float, enough: float) -> float | None:
    """Begin of the first two windows in a row, by scheduled arrival, with GOOD_SHARE of requests within the SLO; None if there are none.

    A lull of the arrivals is no recovery: none begins more than a window before the needed replicas were ready at `enough`.
    """
    for begin in np.arange(max(step, math.floor(enough - WINDOW_S)), fall - 2 * WINDOW_S + 1e-9, 1.0):
        windows = [good[(due_s >= start) & (due_s < start + WINDOW_S)] for start in (begin, begin + WINDOW_S)]
        if all(len(own) and float(own.mean()) >= GOOD_SHARE for own in windows):
            return float(begin)
    return None


def _since(at_s: float | None, from_s: float) -> float | None:
    return None if at_s is None else at_s - from_s
