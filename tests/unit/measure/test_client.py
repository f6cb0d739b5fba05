"""The client against a server whose tokens and send times are known by construction."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from typing import Any

import pytest
from tests.standin.engine import StandIn

from specstudy.measure import Outcome, StreamClient, client, http
from specstudy.scaling.events import TOKEN_IDS_FROM
from specstudy.serving.server import free_port
from specstudy.workloads import Prompt

PROMPT = Prompt.user("one two three four five")
LATE_S = 0.2  # how much later than it was sent a chunk may reach us, in the best of many answers


def ask(standin: StandIn, *, times: int = 1, max_tokens: int = 6, prompt: Prompt = PROMPT, **how: Any) -> list[Outcome]:
    """`times` requests by one client, one after the other."""

    async def one_by_one() -> list[Outcome]:
        async with StreamClient(standin.server.base_url, "words", **how) as sender:
            body = sender.body(prompt, max_tokens=max_tokens, temperature=0, seed=1)
            return [await sender.send(body) for _ in range(times)]

    return asyncio.run(one_by_one())


@pytest.mark.parametrize(
    ("pattern", "max_tokens", "expected"),
    [([1], 4, [1, 1, 1, 1]), ([3], 7, [3, 3, 1]), ([1, 4], 11, [1, 4, 1, 4, 1]), ([5], 1, [1])],
)
def test_tokens_of_each_chunk_and_of_the_whole(standin: StandIn, pattern: list[int], max_tokens: int, expected: list[int]) -> None:
    standin.order(chunk_tokens=pattern)
    (outcome,) = ask(standin, max_tokens=max_tokens)
    assert outcome.ok, outcome.error
    assert outcome.chunk_tokens == expected
    assert (outcome.prompt_tokens, outcome.completion_tokens) == (5, max_tokens)
    assert not outcome.resent


def test_chunk_times_follow_the_servers_sends(standin: StandIn) -> None:
    standin.order(chunk_tokens=[1, 2], first_delay_s=0.05, chunk_delay_s=0.02)
    latest = []
    for outcome, served in zip(ask(standin, max_tokens=8, times=20), standin.journal(), strict=True):
        sends = [when for when, _ in served["sends"]]
        assert outcome.chunk_tokens == [tokens for _, tokens in served["sends"]]
        assert outcome.sent <= served["received_s"]
        late = [ours - theirs for ours, theirs in zip(outcome.chunk_times, sends, strict=True)]
        assert min(late) >= 0
        assert outcome.chunk_times[0] - outcome.sent >= 0.05  # the event that names the role came earlier and is no token
        latest.append(max(late))
    assert min(latest) < LATE_S, latest


def test_the_request_says_what_the_study_needs(standin: StandIn) -> None:
    ask(standin, want_token_ids=True)
    (served,) = standin.journal()
    assert served["body"] == {
        "model": "words",
        "messages": [{"role": "user", "content": "one two three four five"}],
        "max_completion_tokens": 6,
        "temperature": 0,
        "seed": 1,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "return_token_ids": True,
    }


def test_a_prompt_of_token_ids_goes_to_completions_and_is_not_ended_by_the_model(standin: StandIn) -> None:
    standin.order(chunk_tokens=[2])
    (outcome,) = ask(standin, max_tokens=5, prompt=Prompt(token_ids=(3, 1, 2)))
    (served,) = standin.journal()
    assert served["body"] == {
        "model": "words",
        "prompt": [3, 1, 2],
        "max_tokens": 5,
        "ignore_eos": True,
        "temperature": 0,
        "seed": 1,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    assert outcome.ok, outcome.error
    assert (outcome.chunk_tokens, outcome.prompt_tokens, outcome.completion_tokens) == ([2, 2, 1], 3, 5)


def test_token_ids_only_when_wanted(standin: StandIn) -> None:
    standin.order(chunk_tokens=[2])
    (without,), (with_ids,) = ask(standin, max_tokens=5), ask(standin, max_tokens=5, want_token_ids=True)
    assert without.token_ids == []
    assert with_ids.token_ids == [TOKEN_IDS_FROM + i for i in range(5)]


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("http_400", "HTTP 400: .*told to refuse"),
        ("http_500", "HTTP 500: .*told to fail"),
        ("http_500_binary", "HTTP 500"),
        ("no_usage", "without usage"),
        ("no_final_usage", "without usage"),
        ("cut_stream", "ended before its last token"),
        ("reset_stream", "BrokenAnswerError"),
        ("error_event", "the server reported .*told to break off"),
        ("broken_json", "DecodeError"),
        ("drop_connection", "BrokenAnswerError"),
    ],
)
def test_a_bad_answer_is_an_outcome_with_its_reason(standin: StandIn, fault: str, says: str) -> None:
    standin.order(faults={fault: {"times": 1}})
    spoilt, after = ask(standin, times=2)
    assert not spoilt.ok
    assert_matches(says, spoilt.error)
    assert after.ok, after.error


def assert_matches(pattern: str, text: str | None) -> None:
    assert text is not None
    assert re.search(pattern, text, re.DOTALL), text


def test_an_unknown_model_is_an_outcome(standin: StandIn) -> None:
    async def once() -> Outcome:
        async with StreamClient(standin.server.base_url, "other") as sender:
            return await sender.send(sender.body(PROMPT, max_tokens=1, temperature=0, seed=0))

    assert_matches("HTTP 404: .*does not exist", asyncio.run(once()).error)


def test_nobody_listens() -> None:
    async def once() -> Outcome:
        async with StreamClient(f"http://127.0.0.1:{free_port()}", "words") as sender:
            return await sender.send(sender.body(PROMPT, max_tokens=1, temperature=0, seed=0))

    outcome = asyncio.run(once())
    assert_matches("ConnectionRefusedError", outcome.error)
    assert not outcome.resent


def test_silence_is_given_up(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "READ_TIMEOUT_S", 5)
    standin.order(faults={"hang_mid_stream": {}})
    (outcome,) = ask(standin)
    assert_matches("no byte for", outcome.error)
    assert 0 < len(outcome.chunk_times) < 6


def test_a_stale_connection_is_sent_again_once_and_marked(standin: StandIn) -> None:
    standin.order(faults={"stale_keep_alive": {"times": 1}}, first_delay_s=0.01)
    first, second, third = ask(standin, times=3)
    assert [outcome.resent for outcome in (first, second, third)] == [False, True, False]
    assert all(outcome.ok for outcome in (first, second, third)), second.error
    assert second.completion_tokens == 6
    assert second.chunk_tokens == [1] * 6


def test_the_clock_runs_on_through_a_resend(standin: StandIn) -> None:
    standin.order(faults={"stale_keep_alive": {"times": 1}})
    _, second = ask(standin, times=2)
    _, served = standin.journal()
    assert second.resent
    assert second.sent < served["received_s"]


def test_when_every_kept_connection_is_stale_the_resend_takes_a_new_one(standin: StandIn) -> None:
    """Three connections lie idle, the server has given all of them up: the second try mustn't take another of them."""
    standin.order(faults={"stale_keep_alive": {}})

    async def three_then_one() -> Outcome:
        async with StreamClient(standin.server.base_url, "words") as sender:
            body = sender.body(PROMPT, max_tokens=2, temperature=0, seed=1)
            await asyncio.gather(*(sender.send(body) for _ in range(3)))
            return await sender.send(body)

    outcome = asyncio.run(three_then_one())
    assert outcome.error is None
    assert outcome.resent


def test_a_new_connection_that_drops_is_no_stale_one(standin: StandIn) -> None:
    standin.order(faults={"drop_connection": {}})
    (outcome,) = ask(standin)
    assert not outcome.ok
    assert not outcome.resent
    assert standin.told()["in_flight"] == 0


def test_two_events_in_one_packet_are_two_chunks(standin: StandIn) -> None:
    standin.order(chunk_tokens=[2], chunk_delay_s=0)
    (outcome,) = ask(standin, max_tokens=64)
    assert outcome.chunk_tokens == [2] * 32
    assert outcome.chunk_times == sorted(outcome.chunk_times)


EVENTS = [
    {"choices": [{"finish_reason": None}], "usage": {"prompt_tokens": 3, "completion_tokens": 0}},
    {"choices": [{"finish_reason": None}], "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
    {"choices": [{"finish_reason": "stop"}], "usage": {"prompt_tokens": 3, "completion_tokens": 5}},
    {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}},
]
ERROR_EVENT = {"error": {"message": "told to break off", "code": 500}}


def sse(*events: dict[str, Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_events_cut_anywhere_are_put_together(size: int) -> None:
    raw, outcome = sse(*EVENTS), Outcome()
    stream = client._Stream(outcome)
    for start in range(0, len(raw), size):
        stream.feed(raw[start : start + size], float(start))
    stream.end()
    assert outcome.chunk_tokens == [2, 3]
    assert (outcome.prompt_tokens, outcome.completion_tokens) == (3, 5)


def chunked(body: bytes, head: str = "") -> bytes:
    return f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n{head}\r\n{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"


def counted(body: bytes, head: str = "") -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n{head}\r\n".encode() + body


def canned(answer: bytes, *, pieces: int, requests: int = 2, close: bool = False) -> tuple[list[Outcome], int]:
    """Outcomes of requests, one after the other, to a server that gives these very bytes, and its connections."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while head := await reader.readuntil(b"\r\n\r\n") if not reader.at_eof() else b"":
            length = int(re.search(rb"content-length: (\d+)", head, re.IGNORECASE)[1])  # type: ignore[index]
            await reader.readexactly(length)
            for start in range(0, len(answer), -(-len(answer) // pieces)):
                writer.write(answer[start : start + -(-len(answer) // pieces)])
                await writer.drain()
                await asyncio.sleep(0.001 if pieces > 1 else 0)
            if close:
                break
        writer.close()

    async def run() -> list[Outcome]:
        async with await asyncio.start_server(quiet(serve), "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with StreamClient(f"http://127.0.0.1:{port}", "words") as sender:
                body = sender.body(PROMPT, max_tokens=5, temperature=0, seed=1)
                found = []
                for _ in range(requests):
                    found.append(await sender.send(body))
                    await asyncio.sleep(0.05)
            await asyncio.sleep(0.05)
        return found

    return asyncio.run(run()), connections


def quiet(serve: Any) -> Any:
    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await serve(reader, writer)
        writer.close()

    return served


@pytest.mark.parametrize("pieces", [1, 3, 200])
@pytest.mark.parametrize("form", [chunked, counted])
def test_an_answer_in_any_pieces(form: Any, pieces: int) -> None:
    outcomes, connections = canned(form(sse(*EVENTS)), pieces=pieces)
    assert [outcome.error for outcome in outcomes] == [None, None]
    assert [outcome.chunk_tokens for outcome in outcomes] == [[2, 3], [2, 3]]
    assert not any(outcome.resent for outcome in outcomes)
    assert connections == 1  # kept and used again


@pytest.mark.parametrize("says_so", [True, False], ids=["and says so", "without a word"])
def test_a_server_that_closes_after_each_answer_costs_a_connection_and_no_resend(says_so: bool) -> None:
    outcomes, connections = canned(chunked(sse(*EVENTS), "Connection: close\r\n" if says_so else ""), pieces=1, requests=3, close=True)
    assert [outcome.error for outcome in outcomes] == [None] * 3
    assert not any(outcome.resent for outcome in outcomes)
    assert connections == 3


@pytest.mark.parametrize("form", [chunked, counted])
def test_an_error_in_the_last_packet_keeps_its_reason(form: Any) -> None:
    """The event and the end of the answer come together."""
    (outcome,), _ = canned(form(sse(*EVENTS[:2], ERROR_EVENT)), pieces=1, requests=1)
    assert_matches("told to break off", outcome.error)


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9.2\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"])
def test_what_isnt_http_is_an_outcome(answer: bytes) -> None:
    (outcome,), _ = canned(answer, pieces=1, requests=1)
    assert outcome.error


@pytest.mark.parametrize("status", ["404 Not Found", "500 Internal Server Error", "204 No Content", "307 Temporary Redirect"])
def test_any_other_status_is_an_outcome_and_spoils_no_connection(status: str) -> None:
    body = "" if status.startswith("204") else "Content-Length: 5\r\n\r\nhello"
    outcomes, _ = canned(f"HTTP/1.1 {status}\r\n{body or chr(13) + chr(10)}".encode(), pieces=1)
    assert all(status.split()[0] in (outcome.error or "") for outcome in outcomes)
