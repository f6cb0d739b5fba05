"""Run jobs side by side on one host, each on a GPU and on cores of its own: how the study's own records of several GPUs came about.

    python scripts/side_by_side.py --logs results/logs --limit-s 1500 \\
        "lab run --profile h200-smollm2; lab run --profile h200-smollm2 --method eagle3 --draft smollm2-135m-eagle3 -k 5" \\
        "limits --profile h200-smollm2; measure 04_eagle3 --profile h200-smollm2"

A job is specstudy's commands, one after the other, separated by semicolons. Job 0 gets the first GPU, of those in CUDA_VISIBLE_DEVICES where that is
set, and the first share of the cores, one hardware thread of each, and so on: what runs beside it then takes no core from it. After --limit-s, on
Ctrl-C and on SIGTERM the commands under way are told to stop as by Ctrl-C, so they keep what is finished; those after them aren't begun. Two jobs
that measure parts of one chapter need a --results-dir each; scripts/keep_results.py makes one of them.
"""

from __future__ import annotations

import itertools
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Annotated

import pynvml
import typer

TOPOLOGY = Path("/sys/devices/system/cpu")
START = "import os, sys; os.sched_setaffinity(0, {cores}); from specstudy.cli import main; main()"
STOP_S = 60  # to stop servers and put on disk what is finished


def main(
    jobs: Annotated[list[str], typer.Argument(help="commands of specstudy, without its name, separated by semicolons")],
    logs: Annotated[Path, typer.Option(help="folder for a log of each job")],
    limit_s: Annotated[float | None, typer.Option(help="stop after so many seconds", min=1)] = None,
) -> None:
    """See the module's text."""
    shares = core_shares(one_thread_each(os.sched_getaffinity(0), TOPOLOGY), len(jobs))
    commands, gpus = [commands_of(job) for job in jobs], gpus_for(len(jobs))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    logs.mkdir(parents=True, exist_ok=True)
    over, deadline = Event(), None if limit_s is None else time.monotonic() + limit_s
    with ThreadPoolExecutor(len(jobs)) as pool:
        running = [pool.submit(run_job, number, commands[number], shares[number], gpus[number], logs, over, deadline) for number in range(len(jobs))]
        try:
            good = [one.result() for one in running]
        except KeyboardInterrupt:
            over.set()
            raise SystemExit(130) from None
    raise SystemExit(0 if all(good) else 1)


def commands_of(job: str) -> list[list[str]]:
    """A job's commands as words. Raises SystemExit for a job without one, or a quote that isn't closed."""
    lexer = shlex.shlex(job, posix=True, punctuation_chars=";")
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        words = list(lexer)
    except ValueError as error:
        raise SystemExit(f"job {job!r}: {error}") from None
    split = [list(group) for ends, group in itertools.groupby(words, key=lambda word: set(word) == {";"}) if not ends]
    if not split:
        raise SystemExit(f"job {job!r}: no command")
    return split


def gpus_for(jobs: int) -> list[str]:
    """A GPU for each job, by the name that CUDA_VISIBLE_DEVICES has for it. Raises SystemExit for more jobs than GPUs; a host without any names none."""
    told = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [name.strip() for name in told.split(",") if name.strip()] if told is not None else [str(number) for number in range(gpu_count())]
    if names and len(names) < jobs:
        raise SystemExit(f"{jobs} jobs, {len(names)} GPUs: each job needs one of its own")
    return names[:jobs] or [""] * jobs


def gpu_count() -> int:
    """GPUs that the driver lists; 0 without a driver."""
    try:
        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:
        return 0


def one_thread_each(allowed: set[int], topology: Path) -> list[int]:
    """Of the processors that we may use one for each core, the first."""
    seen: dict[str, int] = {}
    for cpu in sorted(allowed):
        siblings = topology / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        seen.setdefault(siblings.read_text().strip() if siblings.exists() else str(cpu), cpu)
    return sorted(seen.values())


def core_shares(cores: Sequence[int], jobs: int) -> list[list[int]]:
    """Equal shares of neighbouring cores; what is over is left idle. Raises SystemExit where there are more jobs than cores."""
    each = len(cores) // jobs
    if not each:
        raise SystemExit(f"{jobs} jobs, {len(cores)} cores: each job needs one of its own")
    return [list(cores[number * each : (number + 1) * each]) for number in range(jobs)]


def run_job(number: int, commands: Sequence[Sequence[str]], cores: Sequence[int], gpu: str, logs: Path, over: Event, deadline: float | None) -> bool:
    """One job to its end; whether all of its commands ended well."""
    good, env = True, {**os.environ, **({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {})}
    with (logs / f"job-{number}.log").open("ab") as log:
        for words in commands:
            if over.is_set() or (deadline is not None and time.monotonic() >= deadline):
                print(f"job {number}, {shlex.join(words)}: not begun", flush=True)
                return False
            began = time.monotonic()
            status = run(words, cores, env, log.fileno(), over, deadline)
            print(f"job {number}, {shlex.join(words)}: status {status} after {time.monotonic() - began:.0f} s", flush=True)
            good = good and status == 0
    return good


def run(words: Sequence[str], cores: Sequence[int], env: Mapping[str, str], log: int, over: Event, deadline: float | None) -> int:
    """One command; its exit status. A session of its own, so that Ctrl-C reaches it from us alone, and once."""
    argv = [sys.executable, "-c", START.format(cores=set(cores)), *words]
    process = subprocess.Popen(argv, env=dict(env), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    while process.poll() is None:
        if over.wait(0.2) or (deadline is not None and time.monotonic() >= deadline):
            process.send_signal(signal.SIGINT)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
    return process.wait()


if __name__ == "__main__":
    typer.run(main)
