"""When requests arrive. A closed loop has no schedule; an open loop is a list of times."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specstudy.errors import ConfigError


@dataclass(frozen=True)
class Closed:
    """`concurrency` requests in flight: the next is sent when one ends."""

    concurrency: int

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ConfigError("concurrency", self.concurrency, "at least 1")


@dataclass(frozen=True)
class Open:
    """Requests sent at `times_s`, seconds from the start, rising, whatever the server does.

    `output_tokens`, where given, sets each request's own output limit.
    """

    pattern: str
    times_s: tuple[float, ...]
    output_tokens: tuple[int, ...] | None = None
    asked_rate: float | None = None

    @property
    def rate(self) -> float:
        """Requests/s: the rate that was asked for, else the mean: arrivals after the first over the time they span; where they span none, their number."""
        if self.asked_rate is not None:
            return self.asked_rate
        span = self.times_s[-1] - self.times_s[0]
        return (len(self.times_s) - 1) / span if span > 0 else float(len(self.times_s))


Arrival = Closed | Open


def poisson(rate: float, count: int, seed: int) -> Open:
    """`count` arrivals with independent exponential gaps of mean 1/`rate` seconds."""
    if not 0 < rate < np.inf:
        raise ConfigError("request_rate", rate, "a finite number above 0, in requests/s")
    if count < 1:
        raise ConfigError("requests", count, "at least 1")
    gaps = np.random.default_rng(seed).exponential(1 / rate, count)
    return Open("poisson", tuple(float(t) for t in np.cumsum(gaps)), asked_rate=rate)


def steps(stages: Sequence[tuple[float, float]], seed: int) -> Open:
    """Poisson arrivals whose rate changes in steps; `stages` are (requests/s, seconds)."""
    if not stages or not all(0 < rate < np.inf and 0 < length < np.inf for rate, length in stages):
        raise ConfigError("stages", list(stages), "pairs of a finite rate and a finite length in s, both above 0")
    rng = np.random.default_rng(seed)
    times: list[float] = []
    began = 0.0
    for rate, length in stages:
        # Given their number, the arrivals of a Poisson process are uniform in the stage.
        times += sorted(began + rng.uniform(0, length, rng.poisson(rate * length)))
        began += length
    if not times:
        raise ConfigError("stages", list(stages), "rates and lengths that give at least one arrival")
    return Open("steps", tuple(float(t) for t in times))


def trace(path: Path) -> Open:
    """Replay a CSV of `timestamp,in,out`: seconds, prompt tokens, output tokens; the first arrival becomes 0.

    The prompts come from the workload; `in` is read and checked but chooses none. Raises ConfigError with the
    line's number.
    """
    times: list[float] = []
    outputs: list[int] = []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for number, row in enumerate(csv.DictReader(file), 2):
                when = _number(row, "timestamp", path, number)
                if times and when < times[-1]:
                    raise ConfigError(f"{path.name}, line {number}, timestamp", when, f"at least the line before's, {times[-1]:g}")
                _number(row, "in", path, number)
                tokens = _number(row, "out", path, number)
                if tokens < 1 or tokens != int(tokens):
                    raise ConfigError(f"{path.name}, line {number}, out", row["out"], "a whole number of at least 1")
                times.append(when)
                outputs.append(int(tokens))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError("trace", str(path), f"a readable CSV file ({error})") from None
    if not times:
        raise ConfigError("trace", str(path), "at least one row under the header timestamp,in,out")
    return Open("trace", tuple(t - times[0] for t in times), tuple(outputs))


def _number(row: dict[str, str], column: str, path: Path, line: int) -> float:
    try:
        value = float(row[column])
    except (KeyError, TypeError, ValueError):
        raise ConfigError(f"{path.name}, line {line}, {column}", row.get(column), "a number; the header is timestamp,in,out") from None
    if not np.isfinite(value) or value < 0:
        raise ConfigError(f"{path.name}, line {line}, {column}", row.get(column), "a finite number of at least 0")
    return value
