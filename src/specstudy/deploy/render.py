"""Write the kustomize tree: a base, components to choose from, an overlay for each way to serve.

base/                     what every service has
components/monitoring/    PodMonitor, PrometheusRule, Grafana dashboard
components/hpa/           autoscaling by an HPA on external metrics; or
components/keda/          autoscaling by KEDA
prometheus-adapter/       Helm values for the adapter that the HPA needs
overlays/NAME/            one method: its arguments, times and resources
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from specstudy.catalog.load import read_yaml
from specstudy.catalog.models import Name, StrictModel
from specstudy.catalog.paths import data_dir
from specstudy.deploy import autoscaling, drain, objects, rules
from specstudy.deploy.dashboard import dashboard
from specstudy.deploy.wanted import Resolved, Wanted, resolve
from specstudy.errors import ConfigError

HEADER = "# Rendered by `specstudy deploy render`; change what it is made from instead.\n"
KUSTOMIZATION, COMPONENT = "kustomize.config.k8s.io/v1beta1", "kustomize.config.k8s.io/v1alpha1"
MERGED_LISTS = ("env", "volumeMounts")  # a patch adds to these by key, unless told to replace them
DASHBOARD_LABEL = {"grafana_dashboard": "1"}  # Grafana's sidecar looks for it


class Overlays(StrictModel):
    """data/deploy.yaml: the overlays of the checkout's deploy/; the first one's profile makes base and components."""

    overlays: dict[Name, Wanted]


def shipped_overlays() -> dict[str, Wanted]:
    """What the checkout's deploy/ is rendered from. Raises ConfigError."""
    return read_yaml(data_dir() / "deploy.yaml", Overlays).overlays


def render(wanted: Mapping[str, Wanted], results: Path | None = None) -> dict[str, str]:
    """Every file of the tree, path to content. Raises ConfigError for what can't be served or wasn't measured."""
    return tree(resolved(wanted, results))


def resolved(wanted: Mapping[str, Wanted], results: Path | None = None) -> dict[str, Resolved]:
    """Each overlay filled in from profile and records. Raises ConfigError for what can't be served or wasn't measured."""
    if not wanted:
        raise ConfigError("overlays", {}, "at least one")
    return {name: resolve(one, results) for name, one in wanted.items()}


def tree(found: Mapping[str, Resolved]) -> dict[str, str]:
    """Every file of the tree, path to content."""
    first = next(iter(found.values()))
    largest = max(found.values(), key=lambda one: one.weights_gib)
    files = {**_base(first, largest), **_components(first, found.values())}
    for name, one in found.items():
        files |= _overlay(name, one, first)
    return files


def slower(found: Mapping[str, Resolved]) -> list[str]:
    """A sentence for each overlay that was measured under 0.95 of the baseline's throughput at some load."""
    losing = {name: [gain.cell.load.label for gain in one.evidence.gains if gain.flagged] for name, one in found.items() if one.evidence is not None}
    return [f"{name}: measured under 0.95 of the throughput without speculation at {', '.join(loads)}" for name, loads in losing.items() if loads]


def write(files: Mapping[str, str], out: Path) -> None:
    """Write a tree into a new or empty folder, or over an earlier one of the same layout; overlays that aren't in it stay.

    The files are written beside `out` and then moved, so that a full disk leaves nothing half-written. Raises ConfigError for
    what is no folder, another's folder, or a place where nothing can be written.
    """
    try:
        if out.exists() and any(out.iterdir()) and not (out / "base" / "kustomization.yaml").is_file():
            raise ConfigError("out", str(out), "a new or empty folder, or one that was rendered before")
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as staging:
            _write_all(files, Path(staging))
            for path in files:
                (out / path).parent.mkdir(parents=True, exist_ok=True)
                os.replace(Path(staging) / path, out / path)
    except OSError as error:
        raise ConfigError("out", str(out), f"a folder that can be written to ({error.strerror}: {error.filename})") from error


def _write_all(files: Mapping[str, str], folder: Path) -> None:
    for path, content in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content, encoding="utf-8")


class _Dumper(yaml.SafeDumper):
    """Lists indented under their key, long text in blocks, no aliases: what a person would write."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(content: Any) -> str:
    return HEADER + yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=1000)


def _kustomization(folder: str, *, component: bool = False, **fields: Any) -> dict[str, str]:
    head = {"apiVersion": COMPONENT if component else KUSTOMIZATION, "kind": "Component" if component else "Kustomization"}
    return {f"{folder}/kustomization.yaml": _text({**head, **fields})}


def _base(found: Resolved, largest: Resolved) -> dict[str, str]:
    parts = {
        "namespace": objects.namespace(),
        "serviceaccount": objects.service_account(),
        "models": objects.model_volume(largest),
        "deployment": objects.deployment(found),
        "service": objects.service(),
        "poddisruptionbudget": objects.disruption_budget(),
        "networkpolicy": objects.network_policy(found.hub),
    }
    files = {f"base/{name}.yaml": _text(content) for name, content in parts.items()}
    files["loader.yaml"] = _text(objects.loader(found))
    files["base/drain.py"] = Path(drain.__file__).read_text()
    generator = [{"name": "vllm-drain", "files": ["drain.py"], "options": {"labels": objects.LABELS}}]
    names = [f"{name}.yaml" for name in parts]
    return files | _kustomization("base", namespace=objects.NAMESPACE, resources=names, configMapGenerator=generator)


def _components(found: Resolved, all_of_them: Iterable[Resolved]) -> dict[str, str]:
    policy = autoscaling.policy_of(found, all_of_them)
    monitoring, hpa, keda = (f"components/{name}" for name in ("monitoring", "hpa", "keda"))
    # Its name has no hash: nothing removes an older one, and Grafana takes neither of two dashboards with one uid.
    options = {"labels": {**objects.LABELS, **DASHBOARD_LABEL}, "disableNameSuffixHash": True}
    generator = [{"name": "vllm-dashboard", "files": ["vllm.json=dashboard.json"], "options": options}]
    return {
        **_kustomization(monitoring, component=True, resources=["podmonitor.yaml", "prometheusrule.yaml"], configMapGenerator=generator),
        f"{monitoring}/podmonitor.yaml": _text(rules.pod_monitor()),
        f"{monitoring}/prometheusrule.yaml": _text(rules.prometheus_rule(autoscaling.wait_target_ms(policy))),
        f"{monitoring}/dashboard.json": json.dumps(dashboard(), indent=2) + "\n",
        **_kustomization(hpa, component=True, resources=["hpa.yaml"]),
        f"{hpa}/hpa.yaml": _text(autoscaling.hpa(policy)),
        **_kustomization(keda, component=True, resources=["scaledobject.yaml"]),
        f"{keda}/scaledobject.yaml": _text(autoscaling.scaled_object(policy)),
        "prometheus-adapter/values.yaml": _text(autoscaling.adapter_values(policy)),
    }


def _overlay(name: str, found: Resolved, base: Resolved) -> dict[str, str]:
    """What differs by method, in full: an overlay says all that it runs, and nothing of the base's lists is left in it."""
    folder, whole = f"overlays/{name}", objects.deployment(found)
    container = whole["spec"]["template"]["spec"]["containers"][0]
    kept = ("name", "image", "args", "env", "startupProbe", "lifecycle", "resources", "volumeMounts")
    pod = whole["spec"]["template"]["spec"]
    template = {
        "metadata": whole["spec"]["template"]["metadata"],
        "spec": {
            "terminationGracePeriodSeconds": pod["terminationGracePeriodSeconds"],
            "containers": [{key: _instead(container[key]) if key in MERGED_LISTS else container[key] for key in kept}],
            "volumes": [volume for volume in pod["volumes"] if volume["name"] == "shm"],
        },
    }
    patch = {
        "apiVersion": whole["apiVersion"],
        "kind": whole["kind"],
        "metadata": {"name": objects.NAME, "annotations": whole["metadata"]["annotations"]},
        "spec": {"progressDeadlineSeconds": whole["spec"]["progressDeadlineSeconds"], "template": template},
    }
    other_way_out = found.hub != base.hub
    patches = ["deployment.yaml", *(["networkpolicy.yaml"] if other_way_out else [])]
    files = {f"{folder}/deployment.yaml": _text(patch)}
    if other_way_out:
        files[f"{folder}/networkpolicy.yaml"] = _text(objects.network_policy(found.hub))
    paths = [{"path": path} for path in patches]
    parts: dict[str, Any] = {"resources": ["../../base"], "components": ["../../components/monitoring", "../../components/hpa"], "patches": paths}
    return files | _kustomization(folder, namespace=objects.NAMESPACE, **parts)  # a component's objects have no namespace of their own


def _instead(entries: list[objects.Object]) -> list[objects.Object]:
    return [{"$patch": "replace"}, *entries]
