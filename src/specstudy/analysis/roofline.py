"""The least time that a decode step can take on a machine: bytes over bandwidth, operations over the matrix rate, whichever is more.

Counted for a step: weights read once, keys and values of every sequence, products with the weights and of attention. Left out, and so
making the limit lower than what any engine reaches: activations, logits, sampling, norms and the launch of kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from specstudy.analysis.weights import PRECISIONS, Precision, Weights, attended_tokens, kv_bytes_per_token, kv_read_bytes, weights_of
from specstudy.catalog.shapes import Shape
from specstudy.records.machine import MachineLimits
from specstudy.records.schema import Method

MOST_SEQUENCES = 4096
PARALLEL = frozenset({"peagle", "dflash"})  # all K tokens in one pass of the draft
Bound = Literal["weights", "KV cache", "matrix products"]


@dataclass(frozen=True)
class Work:
    """What a pass moves and computes, in bytes and operations (a multiply-add is two)."""

    weight_bytes: float
    kv_bytes: float
    quantized_flop: float
    bf16_flop: float


@dataclass(frozen=True)
class PassTime:
    """The least time of a pass in seconds, by part. Memory and products overlap at best, so the longer of the two counts."""

    weights_s: float
    kv_s: float
    products_s: float

    @property
    def memory_s(self) -> float:
        """Weights and cache come over the same bus."""
        return self.weights_s + self.kv_s

    @property
    def total_s(self) -> float:
        """The longer one."""
        return max(self.memory_s, self.products_s)

    @property
    def bound(self) -> Bound:
        """What takes it."""
        if self.products_s >= self.memory_s:
            return "matrix products"
        return "weights" if self.weights_s >= self.kv_s else "KV cache"


@dataclass(frozen=True)
class StepLimit:
    """The least time of a whole step: the target's pass over `tokens` tokens, then the draft's passes one after the other."""

    tokens: int
    target: PassTime
    draft: tuple[PassTime, ...] = ()

    @property
    def total_s(self) -> float:
        """Seconds."""
        return self.target.total_s + self.draft_s

    @property
    def draft_s(self) -> float:
        """Seconds of the draft's passes."""
        return sum(one.total_s for one in self.draft)


@dataclass(frozen=True)
class Server:
    """What a step's time depends on, apart from the load: the target, how it is stored, the method with its draft and K."""

    shape: Shape
    precision: Precision
    kv_bits: float = 16
    method: Method = "none"
    draft: Shape | None = None
    k: int = 0


def work_of(shape: Shape, precision: Precision, sequences: int, tokens_each: int, context: float, kv_bits: float = 16, *, with_fc: bool = False) -> Work:
    """One pass over `tokens_each` tokens of each of `sequences` sequences that have `context` tokens behind them."""
    weights, arch = weights_of(shape), shape.architecture
    tokens = sequences * tokens_each
    fc = weights.fc if with_fc else 0
    attention = 4 * arch.num_attention_heads * arch.head_dim * attended_tokens(arch, context) * tokens
    return Work(
        weight_bytes=weights.read_bytes(precision, tokens) + fc * precision.rest_bits / 8,
        kv_bytes=sequences * kv_read_bytes(arch, context, kv_bits) + tokens * kv_bytes_per_token(arch, kv_bits),
        quantized_flop=2 * tokens * _quantized(weights),
        bf16_flop=2 * tokens * (weights.lm_head + fc) + attention,
    )


def _quantized(weights: Weights) -> int:
    return weights.linear + weights.layers * weights.experts_per_token * weights.expert


def pass_time(work: Work, precision: Precision, limits: MachineLimits) -> PassTime:
    """The least time of a pass on a machine with these limits."""
    rate = limits.fp8_limit if precision.rate == "fp8" else limits.bf16_limit
    return PassTime(
        weights_s=work.weight_bytes / limits.bandwidth,
        kv_s=work.kv_bytes / limits.bandwidth,
        products_s=work.quantized_flop / rate + work.bf16_flop / limits.bf16_limit,
    )


def step_limit(server: Server, limits: MachineLimits, sequences: int, context: float) -> StepLimit:
    """The least time of a step with `sequences` sequences of `context` tokens each."""
    work = work_of(server.shape, server.precision, sequences, server.k + 1, context, server.kv_bits)
    target = pass_time(work, server.precision, limits)
    return StepLimit(sequences * (server.k + 1), target, _draft_passes(server, limits, sequences, context))


def _draft_passes(server: Server, limits: MachineLimits, sequences: int, context: float) -> tuple[PassTime, ...]:
    """EAGLE-3 and a draft model: K passes, one token of each sequence in each; P-EAGLE and DFlash: one over all K; ngram: none.

    A head joins the target's hidden states (fc) in its first pass alone; later ones go on from its own state. A draft isn't quantized: its
    weights have the data type of the target's activations.
    """
    if server.draft is None or not server.k:
        return ()
    precision = PRECISIONS["float32" if server.precision.rest_bits == 32 else "bf16"]

    def one(tokens_each: int, first: bool) -> PassTime:
        assert server.draft is not None
        return pass_time(work_of(server.draft, precision, sequences, tokens_each, context, server.kv_bits, with_fc=first), precision, limits)

    if server.method in PARALLEL:
        return (one(server.k, True),)
    return tuple(one(1, number == 0) for number in range(server.k))


def turning_point(server: Server, limits: MachineLimits, context: float) -> int | None:
    """The fewest sequences with which the target's pass is bound by matrix products; None if that needs more than 4,096.

    Below it a step costs the same for one token of a sequence as for K + 1; above it every drafted token has its price. In
    tokens it is this times K + 1. Keys and values grow with the sequences too, so with a long context the point may never come.
    """

    def by_products(sequences: int) -> bool:
        return step_limit(server, limits, sequences, context).target.bound == "matrix products"

    low, high = 1, MOST_SEQUENCES
    if not by_products(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if by_products(middle) else (middle + 1, high)
    return low
