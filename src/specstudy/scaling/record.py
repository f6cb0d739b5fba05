"""What a scaling run is: one ScalingRun a line, its requests and its samples in parquet files beside it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from specstudy.errors import RecordError, StoreWriteError
from specstudy.records import BadLine, RecordStore, RequestRow, load_requests
from specstudy.records.schema import Method, Milliseconds, Status, measured, stated
from specstudy.scaling.policy import HpaPolicy

CHAPTER = "08_hpa_scaling"
ServerKind = Literal["real", "stand-in"]


class ScalingRun(BaseModel):
    """One load over an autoscaled Deployment; times in s count from the load's begin unless they say from the step."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    record_id: str = stated("Key of this run; joins its requests and samples")
    profile: str = stated("Profile that was run")
    chapter: str = stated("Chapter that the run belongs to")
    server: ServerKind = stated("real: vLLM; stand-in: a paced server without a model, which says nothing of speed. The control plane is real in both")
    allocation: str = stated("Fingerprint of one boot of one machine with its GPUs")
    started_at: datetime = stated("UTC time at which the load began")
    status: Status = stated("ok, or failed: then `error` says why")
    error: str | None = measured("Why the run failed", "")

    policy: HpaPolicy = stated("What the autoscaler was told")
    kubernetes_version: str = stated("Version of the control plane")
    sync_period_s: float = stated("Time between two passes of the autoscaler", "s", gt=0)
    metric_window_s: float = stated("Window over which the queue wait is taken", "s", gt=0)
    slots_window_s: float | None = measured("Window over which the slots in use are taken", "s")
    scrape_period_s: float = stated("Time between two readings of a replica's counters", "s", gt=0)

    target: str = stated("Target model")
    engine: str = stated("Serving engine, or the stand-in's name")
    engine_version: str = stated("Its version")
    method: Method = stated("Speculation method; none is the baseline")
    draft: str | None = measured("Draft model or head", "")
    num_speculative_tokens: int | None = measured("K: tokens drafted per step", "tokens")
    slots: int = stated("Requests that a replica runs at once", "requests", ge=1)

    stages: tuple[tuple[float, float], ...] = stated("The load: pairs of requests/s and seconds")
    max_tokens: int = stated("Output limit of each request", "tokens", ge=1)
    seed: int = stated("Seed of the arrivals", ge=0)
    slo_ttft_ms: float = stated("A request counts towards goodput if its first token came within this time of its arrival", "ms", gt=0)
    num_prompts: int = stated("Requests of the load", "requests", ge=1)
    completed: int = stated("Requests that ended well", "requests", ge=0)
    failed: int = stated("Requests that were lost", "requests", ge=0)
    resent: int = stated("Requests that a closed or refused connection sent to another one, before any server saw them", "requests", ge=0)
    replica_restarts: int | None = measured("Times that a replica's process ended by itself and was started again; none where that can't be told", "count")
    schedule_lag_ms_p99: Milliseconds = measured("Send minus scheduled arrival, 99th percentile", "ms")

    service_s_mean: float | None = measured("From slot to last token, mean over the requests of the first stage that found a slot free", "s")
    service_full_s_mean: float | None = measured(
        "The same of the requests that had to wait for a slot, so that every slot was busy; none where under 20 did, and in older runs", "s"
    )
    replicas_needed: int | None = measured(
        "Fewest replicas at which 95 % of the requests get a slot within the SLO at the high rate and the longer of the two service times, by Erlang's "
        "formula; in older runs those whose slots hold the shorter one",
        "replicas",
    )
    replicas_max: int | None = measured("Most replicas that were asked for", "replicas")
    replicas_low_while_high: int | None = measured("Fewest replicas asked for from the time they sufficed to the end of the high load", "replicas")
    decided_s: float | None = measured("From the step to the first scale-out", "s")
    enough_ready_s: float | None = measured("From the step until the needed replicas were ready", "s")
    recovered_s: float | None = measured(
        "From the step to the begin of the first two windows in a row with 95 % of requests within the SLO, not more than a window before the needed replicas "
        "were ready; in older runs a lull before that counts too",
        "s",
    )
    back_to_min_s: float | None = measured("From the end of the high load until the minimum was asked for", "s")
    scale_downs: int | None = measured("Times that fewer replicas were asked for", "count")
    goodput_share: float | None = measured("Requests within the SLO over all", "fraction")

    gpu: str | None = measured("GPU name and count", "")
    git_sha: str = stated("Commit of this project; -dirty with uncommitted changes")
    packages: dict[str, str] = stated("Versions of the packages that matter")
    server_argv: tuple[str, ...] = stated("Command line of a replica, the port as in the container")
    host_cpu: str = stated("Processor model")
    host_cpus: int = stated("Processors that this process may use", "count", ge=1)
    samples_missed: int | None = measured("Samples, one a second, that couldn't be taken: the API server or Prometheus was away", "count")
    conditions: tuple[tuple[float, str, str], ...] = stated("Changes of the autoscaler's conditions: time, type, status with reason and message")

    @model_validator(mode="after")
    def _failure_says_why(self) -> ScalingRun:
        if (self.status == "failed") != bool(self.error):
            raise ValueError(f"status {self.status} with error {self.error!r}: a failed run says why, a good one doesn't")
        return self

    @property
    def step_s(self) -> float:
        """When the load rises: the end of the first stage."""
        return self.stages[0][1]

    @property
    def fall_s(self) -> float:
        """When it falls again: the end of the second stage."""
        return self.stages[0][1] + self.stages[1][1]


@dataclass(frozen=True)
class Sample:
    """The system at `at_s` from the load's begin; None where Prometheus has no value.

    The last two are what the autoscaler's status says that it saw at its last pass: the wait, and the slots in use over the replicas.
    """

    record_id: str
    at_s: float
    replicas: int
    listed: int
    ready: int
    desired: int
    queue_wait_ms: float | None
    slots_in_use: float | None
    waiting: float | None
    seen_wait_ms: float | None = None
    seen_slots_average: float | None = None


SAMPLES_SCHEMA = pa.schema(
    [("record_id", pa.string())]
    + [("at_s", pa.float64())]
    + [(name, pa.int32()) for name in ("replicas", "listed", "ready", "desired")]
    + [(name, pa.float64()) for name in ("queue_wait_ms", "slots_in_use", "waiting", "seen_wait_ms", "seen_slots_average")]
)


class ScalingStore(RecordStore):
    """RecordStore for scaling runs."""

    @property
    def samples_path(self) -> Path:
        """CHAPTER.samples.parquet."""
        return self.records_path.with_suffix(".samples.parquet")

    @classmethod
    @contextmanager
    def opened(cls, folder: Path, chapter: str = CHAPTER) -> Iterator[ScalingStore]:
        """As RecordStore.writing. Raises RecordError for files beside it to which a run couldn't be added when it is over."""
        with cls.writing(folder, chapter) as store:
            load_samples(store.records_path.with_suffix(".samples.parquet"))
            load_requests(store.requests_path)
            yield cls(store.records_path)

    def keep(self, run: ScalingRun, requests: Sequence[RequestRow], samples: Sequence[Sample]) -> None:
        """Put one run on disk, the line last. Raises StoreWriteError; what was there before is intact."""
        table = pa.Table.from_pylist([vars(sample) for sample in samples], schema=SAMPLES_SCHEMA)
        fresh = self.samples_path.with_suffix(".partial")
        try:
            pq.write_table(pa.concat_tables([load_samples(self.samples_path), table]), fresh, compression="zstd", compression_level=9)
            os.replace(fresh, self.samples_path)
            self._add_requests(requests)
            self._add_line(run)
        except OSError as error:
            raise StoreWriteError(f"{self.records_path}: {error.strerror or error}; earlier runs are intact") from error
        finally:
            fresh.unlink(missing_ok=True)


def load_samples(path: Path) -> pa.Table:
    """The samples file as a table (columns: SAMPLES_SCHEMA); empty where there is none. Raises RecordError for a broken one."""
    if not path.exists():
        return SAMPLES_SCHEMA.empty_table()
    try:
        return pq.read_table(path, schema=SAMPLES_SCHEMA)
    except (OSError, pa.ArrowInvalid) as error:
        raise RecordError(f"{path} is no readable parquet file: {error}") from error


@dataclass(frozen=True)
class LoadedRuns:
    """Runs with their requests and samples, and the lines that had to be skipped."""

    runs: tuple[ScalingRun, ...]
    requests: pa.Table
    samples: pa.Table
    skipped: tuple[BadLine, ...]


def load_runs(folder: Path, chapter: str = CHAPTER) -> LoadedRuns:
    """Every run of a folder; a file that doesn't exist holds none."""
    path = folder / f"{chapter}.jsonl"
    runs, skipped = [], []
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            runs.append(ScalingRun.model_validate_json(line))
        except ValidationError as error:
            first = error.errors()[0]
            skipped.append(BadLine(path, number, f"{'.'.join(map(str, first['loc']))}: {first['msg']}"))
    return LoadedRuns(tuple(runs), load_requests(path.with_suffix(".requests.parquet")), load_samples(path.with_suffix(".samples.parquet")), tuple(skipped))
