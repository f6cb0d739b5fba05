"""Chunk gap, ms: the pause between two chunks of one answer, as a reader sees it.

A step whose drafts were all rejected takes as long as one whose drafts were taken, and delivers one token: rejection
shows in the tokens per chunk, the cost of drafting in the gap. Other requests' prefills lengthen its tail too.
"""

from specstudy.measure.metrics.timeline import Timeline


def chunk_gaps_ms(request: Timeline) -> list[float]:
    """One gap fewer than chunks."""
    return [(later - earlier) * 1e3 for earlier, later in zip(request.chunk_s, request.chunk_s[1:], strict=False)]
