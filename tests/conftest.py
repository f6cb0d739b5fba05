"""For all tests: Ctrl-C is heeded, as in a terminal, however they were started."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """A shell's background job ignores SIGINT, and so would what the tests start and stop by it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
