"""Where the time of a decode step goes, kernel by kernel, as the engine's own profiler saw it: one file for each server and load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from specstudy.errors import RecordError
from specstudy.records.files import write_model
from specstudy.records.schema import Evidence, Method

Kind = Literal["matrix products", "attention", "KV cache write", "elementwise and norms", "sampling", "copies", "other"]
KINDS: tuple[Kind, ...] = ("matrix products", "attention", "KV cache write", "elementwise and norms", "sampling", "copies", "other")
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Kept(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class KernelTime(_Kept):
    """One kernel's share of a step, mean over the traced steps."""

    name: str = Field(description="as the profiler has it, cut to 200 characters")
    kind: Kind = Field(description="told from the name")
    launches: NotNegative = Field(description="a step")
    ms: NotNegative = Field(description="a step, all its launches together")


class StepTrace(_Kept):
    """Some decode steps of one server at one load. Tracing takes time itself: `tpot_ms` was measured without it, just before."""

    allocation: str
    measured_at: AwareDatetime
    profile: str
    chapter: str
    evidence: Evidence
    target: str
    quantization: str | None
    engine: str
    engine_version: str
    engine_variant: str | None
    method: Method
    draft: str | None
    num_speculative_tokens: int | None
    imposed_acceptance_length: float | None
    workload: str
    concurrency: int = Field(ge=1)
    tpot_ms: float = Field(gt=0, description="p50 over the requests of one repeat without the profiler; it holds the pauses while prompts are processed")
    untraced_step_ms: float = Field(gt=0, description="p50 of the pause between two chunks in that repeat: a step without the profiler")
    acceptance_length: float | None = Field(default=None, description="of that repeat")
    steps: int = Field(ge=1, description="traced, in all of them `concurrency` requests decode and no prompt is processed")
    step_ms: float = Field(gt=0, description="from the begin of one traced step to that of the next, mean")
    idle_ms: NotNegative = Field(description="of it without any kernel running")
    kernels: tuple[KernelTime, ...] = Field(min_length=1, description="the longest first")
    gpu: str | None
    git_sha: str
    server_argv: tuple[str, ...] = Field(description="less the profiler's flag")
    server_env: tuple[str, ...]

    @property
    def label(self) -> str:
        """The engine's variant, the draft or method with K and the acceptance length that it imposed, as far as it has them."""
        method = "" if self.method == "none" else f"{self.draft or self.method} K={self.num_speculative_tokens}"
        if self.imposed_acceptance_length is not None:
            method += f" AL={self.imposed_acceptance_length:g}"
        return ", ".join(part for part in (self.engine_variant, method) if part) or "baseline"

    def ms_of(self, kind: Kind) -> float:
        """Milliseconds a step of all kernels of a kind."""
        return sum(kernel.ms for kernel in self.kernels if kernel.kind == kind)


def trace_path(folder: Path, chapter: str, allocation: str, server: str, workload: str, concurrency: int) -> Path:
    """Where the trace of a chapter's server at a load lies in a profile's results folder."""
    return folder / f"trace-{chapter}-{allocation}-{server}-{workload}-c{concurrency}.json"


def write_trace(path: Path, trace: StepTrace) -> None:
    """Keep it, replacing an earlier one of the same server, load and allocation. Raises RecordError."""
    write_model(path, trace, indent=1)


def read_traces(folder: Path, chapter: str, allocations: frozenset[str]) -> list[StepTrace]:
    """A chapter's traces that were made in these allocations, in the order of their making. Raises RecordError for a file that is something else."""
    found = []
    for path in sorted(folder.glob(f"trace-{chapter}-*.json")):
        try:
            trace = StepTrace.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise RecordError(f"{path} holds no trace: {str(error).splitlines()[0]}") from error
        if trace.allocation in allocations:
            found.append(trace)
    return sorted(found, key=lambda trace: trace.measured_at)
