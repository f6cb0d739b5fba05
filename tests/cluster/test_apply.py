"""deploy/ through kustomize into a real API server."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from specstudy.deploy import objects
from specstudy.deploy.lab import OLDER, for_lab
from specstudy.deploy.render import shipped_overlays
from specstudy.deploy.wanted import resolve
from specstudy.scaling.binaries import Binaries
from specstudy.scaling.control_plane import ControlPlane

DEPLOY = Path(__file__).parents[2] / "deploy"
OVERLAYS = shipped_overlays()
CUSTOM = {"PodMonitor": ("monitoring.coreos.com", "v1", "podmonitors"), "PrometheusRule": ("monitoring.coreos.com", "v1", "prometheusrules")}
Manifest = dict[str, Any]
WAIT_S = 180.0


def built(binaries: Binaries, name: str, deploy: Path = DEPLOY) -> list[Manifest]:
    """What kustomize makes of an overlay."""
    done = subprocess.run([binaries.path("kustomize"), "build", str(deploy / "overlays" / name)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return list(yaml.safe_load_all(done.stdout))


def kubectl(plane: ControlPlane, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    argv = [plane.binaries.path("kubectl"), "--kubeconfig", str(plane.kubeconfig), *words]
    return subprocess.run(argv, input=given, capture_output=True, text=True)


def until(condition: Callable[[], object]) -> object:
    """What `condition` gives once that is true."""
    deadline = time.monotonic() + WAIT_S
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return value


def contained(ours: object, theirs: object) -> bool:
    """Whether `theirs` has all that `ours` has; a server adds defaults, and leaves out what is empty."""
    if isinstance(ours, dict):
        return isinstance(theirs, dict) and all(
            contained(value, theirs.get(key)) or (value in ({}, [], "") and key not in theirs) for key, value in ours.items()
        )
    if isinstance(ours, list):
        return isinstance(theirs, list) and len(ours) == len(theirs) and all(contained(one, other) for one, other in zip(ours, theirs, strict=True))
    return ours == theirs


@pytest.fixture(scope="module")
def kinds(plane: ControlPlane) -> ControlPlane:
    """The control plane with the operator's kinds, for their names: any content is taken. Their content is checked in tests/unit/deploy."""
    with plane.client() as api:
        for kind, (group, version, plural) in CUSTOM.items():
            schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
            names = {"kind": kind, "plural": plural, "singular": plural[:-1]}
            versions = [{"name": version, "served": True, "storage": True, "schema": schema}]
            body = {
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": {"name": f"{plural}.{group}"},
                "spec": {"group": group, "names": names, "scope": "Namespaced", "versions": versions},
            }
            client.ApiextensionsV1Api(api).create_custom_resource_definition(body)
        namespace = {"metadata": {"name": objects.NAMESPACE}}  # a dry run creates none, and what lies in it needs it
        client.CoreV1Api(api).create_namespace(namespace)
    until(lambda: kubectl(plane, "get", "podmonitors,prometheusrules", "-n", objects.NAMESPACE).returncode == 0)
    return plane


@pytest.mark.parametrize("name", OVERLAYS)
def test_kustomize_makes_of_base_and_overlay_what_the_code_means(binaries: Binaries, name: str) -> None:
    manifests = built(binaries, name)
    (found,) = [one for one in manifests if one["kind"] == "Deployment"]
    wanted = objects.deployment(resolve(OVERLAYS[name]))
    volumes = found["spec"]["template"]["spec"]["volumes"]
    (drain,) = [volume["configMap"] for volume in volumes if "configMap" in volume]
    (script,) = [one for one in manifests if one["metadata"]["name"] == drain["name"]]
    assert script["data"]["drain.py"] == (DEPLOY / "base" / "drain.py").read_text()
    drain["name"] = "vllm-drain"
    assert found["metadata"].pop("namespace") == objects.NAMESPACE
    for each in (found, wanted):
        each["spec"]["template"]["spec"]["volumes"].sort(key=lambda volume: volume["name"])
    assert found == wanted


@pytest.mark.parametrize("name", OVERLAYS)
def test_every_object_lies_in_one_namespace(binaries: Binaries, name: str) -> None:
    for manifest in built(binaries, name):
        where = manifest["metadata"]["name"] if manifest["kind"] == "Namespace" else manifest["metadata"]["namespace"]
        assert where == objects.NAMESPACE, manifest["kind"]


@pytest.mark.parametrize("component", ["hpa", "keda"])
def test_either_autoscaler_goes_with_an_overlay(binaries: Binaries, tmp_path: Path, component: str) -> None:
    """As how-to/deploy.md says to change them."""
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    path = tmp_path / "deploy" / "overlays" / "none" / "kustomization.yaml"
    path.write_text(path.read_text().replace("components/hpa", f"components/{component}"))
    kinds = [one["kind"] for one in built(binaries, "none", tmp_path / "deploy")]
    assert [kind for kind in kinds if kind in ("HorizontalPodAutoscaler", "ScaledObject")] == [
        {"hpa": "HorizontalPodAutoscaler", "keda": "ScaledObject"}[component]
    ]


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_api_server_takes_every_object(binaries: Binaries, kinds: ControlPlane, name: str) -> None:
    """kubectl checks each field against the server's own OpenAPI description first."""
    text = yaml.safe_dump_all(for_lab(one) for one in built(binaries, name))
    for dry in (["--dry-run=server"], []):
        done = kubectl(kinds, "apply", "--server-side", "--validate=true", *dry, "-f", "-", given=text)
        assert done.returncode == 0, done.stderr
        assert len(done.stdout.splitlines()) == 12


def test_the_api_server_takes_the_loader(kinds: ControlPlane) -> None:
    done = kubectl(kinds, "apply", "--validate=true", "--dry-run=server", "-f", str(DEPLOY / "loader.yaml"))
    assert (done.returncode, done.stdout) == (0, "pod/loader created (server dry run)\n"), done.stderr


def test_the_api_server_refuses_a_misspelt_field(binaries: Binaries, kinds: ControlPlane) -> None:
    (wrong,) = [one for one in built(binaries, "none") if one["kind"] == "Deployment"]
    wrong["spec"]["template"]["spec"]["terminationGraceSeconds"] = 1
    done = kubectl(kinds, "apply", "--validate=true", "--dry-run=server", "-f", "-", given=yaml.safe_dump(wrong))
    assert done.returncode != 0
    assert "terminationGraceSeconds" in done.stderr


def test_what_the_server_keeps_is_what_was_sent(binaries: Binaries, kinds: ControlPlane) -> None:
    manifests = [for_lab(one) for one in built(binaries, "eagle3")]
    assert kubectl(kinds, "apply", "--server-side", "-f", "-", given=yaml.safe_dump_all(manifests)).returncode == 0
    for manifest in manifests:
        group, _, version = manifest["apiVersion"].rpartition("/")
        kind = f"{manifest['kind']}.{version}.{group}" if group else manifest["kind"]
        done = kubectl(kinds, "get", kind, manifest["metadata"]["name"], "-n", objects.NAMESPACE, "-o", "json")
        assert done.returncode == 0, done.stderr
        kept = json.loads(done.stdout)
        assert contained(manifest, kept), manifest["kind"]


def test_the_deployment_makes_a_pod_that_waits_for_a_gpu(binaries: Binaries, kinds: ControlPlane) -> None:
    text = yaml.safe_dump_all(for_lab(one) for one in built(binaries, "peagle"))
    assert kubectl(kinds, "apply", "--server-side", "-f", "-", given=text).returncode == 0
    with kinds.client() as api:
        core = client.CoreV1Api(api)
        labels = {**objects.SELECTOR, objects.METHOD_LABEL: "peagle"}  # other overlays' pods may still be there
        selector = ",".join(f"{key}={value}" for key, value in labels.items())

        def unscheduled() -> Any:
            pods = core.list_namespaced_pod(objects.NAMESPACE, label_selector=selector).items
            return [pod for pod in pods if any(one.type == "PodScheduled" and one.status == "False" for one in pod.status.conditions or [])]

        pod = until(unscheduled)[0]  # type: ignore[index]
    (container,) = pod.spec.containers
    assert container.resources.limits["nvidia.com/gpu"] == "1"
    assert not [volume for volume in pod.spec.volumes if volume.projected or volume.secret]  # no token of a service account


def test_the_lab_changes_versions_and_nothing_else(binaries: Binaries) -> None:
    changed = set()
    for name in OVERLAYS:
        for manifest in built(binaries, name):
            older = for_lab(manifest)
            assert {**older, "apiVersion": manifest["apiVersion"]} == manifest
            if older != manifest:
                changed.add((manifest["kind"], manifest["apiVersion"], older["apiVersion"]))
    assert changed == {(kind, *versions) for kind, versions in OLDER.items()}


@pytest.mark.parametrize("kind", OLDER)
def test_the_labs_server_really_lacks_the_shipped_version(binaries: Binaries, kinds: ControlPlane, kind: str) -> None:
    """When a newer server is built, this fails, and the change of versions can go."""
    (manifest,) = [one for one in built(binaries, "none") if one["kind"] == kind]
    done = kubectl(kinds, "apply", "--dry-run=server", "-f", "-", given=yaml.safe_dump(manifest))
    assert f'no matches for kind "{kind}" in version "{manifest["apiVersion"]}"' in done.stderr


def test_a_user_without_rights_is_refused(kinds: ControlPlane) -> None:
    argv = [kinds.binaries.path("kubectl"), "--kubeconfig", str(kinds.kubeconfig_for("somebody")), "get", "secrets", "-n", objects.NAMESPACE]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert 'User "somebody" cannot list resource "secrets"' in done.stderr


def test_the_client_speaks_for_the_administrator(kinds: ControlPlane) -> None:
    with kinds.client() as api:
        assert client.VersionApi(api).get_code().git_version == "v1.20.2"
        with pytest.raises(ApiException, match="not found"):
            client.CoreV1Api(api).read_namespace("nope")
