"""What our code reads of a server: the same checks for the stand-in and for the real vLLM."""

from __future__ import annotations

import json
import math
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from specstudy.serving import Server

MAX_TOKENS = 12
TIMEOUT_S = 120
QUESTION = "Name three rivers of Europe."
# The parser gives a counter's name without _total.
TYPES = {
    "vllm:request_success": "counter",
    "vllm:generation_tokens": "counter",
    "vllm:prompt_tokens": "counter",
    "vllm:request_queue_time_seconds": "histogram",
}


@dataclass(frozen=True)
class Answer:
    """A streamed answer as it came: the type, the events, and whether [DONE] ended them."""

    content_type: str
    events: list[dict[str, Any]]
    done: bool


def body(**changes: Any) -> bytes:
    content: dict[str, Any] = {
        "messages": [{"role": "user", "content": QUESTION}],
        "max_completion_tokens": MAX_TOKENS,
        "temperature": 0,
        "seed": 1,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    return json.dumps({**content, **changes}).encode()


def ask(server: Server, **changes: Any) -> Answer:
    return stream(server, "/v1/chat/completions", body(**{"model": server.model, **changes}))


def ask_for_pieces(server: Server, **changes: Any) -> Answer:
    """An answer whose first token and last come in events of their own: a server that was held up sends what it has in one."""
    for _ in range(20):
        answer = ask(server, **changes)
        if len(answer.events) >= 4:
            return answer
    raise AssertionError("twenty answers, each in one piece")


def ask_with_ids(server: Server) -> Answer:
    """The request that a prompt of token ids makes."""
    content = json.loads(body(model=server.model)) | {"prompt": [11, 12, 13, 14], "max_tokens": MAX_TOKENS, "ignore_eos": True}
    return stream(
        server, "/v1/completions", json.dumps({key: value for key, value in content.items() if key not in ("messages", "max_completion_tokens")}).encode()
    )


def stream(server: Server, path: str, content: bytes) -> Answer:
    request = urllib.request.Request(f"{server.base_url}{path}", content, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        lines = [line.decode().strip() for line in response]
    assert all(line.startswith("data: ") for line in lines if line)
    payloads = [line.removeprefix("data: ") for line in lines if line]
    return Answer(response.headers["Content-Type"], [json.loads(each) for each in payloads if each != "[DONE]"], payloads[-1] == "[DONE]")


def samples(server: Server) -> dict[str, float]:
    """Sums over labels, by sample name; histogram buckets by name and bound."""
    found: dict[str, float] = {}
    with urllib.request.urlopen(f"{server.base_url}/metrics", timeout=TIMEOUT_S) as response:
        for family in text_string_to_metric_families(response.read().decode()):
            for sample in family.samples:
                key = f"{sample.name}[{float(sample.labels['le'])}]" if "le" in sample.labels else sample.name
                found[key] = found.get(key, 0) + sample.value
    return found


def refused(server: Server, **changes: Any) -> urllib.error.HTTPError:
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(server, **changes)
    return caught.value


def test_health(server: Server) -> None:
    with urllib.request.urlopen(f"{server.base_url}/health", timeout=TIMEOUT_S) as answer:
        assert answer.status == 200


def test_the_events_of_an_answer(server: Server) -> None:
    answer = ask(server)
    first, *middle, whole = answer.events
    assert answer.content_type.startswith("text/event-stream")
    assert answer.done
    # The first names the role and carries no token.
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert first["choices"][0]["finish_reason"] is None
    assert first["usage"]["completion_tokens"] == 0
    # Then tokens, the running total with each, the reason on the last one only.
    assert [event["choices"][0]["finish_reason"] for event in middle][:-1] == [None] * (len(middle) - 1)
    assert middle[-1]["choices"][0]["finish_reason"] in ("length", "stop")
    totals = [event["usage"]["completion_tokens"] for event in middle]
    assert totals == sorted(set(totals))
    assert all(isinstance(event["choices"][0]["delta"]["content"], str) for event in middle)
    # Then no choice and the whole usage.
    assert whole["choices"] == []
    assert whole["usage"]["completion_tokens"] == totals[-1] <= MAX_TOKENS
    assert whole["usage"]["total_tokens"] == whole["usage"]["prompt_tokens"] + totals[-1]


@pytest.mark.parametrize("position", [0, 1, -2, -1], ids=["role", "token", "finish", "usage"])
def test_the_fields_of_each_event(server: Server, position: int) -> None:
    """vLLM's versions add fields of their own; these are the ones that our client reads or relies on."""
    event = ask(server, return_token_ids=True).events[position]
    assert {"id", "object", "created", "model", "choices", "usage"} <= set(event)
    assert {"prompt_tokens", "completion_tokens", "total_tokens"} <= set(event["usage"])
    assert event["object"] == "chat.completion.chunk"
    assert event["model"] == server.model
    more: dict[int, set[str]] = {0: set(), 1: {"token_ids"}, -2: {"token_ids"}}
    choices = [] if position == -1 else [{"index", "delta", "finish_reason"} | more[position]]
    assert len(event["choices"]) == len(choices)
    assert all(wanted <= set(choice) for wanted, choice in zip(choices, event["choices"], strict=True))


@pytest.mark.live
def test_the_stand_in_has_every_field_that_vllm_has(standin_server: Server, vllm_server: Server) -> None:
    """And none that it has not, so that the stand-in can't hide a mistake of ours."""
    for wanted in (False, True):
        ours, theirs = (ask_for_pieces(each, return_token_ids=wanted).events for each in (standin_server, vllm_server))
        for position in (0, 1, -2, -1):
            assert set(ours[position]) == set(theirs[position])
            assert set(ours[position]["usage"]) == set(theirs[position]["usage"])
            assert [set(choice) for choice in ours[position]["choices"]] == [set(choice) for choice in theirs[position]["choices"]]


def test_a_prompt_of_token_ids_has_an_answer_of_just_the_length(server: Server) -> None:
    answer = ask_with_ids(server)
    *tokens, whole = answer.events
    assert answer.done
    totals = [event["usage"]["completion_tokens"] for event in tokens]
    assert totals == sorted(set(totals)) and totals[0] >= 1, "every event carries tokens; there is none for a role"
    assert [event["choices"][0]["finish_reason"] for event in tokens] == [None] * (len(tokens) - 1) + ["length"]
    assert all(isinstance(event["choices"][0]["text"], str) for event in tokens)
    assert whole["choices"] == []
    assert (whole["usage"]["prompt_tokens"], whole["usage"]["completion_tokens"]) == (4, MAX_TOKENS)


def test_token_ids_are_the_tokens_that_usage_counts(server: Server) -> None:
    _, *middle, whole = ask(server, return_token_ids=True).events
    running = 0
    for event in middle:
        running += len(event["choices"][0]["token_ids"])
        assert event["usage"]["completion_tokens"] == running
    assert whole["usage"]["completion_tokens"] == running


def test_without_stream_options_there_is_no_usage(server: Server) -> None:
    """Why the client asks for it."""
    assert not any(event.get("usage") for event in ask(server, stream_options=None).events)


def test_metrics_have_the_names_and_types_that_we_read(server: Server) -> None:
    with urllib.request.urlopen(f"{server.base_url}/metrics", timeout=TIMEOUT_S) as response:
        families = {family.name: family for family in text_string_to_metric_families(response.read().decode())}
    assert {name: families[name].type for name in TYPES} == TYPES
    assert "finished_reason" in families["vllm:request_success"].samples[0].labels
    assert all({"model_name", "engine"} <= set(families[name].samples[0].labels) for name in TYPES)
    assert not [name for name in families if name.startswith("vllm:spec_decode")]


def test_the_queue_histogram_has_our_small_buckets(server: Server) -> None:
    name = "vllm:request_queue_time_seconds_bucket"
    bounds = {float(key.removeprefix(name)[1:-1]) for key in samples(server) if key.startswith(name)}
    assert {0.001, 0.01, 0.1, 0.3, math.inf} <= bounds


def test_counters_count_what_we_asked(server: Server) -> None:
    before, began = samples(server), time.monotonic()
    usages = [ask(server).events[-1]["usage"] for _ in range(3)]
    took_s, after = time.monotonic() - began, samples(server)
    change = {name: after[name] - before.get(name, 0) for name in after}
    assert change["vllm:request_success_total"] == 3
    assert change["vllm:generation_tokens_total"] == sum(usage["completion_tokens"] for usage in usages)
    assert change["vllm:prompt_tokens_total"] == sum(usage["prompt_tokens"] for usage in usages)
    assert change["vllm:request_queue_time_seconds_count"] == 3
    assert change["vllm:request_queue_time_seconds_bucket[inf]"] == 3
    assert 0 < change["vllm:request_queue_time_seconds_sum"] < took_s


def test_an_unknown_model_is_refused(server: Server) -> None:
    error = refused(server, model="nobody")
    assert error.code == 404
    assert "does not exist" in json.load(error)["error"]["message"]


@pytest.mark.parametrize("limit", [-1, 0, 1_000_000, "many"])
def test_a_bad_output_limit_is_refused(server: Server, limit: object) -> None:
    error = refused(server, max_completion_tokens=limit)
    assert error.code == 400
    assert json.load(error)["error"]["message"]


def test_a_refused_request_is_not_counted(server: Server) -> None:
    before = samples(server)["vllm:request_success_total"]
    refused(server, model="nobody").close()
    assert samples(server)["vllm:request_success_total"] == before
