"""Records made by rule, for tests of analysis and figures: never kept, never shown as a measurement."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from specstudy.analysis import Cell, Load, Variant
from specstudy.records import Record, RecordStore, RequestRow
from specstudy.records.store import REQUESTS_SCHEMA

# A machine of round numbers, and the facts of a measurement of quality on two texts of 10 and 30 tokens.
LIMITS: dict[str, Any] = {
    "allocation": "a" * 12,
    "measured_at": "2026-11-29T12:00:00Z",
    "device": "NVIDIA H200",
    "torch": "2.11.0",
    "memory_bytes": 150 * 10**9,
    "copy_bytes_per_s": (4.3e12,),
    "read_bytes_per_s": {"sum": (4.2e12,)},
    "bf16_flop_per_s": (0.8e15,),
    "fp8_flop_per_s": (1.6e15,),
}
QUALITY: dict[str, Any] = {
    "target": "one",
    "created_at": "2026-11-29T12:00:00Z",
    "git_sha": "abc",
    "packages": {},
    "arithmetic": "",
    "texts": "",
    "texts_sha256": "0",
    "calibration": "",
    "scored_tokens": (10, 30),
    "answer_tokens": (4, 4),
}
RECORD: dict[str, Any] = {
    "record_id": "0123456789abcdef",
    "profile": "h200-smollm2",
    "chapter": "04_eagle3",
    "evidence": "real",
    "allocation": "0123456789ab",
    "repeat": 0,
    "seed": 0,
    "started_at": "2026-11-29T12:00:00Z",
    "status": "ok",
    "target": "smollm2-135m-instruct",
    "dtype": "bfloat16",
    "kv_cache_dtype": "auto",
    "engine": "vllm",
    "engine_version": "0.26.0",
    "model_runner": "V1",
    "method": "none",
    "workload": "chat",
    "pattern": "closed",
    "concurrency": 1,
    "num_prompts": 10,
    "max_tokens": 256,
    "temperature": 0,
    "completed": 10,
    "failed": 0,
    "resent": 0,
    "git_sha": "0123456789ab",
    "packages": {"vllm": "0.26.0"},
    "server_argv": ("python", "-m", "server"),
    "gpu": "made up",
    "host_cpu": "A processor",
    "host_cpus": 16,
    "host_other_cpu_share": 0.01,
    "dataset_sha256": "0" * 64,
}


REQUEST: dict[str, Any] = {
    "record_id": "0123456789abcdef",
    "index": 0,
    "prompt_id": "0123456789abcdef",
    "scheduled_s": 0.0,
    "sent_s": 0.0,
    "first_token_s": 0.1,
    "last_token_s": 0.4,
    "prompt_tokens": 5,
    "completion_tokens": 3,
    "chunks": 2,
    "chunk_tokens": (1, 2),
    "chunk_gap_us": (300_000,),
    "status": "ok",
    "resent": False,
}


def record(**changes: Any) -> Record:
    """A record, with these fields changed."""
    return Record.model_validate({**RECORD, **changes})


def cell(records: Sequence[Record], requests: Sequence[RequestRow] = ()) -> Cell:
    """A cell of these repeats of one variant at one load."""
    one = records[0]
    table = pa.Table.from_pylist([row.model_dump() for row in requests], schema=REQUESTS_SCHEMA)
    frame: pd.DataFrame = table.to_pandas()
    variant, load = (
        Variant(one.method, one.draft, one.num_speculative_tokens, one.engine_variant),
        Load(one.workload, one.pattern, one.concurrency, one.request_rate),
    )
    return Cell(variant, load, tuple(records), frame)


def repeats(values: Sequence[float], field: str = "output_tokens_per_s", **same: Any) -> Cell:
    """A cell whose repeats have these values in one field."""
    return cell([record(repeat=number, record_id=f"{number:016x}", **{field: value}, **same) for number, value in enumerate(values)])


def request(record_id: str, index: int, **changes: Any) -> RequestRow:
    """A request of three tokens in two chunks, with these fields changed."""
    return RequestRow.model_validate({**REQUEST, "record_id": record_id, "index": index, "prompt_id": f"{index:016x}", **changes})


# Chance that a position is accepted, given that the one before it was: at the first position, and its loss per position.
HEADS = {
    "smollm2-135m-eagle3": (0.72, 0.02),
    "smollm2-135m-eagle3.1": (0.74, 0.005),
    "smollm2-135m-peagle": (0.70, 0.02),
    "smollm2-135m-pruned": (0.60, 0.01),
    None: (0.25, 0.0),
}
METHODS: tuple[dict[str, Any], ...] = (
    {"method": "none"},
    {"method": "ngram", "num_speculative_tokens": 3},
    {"method": "draft_model", "draft": "smollm2-135m-pruned", "num_speculative_tokens": 2},
    {"method": "eagle3", "draft": "smollm2-135m-eagle3", "num_speculative_tokens": 3},
    {"method": "eagle3", "draft": "smollm2-135m-eagle3", "num_speculative_tokens": 5},
    {"method": "eagle3", "draft": "smollm2-135m-eagle3.1", "num_speculative_tokens": 5},
)


def chapter_04(small: bool = False) -> Iterator[tuple[Record, list[RequestRow]]]:
    """Like the H200 profile's: chat at three loads, domains at one, context bands at one."""
    for method in METHODS[: 4 if small else None]:
        for c in (1, 8) if small else (1, 8, 32):
            yield from _cell("04_eagle3", "chat", c, method)
        for workload in () if small else ("humaneval", "gsm8k", "mtbench"):
            yield from _cell("04_eagle3", workload, 8, method)
        for workload in () if small else ("context-256", "context-1k", "context-2k", "context-4k", "context-6k"):
            if method["method"] == "eagle3" and method["num_speculative_tokens"] == 5:
                yield from _cell("04_eagle3", workload, 1, method)


def chapter_05() -> Iterator[tuple[Record, list[RequestRow]]]:
    """EAGLE-3 and P-EAGLE at K = 1 to 8 and seven concurrencies."""
    for c in (1, 2, 4, 8, 16, 32, 64):
        yield from _cell("05_peagle", "chat", c, {"method": "none"})
        for k in range(1, 9):
            yield from _cell("05_peagle", "chat", c, {"method": "eagle3", "draft": "smollm2-135m-eagle3", "num_speculative_tokens": k})
            yield from _cell("05_peagle", "chat", c, {"method": "peagle", "draft": "smollm2-135m-peagle", "num_speculative_tokens": k})


def write(results_dir: Path, made: Iterator[tuple[Record, list[RequestRow]]], profile: str = "h200-smollm2") -> None:
    """Put records and requests where a chapter reads them."""
    pairs = list(made)
    folder, chapter = results_dir / profile, pairs[0][0].chapter
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{chapter}.jsonl").write_text("".join(f"{one.model_copy(update={'profile': profile}).model_dump_json()}\n" for one, _ in pairs))
    with RecordStore.writing(folder, chapter) as store:
        store._add_requests([row for _, rows in pairs for row in rows])


def _cell(chapter: str, workload: str, c: int, method: dict[str, Any]) -> Iterator[tuple[Record, list[RequestRow]]]:
    k, draft = method.get("num_speculative_tokens", 0), method.get("draft")
    first, loss = HEADS[draft]
    if workload.startswith("context-"):
        loss += 0.02 * ("3.1" not in str(draft)) * {"256": 0, "1k": 1, "2k": 2, "4k": 3, "6k": 4}[workload.removeprefix("context-")]
    chances = np.clip(first - loss * np.arange(k), 0, 1)
    curve = np.cumprod(chances) * {"humaneval": 0.95, "gsm8k": 0.93, "mtbench": 0.9}.get(workload, 1.0)
    plain_ms = 2.5 + 0.02 * c
    draft_ms = {"eagle3": 0.35 * k, "peagle": 0.8 + 0.02 * k * c / 8, "draft_model": 1.9 * k}.get(method["method"], 0.0)
    for repeat in range(3):
        rng = np.random.default_rng([repeat, c, k, len(workload), len(draft or "")])
        noise = 1 + 0.004 * rng.standard_normal()
        length = float(1 + curve.sum()) * (1 + 0.002 * rng.standard_normal())
        step_ms = (plain_ms + draft_ms + 0.01 * k * (1 + c / 16)) * noise
        identity = hashlib.sha256(f"{chapter} {workload} {c} {method} {repeat}".encode()).hexdigest()[:16]
        one = record(
            chapter=chapter,
            record_id=identity,
            workload=workload,
            concurrency=c,
            repeat=repeat,
            num_prompts=10 * c,
            completed=10 * c,
            server_argv=("python", "-m", "server", str(method)),
            output_tokens_per_s=1e3 * c * length / step_ms,
            requests_per_s=1e3 * c * length / step_ms / 64,
            ttft_ms_mean=20 + 0.5 * c + (2 if k else 0) + rng.random(),
            ttft_ms_p50=19 + 0.5 * c + (2 if k else 0) + rng.random(),
            tpot_ms_mean=step_ms / length,
            tpot_ms_p50=step_ms / length,
            e2e_ms_mean=20 + 64 * step_ms / length,
            queue_wait_ms_mean=0.1,
            chunk_gap_ms_p99=step_ms * 1.4,
            tokens_per_chunk_mean=length,
            acceptance_length=length if k else None,
            acceptance_rate=(length - 1) / k if k else None,
            acceptance_per_position=tuple(map(float, curve)) if k else None,
            kv_cache_tokens=5_960_000 - (180_000 if k else 0),
            weights_gib=0.26 + (0.03 if "eagle" in str(draft) else 0.2 if draft else 0),
            **method,
        )
        yield one, [_request(one, index, length, step_ms, rng) for index in range(10 * c)]


def _request(one: Record, index: int, length: float, step_ms: float, rng: np.random.Generator) -> RequestRow:
    k = one.num_speculative_tokens or 0
    tokens = [1, *(int(count) for count in np.minimum(1 + rng.poisson(max(0.0, length - 1) if k else 0.0, 40), k + 1))]
    gaps = [int(gap) for gap in 1e3 * step_ms * (1 + 0.3 * rng.random(len(tokens) - 1))]
    first = 0.02 + 0.005 * float(rng.random())
    return request(
        one.record_id,
        index,
        first_token_s=first,
        last_token_s=first + sum(gaps) / 1e6,
        prompt_tokens=int({"context-256": 240, "context-1k": 950, "context-2k": 1900, "context-4k": 3900, "context-6k": 5800}.get(one.workload, 120)),
        completion_tokens=sum(tokens),
        chunks=len(tokens),
        chunk_tokens=tuple(tokens),
        chunk_gap_us=tuple(gaps),
    )
