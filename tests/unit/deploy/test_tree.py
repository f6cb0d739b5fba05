"""deploy/ is what the code renders today, and every object of it is one that a cluster takes."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubernetes_validate.utils import all_versions
from tests.standin.synthetic import record

from specstudy.deploy import objects
from specstudy.deploy.autoscaling import policy_of
from specstudy.deploy.measured import Evidence
from specstudy.deploy.render import render, shipped_overlays, write
from specstudy.deploy.wanted import Wanted, resolve
from specstudy.errors import ConfigError

DEPLOY = Path(__file__).parents[3] / "deploy"
OLDEST = (1, 31)
VERSIONS = [version for version in all_versions() if tuple(map(int, version.split(".")[:2])) >= OLDEST]
CUSTOM = {"PodMonitor", "PrometheusRule", "ScaledObject"}  # not Kubernetes' own; see test_custom_resources.py
OVERLAYS = shipped_overlays()
BY_HAND = DEPLOY / "components" / "adapter"  # the study's own adapter: the same for every service, so nothing renders it


def by_hand() -> list[dict[str, Any]]:
    """The adapter's objects."""
    files = [path for path in sorted(BY_HAND.glob("*.yaml")) if path.name != "kustomization.yaml"]
    return [manifest for path in files for manifest in yaml.safe_load_all(path.read_text())]


def test_the_checkout_holds_what_is_rendered_today(tree: dict[str, str]) -> None:
    """New records, another policy, or other code: then `make deploy`."""
    kept = {str(path.relative_to(DEPLOY)): path.read_text() for path in DEPLOY.rglob("*") if path.is_file() and BY_HAND not in path.parents}
    assert sorted(kept) == sorted(tree), "run `make deploy`"
    assert {path for path, content in tree.items() if kept[path] != content} == set(), "run `make deploy`"


def test_the_schemas_reach_to_1_37() -> None:
    assert VERSIONS[0].startswith("1.31") and len(VERSIONS) >= 7


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_fits_the_schema(manifests: dict[str, dict[str, Any]], version: str) -> None:
    checked = [manifest for manifest in manifests.values() if manifest["kind"] not in CUSTOM]
    assert len(checked) == len(manifests) - len(CUSTOM) == 9
    assert len(by_hand()) >= 6
    for manifest in [*checked, *by_hand()]:
        kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", OVERLAYS)
def test_every_overlays_deployment_fits_the_schema(name: str, version: str) -> None:
    """The whole object; tests/cluster shows that kustomize makes the same of base and overlay."""
    kubernetes_validate.validate(objects.deployment(resolve(OVERLAYS[name])), version, strict=True)


@pytest.mark.parametrize(
    ("path", "keys", "name", "value"),
    [
        ("base/deployment.yaml", ["spec", "template", "spec"], "terminationGraceSeconds", 1),
        ("base/networkpolicy.yaml", ["spec"], "ingres", []),
        ("components/hpa/hpa.yaml", ["spec", "behavior", "scaleUp"], "stabilisationWindowSeconds", 0),
        ("components/hpa/hpa.yaml", ["spec"], "maxReplicas", "eight"),
    ],
)
def test_a_misspelt_field_would_be_noticed(manifests: dict[str, dict[str, Any]], path: str, keys: list[str], name: str, value: object) -> None:
    wrong = copy.deepcopy(manifests[path])
    inner = wrong
    for key in keys:
        inner = inner[key]
    inner[name] = value
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_every_file_that_a_kustomization_names_is_there(tree: dict[str, str]) -> None:
    for path, content in tree.items():
        if not path.endswith("kustomization.yaml"):
            continue
        named = yaml.safe_load(content)
        files = [*named.get("resources", []), *(patch["path"] for patch in named.get("patches", []))]
        files += [entry.split("=")[-1] for generator in named.get("configMapGenerator", []) for entry in generator["files"]]
        for name in [*files, *named.get("components", [])]:
            wanted = (DEPLOY / path).parent / name
            assert (wanted / "kustomization.yaml").is_file() if name.startswith("..") else wanted.is_file(), f"{path}: {name}"


@pytest.mark.parametrize("name", ["vllm", "loader", "queue-wait-adapter"])
def test_a_container_keeps_to_the_restricted_standard(manifests: dict[str, dict[str, Any]], name: str) -> None:
    """The rules of Kubernetes' "Pod Security Standards", level restricted, as far as a pod of ours could break them; the namespace enforces them."""
    (found,) = [one for one in [*manifests.values(), *by_hand()] if one["kind"] in ("Deployment", "Pod") and one["metadata"]["name"] == name]
    pod = found["spec"] if found["kind"] == "Pod" else found["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True and pod["securityContext"]["runAsUser"] != 0
    assert pod["securityContext"]["seccompProfile"]["type"] in ("RuntimeDefault", "Localhost")
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    allowed = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
    assert all(set(volume) - {"name"} <= allowed for volume in pod.get("volumes", []))
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)


def test_the_loader_is_none_of_the_services_pods(manifests: dict[str, dict[str, Any]]) -> None:
    labels = manifests["loader.yaml"]["metadata"]["labels"]
    for path, keys in (
        ("base/service.yaml", ()),
        ("base/poddisruptionbudget.yaml", ("matchLabels",)),
        ("components/monitoring/podmonitor.yaml", ("matchLabels",)),
    ):
        selector = manifests[path]["spec"]["selector"]
        for key in keys:
            selector = selector[key]
        assert not selector.items() <= labels.items(), path


def test_a_pod_outlives_its_drain_and_the_drain_outlives_two_of_the_longest_requests() -> None:
    for wanted in OVERLAYS.values():
        found = resolve(wanted)
        pod = objects.deployment(found)["spec"]["template"]["spec"]
        *_, settle_s, limit_s, url = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        assert float(limit_s) >= 2 * found.longest_request_s
        assert pod["terminationGracePeriodSeconds"] >= float(settle_s) + float(limit_s) + 30
        assert url == f"http://127.0.0.1:{objects.PORT}"


def test_the_startup_probe_waits_as_long_as_the_profile_does() -> None:
    found = resolve(OVERLAYS["none"])
    probe = objects.deployment(found)["spec"]["template"]["spec"]["containers"][0]["startupProbe"]
    assert probe["failureThreshold"] * probe["periodSeconds"] >= found.profile.engine.start_timeout_s == 600


def test_a_tree_of_somebody_elses_is_left_alone(tmp_path: Path, tree: dict[str, str]) -> None:
    (tmp_path / "letters.txt").write_text("mine")
    with pytest.raises(ConfigError, match="a new or empty folder"):
        write(tree, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letters.txt"]


def test_a_tree_is_written_over_an_earlier_one(tmp_path: Path, tree: dict[str, str]) -> None:
    write(tree, tmp_path / "out")
    (tmp_path / "out" / "base" / "service.yaml").write_text("old")
    write(tree, tmp_path / "out")
    assert (tmp_path / "out" / "base" / "service.yaml").read_text() == tree["base/service.yaml"]


def test_a_replica_over_several_gpus_asks_for_them() -> None:
    found = resolve(Wanted(profile="h200-smollm2", tensor_parallel_size=3, unmeasured=True))
    container = objects.deployment(found)["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == container["resources"]["requests"]["nvidia.com/gpu"] == "3"
    at = container["args"].index("--tensor-parallel-size")
    assert container["args"][at + 1] == "3"


def test_a_model_of_the_hub_needs_a_way_out_and_a_place_to_write() -> None:
    wanted = Wanted(profile="h200-smollm2", model_id="HuggingFaceTB/SmolLM2-135M-Instruct")
    way_out = {"ports": [{"port": 443, "protocol": "TCP"}]}
    assert way_out in yaml.safe_load(render({"hub": wanted})["base/networkpolicy.yaml"])["spec"]["egress"]
    pod = objects.deployment(resolve(wanted))["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert container["args"][container["args"].index("--model") + 1] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert "HF_HUB_OFFLINE" not in {entry["name"] for entry in container["env"]}
    assert container["volumeMounts"][0] == {"name": "models", "mountPath": "/models"}
    assert "HF_HOME" in {entry["name"] for entry in container["env"]}


@pytest.mark.parametrize("first", ["hub", "none"])
def test_a_way_out_is_open_in_the_overlay_that_needs_it_alone(first: str) -> None:
    """Whichever of the two makes the base."""
    both = {"hub": Wanted(profile="h200-smollm2", model_id="HuggingFaceTB/SmolLM2-135M-Instruct"), "none": Wanted(profile="h200-smollm2")}
    files = render({first: both[first], **both})
    for name in both:
        path = f"overlays/{name}/networkpolicy.yaml" if name != first else "base/networkpolicy.yaml"
        assert ({"ports": [{"port": 443, "protocol": "TCP"}]} in yaml.safe_load(files[path])["spec"]["egress"]) == (name == "hub")
        assert ("networkpolicy.yaml" in files[f"overlays/{name}/kustomization.yaml"]) == (name != first)


@pytest.mark.parametrize("name", OVERLAYS)
def test_nothing_is_told_to_write_where_it_cannot(name: str) -> None:
    """The root and the models are read-only: each folder that the environment names for writing lies on another volume."""
    (container,) = objects.deployment(resolve(OVERLAYS[name]))["spec"]["template"]["spec"]["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    folders = {entry["name"]: entry["value"] for entry in container["env"] if entry.get("value", "").startswith("/")}
    assert folders == {"HOME": "/home/vllm"} and writable == {"/home/vllm", "/tmp", "/dev/shm"}


def test_a_failure_in_the_middle_leaves_the_earlier_tree(tmp_path: Path, tree: dict[str, str]) -> None:
    """A path that can't be made stands last, so every other file has been written by then."""
    write({**tree, "base/service.yaml": "earlier"}, tmp_path / "out")
    with pytest.raises(ConfigError, match="a folder that can be written to"):
        write({**tree, "base/service.yaml/below": "it"}, tmp_path / "out")
    assert (tmp_path / "out" / "base" / "service.yaml").read_text() == "earlier"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_one_autoscaler_allows_for_the_largest_slowdown_of_any_overlay() -> None:
    """Ours is 5 over 4 and another's 8 over 4 with all 64 slots busy: 70 % of 64 slots over 2.0; by itself over 1.3, in tenths upwards."""
    none, peagle, unmeasured = (resolve(OVERLAYS[name]) for name in ("none", "peagle", "tensor-parallel"))

    def seen(full_ms: float) -> Evidence:
        return Evidence(tuple(record(concurrency=load, tpot_ms_mean=value) for load, value in ((16, 4.0), (64, full_ms))))

    ours, other = replace(none, evidence=seen(5.0)), replace(peagle, evidence=seen(8.0))
    assert policy_of(ours).floor_slots == pytest.approx(0.7 * 64 / 1.3, abs=1e-3)
    assert policy_of(ours, [ours, other, unmeasured]).floor_slots == pytest.approx(0.7 * 64 / 2.0)
    assert policy_of(unmeasured).floor_slots == pytest.approx(0.7 * 64)
