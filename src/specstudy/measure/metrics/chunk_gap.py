"""Chunk gap, ms: the pause between two chunks of one answer. Its p99 is the rejection tail.

A step whose drafts were all rejected costs as much as one whose drafts were taken, and delivers one token;
a reader sees a pause. Read it together with tokens per chunk.
"""

from specstudy.measure.metrics.timeline import Timeline


def chunk_gaps_ms(request: Timeline) -> list[float]:
    """One gap fewer than chunks."""
    return [(later - earlier) * 1e3 for earlier, later in zip(request.chunk_s, request.chunk_s[1:], strict=False)]
