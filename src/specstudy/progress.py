"""Say where a long run is and how long it will still take."""

from __future__ import annotations

import sys
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass


def tell(text: str) -> None:
    """A line about what is going on, on standard error: standard output is for results."""
    print(text, file=sys.stderr, flush=True)


def duration_text(seconds: float) -> str:
    """Like 45 s, 3 min 20 s, 2 h 5 min."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


@dataclass(frozen=True)
class Step:
    """Something that takes time: `part` is the part of the work that it belongs to, `kind` what it is like."""

    part: Hashable
    kind: str
    expected_s: float


class Progress:
    """Steps with an expected length each; what earlier steps of a kind really took corrects the rest of that kind.

    Lines go to standard output: a notebook, a terminal and a log all show them.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self._left = list(steps)
        self._done = 0
        self._took: dict[str, list[tuple[float, float]]] = {}
        self._began = time.monotonic()

    @property
    def remaining_s(self) -> float:
        """Expected seconds of what is left, each kind scaled by real over expected so far."""
        return sum(self._factor(step.kind) * step.expected_s for step in self._left)

    def _factor(self, kind: str) -> float:
        took = self._took.get(kind, [])
        planned_s = sum(expected_s for expected_s, _ in took)
        return sum(real_s for _, real_s in took) / planned_s if planned_s else 1.0

    def start(self) -> None:
        """A step begins."""
        self._began = time.monotonic()

    def finish(self, part: Hashable, text: str, further: Step | None = None) -> None:
        """The step that began last, the first that is left of `part`, has ended; `further`: one more that nobody expected. Prints a line with what is left.

        Raises KeyError if no step of the part is left.
        """
        step = next((step for step in self._left if step.part == part), None)
        if step is None:
            raise KeyError(part)
        self._left.remove(step)
        self._took.setdefault(step.kind, []).append((step.expected_s, time.monotonic() - self._began))
        self._done += 1
        if further is not None:
            self._left.append(further)
        steps = self._done + len(self._left)
        print(f"[{self._done:{len(str(steps))}}/{steps}] {text} (about {duration_text(self.remaining_s)} left)", flush=True)

    def left(self, part: Hashable) -> int:
        """How many steps of the part are expected yet."""
        return sum(step.part == part for step in self._left)

    def drop(self, part: Hashable) -> None:
        """What is left of the part won't be needed."""
        self._left = [step for step in self._left if step.part != part]


class Ticker:
    """Says every 10 s that something is still awaited; call it as often as you like."""

    def __init__(self, what: str, every_s: float = 10.0) -> None:
        self._what, self._every_s, self._next_s = what, every_s, every_s

    def __call__(self, elapsed_s: float) -> None:
        """`elapsed_s`: seconds waited so far."""
        if elapsed_s >= self._next_s:
            print(f"    {self._what}: {elapsed_s:.0f} s", flush=True)
            self._next_s = elapsed_s + self._every_s
