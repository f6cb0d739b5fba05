"""E2E, ms: due time to the last chunk that carries a token."""

from specstudy.measure.metrics.timeline import Timeline


def e2e_ms(request: Timeline) -> float:
    """(last - due) x 1000."""
    return (request.chunk_s[-1] - request.due_s) * 1e3
