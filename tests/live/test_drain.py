"""The preStop hook beside a real vLLM: it stays until the last answer is whole."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from specstudy.deploy import drain
from specstudy.serving import Server

ANSWER_TOKENS = 500  # seconds long


def post(server: Server) -> urllib.request.Request:
    content = {"model": server.model, "prompt": "The rivers of Europe", "max_tokens": ANSWER_TOKENS, "ignore_eos": True, "temperature": 0, "stream": True}
    return urllib.request.Request(f"{server.base_url}/v1/completions", json.dumps(content).encode(), {"Content-Type": "application/json"})


def metrics(server: Server) -> str:
    with urllib.request.urlopen(f"{server.base_url}/metrics", timeout=120) as answer:
        text: str = answer.read().decode()
    return text


def finished(text: str) -> float:
    """Requests that ended at their limit of tokens."""
    samples = [sample for family in text_string_to_metric_families(text) if family.name == "vllm:request_success" for sample in family.samples]
    return sum(sample.value for sample in samples if sample.name.endswith("_total") and sample.labels["finished_reason"] == "length")


@pytest.mark.live
def test_the_hook_ends_after_the_answer(vllm_server: Server) -> None:
    """Its end is compared with the server's own count, not with a clock: nothing is read of the answer until the hook has ended."""
    before = finished(metrics(vllm_server))
    with urllib.request.urlopen(post(vllm_server), timeout=600) as answer:
        answer.readline()  # the first token is there
        hook = subprocess.Popen([sys.executable, "-S", "-E", drain.__file__, "0", "600", vllm_server.base_url], stderr=subprocess.PIPE, text=True)
        _, said = hook.communicate(timeout=660)
        after = metrics(vllm_server)
        words = [line for line in answer if line.startswith(b"data: {")]
    assert (hook.returncode, said) == (0, "")
    assert (finished(after) - before, drain.unfinished(after)) == (1, 0)
    assert json.loads(words[-1].removeprefix(b"data: "))["choices"][0]["finish_reason"] == "length"
