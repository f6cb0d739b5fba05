"""vLLM's counters, read before and after a load on a server that nothing else uses."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException

from prometheus_client.parser import text_string_to_metric_families

from specstudy.errors import MetricsResetError, MetricsUnavailableError
from specstudy.serving.local import get

QUEUE = "vllm:request_queue_time_seconds"
SETTLE_S = 5.0


@dataclass(frozen=True)
class Counters:
    """One reading, or the difference of two; summed over engines."""

    requests_finished: float
    generation_tokens: float
    queue_sum_s: float
    queue_count: float
    queue_buckets: Mapping[float, float]
    drafts: float | None
    draft_tokens: float | None
    accepted_tokens: float | None
    accepted_per_position: tuple[float, ...]

    def since(self, before: Counters) -> Counters:
        """What was counted since `before`. Raises MetricsResetError if anything went backwards."""
        change = Counters(
            requests_finished=self.requests_finished - before.requests_finished,
            generation_tokens=self.generation_tokens - before.generation_tokens,
            queue_sum_s=self.queue_sum_s - before.queue_sum_s,
            queue_count=self.queue_count - before.queue_count,
            queue_buckets={le: count - before.queue_buckets.get(le, 0.0) for le, count in self.queue_buckets.items()},
            drafts=_less(self.drafts, before.drafts),
            draft_tokens=_less(self.draft_tokens, before.draft_tokens),
            accepted_tokens=_less(self.accepted_tokens, before.accepted_tokens),
            accepted_per_position=tuple(
                now - (before.accepted_per_position[i] if i < len(before.accepted_per_position) else 0.0) for i, now in enumerate(self.accepted_per_position)
            ),
        )
        flat = [change.requests_finished, change.generation_tokens, change.queue_sum_s, change.queue_count]
        flat += [*change.queue_buckets.values(), *change.accepted_per_position]
        flat += [value for value in (change.drafts, change.draft_tokens, change.accepted_tokens) if value is not None]
        if min(flat) < 0 or (before.drafts is not None and self.drafts is None):
            raise MetricsResetError("a counter of /metrics went backwards during the load: the server, or its counters, started anew")
        return change

    @property
    def acceptance_length(self) -> float | None:
        """AL = 1 + accepted / drafts: tokens per step, bonus token included; None without drafts."""
        return 1 + (self.accepted_tokens or 0) / self.drafts if self.drafts else None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over drafted tokens; it falls as K grows, so compare it at one K only."""
        return (self.accepted_tokens or 0) / self.draft_tokens if self.draft_tokens else None

    @property
    def acceptance_per_position(self) -> tuple[float, ...] | None:
        """Share of drafts in which position i was accepted."""
        return tuple(count / self.drafts for count in self.accepted_per_position) if self.drafts else None

    @property
    def queue_wait_mean_s(self) -> float | None:
        """Change of the histogram's sum over change of its count."""
        return self.queue_sum_s / self.queue_count if self.queue_count else None

    def queue_wait_quantile_s(self, q: float) -> float | None:
        """Quantile by linear interpolation in its bucket, as Prometheus' histogram_quantile does.

        In the last, open bucket it is that bucket's lower bound.
        """
        bounds = sorted(self.queue_buckets)
        if not bounds or not self.queue_count:
            return None
        rank, low, below = q * self.queue_count, 0.0, 0.0
        for bound in bounds:
            count = self.queue_buckets[bound]
            if count >= rank:
                if math.isinf(bound):
                    return low
                return low + (bound - low) * ((rank - below) / (count - below) if count > below else 1.0)
            low, below = bound, count
        return low


def _less(now: float | None, before: float | None) -> float | None:
    return None if now is None else now - (before or 0.0)


def parse_counters(text: str) -> Counters:
    """Read an exposition. Raises MetricsUnavailableError if it lacks what every vLLM has."""
    values: dict[str, float] = {}
    buckets: dict[float, float] = {}
    positions: dict[int, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == f"{QUEUE}_bucket":
                bound = float(sample.labels["le"])
                buckets[bound] = buckets.get(bound, 0.0) + sample.value
            elif sample.name == "vllm:spec_decode_num_accepted_tokens_per_pos_total":
                position = int(sample.labels["position"])
                positions[position] = positions.get(position, 0.0) + sample.value
            elif sample.name.startswith("vllm:"):
                values[sample.name] = values.get(sample.name, 0.0) + sample.value
    try:
        return Counters(
            requests_finished=values["vllm:request_success_total"],
            generation_tokens=values["vllm:generation_tokens_total"],
            queue_sum_s=values[f"{QUEUE}_sum"],
            queue_count=values[f"{QUEUE}_count"],
            queue_buckets=buckets,
            drafts=values.get("vllm:spec_decode_num_drafts_total"),
            draft_tokens=values.get("vllm:spec_decode_num_draft_tokens_total"),
            accepted_tokens=values.get("vllm:spec_decode_num_accepted_tokens_total"),
            accepted_per_position=tuple(positions[i] for i in sorted(positions)),
        )
    except KeyError as missing:
        raise MetricsUnavailableError(f"/metrics has no {missing.args[0]}; is this a vLLM server with its statistics on?") from None


def read_counters(base_url: str) -> Counters:
    """GET /metrics. Raises MetricsUnavailableError if it doesn't answer."""
    try:
        text = get(f"{base_url}/metrics", timeout_s=10).decode()
    except (OSError, HTTPException, ValueError) as error:
        raise MetricsUnavailableError(f"{base_url}/metrics: {error}") from error
    return parse_counters(text)


def read_settled(base_url: str, before: Counters, requests: int) -> Counters:
    """A reading in which the server has counted all `requests` since `before`; it does so a moment after the last chunk.

    Raises MetricsResetError when it never does, or counted more: then somebody else used the server.
    """
    deadline = time.monotonic() + SETTLE_S
    while True:
        now = read_counters(base_url)
        finished = now.since(before).requests_finished
        if finished == requests:
            return now
        if finished > requests or time.monotonic() > deadline:
            raise MetricsResetError(f"the server counted {finished:.0f} finished requests, {requests} were ours: it must serve nothing else, and lose none")
        time.sleep(0.05)
