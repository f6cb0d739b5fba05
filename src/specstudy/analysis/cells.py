"""Records and requests grouped into cells: what the tables and figures are made from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

import numpy as np
import pandas as pd
import pyarrow as pa

from specstudy.analysis.stats import Interval, mean_interval
from specstudy.records.provenance import without_port
from specstudy.records.schema import P99_NEEDS, Method, Record


@dataclass(frozen=True)
class Variant:
    """What is served: the baseline, or a method with its draft and K."""

    method: Method
    draft: str | None
    num_speculative_tokens: int | None
    engine_variant: str | None = None

    @property
    def label(self) -> str:
        """Like baseline, ngram K=3, or the draft's name with K; the engine's variant first if it has one."""
        if self.method == "none":
            return self.engine_variant or "baseline"
        method = f"{self.draft or self.method} K={self.num_speculative_tokens}"
        return method if self.engine_variant is None else f"{self.engine_variant}, {method}"


@dataclass(frozen=True)
class Load:
    """How it is loaded."""

    workload: str
    pattern: str
    concurrency: int | None
    request_rate: float | None

    @property
    def order(self) -> tuple[str, int, float]:
        """To sort by: workload, then concurrency or rate."""
        return self.workload, self.concurrency or 0, self.request_rate or 0.0

    @property
    def label(self) -> str:
        """Like chat c=8 or chat 2/s."""
        amount = f"c={self.concurrency}" if self.concurrency is not None else f"{self.request_rate:.3g}/s"
        return f"{self.workload} {amount}"


@dataclass(frozen=True)
class Cell:
    """The good repeats of one variant at one load, in one allocation.

    `gpu_number` counts the GPUs of a host where several were measured side by side; None otherwise.
    """

    variant: Variant
    load: Load
    records: tuple[Record, ...]
    requests: pd.DataFrame
    gpu_number: int | None = None

    @property
    def allocation(self) -> str:
        """Of its records."""
        return self.records[0].allocation

    @property
    def label(self) -> str:
        """The variant's, with the GPU where there are several."""
        return self.variant.label if self.gpu_number is None else f"{self.variant.label} (GPU {self.gpu_number})"

    def interval(self, field: str) -> Interval | None:
        """Mean over repeats of a record's field with its 95 % interval; None if no repeat has it."""
        values = [float(value) for record in self.records if (value := getattr(record, field)) is not None]
        return mean_interval(values) if values else None

    @cached_property
    def pooled(self) -> pd.DataFrame:
        """One row per request of all repeats: ttft_ms, tpot_ms, e2e_ms."""
        rows = self.requests
        due = rows["scheduled_s"]
        steps = (rows["completion_tokens"] - 1).where(rows["completion_tokens"] > 1)
        return pd.DataFrame(
            {
                "ttft_ms": (rows["first_token_s"] - due) * 1e3,
                "tpot_ms": (rows["last_token_s"] - rows["first_token_s"]) * 1e3 / steps,
                "e2e_ms": (rows["last_token_s"] - due) * 1e3,
            }
        )

    def percentile(self, metric: str, q: float) -> float | None:
        """Percentile over the pooled requests; None for p99 from under 300 values."""
        values = self.pooled[metric].dropna().to_numpy()
        if len(values) == 0 or (q >= 99 and len(values) < P99_NEEDS):
            return None
        return float(np.percentile(values, q))


def group(records: Sequence[Record], requests: pa.Table) -> list[Cell]:
    """Cells of the newest allocation, baseline first, then by load.

    Some allocations are taken together, see `taken_together`: a method comes from the newest of them that has it, and the
    baseline from each that a method comes from. What `comparable` leaves out is left out,
    and so are repeats that were made under another configuration than the cell's newest record.
    """
    good = comparable(records)
    together = list(dict.fromkeys(record.allocation for record in sorted(good, key=_when)))
    by_key: dict[tuple[Variant, Load], dict[str, list[Record]]] = {}
    for record in good:
        by_key.setdefault((variant_of(record), load_of(record)), {}).setdefault(record.allocation, []).append(record)
    chosen = {key: _newest(found) for key, found in by_key.items()}
    wanted = {allocation for (variant, _), allocation in chosen.items() if variant.method != "none"}
    frame = requests.to_pandas()
    cells = []
    for (variant, load), found in by_key.items():
        for allocation, members in found.items():
            if allocation == chosen[variant, load] if variant.method != "none" or not wanted else allocation in wanted:
                kept = _same_configuration(members)
                ids = {record.record_id for record in kept}
                number = together.index(allocation) + 1 if len(wanted) > 1 else None
                cells.append(Cell(variant, load, kept, frame[frame["record_id"].isin(ids) & (frame["status"] == "ok")], number))
    return sorted(cells, key=_order)


def comparable(records: Iterable[Record]) -> list[Record]:
    """The good records that may stand in one table: of the newest one's kind of evidence and allocation, see `taken_together`, and of one draft a name.

    A head that is trained further keeps its name. Of two of one name the one that was measured last is kept: a curve over K or
    over loads that is drawn from both belongs to neither.
    """
    good = [record for record in records if record.status == "ok"]
    if not good:
        return []
    kind = max(good, key=_when).evidence
    good = [record for record in good if record.evidence == kind]
    together = set(taken_together(good))
    good = [record for record in good if record.allocation in together]
    newest = {record.draft: record.draft_folder for record in sorted(good, key=_when)}
    return [record for record in good if record.draft_folder == newest[record.draft]]


def _when(record: Record) -> datetime:
    return record.started_at


def _newest(found: Mapping[str, Sequence[Record]]) -> str:
    """The allocation with the newest record."""
    return max((record.started_at, name) for name, own in found.items() for record in own)[1]


def side_by_side(records: Sequence[Record]) -> list[str]:
    """The newest allocation and those that were measured at the same time on the same kind of machine, in the order of their beginning.

    An allocation is a host's GPUs that a run could use; a host with several can be measured by several runs at once, each with
    a baseline of its own.
    """
    if not records:
        return []
    spans: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.started_at):
        spans.setdefault(record.allocation, []).append(record)
    newest = max(records, key=lambda record: record.started_at)
    first = spans[newest.allocation][0].started_at
    return [name for name, own in spans.items() if own[-1].started_at >= first and _machine(own[-1]) == _machine(newest)]


def taken_together(records: Sequence[Record]) -> list[str]:
    """Those of `side_by_side`, and earlier ones of the same kind of machine that hold other loads of the same servers, in the order of their beginning.

    So a chapter may be measured in parts, load by load: whatever is compared at a load was measured in one allocation. One that shares a load with a
    newer one is left out whole, and so is one whose servers differ: another engine, package, flag or draft.
    """
    together = side_by_side(records)
    mine = [record for record in records if record.allocation in together]
    loads, served = {load_of(record) for record in mine}, _served(mine)
    machine = {_machine(record) for record in mine}
    earlier: dict[str, list[Record]] = {}
    for record in sorted(records, key=_when, reverse=True):
        if record.allocation not in together:
            earlier.setdefault(record.allocation, []).append(record)
    for name, own in earlier.items():
        others, theirs = {load_of(record) for record in own}, _served(own)
        if others.isdisjoint(loads) and {_machine(record) for record in own} <= machine and all(served.get(key, how) == how for key, how in theirs.items()):
            together.append(name)
            loads, served = loads | others, {**theirs, **served}
    begun = {name: min(record.started_at for record in records if record.allocation == name) for name in together}
    return sorted(together, key=lambda name: begun[name])


def _machine(record: Record) -> tuple[object, ...]:
    return record.gpu, record.host_cpu, record.host_cpus, record.engine_version


def _served(records: Iterable[Record]) -> dict[Variant, tuple[object, ...]]:
    """How each variant was served last, whatever the load."""
    return {variant_of(record): _serving(record) for record in sorted(records, key=_when)}


def variant_of(record: Record) -> Variant:
    """What a record's server served."""
    return Variant(record.method, record.draft, record.num_speculative_tokens, record.engine_variant)


def load_of(record: Record) -> Load:
    """How a record's server was loaded."""
    return Load(record.workload, record.pattern, record.concurrency, record.request_rate)


def _same_configuration(records: Iterable[Record]) -> tuple[Record, ...]:
    in_time = sorted(records, key=lambda record: record.started_at)
    wanted = _configuration(in_time[-1])
    same = {record.repeat: record for record in in_time if _configuration(record) == wanted}
    return tuple(same[repeat] for repeat in sorted(same))


def _configuration(record: Record) -> tuple[object, ...]:
    return (*_serving(record), record.num_prompts, record.max_tokens, record.temperature, record.dataset_sha256)


def _serving(record: Record) -> tuple[object, ...]:
    what = record.evidence, record.target, record.engine_version, record.quantization, record.dtype, record.kv_cache_dtype
    return (without_port(record.server_argv), record.server_env, tuple(sorted(record.packages.items())), *what)


def _order(cell: Cell) -> tuple[object, ...]:
    variant, load = cell.variant, cell.load
    return (
        variant.method != "none",
        variant.method,
        variant.draft or "",
        variant.num_speculative_tokens or 0,
        variant.engine_variant or "",
        *load.order,
        cell.gpu_number or 0,
    )


def baseline_of(cell: Cell, cells: Sequence[Cell]) -> Cell | None:
    """The cell without speculation at the same load, served the same way in the same allocation; None if it wasn't measured."""
    wanted = cell.load, cell.allocation, cell.variant.engine_variant
    return next((one for one in cells if one.variant.method == "none" and (one.load, one.allocation, one.variant.engine_variant) == wanted), None)


def with_baseline(cells: Sequence[Cell]) -> Iterator[tuple[Cell, Cell]]:
    """(cell, its baseline) of each cell with a method whose baseline was measured."""
    for cell in cells:
        baseline = baseline_of(cell, cells)
        if cell.variant.method != "none" and baseline is not None:
            yield cell, baseline
