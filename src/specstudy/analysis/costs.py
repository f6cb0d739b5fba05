"""What speculation costs elsewhere: memory, the first token, the tail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd
from scipy import stats

from specstudy.analysis.cells import Cell, with_baseline
from specstudy.analysis.shares import CHUNK_IS_STEP_WITHIN
from specstudy.analysis.speedup import paired, ratio_of
from specstudy.analysis.stats import CONFIDENCE, Interval, mean_interval
from specstudy.records.schema import P99_NEEDS, Record

CACHE_FLAG = "--kv-cache-memory-bytes"


@dataclass(frozen=True)
class Memory:
    """Memory of a method against the baseline's, as the servers' own logs state it (GiB to two decimals).

    `draft_files_gib` is the size of the draft's weight files. `kv_tokens` is the KV cache. Where both servers were given a
    cache of one size, `cache_gib`, what is lost in tokens is the room of the draft's own keys and values. Else the server
    gives the cache all memory that is left, and weights and buffers come off it too. None where a log says nothing; the
    cache also where its size wasn't given and other servers shared the device.
    """

    cell: Cell
    weights_gib: float
    baseline_weights_gib: float
    draft_files_gib: float | None
    kv_tokens: int | None
    baseline_kv_tokens: int | None
    cache_gib: float | None = None

    @property
    def draft_gib(self) -> float:
        """Weights of the draft in memory, by difference; each side is rounded to 0.01."""
        return self.weights_gib - self.baseline_weights_gib

    @property
    def draft_share(self) -> float:
        """The draft's weights as a fraction of the target's: by its files where they are known, else by difference."""
        return (self.draft_gib if self.draft_files_gib is None else self.draft_files_gib) / self.baseline_weights_gib

    @property
    def kv_share_lost(self) -> float | None:
        """Fraction of the baseline's cache that is gone; negative if it grew."""
        if self.kv_tokens is None or not self.baseline_kv_tokens:
            return None
        return 1 - self.kv_tokens / self.baseline_kv_tokens

    @property
    def draft_kv_gib(self) -> float | None:
        """Room that the draft's keys and values take in a full cache of one size; None for another kind of cache."""
        return None if self.cache_gib is None or self.kv_share_lost is None else self.cache_gib * self.kv_share_lost


def memory(cells: Sequence[Cell]) -> list[Memory]:
    """One for each variant with speculation; every cell of a variant has the same server, so its first cell tells."""
    found: dict[object, Memory] = {}
    for cell, baseline in with_baseline(cells):
        if cell.variant in found:
            continue
        ours, theirs = cell.records[-1], baseline.records[-1]
        if ours.weights_gib and theirs.weights_gib:
            size = _given_cache_gib(ours)
            same = size is not None and size == _given_cache_gib(theirs)
            clear = same or not (ours.idle_neighbours or theirs.idle_neighbours)
            caches = (ours.kv_cache_tokens, theirs.kv_cache_tokens) if clear else (None, None)
            found[cell.variant] = Memory(cell, ours.weights_gib, theirs.weights_gib, ours.draft_weights_gib, *caches, cache_gib=size if same else None)
    return list(found.values())


def _given_cache_gib(record: Record) -> float | None:
    flags = dict(pairwise(record.server_argv))
    return _size_bytes(flags[CACHE_FLAG]) / 2**30 if CACHE_FLAG in flags else None


def _size_bytes(given: str) -> float:
    """A size as vLLM's command line takes it: 4294967296, or 4.2g in powers of 1,000, or 4G in powers of 1,024. Raises ValueError."""
    powers = {"k": 1, "m": 2, "g": 3, "t": 4}
    unit = given[-1:]
    if unit.lower() not in powers:
        return int(given)
    return float(given[:-1]) * (1e3 if unit.islower() else 1024.0) ** powers[unit.lower()]


@dataclass(frozen=True)
class LatencyChange:
    """Latencies of a method over the baseline's at the same load, as ratios with 95 % intervals; None where not measurable.

    `ttft_p50`, `chunk_gap_p99`: paired by repeat. `tpot_p99`, `e2e_p99`: of the requests of all repeats, see `p99_ratio`. There is no
    `chunk_gap_p99` where the baseline's chunks hold more than a step's one token: those were merged, and the pause between them is no step.
    """

    cell: Cell
    baseline: Cell
    ttft_ms: Interval | None
    ttft_p50: Interval | None
    tpot_p99: Interval | None
    e2e_p99: Interval | None
    chunk_gap_p99: Interval | None


def latency_changes(cells: Sequence[Cell]) -> list[LatencyChange]:
    """One for each cell with a method whose load has a baseline; `ttft_ms` is the change of the median in milliseconds."""
    found = []
    for cell, baseline in with_baseline(cells):
        pairs = paired(cell, baseline, "ttft_ms_p50")
        found.append(
            LatencyChange(
                cell,
                baseline,
                ttft_ms=mean_interval([a - b for a, b in zip(*pairs, strict=True)]) if pairs else None,
                ttft_p50=ratio_of(cell, baseline, "ttft_ms_p50"),
                tpot_p99=p99_ratio(cell, baseline, "tpot_ms"),
                e2e_p99=p99_ratio(cell, baseline, "e2e_ms"),
                chunk_gap_p99=None if merged(baseline) else ratio_of(cell, baseline, "chunk_gap_ms_p99"),
            )
        )
    return found


def merged(cell: Cell) -> bool:
    """Whether a server without speculation, which makes one token a step, had its chunks merged before they were read; of a method that can't be told."""
    carried = cell.interval("tokens_per_chunk_mean")
    return cell.variant.method == "none" and carried is not None and carried.estimate - 1 > CHUNK_IS_STEP_WITHIN


def p99_ratio(cell: Cell, baseline: Cell, metric: str) -> Interval | None:
    """99th percentile of `metric` (ttft_ms, tpot_ms, e2e_ms) over the baseline's; None under 300 requests that both have.

    Requests are joined by repeat and place in the load, which is the same prompt. Those of one repeat aren't independent, they share batches
    and the state of the machine, so the interval is over repeats, `n` their number: the delete-one-repeat jackknife of the ratio's logarithm
    (Efron and Tibshirani, An introduction to the bootstrap, 1993, chapter 11) with Student's t of n - 1 degrees of freedom. nan for one repeat.
    """
    joined = pd.concat([_requests(cell, metric), _requests(baseline, metric)], axis=1, join="inner").dropna()
    if len(joined) < P99_NEEDS:
        return None

    def log_ratio(pairs: pd.DataFrame) -> float:
        above, below = (float(np.percentile(pairs.iloc[:, side], 99)) for side in (0, 1))
        return float(np.log(above / below))

    whole, repeats = log_ratio(joined), joined.index.unique("repeat")
    n = len(repeats)
    if n == 1:
        return Interval(float(np.exp(whole)), float("nan"), float("nan"), 1)
    without = np.array([log_ratio(joined.drop(index=repeat, level="repeat")) for repeat in repeats])
    error = float(np.sqrt((n - 1) / n * ((without - without.mean()) ** 2).sum()))
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)) * error
    return Interval(float(np.exp(whole)), float(np.exp(whole - half)), float(np.exp(whole + half)), n)


def _requests(cell: Cell, metric: str) -> pd.Series[float]:
    repeats = {record.record_id: record.repeat for record in cell.records}
    keys = pd.MultiIndex.from_arrays([cell.requests["record_id"].map(repeats), cell.requests["index"]], names=["repeat", "index"])
    return pd.Series(cell.pooled[metric].to_numpy(), index=keys)


@dataclass(frozen=True)
class Rejection:
    """The tail that rejection makes, from the chunks of one cell after the first of each answer; times in ms.

    `repeats`: those whose chunks were kept. A repository keeps few of them, for their size.
    `single` is the share of chunks with one token: in a step with a draft, all of it was rejected. Their pause is set beside
    that of fuller chunks. `per_token_p99` is the 99th percentile of the pause divided by the tokens that it brought.
    """

    cell: Cell
    repeats: int
    chunks: int
    single: float
    single_gap_p50: float | None
    fuller_gap_p50: float | None
    gap_p99: float
    per_token_p99: float


def rejections(cells: Sequence[Cell]) -> list[Rejection]:
    """One for each cell with at least 300 such chunks, the baseline's too."""
    found = []
    for cell in cells:
        tokens, gaps = _chunks(cell)
        if len(gaps) < P99_NEEDS:
            continue
        alone = tokens == 1
        single_p50, fuller_p50 = (float(np.median(gaps[which])) if which.any() else None for which in (alone, ~alone))
        p99, per_token = float(np.percentile(gaps, 99)), float(np.percentile(gaps / tokens, 99))
        found.append(Rejection(cell, _repeats_with_chunks(cell), len(gaps), float(alone.mean()), single_p50, fuller_p50, p99, per_token))
    return found


def _repeats_with_chunks(cell: Cell) -> int:
    kept = cell.requests["chunk_gap_us"].map(len) > 0
    return int(cell.requests["record_id"][kept].nunique())


def _chunks(cell: Cell) -> tuple[np.ndarray, np.ndarray]:
    """(tokens, pause before in ms) of every chunk with a token but the first of its answer."""
    tokens = [np.asarray(counts)[1:] for counts in cell.requests["chunk_tokens"]]
    gaps = [np.asarray(pauses) for pauses in cell.requests["chunk_gap_us"]]
    whole = [(count, pause) for count, pause in zip(tokens, gaps, strict=True) if len(count) == len(pause) and len(pause)]
    if not whole:
        return np.array([]), np.array([])
    counted, paused = np.concatenate([count for count, _ in whole]), np.concatenate([pause for _, pause in whole]) / 1e3
    carrying = counted > 0
    return counted[carrying], paused[carrying]
