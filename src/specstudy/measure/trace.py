"""Which kernels run in a decode step, and for how long? Asked of vLLM's own profiler, torch's, on a server that was started for it."""

from __future__ import annotations

import gzip
import json
import re
import urllib.request
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specstudy.errors import MeasurementError
from specstudy.measure.cell import Measured, Sampling, measure
from specstudy.records.trace import KernelTime, Kind
from specstudy.serving.server import Server
from specstudy.workloads import Closed, Prompt

STOP_TIMEOUT_S = 300  # the trace is written before the answer comes
NAME_CHARACTERS = 200
# vLLM marks each step with what is in it; these are those that process nobody's prompt.
DECODE_STEP = re.compile(r"execute_context_0\(0\)_generation_\d+\(\d+\)")
STEP = re.compile(r"execute_context_\d+\(\d+\)_generation_\d+\(\d+\)")
MARKS = ("gpu_user_annotation", "user_annotation")  # on the device's time line, else on the host's, which runs at most a step ahead
ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
# The first that is found in a kernel's name says its kind. Inductor names what it fuses after all operations in it, so its kernels come first.
NAMES: tuple[tuple[str, Kind], ...] = (
    (r"^Mem(cpy|set)", "copies"),
    (r"^triton_(red|poi|per)_", "elementwise and norms"),
    (r"reshape_and_cache", "KV cache write"),
    (r"flash|attention|attn|fmha", "attention"),
    (r"gumbel|sampl|argmax|topk|top_k|top_p", "sampling"),
    (r"gemm|gemv|nvjet|marlin|machete|scaled_mm|cublas|splitK|matmul|humming|wgmma", "matrix products"),
    (r"rms_norm|layernorm|silu|act_and_mul|quant|rotary", "elementwise and norms"),
)


@dataclass(frozen=True)
class Traced:
    """`steps` decode steps in a row: the time of one, of it without a kernel, and its kernels; all means."""

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
        "max_iterations": steps,
    }
    return {"profiler-config": json.dumps(config)}


def steps_to_skip(concurrency: int) -> int:
    """Steps until surely every prompt is processed: prompts may come one to a step, and a long one may take several."""
    return 8 + 2 * concurrency


def trace(server: Server, prompts: Sequence[Prompt], folder: Path, how: Sampling) -> Traced:
    """Send all `prompts` at once and trace steps in which each of them decodes; `how.max_tokens` has to outlast what is skipped and is every answer's limit.

    Raises MeasurementError when a request fails, or the trace shows no such step.
    """
    _post(server, "start_profile")
    measured = measure(server, [replace(prompt, output_tokens=None) for prompt in prompts], (), Closed(len(prompts)), how)
    _post(server, "stop_profile")
    raise_if_failed(measured)
    paths = sorted(folder.rglob("*.json*"))
    for path in paths:
        events = read_events(path)
        if any(event.get("cat") in ON_DEVICE for event in events):
            return traced(events)
    raise MeasurementError(f"of the {len(paths)} traces in {folder} none holds a kernel of a GPU")


def raise_if_failed(measured: Measured) -> None:
    """Raises MeasurementError if the repeat failed."""
    if measured.error is not None:
        raise MeasurementError(measured.error)


def _post(server: Server, command: str) -> None:
    request = urllib.request.Request(f"{server.base_url}/{command}", data=b"", method="POST")
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=STOP_TIMEOUT_S):
            pass
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


def traced(events: Sequence[Mapping[str, Any]]) -> Traced:
    """What the longest row of decode steps in a trace holds. `ts` and `dur` of an event are microseconds.

    A step lasts from its mark to the next one's, so of n marks in a row n - 1 steps are whole. Raises MeasurementError where there is none.
    """
    marks = decode_marks(events)
    if len(marks) < 2:
        raise MeasurementError("the trace marks no two decode steps in a row")
    begin, end, steps = marks[0], marks[-1], len(marks) - 1
    inside = [event for event in events if event.get("cat") in ON_DEVICE and begin <= event["ts"] < end]
    if not inside:
        raise MeasurementError("no kernel ran between the trace's marks")
    by_name: dict[str, list[float]] = defaultdict(list)
    for event in inside:
        by_name[str(event["name"])[:NAME_CHARACTERS]].append(float(event["dur"]))
    kernels = [KernelTime(name=name, kind=kind_of(name), launches=len(own) / steps, ms=sum(own) / 1e3 / steps) for name, own in by_name.items()]
    busy_us = _union([(float(event["ts"]), min(end, float(event["ts"]) + float(event["dur"]))) for event in inside])
    step_ms = (end - begin) / 1e3 / steps
    return Traced(steps, step_ms, max(0.0, step_ms - busy_us / 1e3 / steps), tuple(sorted(kernels, key=lambda kernel: -kernel.ms)))


def decode_marks(events: Sequence[Mapping[str, Any]]) -> list[float]:
    """When the steps of the longest row of decode steps began; a step that processes a prompt ends a row."""
    for category in MARKS:
        marks = sorted((float(event["ts"]), str(event["name"])) for event in events if event.get("cat") == category and STEP.fullmatch(str(event.get("name"))))
        rows: list[list[float]] = [[]]
        for begun, name in marks:
            if DECODE_STEP.fullmatch(name):
                rows[-1].append(begun)
            else:
                rows.append([])
        longest = max(rows, key=len)
        if longest:
            return longest
    return []


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
