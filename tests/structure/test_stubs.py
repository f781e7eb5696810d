"""Every compiled module has a stub that names what the module has, with the same parameters."""

from __future__ import annotations

import ast
import importlib
import inspect
from typing import TYPE_CHECKING, Any

import pytest

from tests.helpers.tree import label, module_name, sources

if TYPE_CHECKING:
    from pathlib import Path

COMPILED = sources(".pyx")
Node = ast.ClassDef | ast.FunctionDef | ast.alias | None


def _is_protocol(node: ast.stmt) -> bool:
    return isinstance(node, ast.ClassDef) and any(isinstance(b, ast.Name) and b.id == "Protocol" for b in node.bases)


def _members(body: list[ast.stmt]) -> dict[str, Node]:
    """Names that a stub's module or class defines; None for what is neither a class nor a function.

    An import of a name as itself says that the module has its own of what types are checked by.

    Protocols are left out: they are there for the type checker alone.
    """
    found: dict[str, Node] = {}
    for node in body:
        if _is_protocol(node):
            continue
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            is_property = isinstance(node, ast.FunctionDef) and any(
                isinstance(mark, ast.Name) and mark.id == "property" for mark in node.decorator_list
            )
            found[node.name] = None if is_property else node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = None
        elif isinstance(node, ast.ImportFrom):
            found.update({entry.name: entry for entry in node.names if entry.asname == entry.name})
    return found


def _public(names: Any) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def _module_names(module: Any) -> set[str]:
    """Public names that the module itself defines."""
    own = {
        name
        for name, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__ and not inspect.ismodule(value)
    }
    return _public(own)


@pytest.fixture(params=COMPILED, ids=label)
def pair(request: pytest.FixtureRequest) -> tuple[Any, dict[str, Node]]:
    """A compiled module and the members of its stub."""
    stub: Path = request.param.with_suffix(".pyi")
    assert stub.exists(), f"{label(stub)} is missing"
    return importlib.import_module(module_name(request.param)), _members(ast.parse(stub.read_text()).body)


def test_names_agree(pair: tuple[Any, dict[str, Node]]) -> None:
    module, members = pair
    named = _public(name for name, node in members.items() if node is not None)
    assert named == _module_names(module)
    assert [name for name in members if not hasattr(module, name)] == []


def test_class_members_agree(pair: tuple[Any, dict[str, Node]]) -> None:
    module, members = pair
    for name, node in members.items():
        if isinstance(node, ast.ClassDef):
            stubbed, cls = _members(node.body), getattr(module, name)
            assert _public(stubbed) == _public(vars(cls)), name
            special = [member for member in stubbed if member.startswith("__") and member != "__buffer__"]
            assert [member for member in special if not hasattr(cls, member)] == [], name


def test_parameters_agree(pair: tuple[Any, dict[str, Node]]) -> None:
    module, members = pair
    for name, node in members.items():
        if isinstance(node, ast.FunctionDef):
            _check_parameters(node, getattr(module, name), name)
        elif isinstance(node, ast.ClassDef):
            for method, inner in _members(node.body).items():
                if isinstance(inner, ast.FunctionDef) and not method.startswith("_"):
                    _check_parameters(inner, vars(getattr(module, name))[method], f"{name}.{method}")


def _check_parameters(node: ast.FunctionDef, function: Any, where: str) -> None:
    """The same names and kinds of parameters, and defaults in the same places."""
    function = function.__func__ if isinstance(function, (staticmethod, classmethod)) else function
    actual = list(inspect.signature(function).parameters.values())
    given = node.args
    positional = [argument.arg for argument in (*given.posonlyargs, *given.args)]
    by_kind = {kind: [p for p in actual if p.kind is kind] for kind in inspect._ParameterKind}
    plain = by_kind[inspect.Parameter.POSITIONAL_ONLY] + by_kind[inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert [p.name for p in plain] == positional, where
    assert sum(p.default is not p.empty for p in plain) == len(given.defaults), where
    keyword = by_kind[inspect.Parameter.KEYWORD_ONLY]
    assert [p.name for p in keyword] == [argument.arg for argument in given.kwonlyargs], where
    assert [p.default is not p.empty for p in keyword] == [default is not None for default in given.kw_defaults], where
