"""How long does each chapter take from its records? Start of the kernel included; at most 10 s each.

    python benchmarks/recorded_chapters.py

Prints a line for each chapter, the median of three executions; exit status 1 if one takes longer.
"""

from __future__ import annotations

import statistics
import sys
import time

import nbformat
from nbclient import NotebookClient

from specstudy.catalog import project_root

LIMIT_S, ROUNDS = 10.0, 3


def seconds(path: str) -> float:
    """One execution in a fresh kernel."""
    notebook = nbformat.read(path, as_version=4)
    began = time.monotonic()
    NotebookClient(notebook, kernel_name="python3", timeout=120).execute()
    return time.monotonic() - began


def main() -> int:
    """See the module's text."""
    slow = 0
    for path in sorted((project_root() / "chapters").glob("*.ipynb")):
        median = statistics.median(seconds(str(path)) for _ in range(ROUNDS))
        slow += median > LIMIT_S
        print(f"{path.stem:20} {median:5.1f} s  {'OK' if median <= LIMIT_S else f'over {LIMIT_S:.0f} s'}", flush=True)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
