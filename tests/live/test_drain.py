"""The preStop hook beside a real vLLM: it stays until the last answer is whole."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request

import pytest

from specstudy.deploy import drain
from specstudy.serving import Server

ANSWER_TOKENS = 150


def post(server: Server) -> urllib.request.Request:
    content = {"model": server.model, "prompt": "The rivers of Europe", "max_tokens": ANSWER_TOKENS, "ignore_eos": True, "temperature": 0, "stream": True}
    return urllib.request.Request(f"{server.base_url}/v1/completions", json.dumps(content).encode(), {"Content-Type": "application/json"})


@pytest.mark.live
def test_the_hook_ends_after_the_answer(vllm_server: Server) -> None:
    with urllib.request.urlopen(post(vllm_server), timeout=120) as answer:
        answer.readline()  # the first token is there
        hook = subprocess.Popen([sys.executable, "-S", "-E", drain.__file__, "0", "120", vllm_server.base_url], stderr=subprocess.PIPE, text=True)
        words = [line for line in answer if line.startswith(b"data: {")]
        whole_at = time.monotonic()
        assert hook.poll() is None
    _, said = hook.communicate(timeout=60)
    assert (hook.returncode, said) == (0, "")
    assert len(words) >= ANSWER_TOKENS - 2
    # Three quiet answers in a row, half a second apart, come after the last token at the earliest.
    assert time.monotonic() - whole_at >= 2 * drain.POLL_S
    with urllib.request.urlopen(f"{vllm_server.base_url}/metrics", timeout=10) as metrics:
        assert drain.unfinished(metrics.read().decode()) == 0
