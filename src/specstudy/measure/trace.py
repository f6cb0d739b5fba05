"""Which kernels run in a decode step, and for how long? Asked of vLLM's own profiler, torch's, on a server that was started for it."""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from specstudy.errors import MeasurementError
from specstudy.measure.cell import Measured, Sampling, measure
from specstudy.records.trace import KernelTime, Kind
from specstudy.serving.local import post
from specstudy.serving.server import Server
from specstudy.workloads import Closed, Prompt

STOP_TIMEOUT_S = 300  # the trace is written before the answer comes
NAME_CHARACTERS = 200
# vLLM marks each step with what is in it: requests whose prompt it processes and requests that it decodes for, with their tokens in brackets.
STEP = re.compile(r"execute_context_(\d+)\(\d+\)_generation_(\d+)\(\d+\)")
# On the device's time line, where each stream that a step touched has a mark of its own; else on the host's, which runs at most a step ahead.
MARKS = ("gpu_user_annotation", "user_annotation")
COLD_STEPS = 4  # the profiler's own start disturbs the first ones
LEAST_STEPS = 12
UNEVEN = 1.5  # a step of so many times the median: something else happened in it, and a mean would hide that
ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
# The first that is found in a kernel's name says its kind. Inductor names what it fuses after all operations in it, so its kernels come first.
NAMES: tuple[tuple[str, Kind], ...] = (
    (r"^Mem(cpy|set)", "copies"),
    (r"^triton_(red|poi|per)_", "elementwise and norms"),
    (r"reshape_and_cache|concat_and_cache", "KV cache write"),
    (r"moe|expert|topkGating", "matrix products"),
    (r"gumbel|sampl|argmax|top_?k|top_?p", "sampling"),
    (r"rms_?norm|layer_?norm|silu|act_and_mul|activation|quant|rotary|(::|flashinfer_)norm", "elementwise and norms"),
    (r"flash_?attn|flash::|attention|attn|fmha|flashinfer", "attention"),
    (r"gemm|gemv|nvjet|marlin|machete|scaled_mm|cublas|splitK|matmul|humming|wgmma|triton_tem", "matrix products"),
    (r"elementwise|reduce_kernel", "elementwise and norms"),
)


@dataclass(frozen=True)
class Traced:
    """`steps` decode steps in a row: the time of one, of it without a kernel, and its kernels; all means. Kernels may overlap."""

    steps: int
    step_ms: float
    idle_ms: float
    kernels: tuple[KernelTime, ...]


def profiler_flags(folder: Path, skip: int, steps: int) -> dict[str, str]:
    """Flags of a server that, once told to, lets `skip` steps pass, traces `steps` and writes the trace to `folder`."""
    config = {
        "profiler": "torch",
        "torch_profiler_dir": str(folder),
        "torch_profiler_with_stack": False,
        "torch_profiler_dump_cuda_time_total": False,
        "ignore_frontend": True,
        "delay_iterations": skip,
        "max_iterations": COLD_STEPS + steps,
    }
    return {"profiler-config": json.dumps(config)}


def steps_to_skip(concurrency: int) -> int:
    """Steps until every prompt should be processed: they may come one to a step, and some may take two. If more are needed, fewer steps are left to trace."""
    return 8 + 2 * concurrency


def steps_of_load(concurrency: int, steps: int) -> int:
    """Steps that every request has to last for `steps` to be traced: those skipped, the cold ones, and some to spare, since they don't begin together."""
    return steps_to_skip(concurrency) + COLD_STEPS + steps + 12


def trace(server: Server, prompts: Sequence[Prompt], folder: Path, how: Sampling) -> Traced:
    """Send all `prompts` at once and trace steps in which each of them decodes; `how.max_tokens` has to last for `steps_of_load`, see there.

    Raises MeasurementError when a request fails, the engine compiles a kernel meanwhile, or the trace shows no such steps.
    """
    _post(server, "start_profile")
    whole = [replace(prompt, output_tokens=None) for prompt in prompts]
    measured = measure(server, whole, (), Closed(len(prompts)), replace(how, ignore_eos=True))
    _post(server, "stop_profile")
    raise_if_unsteady(measured)
    paths = sorted(folder.rglob("*.json*"))
    for path in paths:
        events = read_events(path)
        if any(event.get("cat") in ON_DEVICE for event in events):
            return traced(events, len(prompts))
    raise MeasurementError(f"of the {len(paths)} traces in {folder} none holds a kernel of a GPU")


def raise_if_unsteady(measured: Measured) -> None:
    """Raises MeasurementError if the repeat failed, or kernels were compiled in it or in a try before it: what was traced may be that one."""
    if measured.error is not None:
        raise MeasurementError(measured.error)
    if measured.figures.get("tries_discarded") or measured.figures.get("kernels_compiled"):
        raise MeasurementError("the engine compiled kernels during the load; trace once more, it has them now")


def _post(server: Server, command: str) -> None:
    try:
        post(f"{server.base_url}/{command}", STOP_TIMEOUT_S)
    except OSError as error:
        server.raise_if_dead()
        raise MeasurementError(f"the server's /{command}: {error}") from error


def read_events(path: Path) -> list[dict[str, Any]]:
    """The events of a trace in Chrome's format, gzipped or not. Raises MeasurementError for a file that is none."""
    try:
        content = path.read_bytes()
        events: list[dict[str, Any]] = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)["traceEvents"]
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise MeasurementError(f"{path} is no trace: {error!r}") from error
    return events


def traced(events: Sequence[Mapping[str, Any]], concurrency: int) -> Traced:
    """What the longest row of steps holds in which `concurrency` requests decode and no prompt is processed, but for the first COLD_STEPS of it.

    events: `ts` and `dur` in microseconds. A step lasts from its mark to the next one's, so of n marks in a row n - 1 steps are whole. Raises
    MeasurementError where fewer than LEAST_STEPS are left, and where one of them took much longer than the others.
    """
    marks = decode_marks(events, concurrency)[COLD_STEPS:]
    if len(marks) <= LEAST_STEPS:
        raise MeasurementError(f"the trace marks {max(0, len(marks) - 1)} steps in a row in which {concurrency} decode; {LEAST_STEPS} are needed")
    lengths = [later - earlier for earlier, later in pairwise(marks)]
    if max(lengths) > UNEVEN * median(lengths):
        raise MeasurementError(f"a traced step took {max(lengths) / 1e3:.1f} ms, the median {median(lengths) / 1e3:.1f} ms: trace once more")
    begin, end, steps = marks[0], marks[-1], len(lengths)
    inside = [event for event in events if event.get("cat") in ON_DEVICE and begin <= event["ts"] < end]
    if not inside:
        raise MeasurementError("no kernel ran between the trace's marks")
    by_name: dict[tuple[Kind, str], list[float]] = defaultdict(list)
    for event in inside:
        name = str(event["name"])
        by_name[kind_of(name), name[:NAME_CHARACTERS]].append(float(event.get("dur", 0.0)))
    kernels = [KernelTime(name=name, kind=kind, launches=len(own) / steps, ms=sum(own) / 1e3 / steps) for (kind, name), own in by_name.items()]
    busy_us = _union([(float(event["ts"]), min(end, float(event["ts"]) + float(event.get("dur", 0.0)))) for event in inside])
    step_ms = (end - begin) / 1e3 / steps
    return Traced(steps, step_ms, max(0.0, step_ms - busy_us / 1e3 / steps), tuple(sorted(kernels, key=lambda kernel: -kernel.ms)))


def decode_marks(events: Sequence[Mapping[str, Any]], concurrency: int) -> list[float]:
    """When the steps of the longest row began in which `concurrency` requests decode; any other step ends a row.

    On the device only the marks of the stream that has most kernel time count: a step that touches two has two.
    """
    for category in MARKS:
        found = [(event, kinds) for event in events if event.get("cat") == category and (kinds := STEP.fullmatch(str(event.get("name"))))]
        line = _busiest({event.get("tid") for event, _ in found}, events)
        rows: list[list[float]] = [[]]
        for begun, kinds in sorted(((float(event["ts"]), kinds) for event, kinds in found if event.get("tid") == line), key=lambda pair: pair[0]):
            if kinds.groups() == ("0", str(concurrency)):
                rows[-1].append(begun)
            else:
                rows.append([])
        longest = max(rows, key=len)
        if longest:
            return longest
    return []


def _busiest(lines: Set[object], events: Sequence[Mapping[str, Any]]) -> object:
    """Of some time lines that with most kernel time; of several without any, as on the host, the first."""
    spent: dict[object, float] = dict.fromkeys(sorted(lines, key=str), 0.0)
    for event in events:
        if event.get("cat") in ON_DEVICE and event.get("tid") in spent:
            spent[event.get("tid")] += float(event.get("dur", 0.0))
    return max(spent, key=lambda line: spent[line], default=None)


def kind_of(name: str) -> Kind:
    """What a kernel does, told from its name."""
    return next((kind for pattern, kind in NAMES if re.search(pattern, name, re.IGNORECASE)), "other")


def _union(spans: Sequence[tuple[float, float]]) -> float:
    """Length of what at least one span covers: kernels on two streams overlap."""
    covered, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        covered += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return covered
