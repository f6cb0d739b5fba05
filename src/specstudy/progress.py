"""Say where a long run is and how long it will still take."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence


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


class Progress:
    """Steps with an expected length each; what earlier steps really took corrects the rest.

    Lines go to standard output: a notebook, a terminal and a log all show them.
    """

    def __init__(self, expected_s: Sequence[float]) -> None:
        self._expected = list(expected_s)
        self._done = 0
        self._spent = 0.0
        self._planned = 0.0
        self._began = time.monotonic()

    @property
    def remaining_s(self) -> float:
        """Expected seconds of what is left, scaled by real over expected so far."""
        factor = self._spent / self._planned if self._planned else 1.0
        return factor * sum(self._expected[self._done :])

    def say(self, text: str) -> None:
        """One line, with the step's number and what is left."""
        width = len(str(len(self._expected)))
        print(f"[{self._done:{width}}/{len(self._expected)}] {text} (about {duration_text(self.remaining_s)} left)", flush=True)

    def start(self) -> None:
        """A step begins."""
        self._began = time.monotonic()

    def finish(self, text: str) -> None:
        """The step that began last has ended."""
        self._planned += self._expected[self._done] if self._done < len(self._expected) else 0.0
        self._spent += time.monotonic() - self._began
        self._done += 1
        self.say(text)

    def drop(self, steps: int) -> None:
        """`steps` of the coming ones won't be needed."""
        del self._expected[self._done : self._done + steps]

    def insert(self, expected_s: float) -> None:
        """One more step comes next."""
        self._expected.insert(self._done, expected_s)


class Ticker:
    """Says every 10 s that something is still awaited; call it as often as you like."""

    def __init__(self, what: str, every_s: float = 10.0) -> None:
        self._what, self._every_s, self._next_s = what, every_s, every_s

    def __call__(self, elapsed_s: float) -> None:
        """`elapsed_s`: seconds waited so far."""
        if elapsed_s >= self._next_s:
            print(f"    {self._what}: {elapsed_s:.0f} s", flush=True)
            self._next_s = elapsed_s + self._every_s
