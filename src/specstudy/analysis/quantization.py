"""What quantization saves and costs: memory by arithmetic, speed by variant of the engine, quality of the small model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy import stats

from specstudy.analysis.cells import Cell, Load
from specstudy.analysis.families import loads
from specstudy.analysis.speedup import Speedup, against
from specstudy.analysis.stats import CONFIDENCE, Interval
from specstudy.analysis.weights import PRECISIONS, Precision, kv_bytes_per_token, weights_of
from specstudy.catalog.shapes import Shape
from specstudy.records.quality import Quality, Scores

RESAMPLES = 999
REFERENCE = "fp8"
MIB = 2**20


@dataclass(frozen=True)
class Card:
    """A GPU by its name and the memory that its driver reports, in MiB."""

    name: str
    memory_mib: int

    @property
    def memory_bytes(self) -> int:
        """The same in bytes."""
        return self.memory_mib * MIB


# As nvidia-smi prints them for the SXM cards.
H200 = Card("H200", 143_771)
H100 = Card("H100 80 GB", 81_559)


@dataclass(frozen=True)
class Headroom:
    """What a card has left beside a model's weights, at most: activations, graphs and the runtime's own memory come off it too."""

    card: Card
    precision: Precision
    weights_bytes: float
    kv_bytes_per_token: float

    @property
    def left_bytes(self) -> float:
        """Negative where the weights alone don't fit."""
        return self.card.memory_bytes - self.weights_bytes

    @property
    def fits(self) -> bool:
        """Whether the weights and the cache of at least one token fit."""
        return self.left_bytes >= self.kv_bytes_per_token

    @property
    def kv_tokens(self) -> int:
        """Tokens of KV cache that the rest would hold; 0 where nothing is left."""
        return max(0, int(self.left_bytes // self.kv_bytes_per_token))

    @property
    def cards_needed(self) -> int:
        """The fewest of these cards that hold the weights, split evenly."""
        return math.ceil(self.weights_bytes / self.card.memory_bytes)


def headroom(shape: Shape, names: Sequence[str], cards: Sequence[Card]) -> list[Headroom]:
    """One for each card and precision, keys and values in 16 bits."""
    weights, kv = weights_of(shape), kv_bytes_per_token(shape.architecture)
    return [Headroom(card, PRECISIONS[name], weights.size_bytes(PRECISIONS[name]), kv) for card in cards for name in names]


def variants(cells: Sequence[Cell]) -> list[str]:
    """The engine's variants that were measured, in the order in which they were."""
    in_time = sorted(cells, key=lambda cell: cell.records[0].started_at)
    return list(dict.fromkeys(cell.variant.engine_variant for cell in in_time if cell.variant.engine_variant is not None))


def of_variant(cells: Sequence[Cell], name: str) -> list[Cell]:
    """The cells of one variant, without speculation, by load."""
    own = [cell for cell in cells if cell.variant.engine_variant == name and cell.variant.method == "none"]
    return sorted(own, key=lambda cell: cell.load.order)


def over_reference(cells: Sequence[Cell], reference: str) -> list[Speedup]:
    """Throughput of every other variant over the reference's at the same load, in the same allocation, paired by repeat."""
    base: dict[Load, Cell] = {cell.load: cell for cell in of_variant(cells, reference)}
    others = [cell for name in variants(cells) if name != reference for cell in of_variant(cells, name)]
    found = (against(cell, base[cell.load]) for cell in others if cell.load in base)
    return [one for one in found if one is not None]


def reference_of(cells: Sequence[Cell]) -> str | None:
    """The variant that the others are compared with: fp8, which vLLM itself chooses on Hopper, else the first that was measured; None without any."""
    names = variants(cells)
    return REFERENCE if REFERENCE in names else next(iter(names), None)


@dataclass(frozen=True)
class Fastest:
    """The variant with most tokens/s at a load, and every other one there over it, the nearest first."""

    cell: Cell
    others: tuple[Speedup, ...]

    @property
    def ties(self) -> list[Speedup]:
        """Those that aren't told apart from it."""
        return [one for one in self.others if one.verdict not in ("faster", "slower")]


def fastest_at(cells: Sequence[Cell]) -> list[Fastest]:
    """One for each load, without speculation, in the order of the loads."""
    plain = [cell for name in variants(cells) for cell in of_variant(cells, name)]
    found = []
    for load in loads(plain):
        own = [(interval.estimate, cell) for cell in plain if cell.load == load and (interval := cell.interval("output_tokens_per_s"))]
        ranked = [cell for _, cell in sorted(own, key=lambda one: -one[0])]
        if ranked:
            beside = (against(cell, ranked[0]) for cell in ranked[1:])
            found.append(Fastest(ranked[0], tuple(one for one in beside if one is not None)))
    return found


@dataclass(frozen=True)
class QualityRow:
    """One form of a model; intervals are 95 %, by resampling texts (percentile bootstrap). None for the unquantized model."""

    scores: Scores
    perplexity: Interval
    perplexity_ratio: Interval | None
    agreement: Interval
    same_answers: int
    answers: int


def quality_rows(quality: Quality) -> list[QualityRow]:
    """The unquantized model first."""
    tokens, answers = np.array(quality.scored_tokens, float), np.array(quality.answer_tokens, float)
    base, n = np.array(quality.base.nll), len(tokens)
    rows = []
    for one in quality.models:
        nll, agreed = np.array(one.nll), np.array(one.agreed, float)
        same = sum(until == whole for until, whole in zip(one.same_until, quality.answer_tokens, strict=True))
        ratio = None if one is quality.base else _resampled(partial(_perplexity_ratio, nll, base, tokens), n)
        agreement = _resampled(partial(_share, agreed, answers), n)
        rows.append(QualityRow(one, _resampled(partial(_perplexity, nll, tokens), n), ratio, agreement, same, n))
    return rows


def _perplexity(nll: np.ndarray, tokens: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """e to the mean nats of a token of these texts; shape of `texts` without its last axis."""
    return np.asarray(np.exp(_share(nll, tokens, texts)))


def _perplexity_ratio(nll: np.ndarray, base: np.ndarray, tokens: np.ndarray, texts: np.ndarray) -> np.ndarray:
    return np.asarray(_perplexity(nll, tokens, texts) / _perplexity(base, tokens, texts))


def _share(above: np.ndarray, below: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """Sum over sum: each token counts the same, whatever its text's length."""
    return np.asarray(above[texts].sum(-1) / below[texts].sum(-1))


def _resampled(statistic: Callable[[np.ndarray], np.ndarray], n: int) -> Interval:
    """A statistic of texts, given their indices, with its percentile interval over resamples of the texts."""

    def of(indices: np.ndarray, axis: int = -1) -> np.ndarray:
        return statistic(indices.astype(int))

    done = stats.bootstrap(
        (np.arange(n),), of, vectorized=True, n_resamples=RESAMPLES, confidence_level=CONFIDENCE, method="percentile", rng=np.random.default_rng(0)
    )
    bounds = done.confidence_interval
    return Interval(float(statistic(np.arange(n))), float(bounds.low), float(bounds.high), n)
