"""Ask Prometheus for one number, and say why there is none: nothing here turns a missing value into a 0."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from specstudy.errors import MetricsUnavailableError

LABEL = r"[A-Za-z_][A-Za-z0-9_]*"
_EQUALS = re.compile(rf"^({LABEL})\s*(==|=|!=)\s*([\w.\-/]*)$")
_AMONG = re.compile(rf"^({LABEL})\s+(in|notin)\s+\(([\w.\-/,\s]*)\)$")


class UnusableSelectorError(Exception):
    """A label selector that has no PromQL of the same meaning here."""


@dataclass(frozen=True)
class Sample:
    """The one series that matched: its labels, its value, and when (Unix seconds)."""

    labels: Mapping[str, str]
    value: float
    at_s: float


def matchers(namespace: str, selector: str) -> str:
    """PromQL's matchers for a namespace and a Kubernetes label selector. Raises UnusableSelectorError."""
    parts = [f'namespace="{namespace}"']
    for requirement in _requirements(selector):
        if equal := _EQUALS.match(requirement):
            parts.append(f'{equal[1]}{"!=" if equal[2] == "!=" else "="}"{equal[3]}"')
        elif among := _AMONG.match(requirement):
            values = "|".join(re.escape(value.strip()) for value in among[3].split(",")).replace("\\", "\\\\")
            parts.append(f'{among[1]}{"!~" if among[2] == "notin" else "=~"}"{values}"')
        else:
            raise UnusableSelectorError(f"label selector {requirement!r}: only key=value, key!=value, key in (…) and key notin (…) are understood")
    return "{" + ",".join(parts) + "}"


def _requirements(selector: str) -> list[str]:
    """Split at the commas that stand outside parentheses."""
    return [part.strip() for part in re.split(r",(?![^(]*\))", selector) if part.strip()]


async def read_one(session: aiohttp.ClientSession, prometheus: str, query: str, timeout_s: float) -> Sample:
    """The value of a query that must match one series.

    Raises MetricsUnavailableError when Prometheus doesn't answer or refuses, when no series matches or several do,
    and when the value is NaN, infinite or negative.
    """
    try:
        async with session.get(f"{prometheus}/api/v1/query", params={"query": query}, timeout=aiohttp.ClientTimeout(timeout_s)) as answer:
            text = await answer.text()
    except (TimeoutError, aiohttp.ClientError) as error:
        raise MetricsUnavailableError(f"Prometheus at {prometheus} doesn't answer: {str(error) or type(error).__name__}") from None
    found = parse_answer(text, query, prometheus)
    if len(found) != 1:
        many = "no value" if not found else f"{len(found)} series, which can't be added up,"
        raise MetricsUnavailableError(f"Prometheus has {many} for {query}")
    at_s, value = float(found[0]["value"][0]), float(found[0]["value"][1])
    if not math.isfinite(value) or value < 0:
        raise MetricsUnavailableError(f"Prometheus has {value} for {query}, which is no measurement")
    labels = {name: text for name, text in found[0]["metric"].items() if name != "__name__"}
    return Sample(labels, value, at_s)


def parse_answer(text: str, query: str, prometheus: str) -> list[dict[str, Any]]:
    """The samples of an instant query's answer. Raises MetricsUnavailableError for a refusal, and for what Prometheus wouldn't say."""
    try:
        body = json.loads(text)
        if body["status"] != "success":
            raise MetricsUnavailableError(f"Prometheus refused {query}: {body.get('error')}")
        found: list[dict[str, Any]] = body["data"]["result"]
    except (ValueError, KeyError, TypeError):
        raise MetricsUnavailableError(f"{prometheus} answered {query} with {text[:80]!r}; is it Prometheus?") from None
    return found
