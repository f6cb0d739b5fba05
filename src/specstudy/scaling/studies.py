"""What the simulation says beyond one machine: cold starts of minutes, fleets of a thousand, and replicas that speculation saves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from specstudy.scaling.outcomes import fewest
from specstudy.scaling.policy import HpaPolicy, shipped_policy
from specstudy.scaling.scenarios import AS_IF_LINEAR, SHIPPED, TRIED
from specstudy.scaling.simulate import Scenario, Simulated, replicas_for, simulate

CEILING = 10  # the most replicas that the autoscaler may ask for, over the needed ones
COLD_STARTS_S = (10, 30, 60, 120, 300, 600)
FLEETS = (3, 10, 30, 100, 1000)
SHORT_WAIT_S = 1.0
SLOWDOWNS, SLOW_LOADS = (1.0, 1.25, 1.5, 2.0, 3.0), tuple(np.linspace(0.9, 2.0, 12).round(2).tolist())
SLOW_COLD_START_S, SLOW_HIGH_S, SLOW_SETTLED_S = 30.0, 1200.0, 900.0
LONG_HIGH_S, COLD_NEEDED = 1800.0, 6
MADE_FOR_IT = "made for the step"
STEPS, STEP_COLD_START_S = (2, 3, 4, 6, 10), 120.0
COMPARED = ("wait-and-slots", "default-scale-up", "scale-up-window", "slots-alone")


@dataclass(frozen=True)
class Answer:
    """One simulated step, in s from it. `recovered_s`: until no wait of a window of 15 s passes SHORT_WAIT_S at p95; None if that never comes.

    `most`, `fewest_after`: replicas, the second from when enough were ready to the end of the high load. `needed`: by capacity.
    """

    recovered_s: float | None
    decided_s: float | None
    most: int
    fewest_after: int
    needed: int
    replica_s: float


def answer(found: Simulated, scenario: Scenario) -> Answer:
    """Read a 1x, 3x, 1x simulation."""
    begin = scenario.stages[0][1]
    end = begin + scenario.stages[1][1]
    needed = scenario.needed(scenario.stages[1][0])
    start = found.replicas[found.at_s <= begin][-1]
    high = (found.at_s > begin) & (found.at_s <= end)
    rose = found.at_s[high & (found.asked > start)]
    calm = (t for t in np.arange(begin, end - 30, 5.0).tolist() if all(_calm(found, t + more) for more in (0, 15)))
    recovered = next(calm, None)
    sync = scenario.sync_s
    return Answer(
        None if recovered is None else float(recovered - begin),
        float(rose[0] - begin) if len(rose) else None,
        int(found.replicas.max()),
        _fewest_after(found, begin, end, needed),
        needed,
        float(found.replicas.sum() * sync),
    )


def _fewest_after(found: Simulated, begin_s: float, end_s: float, needed: int) -> int:
    """Fewest replicas between the two, from when so many were ready; 0 if that never comes."""
    high = (found.at_s > begin_s) & (found.at_s <= end_s)
    enough = found.at_s[high & (found.ready >= needed)]
    return int(found.replicas[high & (found.at_s >= enough[0])].min()) if len(enough) else 0


def _calm(found: Simulated, at_s: float) -> bool:
    waits = found.between(at_s, at_s + 15)
    return len(waits) > 0 and float(np.percentile(waits, 95)) <= SHORT_WAIT_S


def step_scenario(service_s: Sequence[float], slots: int, cold_start_s: float, needed: int, length_s: float, times: float = 3) -> Scenario:
    """A load that, `times` as large for `length_s`, needs 90 per cent of `needed` replicas' slots; before it the replicas are at most 70 per cent full."""
    high = 0.9 * needed * slots / float(np.mean(service_s))
    low = high / times
    first = max(1, int(np.ceil(low * float(np.mean(service_s)) / (0.7 * slots))))
    return Scenario(((low, 60), (high, length_s), (low, 15)), tuple(service_s), slots, cold_start_s, first)


def _or_never(value: float | None) -> float:
    return float(np.inf) if value is None else value


def _policy(name: str, slots: int, cold_start_s: float, needed: int) -> HpaPolicy:
    return TRIED[name].make(slots, cold_start_s, 1.0).with_at_most(CEILING * needed)


def cold_start_study(service_s: Sequence[float], slots: int, needed: int = COLD_NEEDED) -> pd.DataFrame:
    """A row for each policy and cold start: recovery and decision (inf for never), and the most replicas over the needed."""
    rows = []
    for name in COMPARED:
        for cold in COLD_STARTS_S:
            scenario = step_scenario(service_s, slots, cold, needed, max(LONG_HIGH_S, 5 * cold))
            one = answer(simulate(_policy(name, slots, cold, needed), scenario), scenario)
            rows.append((name, cold, _or_never(one.recovered_s), one.most / one.needed, _or_never(one.decided_s)))
    return pd.DataFrame(rows, columns=["policy", "cold_start_s", "recovered_s", "most_over_needed", "decided_s"])


def step_study(service_s: Sequence[float], slots: int) -> pd.DataFrame:
    """A row for each step of STEPS and each policy: the shipped one, the same made for that step, and the API server's default rate of scaling up.

    1.8 replicas' worth of load before it, a cold start of STEP_COLD_START_S.
    """
    rows = []
    for times in STEPS:
        needed = 2 * times
        scenario = step_scenario(service_s, slots, STEP_COLD_START_S, needed, LONG_HIGH_S, times)
        policies = {
            SHIPPED: _policy(SHIPPED, slots, STEP_COLD_START_S, needed),
            MADE_FOR_IT: shipped_policy(slots, STEP_COLD_START_S, largest_step=times, max_replicas=CEILING * needed),
            "default-scale-up": _policy("default-scale-up", slots, STEP_COLD_START_S, needed),
        }
        for name, policy in policies.items():
            one = answer(simulate(policy, scenario), scenario)
            rows.append((times, needed, name, _or_never(one.recovered_s), one.most / needed))
    return pd.DataFrame(rows, columns=["step", "needed", "policy", "recovered_s", "most_over_needed"])


def fleet_study(service_s: Sequence[float], slots: int, name: str, cold_start_s: float = 60) -> pd.DataFrame:
    """A row for each fleet's size, for one policy."""
    rows = []
    for needed in FLEETS:
        scenario = step_scenario(service_s, slots, cold_start_s, needed, 4 * cold_start_s)
        one = answer(simulate(_policy(name, slots, cold_start_s, needed), scenario), scenario)
        rows.append((needed, one.recovered_s, one.decided_s, one.most / needed, one.fewest_after / needed))
    return pd.DataFrame(rows, columns=["needed", "recovered_s", "decided_s", "most_over_needed", "fewest_over_needed"])


def slowdown_study(service_s: Sequence[float], slots: int) -> pd.DataFrame:
    """A row for each slowdown of a full replica and each floor: the shipped policy's, and one as if there were no slowdown.

    Over SLOW_LOADS, in full replicas' capacity, each tripled to for SLOW_HIGH_S: the loads at which it asked for fewer replicas than hold waits to
    SHORT_WAIT_S, the largest share of requests that waited longer once it had had time to settle, and its mean replicas then.
    """
    rows = []
    for slowdown in SLOWDOWNS:
        for name in (AS_IF_LINEAR, SHIPPED):
            policy = TRIED[name].make(slots, SLOW_COLD_START_S, slowdown)
            found = [_settled(policy, service_s, slots, slowdown, load) for load in SLOW_LOADS]
            below, late, replicas = (np.array(column) for column in zip(*found, strict=True))
            rows.append((slowdown, name, int(below.sum()), float(late.max()), float(replicas.mean())))
    return pd.DataFrame(rows, columns=["slowdown", "policy", "below", "late", "replicas"])


def _settled(policy: HpaPolicy, service_s: Sequence[float], slots: int, slowdown: float, load: float) -> tuple[bool, float, float]:
    high = load * slots / (float(np.mean(service_s)) * slowdown)
    scenario = Scenario(((high / 3, 60), (high, SLOW_HIGH_S), (high / 3, 15)), tuple(service_s), slots, SLOW_COLD_START_S, 1, slowdown=slowdown)
    found = simulate(policy, scenario)
    step, end = scenario.stages[0][1], scenario.stages[0][1] + SLOW_HIGH_S
    need = fewest(high, slowdown * float(np.mean(service_s)), slots, SHORT_WAIT_S)
    begin = end - SLOW_SETTLED_S
    late = found.between(begin, end) > SHORT_WAIT_S
    settled = found.replicas[(found.at_s > begin) & (found.at_s <= end)]
    return _fewest_after(found, step, end, need) < need, float(late.mean()), float(settled.mean())


def saving_study(service_s: Mapping[str, Sequence[float]], slots: int, wait_p99_s: float, replicas: Sequence[int] = (1, 3, 10, 30, 100)) -> pd.DataFrame:
    """Replicas that each method needs for a p99 wait at the loads that fill `replicas` of the first method to 70 per cent."""
    base = next(iter(service_s.values()))
    rows = []
    for count in replicas:
        rate = 0.7 * count * slots / float(np.mean(base))
        rows.append({"requests/s": rate, **{name: replicas_for(rate, times, slots, wait_p99_s) for name, times in service_s.items()}})
    return pd.DataFrame(rows)
