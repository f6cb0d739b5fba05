"""What Prometheus makes of vLLM's own metrics: the autoscaler's two figures, the dashboard's, and the alerts.

Three states are kept apart. A number is what was measured. Zero is what an idle service measures. No series at all means
that it isn't known: no pod can be scraped, or requests wait and none has come through yet. An autoscaler that finds no
series holds; one that found a zero would take pods away.

Only pods that Prometheus scrapes now count (`up` is 1): what a pod that has gone left behind in the window doesn't.
"""

from __future__ import annotations

from typing import Any

from specstudy.deploy.objects import NAME, metadata
from specstudy.scaling import QUEUE_WAIT, SLOTS_IN_USE

Rule = dict[str, Any]

INTERVAL = "5s"  # of scraping and of evaluation: a window holds three
WINDOW = "15s"
# A reading of running requests is one moment's: three of them vary by half of what they say on a small service, twelve by a quarter. The floor need not be
# quick, it is the wait that scales out.
SLOTS_WINDOW = "1m"
LONG_WINDOW = "5m"  # for what a person looks at
TTFT_SLO_S = "1.0"  # chapter 08's, and a bound of vLLM's own TTFT buckets; goodput counts first tokens within it
UP = f'up{{job="{NAME}"}}'
QUEUE = "vllm:request_queue_time_seconds"
QUANTILES = {"p50": 0.5, "p90": 0.9}
FINE_BUCKET = "0.001"  # vLLM's default begins at 0.3 s, so a wait of 1 ms would be interpolated to 150 ms: no quantile without it


def _series(metric: str, window: str = "", **labels: str) -> str:
    """A selector, like metric{job="vllm", le="0.5"}[15s]."""
    matchers = ", ".join(f'{name}="{value}"' for name, value in {"job": NAME, **labels}.items())
    return f"{metric}{{{matchers}}}" + (f"[{window}]" if window else "")


def _live(series: str) -> str:
    """A series of the pods that are scraped now."""
    return f"({series} and on (namespace, job, pod) ({UP} == 1))"


def _total(series: str) -> str:
    return f"sum by (namespace, job) {_live(series)}"


def _rate(metric: str, window: str = WINDOW, **labels: str) -> str:
    return f"rate({_series(metric, window, **labels)})"


def _rule(name: str, expression: str) -> Rule:
    return {"record": name, "expr": expression}


def scaling_rules() -> list[Rule]:
    """In this order, since the later use the earlier."""
    waiting = _rule("vllm:requests_waiting", _total(_series("vllm:num_requests_waiting")))
    pods = _rule("vllm:pods_scraped", f"count by (namespace, job) ({UP} == 1)")
    idle = f"0 * ({waiting['record']} == 0)"  # nothing waits, and nothing came through: the wait is zero
    mean = f"1000 * {_total(_rate(f'{QUEUE}_sum'))} / ({_total(_rate(f'{QUEUE}_count'))} > 0)"
    # A pod that can't be scraped is taken to be as busy as the others: leaving it out would look like less work.
    running = _total(f"avg_over_time({_series('vllm:num_requests_running', SLOTS_WINDOW)})")
    slots = f"{running} * count by (namespace, job) ({UP}) / {pods['record']}"
    rules = [waiting, pods, _rule(QUEUE_WAIT, f"{mean} or {idle}"), _rule(SLOTS_IN_USE, slots)]
    rules.append(_rule("slots_in_use_per_replica", f"{_total(_series('vllm:num_requests_running'))} / {pods['record']}"))
    fine = f"count by (namespace, job) {_live(_series(f'{QUEUE}_bucket', le=FINE_BUCKET))}"
    for name, quantile in QUANTILES.items():
        buckets = f"sum by (le, namespace, job) {_live(_rate(f'{QUEUE}_bucket'))}"
        value = f"1000 * (histogram_quantile({quantile}, {buckets}) >= 0)"  # without requests it is NaN, which the comparison drops
        rules.append(_rule(f"queue_wait_{name}_ms", f"({value} or {idle}) and on (namespace, job) ({fine} > 0)"))
    return rules


def dashboard_rules() -> list[Rule]:
    """Slower figures, over minutes."""
    rules = []
    for name, quantile in {"p50": 0.5, "p99": 0.99}.items():
        buckets = f"sum by (le, namespace, job) {_live(_rate('vllm:time_to_first_token_seconds_bucket', LONG_WINDOW))}"
        rules.append(_rule(f"vllm:ttft_{name}_ms", f"1000 * (histogram_quantile({quantile}, {buckets}) >= 0)"))
    within = _rate("vllm:time_to_first_token_seconds_bucket", LONG_WINDOW, le=TTFT_SLO_S)
    rules.append(_rule("vllm:goodput_requests_per_s", _total(within)))
    rules.append(_rule("vllm:requests_per_s", _total(_rate("vllm:time_to_first_token_seconds_count", LONG_WINDOW))))
    accepted, drafts = (_total(_rate(f"vllm:spec_decode_num_{name}_total", LONG_WINDOW)) for name in ("accepted_tokens", "drafts"))
    rules.append(_rule("vllm:acceptance_length", f"1 + {accepted} / ({drafts} > 0)"))
    return rules


def alerts(wait_target_ms: float) -> list[Rule]:
    """What a person should hear of; each says what to look at."""
    hpa = f'horizontalpodautoscaler="{NAME}"'
    at_most = f"kube_horizontalpodautoscaler_status_current_replicas{{{hpa}}} >= kube_horizontalpodautoscaler_spec_max_replicas{{{hpa}}}"
    wanted: list[tuple[str, str, str, str, str]] = [
        ("VllmNotScraped", f"absent({UP} == 1)", "2m", "critical", "No vLLM pod can be scraped. The autoscaler holds the replicas where they are."),
        ("VllmPodNotScraped", f"{UP} == 0", "2m", "warning", "A ready vLLM pod can't be scraped; it is taken to be as busy as the others."),
        (
            "VllmQueueWaitUnknown",
            f"(vllm:requests_waiting > 0) unless on (namespace, job) {QUEUE_WAIT}",
            "2m",
            "warning",
            "Requests wait and none finishes, so the queue wait isn't known. vLLM states it when a request ends.",
        ),
        (
            "VllmQueueWaitHigh",
            f"{QUEUE_WAIT} > {2 * wait_target_ms:g}",
            "5m",
            "warning",
            "The queue wait has been over twice its target for 5 minutes: replicas are missing, not yet ready, or at their maximum.",
        ),
        ("VllmAtMaximum", f"{at_most}", "10m", "warning", "The autoscaler is at its maximum. Needs kube-state-metrics."),
        (
            "VllmAutoscalerBlind",
            f'kube_horizontalpodautoscaler_status_condition{{{hpa}, condition="ScalingActive", status="false"}} == 1',
            "2m",
            "critical",
            "The autoscaler can't read its metrics; `kubectl describe hpa vllm` says why. Needs kube-state-metrics.",
        ),
        (
            "VllmPreempting",
            f"{_total(_rate('vllm:num_preemptions_total', LONG_WINDOW))} > 0",
            "10m",
            "warning",
            "Requests lose their KV cache to others and are computed again: fewer slots, or more memory for the cache.",
        ),
    ]
    return [
        {"alert": name, "expr": expression, "for": wait, "labels": {"severity": severity}, "annotations": {"summary": summary}}
        for name, expression, wait, severity, summary in wanted
    ]


def rule_groups(wait_target_ms: float) -> Rule:
    """A rule file's content, as Prometheus and promtool read it."""
    groups = [
        {"name": "vllm-scaling", "interval": INTERVAL, "rules": scaling_rules()},
        {"name": "vllm-dashboard", "interval": "15s", "rules": dashboard_rules()},
        {"name": "vllm-alerts", "interval": "15s", "rules": alerts(wait_target_ms)},
    ]
    return {"groups": groups}


def prometheus_rule(wait_target_ms: float) -> Rule:
    """The same as the Prometheus operator's object."""
    return {"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule", "metadata": metadata(NAME), "spec": rule_groups(wait_target_ms)}


def pod_monitor() -> Rule:
    """Scrape ready pods alone: one that still loads its model has nothing to say.

    A pod that drains stays ready to Prometheus, so its requests still count: they are part of the load until they end.
    """
    ready = {"sourceLabels": ["__meta_kubernetes_pod_ready"], "action": "keep", "regex": "true"}
    endpoint = {"port": "http", "path": "/metrics", "interval": INTERVAL, "scrapeTimeout": INTERVAL, "relabelings": [ready]}
    selector = {"matchLabels": {"app.kubernetes.io/name": NAME}}
    spec = {"jobLabel": "app.kubernetes.io/name", "selector": selector, "podMetricsEndpoints": [endpoint]}
    return {"apiVersion": "monitoring.coreos.com/v1", "kind": "PodMonitor", "metadata": metadata(NAME), "spec": spec}
