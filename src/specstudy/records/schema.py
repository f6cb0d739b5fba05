"""What a measurement is: one Record per cell and repeat, one RequestRow per request."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

Evidence = Literal["real", "shape", "published"]
Method = Literal["none", "ngram", "suffix", "draft_model", "eagle3", "peagle", "dflash"]
Pattern = Literal["closed", "poisson", "steps", "trace"]
Status = Literal["ok", "failed"]

SPECULATIVE_CONFIG = "--speculative-config"  # vLLM's flag; its value is JSON

P99_NEEDS = 300  # values; from fewer a 99th percentile is one of the three largest, so none is given


def measured(description: str, unit: str) -> Any:
    """An optional field with its unit; None means that it wasn't, or can't be, measured."""
    return Field(default=None, description=description, json_schema_extra={"unit": unit})


def stated(description: str, unit: str = "", **constraints: Any) -> Any:
    """A required field with its unit."""
    return Field(description=description, json_schema_extra={"unit": unit}, **constraints)


Milliseconds = Annotated[float | None, Field(ge=0)]


class Record(BaseModel):
    """One cell, measured once.

    Unknown keys are refused, so that a file written by another version is noticed
    instead of half read.
    """

    # nan and inf have no JSON: they would be written as null, and a figure lost in silence.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    record_id: str = stated("Key of this record; joins the rows of the requests file")
    profile: str = stated("Profile that was run")
    chapter: str = stated("Chapter that the cell belongs to")
    evidence: Evidence = stated("Kind of evidence: real, shape or published")
    allocation: str = stated("Fingerprint of one boot of one machine with its GPUs; only records that share it are compared")
    repeat: int = stated("Number of the repeat, from 0", "count", ge=0)
    seed: int = stated("Seed of the prompt choice and of the arrivals", ge=0)
    started_at: AwareDatetime = stated("UTC time at which the measured load began")
    status: Status = stated("ok, or failed: then `error` says why and no analysis uses the figures")
    error: str | None = measured("Why the cell failed", "")

    target: str = stated("Target model")
    quantization: str | None = measured("Weight quantization; none means that the weights have `dtype`", "")
    dtype: str = stated("Data type of weights and activations")
    kv_cache_dtype: str = stated("Data type of the KV cache; auto follows `dtype`")
    engine: str = stated("Serving engine")
    engine_version: str = stated("Its version, as installed")
    model_runner: str | None = measured("vLLM's model runner, V1 or V2, where its log names one; methods compare fairly on the same one only", "")
    async_scheduling: bool | None = measured("Whether the engine schedules the next step while one runs, where its log says so", "")
    engine_variant: str | None = measured("Which of the chapter's ways to serve the target; none where there is one only", "")
    linear_kernel: str | None = measured("Kernel that multiplies the quantized weights, where the server's log names one", "")
    method: Method = stated("Speculation method; none is the baseline")
    draft: str | None = measured("Draft model or head", "")
    num_speculative_tokens: int | None = measured("K: tokens drafted per step", "tokens")
    imposed_acceptance_length: float | None = measured("Acceptance length imposed on a shape run", "tokens/step")
    acceptance_source: str | None = measured("Published row that the imposed acceptance was taken from", "")

    workload: str = stated("Workload that the prompts came from")
    pattern: Pattern = stated("Arrival pattern")
    concurrency: int | None = measured("Closed loop: requests in flight", "requests")
    request_rate: float | None = measured("Open loop: mean arrival rate", "requests/s")
    num_prompts: int = stated("Requests in the measured load, warm-ups excluded", "requests", ge=1)
    max_tokens: int = stated("Output limit of each request", "tokens", ge=1)
    temperature: float = stated("Sampling temperature; 0 is greedy", ge=0)

    completed: int = stated("Requests that ended well", "requests", ge=0)
    failed: int = stated("Requests that didn't", "requests", ge=0)
    resent: int = stated("Requests sent once more because a stale keep-alive connection had closed before an answer", "requests", ge=0)
    duration_s: float | None = measured("First send to last chunk, ramp and drain included", "s")
    steady_s: float | None = measured("Length of the steady window", "s")
    output_tokens: int | None = measured("Completion tokens of the whole load, from `usage`", "tokens")
    output_tokens_per_s: float | None = measured("Throughput: completion tokens in the steady window over its length", "tokens/s")
    requests_per_s: float | None = measured("Requests completed in the steady window over its length", "requests/s")
    decode_tokens_per_s: float | None = measured("Closed loop: decode throughput, tokens per second of all slots while every one of them decodes", "tokens/s")
    decode_share: float | None = measured("Closed loop: time with every slot decoding, over the load's", "fraction")
    kernels_compiled: int | None = measured("Kernels that the engine's log says it compiled during the load; none where it says nothing of them", "count")
    tries_discarded: int = Field(
        default=0,
        ge=0,
        description="Earlier tries of this repeat, with the same prompts, during which the engine compiled kernels",
        json_schema_extra={"unit": "count"},
    )

    ttft_ms_mean: Milliseconds = measured("Time to first token, mean", "ms")
    ttft_ms_p50: Milliseconds = measured("Time to first token, median", "ms")
    ttft_ms_p90: Milliseconds = measured("Time to first token, 90th percentile", "ms")
    ttft_ms_p99: Milliseconds = measured("Time to first token, 99th percentile; only from 300 requests on", "ms")
    tpot_ms_mean: Milliseconds = measured("Time per output token after the first, mean over requests", "ms")
    tpot_ms_p50: Milliseconds = measured("Time per output token, median", "ms")
    tpot_ms_p90: Milliseconds = measured("Time per output token, 90th percentile", "ms")
    tpot_ms_p99: Milliseconds = measured("Time per output token, 99th percentile; only from 300 requests on", "ms")
    e2e_ms_mean: Milliseconds = measured("Request to last chunk, mean", "ms")
    e2e_ms_p50: Milliseconds = measured("Request to last chunk, median", "ms")
    e2e_ms_p90: Milliseconds = measured("Request to last chunk, 90th percentile", "ms")
    e2e_ms_p99: Milliseconds = measured("Request to last chunk, 99th percentile; only from 300 requests on", "ms")
    chunk_gap_ms_mean: Milliseconds = measured("Pause between two chunks of a request, mean over gaps", "ms")
    chunk_gap_ms_p50: Milliseconds = measured("Pause between chunks, median", "ms")
    chunk_gap_ms_p90: Milliseconds = measured("Pause between chunks, 90th percentile", "ms")
    chunk_gap_ms_p99: Milliseconds = measured("Pause between chunks, 99th percentile; only from 300 gaps on", "ms")
    tokens_per_chunk_mean: float | None = measured("Completion tokens per chunk that carries one", "tokens")
    schedule_lag_ms_p99: Milliseconds = measured("Open loop: send minus scheduled arrival, 99th percentile over all requests", "ms")
    queue_wait_ms_mean: Milliseconds = measured("Wait in the engine's queue, mean: change of sum over change of count", "ms")
    queue_wait_ms_p99: Milliseconds = measured("Wait in the engine's queue, 99th percentile, interpolated in the histogram", "ms")

    acceptance_length: float | None = measured("AL: 1 + accepted over drafts, bonus token included", "tokens/step")
    acceptance_rate: float | None = measured("Accepted over drafted tokens", "fraction")
    acceptance_per_position: tuple[float, ...] | None = measured("Accepted at position i over drafts, i = 1 to K", "fraction")

    gpu: str | None = measured("GPU name and count; none for a CPU run", "")
    gpu_uuids: tuple[str, ...] | None = measured("UUIDs of the GPUs that the server could use, and that were sampled", "")
    gpu_utilization_mean: float | None = measured("NVML utilisation, mean", "%")
    gpu_memory_peak_gib: float | None = measured("NVML memory in use, peak", "GiB")
    gpu_power_w_mean: float | None = measured("NVML power, mean", "W")
    gpu_sm_clock_mhz_mean: float | None = measured("NVML SM clock, mean", "MHz")
    gpu_temperature_c_max: float | None = measured("NVML temperature, maximum", "°C")
    energy_j_per_token: float | None = measured("GPU energy over output tokens, whole load", "J/token")
    kv_cache_tokens: int | None = measured("Tokens that the KV cache holds, from the server's log", "tokens")
    weights_gib: float | None = measured("Model weights in memory with the draft's, from the server's log; on a CPU the checkpoints' size", "GiB")
    draft_weights_gib: float | None = measured("Size of the draft's weight files; what it shares with the target isn't in them", "GiB")
    idle_neighbours: int = Field(
        default=0,
        ge=0,
        description="Other servers that stood idle on the same device meanwhile; with any, GPU memory isn't this server's alone and is left out",
        json_schema_extra={"unit": "count"},
    )

    git_sha: str = stated("Commit of this project; -dirty with uncommitted changes")
    packages: dict[str, str] = stated("Versions of the packages that matter")
    server_argv: tuple[str, ...] = stated("Command line of the server, user folders written as ~ or $SPECSTUDY_CACHE")
    server_env: tuple[str, ...] = Field(
        default=(), description="What the profile sets in the server's environment, as NAME=value", json_schema_extra={"unit": ""}
    )
    driver: str | None = measured("GPU driver version", "")
    host_cpu: str = stated("Processor model")
    host_cpus: int = stated("Processors that this process may use", "count", ge=1)
    host_other_cpu_share: float | None = measured("Processor time that neither the server nor the load generator used, over all processor time", "fraction")
    api_server_cores: float | None = measured("Processor time of the process that answers HTTP, over the load's time", "processors")
    engine_cores: float | None = measured("Processor time of the busiest process that it started, the engine's, over the load's time", "processors")
    load_generator_cores: float | None = measured("Processor time of the process that makes the load, over the load's time", "processors")
    dataset_sha256: str = stated("SHA-256 over the pool of prompts that the cell drew from")

    @property
    def draft_folder(self) -> str | None:
        """Name of the folder that the server read its draft from, None without one. Of a packed head it ends in a hash of the files."""
        argv = self.server_argv
        at = argv.index(SPECULATIVE_CONFIG) + 1 if SPECULATIVE_CONFIG in argv[:-1] else 0
        model = json.loads(argv[at]).get("model") if at else None
        return None if model is None else str(model).rstrip("/").rpartition("/")[2]

    @model_validator(mode="after")
    def _failure_says_why(self) -> Record:
        if (self.status == "failed") != bool(self.error):
            raise ValueError(f"status {self.status} with error {self.error!r}: a failed record says why, a good one has none")
        return self

    @model_validator(mode="after")
    def _load_is_its_patterns(self) -> Record:
        closed = self.pattern == "closed"
        if closed != (self.concurrency is not None) or closed != (self.request_rate is None):
            raise ValueError(
                f"pattern {self.pattern} with concurrency {self.concurrency} and rate {self.request_rate}: a closed loop has the one, an open one the other"
            )
        return self

    @model_validator(mode="after")
    def _k_is_its_methods(self) -> Record:
        if (self.method == "none") != (self.num_speculative_tokens is None):
            raise ValueError(f"method {self.method} with K {self.num_speculative_tokens}: every method has one, the baseline none")
        return self


class RequestRow(BaseModel):
    """One request; times are seconds since the load began, on the monotonic clock."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    record_id: str = stated("Record that the request belongs to")
    index: int = stated("Position in the load, from 0", "count", ge=0)
    prompt_id: str = stated("First 16 hex digits of the prompt's SHA-256")
    scheduled_s: float = stated("Scheduled arrival; in a closed loop the send. In the file it is empty where it equals `sent_s`", "s")
    sent_s: float = stated("When the request was handed to the connection", "s")
    first_token_s: float | None = measured("First chunk that carries a token", "s")
    last_token_s: float | None = measured("Last chunk that carries a token", "s")
    prompt_tokens: int | None = measured("Prompt tokens, from `usage`", "tokens")
    completion_tokens: int | None = measured("Completion tokens, from `usage`", "tokens")
    chunks: int = stated("Chunks that carried a token", "count", ge=0)
    chunk_tokens: tuple[Annotated[int, Field(ge=0, lt=2**15)], ...] = stated("Tokens in each of them", "tokens")
    chunk_gap_us: tuple[Annotated[int, Field(ge=0, lt=2**31)], ...] = stated("Pause before each of them but the first", "µs")
    status: Status = stated("ok or failed")
    error: str | None = measured("Why the request failed", "")
    resent: bool = stated("Sent once more after a stale keep-alive connection")


def units_of(model: type[BaseModel]) -> list[tuple[str, str, str]]:
    """(field, unit, description) of every field of `model`, in order."""
    rows = []
    for name, field in model.model_fields.items():
        extra = field.json_schema_extra
        unit = str(extra.get("unit", "")) if isinstance(extra, dict) else ""
        rows.append((name, unit, field.description or ""))
    return rows
