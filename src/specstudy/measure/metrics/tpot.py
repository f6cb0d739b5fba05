"""TPOT, time per output token, ms: (last - first) / (completion_tokens - 1).

Tokens are those of `usage`: with speculation a chunk holds several, so the pause between chunks is another
metric (chunk_gap). A request of one token has none. When the first chunk already holds several tokens the
formula still divides by completion_tokens - 1, as every published TPOT does.
"""

from specstudy.measure.metrics.timeline import Timeline


def tpot_ms(request: Timeline) -> float | None:
    """None for an answer of one token."""
    if request.completion_tokens < 2:
        return None
    return (request.chunk_s[-1] - request.chunk_s[0]) * 1e3 / (request.completion_tokens - 1)
