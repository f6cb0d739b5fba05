"""Nothing grows past what a reader can hold: functions, modules, and words for what is public."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[3] / "src" / "specstudy"
MODULES = sorted(PACKAGE.rglob("*.py"))
NAMES = [str(path.relative_to(PACKAGE)) for path in MODULES]
FUNCTION_LINES, MODULE_LINES = 80, 400

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST) -> list[Function]:
    """Every function, methods and inner ones too."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def lines_of(function: Function) -> int:
    """Lines from the first decorator to the end."""
    first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
    assert function.end_lineno is not None
    return function.end_lineno - first + 1


def public(body: list[ast.stmt], inside: str = "") -> Iterator[tuple[str, Function | ast.ClassDef]]:
    """Public functions, classes and methods with their dotted names."""
    for node in body:
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            yield inside + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from public(node.body, f"{inside}{node.name}.")


def test_there_is_something_to_look_at() -> None:
    assert len(MODULES) > 10


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_no_module_is_too_long(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MODULE_LINES


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_no_function_is_too_long(path: Path) -> None:
    lengths = {function.name: lines_of(function) for function in functions(ast.parse(path.read_text()))}
    assert {name: length for name, length in lengths.items() if length > FUNCTION_LINES} == {}


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_everything_public_says_what_it_is(path: Path) -> None:
    tree = ast.parse(path.read_text())
    if tree.body:
        assert ast.get_docstring(tree), "the module itself"
    assert [name for name, node in public(tree.body) if not ast.get_docstring(node)] == []


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_every_function_is_typed(path: Path) -> None:
    untyped = []
    for function in functions(ast.parse(path.read_text())):
        arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs, function.args.vararg, function.args.kwarg]
        bare = [found.arg for found in arguments if found is not None and found.annotation is None and found.arg not in ("self", "cls")]
        if bare or function.returns is None:
            untyped.append((function.name, bare))
    assert untyped == []
