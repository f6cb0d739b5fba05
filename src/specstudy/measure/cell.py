"""One cell, one repeat: warm up, drive the load, read the counters, sample the GPU, give back one record."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from specstudy.errors import MeasurementError, ScheduleLagError, ServerError
from specstudy.measure.client import Outcome, StreamClient
from specstudy.measure.counters import Counters, read_counters, read_settled
from specstudy.measure.gpu import GpuSamples, gpu_identity, sampling
from specstudy.measure.host import HostUse, watching
from specstudy.measure.kernels import KernelLog
from specstudy.measure.load import Load, drive, run_async
from specstudy.measure.metrics.chunk_gap import chunk_gaps_ms
from specstudy.measure.metrics.decode import decoding
from specstudy.measure.metrics.e2e import e2e_ms
from specstudy.measure.metrics.summary import summary
from specstudy.measure.metrics.throughput import steady_window
from specstudy.measure.metrics.timeline import Timeline
from specstudy.measure.metrics.tpot import tpot_ms
from specstudy.measure.metrics.ttft import ttft_ms
from specstudy.records.schema import P99_NEEDS, Pattern, Record, RequestRow
from specstudy.serving.server import Server
from specstudy.workloads.arrivals import Arrival, Closed
from specstudy.workloads.prompts import Prompt

FINEST_BUCKET_S = 0.001
WARM_UP_ROUNDS = 3  # at most, while the engine compiles kernels
FURTHER_TRIES = 2  # at most, while the engine compiles kernels during the load


@dataclass(frozen=True)
class Sampling:
    """What a request asks of the sampler; warm-ups may be shorter. `seed` is the first request's, the next one has one more.

    `ignore_eos`: every answer goes on to its limit. Prompts of token ids are always sent so.
    """

    max_tokens: int
    temperature: float
    seed: int
    warmup_max_tokens: int | None = None
    ignore_eos: bool = False


@dataclass(frozen=True)
class Measured:
    """Figures of one load, under the record's names, and its requests."""

    figures: dict[str, Any]
    requests: tuple[RequestRow, ...]
    error: str | None


def measure(
    server: Server,
    prompts: Sequence[Prompt],
    warmups: Sequence[Prompt],
    arrival: Arrival,
    how: Sampling,
    *,
    max_schedule_lag_ms: float = 50,
) -> Measured:
    """Measure one repeat on a running server.

    A load during which the engine's log says that it compiled a kernel is no steady state: it is measured again with the same
    prompts, at most FURTHER_TRIES times, and the last try is given. `tries_discarded` says how many went before it,
    `kernels_compiled` how many kernels were still compiled during it.

    Whatever goes wrong once it has begun makes the repeat failed, not lost: `Measured.error` says why, the
    requests are kept, and no latency or throughput is given. That holds for a failed request, a server that
    ends, counters that can't be trusted, and our own sends being late.
    """
    log = KernelLog(server.log_path)
    measured = _try(server, prompts, warmups, arrival, how, max_schedule_lag_ms, log)
    discarded = 0
    while measured.error is None and measured.figures["kernels_compiled"] and discarded < FURTHER_TRIES:
        discarded += 1
        measured = _try(server, prompts, (), arrival, how, max_schedule_lag_ms, log)
    return replace(measured, figures={**measured.figures, "tries_discarded": discarded})


def unserved(asked: int, arrival: Arrival, error: ServerError) -> Measured:
    """What a load of so many requests comes to when its server doesn't start: a failure that says why. The log's last lines are left to the log."""
    base = {"record_id": uuid.uuid4().hex[:16], "started_at": datetime.now(UTC), **_arrival_fields(arrival)}
    return Measured({**base, **_counts(asked, ())}, (), f"not started: {error.reason}")


def _try(
    server: Server, prompts: Sequence[Prompt], warmups: Sequence[Prompt], arrival: Arrival, how: Sampling, max_schedule_lag_ms: float, log: KernelLog
) -> Measured:
    record_id = uuid.uuid4().hex[:16]
    base: dict[str, Any] = {"record_id": record_id, "started_at": datetime.now(UTC), **_arrival_fields(arrival)}
    try:
        before = _warm_up(server, warmups, arrival, how, log)
    except (MeasurementError, ServerError) as error:
        return Measured({**base, **_counts(len(prompts), ())}, (), f"warm-up: {error}")
    base["started_at"] = datetime.now(UTC)
    with sampling() as gpu, watching(server.process.pid) as host:
        load = run_async(_load(server, prompts, arrival, how))
    base |= {**_counts(len(prompts), load.outcomes), "kernels_compiled": log.compiled()}
    requests = tuple(request_row(record_id, index, prompts[index], load) for index in range(len(prompts)))
    try:
        _raise_if_failed(load, server)
        base |= _schedule_lag(load, arrival, max_schedule_lag_ms)
        change = read_settled(server.base_url, before, len(prompts)).since(before)
    except (MeasurementError, ServerError) as error:
        return Measured(base, requests, str(error))
    figures = {**base, **_latency(load), **_throughput(load, arrival), **_decode(requests, arrival), **_counted(change), **_gpu(gpu, load)}
    return Measured({**figures, **_host(host)}, requests, None)


def _host(use: HostUse) -> dict[str, float | None]:
    cores = {"api_server_cores": use.api_server, "engine_cores": use.engine, "load_generator_cores": use.load_generator}
    return {"host_other_cpu_share": use.other, **cores}


def _warm_up(server: Server, prompts: Sequence[Prompt], arrival: Arrival, how: Sampling, log: KernelLog) -> Counters:
    """Send the warm-ups, all of which must succeed, and give the counters once they hold them all.

    They are sent again, up to WARM_UP_ROUNDS times in all, as long as the engine compiles kernels for them.
    """
    counters = read_counters(server.base_url)
    concurrency = arrival.concurrency if isinstance(arrival, Closed) else max(1, len(prompts) // 2)
    short = how if how.warmup_max_tokens is None else replace(how, max_tokens=min(how.max_tokens, how.warmup_max_tokens))
    for _ in range(WARM_UP_ROUNDS if prompts else 0):
        load = run_async(_load(server, prompts, Closed(concurrency), short))
        _raise_if_failed(load, server)
        counters = read_settled(server.base_url, counters, len(prompts))
        if not log.compiled():
            break
    return counters


async def _load(server: Server, prompts: Sequence[Prompt], arrival: Arrival, how: Sampling) -> Load:
    limits = getattr(arrival, "output_tokens", None) or [min(prompt.output_tokens or how.max_tokens, how.max_tokens) for prompt in prompts]
    async with StreamClient(server.base_url, server.model) as client:
        bodies = [
            client.body(prompt, max_tokens=limit, temperature=how.temperature, seed=how.seed + index, ignore_eos=how.ignore_eos)
            for index, (prompt, limit) in enumerate(zip(prompts, limits, strict=True))
        ]
        return await drive(client, bodies, arrival, lambda: not server.ended())


def _raise_if_failed(load: Load, server: Server) -> None:
    failures = [outcome.error for outcome in load.outcomes if outcome.error is not None]
    if failures and server.ended():
        server.raise_if_dead()
    if failures:
        raise MeasurementError(f"{len(failures)} of {len(load.outcomes)} requests failed; the first: {failures[0]}")


def _schedule_lag(load: Load, arrival: Arrival, allowed_ms: float) -> dict[str, float]:
    """Nothing for a closed loop, which has no schedule. Raises ScheduleLagError past the bound."""
    if isinstance(arrival, Closed):
        return {}
    lag_ms = [(outcome.sent - due) * 1e3 for outcome, due in zip(load.outcomes, load.scheduled, strict=True)]
    p99 = max(0.0, float(np.percentile(lag_ms, 99)))
    if p99 > allowed_ms:
        raise ScheduleLagError(f"the load generator was {p99:.0f} ms late at p99; at most {allowed_ms:.0f} ms is allowed")
    return {"schedule_lag_ms_p99": p99}


def _timelines(load: Load) -> list[Timeline]:
    return [
        Timeline(due, outcome.chunk_times, outcome.chunk_tokens, outcome.completion_tokens or 0)
        for outcome, due in zip(load.outcomes, load.scheduled, strict=True)
        if outcome.ok
    ]


def _counts(asked: int, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    ok = sum(outcome.ok for outcome in outcomes)
    return {"num_prompts": asked, "completed": ok, "failed": len(outcomes) - ok, "resent": sum(outcome.resent for outcome in outcomes)}


def _arrival_fields(arrival: Arrival) -> dict[str, Any]:
    if isinstance(arrival, Closed):
        pattern: Pattern = "closed"
        return {"pattern": pattern, "concurrency": arrival.concurrency}
    return {"pattern": arrival.pattern, "request_rate": arrival.rate}


def _latency(load: Load) -> dict[str, Any]:
    requests = _timelines(load)
    gaps = [gap for request in requests for gap in chunk_gaps_ms(request)]
    chunks = [count for request in requests for count in request.chunk_tokens]
    return {
        **summary("ttft_ms", [ttft_ms(request) for request in requests]),
        **summary("tpot_ms", [tpot for request in requests if (tpot := tpot_ms(request)) is not None]),
        **summary("e2e_ms", [e2e_ms(request) for request in requests]),
        **summary("chunk_gap_ms", gaps),
        "tokens_per_chunk_mean": sum(chunks) / len(chunks),
    }


def _throughput(load: Load, arrival: Arrival) -> dict[str, Any]:
    requests = _timelines(load)
    sends = [outcome.sent for outcome in load.outcomes]
    window = steady_window(sends, requests, arrival)
    return {
        "duration_s": max(request.chunk_s[-1] for request in requests) - min(sends),
        "steady_s": window.length_s,
        "output_tokens": sum(request.completion_tokens for request in requests),
        "output_tokens_per_s": window.tokens(requests) / window.length_s,
        "requests_per_s": window.completions(requests) / window.length_s,
    }


def _decode(requests: Sequence[RequestRow], arrival: Arrival) -> dict[str, float]:
    """Nothing for an open loop, which has no slots, and for a load whose slots hardly ever decoded all at once."""
    if not isinstance(arrival, Closed):
        return {}
    found = decoding(
        arrival.concurrency,
        sent_s=[row.sent_s for row in requests],
        first_s=[row.first_token_s for row in requests],
        last_s=[row.last_token_s for row in requests],
        gaps_us=[row.chunk_gap_us for row in requests],
        chunk_tokens=[row.chunk_tokens for row in requests],
    )
    return {} if found is None else {"decode_tokens_per_s": found.tokens_per_s, "decode_share": found.share}


def _counted(change: Counters) -> dict[str, Any]:
    mean_s = change.queue_wait_mean_s
    p99_s = change.queue_wait_quantile_s(0.99) if change.queue_count >= P99_NEEDS else None
    if p99_s is not None and p99_s <= (smallest := min(change.queue_buckets)) and smallest > FINEST_BUCKET_S:
        p99_s = None  # somewhere in the smallest bucket, which is too wide to say where
    return {
        "queue_wait_ms_mean": None if mean_s is None else mean_s * 1e3,
        "queue_wait_ms_p99": None if p99_s is None else p99_s * 1e3,
        "acceptance_length": change.acceptance_length,
        "acceptance_rate": change.acceptance_rate,
        "acceptance_per_position": change.acceptance_per_position,
    }


def _gpu(samples: GpuSamples, load: Load) -> dict[str, Any]:
    identity = gpu_identity()
    tokens = sum(outcome.completion_tokens or 0 for outcome in load.outcomes)
    named = {"gpu": identity.label, "gpu_uuids": identity.uuids, "driver": identity.driver} if identity else {}
    return {**named, **samples.figures(tokens)}


def request_row(record_id: str, index: int, prompt: Prompt, load: Load) -> RequestRow:
    """Request `index` of a finished load as it is kept; times count from the load's begin."""
    outcome = load.outcomes[index]
    times = outcome.chunk_times
    return RequestRow(
        record_id=record_id,
        index=index,
        prompt_id=prompt.key[:16],
        scheduled_s=load.scheduled[index] - load.began,
        sent_s=outcome.sent - load.began,
        first_token_s=times[0] - load.began if times else None,
        last_token_s=times[-1] - load.began if times else None,
        prompt_tokens=outcome.prompt_tokens,
        completion_tokens=outcome.completion_tokens,
        chunks=len(times),
        chunk_tokens=tuple(outcome.chunk_tokens),
        chunk_gap_us=tuple(round((later - earlier) * 1e6) for earlier, later in itertools.pairwise(times)),
        status="ok" if outcome.ok else "failed",
        error=outcome.error,
        resent=outcome.resent,
    )


def record_of(measured: Measured, facts: dict[str, Any]) -> Record:
    """The record: what was measured, with the facts of cell, server and machine."""
    status = "ok" if measured.error is None else "failed"
    return Record.model_validate({**facts, **measured.figures, "status": status, "error": measured.error})
