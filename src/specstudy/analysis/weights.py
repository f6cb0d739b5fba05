"""Parameters and bytes of a model, from its architecture and how its weights are stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from specstudy.catalog.shapes import Architecture, Shape

Rate = Literal["bf16", "fp8"]


@dataclass(frozen=True)
class Precision:
    """How weights are stored, in bits an element with their scales, and at which rate their products run.

    `linear_bits`: attention and dense feed-forward. `expert_bits`: experts. `rest_bits`: embedding, lm_head, norms, router and
    biases, which the usual checkpoints leave as they are.
    """

    name: str
    linear_bits: float
    expert_bits: float
    rest_bits: float = 16
    rate: Rate = "bf16"


# AWQ: 4 bits, and for each group of 128 a scale of 16 and a zero point of 4. MXFP4: 4 bits, and for each 32 a scale of 8
# (Open Compute Project, Microscaling formats 1.0). The scales of FP8, one for a tensor or a row, don't count.
AWQ_BITS = 4 + (16 + 4) / 128
PRECISIONS = {
    "float32": Precision("float32", 32, 32, rest_bits=32),
    "bf16": Precision("bf16", 16, 16),
    "fp8": Precision("fp8", 8, 8, rate="fp8"),
    "fp8-marlin": Precision("fp8-marlin", 8, 8),  # weights alone: they are widened in the kernel and multiplied in bfloat16
    "awq": Precision("awq", AWQ_BITS, AWQ_BITS),
    "mxfp4": Precision("mxfp4", 16, 4.25),  # as GPT-OSS is published: the experts alone
}


@dataclass(frozen=True)
class Weights:
    """Parameters by what becomes of them in a pass. `expert` and `expert_bias` are one expert's in one layer; the others whole."""

    layers: int
    linear: int
    expert: int
    expert_bias: int
    experts: int
    experts_per_token: int
    other: int
    fc: int
    embedding: int
    lm_head: int

    @property
    def total(self) -> int:
        """All of them; a head's without the embedding that it shares with its target."""
        return self._without_experts + self.layers * self.experts * (self.expert + self.expert_bias) + self.embedding

    @property
    def active(self) -> int:
        """Those that one token is multiplied with: the embedding is looked up, so it isn't among them."""
        return self._without_experts + self.layers * self.experts_per_token * (self.expert + self.expert_bias)

    @property
    def _without_experts(self) -> int:
        return self.linear + self.other + self.fc + self.lm_head

    def size_bytes(self, precision: Precision) -> float:
        """Of all weights in memory."""
        experts = self.layers * self.experts
        quantized = self.linear * precision.linear_bits + experts * self.expert * precision.expert_bits
        rest = experts * self.expert_bias + self.other + self.fc + self.embedding + self.lm_head
        return (quantized + rest * precision.rest_bits) / 8

    def distinct_experts(self, tokens: int) -> float:
        """Expected number of experts of a layer that a pass over `tokens` tokens touches.

        Each token is taken to choose its experts evenly and independently of the others: E (1 - (1 - k/E)^tokens). A trained
        router prefers some, and tokens of one text are alike, so it touches fewer. 0 without experts.
        """
        if not self.experts:
            return 0.0
        return self.experts * (1 - (1 - self.experts_per_token / self.experts) ** tokens)

    def read_bytes(self, precision: Precision, tokens: int) -> float:
        """Read in one pass over `tokens` tokens: everything but the embedding and the experts that nobody chose; fc apart."""
        experts = self.layers * self.distinct_experts(tokens)
        quantized = self.linear * precision.linear_bits + experts * self.expert * precision.expert_bits
        return (quantized + (experts * self.expert_bias + self.other + self.lm_head) * precision.rest_bits) / 8


def weights_of(shape: Shape) -> Weights:
    """Count them. A head's first layer reads the token's embedding beside the hidden state, so it has twice the inputs.

    Biases are counted where the architecture has `attention_bias`; with experts also theirs, the router's and the attention
    sinks, as GPT-OSS has all of these.
    """
    arch, head = shape.architecture, shape.kind == "head"
    h, layers = arch.hidden_size, arch.num_hidden_layers
    queries, keys = arch.num_attention_heads * arch.head_dim, arch.num_key_value_heads * arch.head_dim
    inputs = h * layers + (h if head else 0)
    attention = inputs * (queries + 2 * keys) + layers * queries * h
    experts = arch.num_local_experts or 0
    feed_forward = 3 * h * arch.intermediate_size
    other = layers * (2 * h + _biases(arch)) + h + (h if head else 0)
    rows = arch.draft_vocab_size or arch.vocab_size
    return Weights(
        layers=layers,
        linear=attention + (0 if experts else layers * feed_forward),
        expert=feed_forward if experts else 0,
        expert_bias=2 * arch.intermediate_size + h if experts and arch.attention_bias else 0,
        experts=experts,
        experts_per_token=arch.num_experts_per_tok or 0,
        other=other,
        fc=(shape.hidden_states_read or 0) * h * h,
        embedding=0 if head or arch.tie_word_embeddings else h * arch.vocab_size,
        lm_head=h * rows,
    )


def _biases(arch: Architecture) -> int:
    """Of one layer, with the router's weights."""
    queries, keys = arch.num_attention_heads * arch.head_dim, arch.num_key_value_heads * arch.head_dim
    experts = arch.num_local_experts or 0
    router = arch.hidden_size * experts
    if not arch.attention_bias:
        return router
    sinks = arch.num_attention_heads if experts else 0
    return router + (experts + sinks) + queries + 2 * keys + arch.hidden_size


def kv_bytes_per_token(arch: Architecture, bits: float = 16) -> float:
    """Keys and values of one token in every layer; with sliding windows a long context keeps fewer, see `kv_read_bytes`."""
    return arch.num_hidden_layers * 2 * arch.num_key_value_heads * arch.head_dim * bits / 8


def attended_tokens(arch: Architecture, context: float) -> float:
    """Tokens that one query looks at, summed over the layers: a layer with a sliding window looks at that many at most."""
    kinds = arch.layer_types or ("full_attention",) * arch.num_hidden_layers
    window = arch.sliding_window or context
    return sum(min(context, window) if kind == "sliding_attention" else context for kind in kinds)


def kv_read_bytes(arch: Architecture, context: float, bits: float = 16) -> float:
    """Keys and values that one sequence of `context` tokens reads in a pass; its K + 1 queries share one reading."""
    return attended_tokens(arch, context) * 2 * arch.num_key_value_heads * arch.head_dim * bits / 8
