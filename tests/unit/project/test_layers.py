"""Who may import whom, read from the sources' syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[3] / "src"
MODULES = sorted((SRC / "specstudy").rglob("*.py"))

# What everybody may import: the package's version, the error tree, what a record is, and how progress is told.
LEAVES = {"", "errors", "records.schema", "progress"}
# Left to right as the data flows. A part may import what stands to the left of its own group, and itself.
ORDER = [
    {"catalog"},
    {"serving", "workloads"},
    {"records"},
    {"measure"},
    {"analysis"},
    {"figures"},
    {"drafts", "scaling", "quantize"},
    {"plan"},
    {"deploy"},
    {"runner"},
    {"study", "tracing"},
    {"book"},
    {"whole"},
    {"cli_train", "cli_shapes"},
    {"cli_drafts"},
    {"cli_deploy"},
    {"cli_lab"},
    {"cli"},
]
PARTS = set.union(*ORDER)
# `records` stands left of `measure` for what it may be imported by; itself it imports nothing of ours but the errors.
IMPORTS_ONLY = {"errors": set[str](), "progress": set[str](), "records": {"errors", "records"}, "records.schema": set[str]()}


def dotted(path: Path) -> str:
    """A file as a module's name without the package: catalog.load, records (for its __init__), or nothing for the root."""
    parts = list(path.relative_to(SRC / "specstudy").with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> Iterator[str]:
    """Modules of ours that a file imports anywhere in it, without the package's name."""
    package = ["specstudy", *path.relative_to(SRC / "specstudy").parent.parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*start, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (as_module(name) for name in names if name.split(".")[0] == "specstudy")


def as_module(name: str) -> str:
    """specstudy.records.schema.Record -> records.schema: the longest beginning that is a module."""
    parts = name.split(".")[1:]
    while parts and not any((SRC / "specstudy" / Path(*parts)).with_suffix(ending).exists() for ending in (".py", "")):
        parts.pop()
    return ".".join(parts)


def allowed_for(module: str) -> set[str]:
    """Parts that `module` may import, leaves left out."""
    part = module.split(".")[0]
    for name in (module, part):
        if name in IMPORTS_ONLY:
            return IMPORTS_ONLY[name]
    at = next(i for i, group in enumerate(ORDER) if part in group)
    return {part}.union(*ORDER[:at])


def offences(module: str, imports: list[str]) -> list[str]:
    """Those of `imports` that `module` must not have."""
    leaves = set() if module in IMPORTS_ONLY or module.split(".")[0] == "records" else LEAVES
    allowed = allowed_for(module)
    return [name for name in imports if name not in leaves and name.split(".")[0] not in allowed]


@pytest.mark.parametrize("path", MODULES, ids=[dotted(path) or "(root)" for path in MODULES])
def test_a_module_imports_only_what_stands_left_of_it(path: Path) -> None:
    module = dotted(path)
    if not module:
        assert list(imports_of(path)) == [], "the package's root imports nothing, so that it is quick"
        return
    assert module.split(".")[0] in PARTS | {"errors", "progress"}, "a new part of the package needs its place in ORDER"
    assert offences(module, list(imports_of(path))) == []


@pytest.mark.parametrize(
    ("module", "imported", "fine"),
    [
        ("measure.cell", "analysis.stats", False),
        ("measure.cell", "serving.server", True),
        ("measure.cell", "records.store", True),
        ("serving.vllm", "workloads.prompts", False),
        ("workloads.prompts", "serving", False),
        ("catalog.models", "records.schema", True),
        ("catalog.models", "records.store", False),
        ("serving.checks", "records", False),
        ("catalog.load", "serving", False),
        ("records.store", "records.schema", True),
        ("records.store", "errors", True),
        ("records.store", "catalog.paths", False),
        ("records.schema", "errors", False),
        ("errors", "records.schema", False),
        ("analysis.speedup", "measure.metrics.summary", True),
        ("analysis.speedup", "figures", False),
        ("figures.bars", "analysis.stats", True),
        ("plan", "study", False),
        ("study", "plan", True),
        ("study", "cli", False),
        ("cli", "study", True),
    ],
)
def test_the_rule_itself(module: str, imported: str, fine: bool) -> None:
    assert (offences(module, [imported]) == []) is fine


def test_every_import_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "specstudy"
    for name in ("a/__init__", "a/b", "a/c", "d", "e/__init__"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / f"{name}.py").touch()
    lines = [
        "import os",
        "import specstudy.d",
        "from specstudy.a.b import thing",
        "from specstudy import e",
        "def f():",
        "    from specstudy.a import c",
        "from . import b",
    ]
    (package / "a" / "b.py").write_text("\n".join(lines))
    monkeypatch.setitem(globals(), "SRC", tmp_path)
    assert list(imports_of(package / "a" / "b.py")) == ["d", "a.b", "e", "a.b", "a.c"]
