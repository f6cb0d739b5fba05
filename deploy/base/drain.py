"""Wait until a vLLM server has nothing left to do. Run by the container's preStop hook, so standard library only.

    python3 drain.py SETTLE_S LIMIT_S [URL]

First SETTLE_S seconds pass, in which the Service, proxies and clients learn that this pod takes no more requests; it
still answers those that come. Then the server is asked until it says three times in a row that no request runs or
waits, or refuses three connections in a row, since then it has gone. A late or broken answer is neither: a loaded server
gives those. Exit status: 0 when idle or already gone, 1 when LIMIT_S passed first.
"""

from __future__ import annotations

import http.client
import sys
import time
import urllib.request

GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting")
POLL_S, IN_A_ROW, TIMEOUT_S = 0.5, 3, 5.0


def unfinished(metrics: str) -> float:
    """Requests that run or wait, over all engines of the server. Raises ValueError if the text has no such gauge."""
    values = [float(line.rsplit(" ", 1)[1]) for line in metrics.splitlines() if line.partition("{")[0].partition(" ")[0] in GAUGES]
    if not values:
        raise ValueError(f"no {' or '.join(GAUGES)} in the metrics")
    return sum(values)


def drain(url: str, settle_s: float, limit_s: float) -> bool:
    """Whether the server at `url` came to rest within `limit_s` after `settle_s`."""
    ask = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
    time.sleep(settle_s)
    deadline = time.monotonic() + limit_s
    idle = gone = 0
    left: float | None = None
    while time.monotonic() < deadline:
        try:
            with ask(f"{url}/metrics", timeout=TIMEOUT_S) as answer:
                left = unfinished(answer.read().decode())
        except (OSError, ValueError, http.client.HTTPException) as error:
            refused = isinstance(getattr(error, "reason", error), ConnectionRefusedError)  # urllib wraps it
            idle, gone = 0, (gone + 1 if refused else 0)
        else:
            idle, gone = (idle + 1 if left == 0 else 0), 0
        if IN_A_ROW in (idle, gone):
            return True
        time.sleep(POLL_S)
    told = "it gave no answer" if left is None else f"{left:g} requests are left"
    print(f"drain: {told} after {limit_s:g} s", file=sys.stderr)
    return False


def main() -> int:
    """See the module's text."""
    settle_s, limit_s, *url = sys.argv[1:]
    return 0 if drain(url[0] if url else "http://127.0.0.1:8000", float(settle_s), float(limit_s)) else 1


if __name__ == "__main__":
    sys.exit(main())
