"""TTFT, time to first token, ms: due time to the first chunk that carries a token, reasoning tokens included.

In an open loop it counts from the scheduled arrival, so a late sender can't flatter it (coordinated omission).
"""

from specstudy.measure.metrics.timeline import Timeline


def ttft_ms(request: Timeline) -> float:
    """(first - due) x 1000."""
    return (request.chunk_s[0] - request.due_s) * 1e3
