"""Public docstrings say what a user asks: parameters, results, errors, ownership, threads."""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import importlib.util
import inspect
import re
import textwrap
from typing import Any

import pytest

PACKAGES = [
    "graphpool",
    *(f"graphpool.{name}" for name in ("backends", "cache", "graph", "memory", "profile", "runtime", "schedule")),
    "graphpool.memory.cuda",
]
if importlib.util.find_spec("onnx"):
    PACKAGES.append("graphpool.onnx")


def _public(kind: Any) -> list[Any]:
    """Public classes or functions of the packages, each once."""
    found = {}
    for package in map(importlib.import_module, PACKAGES):
        for name in package.__all__:
            value = getattr(package, name, None)
            if kind(value) and value.__module__.startswith("graphpool"):
                found[f"{value.__module__}.{value.__qualname__}"] = value
    return [pytest.param(value, id=name) for name, value in sorted(found.items())]


def _sections(text: str) -> set[str]:
    """Headings of a numpydoc docstring."""
    return set(re.findall(r"^(\w[\w ]*)\n-{3,}$", text, re.MULTILINE))


def _is_documented(name: str, text: str) -> bool:
    """Whether `name` stands in a list of parameters, alone or beside others."""
    return re.search(rf"^(?:[\w*]+, )*\**{re.escape(name)}(?:, [\w*]+)*(?: :.*)?$", text, re.MULTILINE) is not None


def _describes_itself(cls: type) -> bool:
    """Records, enumerations, errors and protocols hold nothing and guard nothing: their fields say it all."""
    is_record = dataclasses.is_dataclass(cls) or issubclass(cls, tuple)
    return is_record or issubclass(cls, (enum.Enum, Exception)) or getattr(cls, "_is_protocol", False)


@pytest.mark.parametrize("cls", _public(inspect.isclass))
def test_class(cls: type) -> None:
    text = inspect.getdoc(cls) or ""
    assert text
    if _describes_itself(cls):
        return
    whole = "\n".join(inspect.getdoc(base) or "" for base in cls.__mro__ if base is not object)
    assert "Threads:" in whole or "mmutable" in whole
    if hasattr(cls, "close"):
        assert "Ownership:" in whole
    undocumented = [
        name
        for name, value in inspect.getmembers(cls)
        if not name.startswith("_") and (callable(value) or isinstance(value, property)) and not inspect.getdoc(value)
    ]
    assert undocumented == []


@pytest.mark.parametrize("function", _public(inspect.isfunction))
def test_function(function: Any) -> None:
    text = inspect.getdoc(function) or ""
    sections, parameters = _sections(text), inspect.signature(function).parameters
    assert text
    if len(parameters) > 2 or "Parameters" in sections:
        assert [name for name in parameters if not _is_documented(name, text)] == []
        if function.__annotations__.get("return") not in ("None", None):
            assert "Returns" in sections
    if _raises(function):
        assert "Raises" in sections


def _raises(function: Any) -> bool:
    """Whether the body itself raises something new."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return any(isinstance(node, ast.Raise) and node.exc is not None for node in ast.walk(tree))
