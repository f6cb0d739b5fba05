"""The Grafana dashboard: is anyone waiting, how long, are there enough replicas, does speculation still pay."""

from __future__ import annotations

from typing import Any

from specstudy.deploy.objects import NAME
from specstudy.deploy.rules import TTFT_SLO_S

SELECTED = f'namespace="$namespace", job="{NAME}"'
HPA = f'namespace="$namespace", horizontalpodautoscaler="{NAME}"'  # KEDA's is told to have this name too
WIDTH, HEIGHT = 12, 8

# Title, unit as Grafana names it, [(legend, query)], what it tells.
PANELS: list[tuple[str, str, list[tuple[str, str]], str]] = [
    (
        "How long do requests wait for a slot?",
        "ms",
        [("mean", "queue_wait_ms"), ("p90", "queue_wait_p90_ms"), ("p50", "queue_wait_p50_ms")],
        "Over 15 s, as vLLM states it when a request ends. A gap means that nobody knows. Quantiles need vLLM 0.32 with --custom-histogram-buckets.",
    ),
    ("How long until the first token?", "ms", [("p50", "vllm:ttft_p50_ms"), ("p99", "vllm:ttft_p99_ms")], "Over 5 minutes, with the wait."),
    (
        "How many replicas are there?",
        "short",
        [
            ("scraped", "vllm:pods_scraped"),
            ("wanted", f"kube_horizontalpodautoscaler_status_desired_replicas{{{HPA}}}"),
            ("at most", f"kube_horizontalpodautoscaler_spec_max_replicas{{{HPA}}}"),
        ],
        "The autoscaler's figures need kube-state-metrics.",
    ),
    (
        "How much is each replica doing?",
        "short",
        [
            ("slots in use per replica", "slots_in_use_per_replica"),
            ("waiting, all replicas", "vllm:requests_waiting"),
            ("slots in use, all replicas", "slots_in_use"),
        ],
        "Requests that run at once, against the server's --max-num-seqs. The last over the replicas is what the autoscaler's floor sees.",
    ),
    (
        "Does speculation still pay?",
        "short",
        [("acceptance length", "vllm:acceptance_length")],
        "Tokens per step with the one that needs no draft, over 5 minutes. Below what the study measured, the requests have drifted from the draft.",
    ),
    (
        "How many requests get their first token in time?",
        "reqps",
        [(f"within {TTFT_SLO_S} s", "vllm:goodput_requests_per_s"), ("all", "vllm:requests_per_s")],
        "Goodput, over 5 minutes.",
    ),
]


def dashboard() -> dict[str, Any]:
    """Grafana's JSON, for a dashboard provider or an import by hand."""
    source = {"type": "prometheus", "uid": "$datasource"}
    panels = [_panel(number, source, *panel) for number, panel in enumerate(PANELS)]
    names = [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
        {
            "name": "namespace",
            "type": "query",
            "datasource": source,
            "query": f'label_values(up{{job="{NAME}"}}, namespace)',
            "refresh": 2,
            "label": "Namespace",
        },
    ]
    return {
        "uid": "specstudy-vllm",
        "title": "vLLM: queue wait and replicas",
        "tags": ["specstudy", "vllm"],
        "schemaVersion": 39,
        "timezone": "",
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": names},
        "panels": panels,
    }


def _panel(number: int, source: dict[str, str], title: str, unit: str, queries: list[tuple[str, str]], description: str) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + at), "datasource": source, "legendFormat": legend, "expr": query if "{" in query else f"{query}{{{SELECTED}}}"}
        for at, (legend, query) in enumerate(queries)
    ]
    custom = {"lineWidth": 2, "fillOpacity": 0, "spanNulls": False, "showPoints": "auto"}  # a gap stays a gap
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "description": description,
        "datasource": source,
        "gridPos": {"x": number % 2 * WIDTH, "y": number // 2 * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0, "custom": custom}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": targets,
    }
