"""Ask a server on this machine; a proxy in the environment is none of its business."""

from __future__ import annotations

import urllib.request

_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


def get(url: str, timeout_s: float) -> bytes:
    """The body. Raises OSError (urllib.error.URLError is one) for anything but an answer below 400."""
    return _answer(urllib.request.Request(url), timeout_s)


def post(url: str, timeout_s: float) -> bytes:
    """The same for a POST that carries nothing."""
    return _answer(urllib.request.Request(url, data=b"", method="POST"), timeout_s)


def _answer(request: urllib.request.Request, timeout_s: float) -> bytes:
    with _open(request, timeout=timeout_s) as answer:
        body: bytes = answer.read()
    return body
