"""What the latency metrics read: one request's times, in seconds on one clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Timeline:
    """A request that ended well.

    due_s: scheduled arrival, in a closed loop the send. chunk_s: when each chunk that carries a token came.
    chunk_tokens: tokens in each. completion_tokens: the answer's length, from `usage`.
    """

    due_s: float
    chunk_s: Sequence[float]
    chunk_tokens: Sequence[int]
    completion_tokens: int
