"""The events of a streamed chat completion as vLLM 0.32 writes them; the stand-ins answer with these. Token ids count up from TOKEN_IDS_FROM."""

from __future__ import annotations

import json
import time
from typing import Any

from aiohttp import web

TOKEN_IDS_FROM = 1000


class Events:
    """The events of one answer, as vLLM 0.32 writes them."""

    def __init__(self, body: dict[str, Any], model: str, prompt: int, *, usage: bool) -> None:
        options = body.get("stream_options") or {}
        self.include = bool(usage and options.get("include_usage"))
        self._continuous = bool(self.include and options.get("continuous_usage_stats"))
        self._ids, self._prompt = bool(body.get("return_token_ids")), prompt
        self._head = {"id": f"chatcmpl-{time.time_ns():x}", "object": "chat.completion.chunk", "created": int(time.time()), "model": model}

    def _event(self, choices: list[dict[str, Any]], completion: int, *, usage: bool, **more: Any) -> bytes:
        event: dict[str, Any] = {**self._head, "choices": choices, **more}
        if usage:
            event["usage"] = {"prompt_tokens": self._prompt, "total_tokens": self._prompt + completion, "completion_tokens": completion}
            event["usage"] |= {"completion_tokens_details": None} if choices else {}
        return f"data: {json.dumps(event)}\n\n".encode()

    def role(self) -> bytes:
        """The first: names the role, carries no token."""
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        ids = list(range(self._prompt)) if self._ids else None
        return self._event([choice], 0, usage=self._continuous, prompt_token_ids=ids, prompt_text=None)

    def tokens(self, start: int, stop: int, *, last: bool) -> bytes:
        """Tokens [start, stop) of the answer."""
        text = "".join(f" t{i}" for i in range(start, stop))
        choice: dict[str, Any] = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": "length" if last else None}
        if last:
            choice["stop_reason"] = None
        choice["token_ids"] = [TOKEN_IDS_FROM + i for i in range(start, stop)] if self._ids else None
        return self._event([choice], stop, usage=self._continuous)

    def whole(self, total: int) -> bytes:
        """The last but [DONE]: no choice, the whole usage."""
        return self._event([], total, usage=True, system_fingerprint="standin")


def prompt_tokens(body: dict[str, Any]) -> int:
    """Words of the messages."""
    return sum(len(turn["content"].split()) for turn in body["messages"])


def refused(status: int, kind: str, message: str) -> web.Response:
    """An error as vLLM words it."""
    return web.json_response({"error": {"message": message, "type": kind, "param": None, "code": status}}, status=status)
