"""Public docstrings say what a user asks: parameters, results, errors, ownership, threads.

Looked at are the functions and classes of the public packages, and the methods of these classes. A parameter stands in
the list of its docstring, or in that of a base class; methods of a protocol, such as those of resources of memory, are
described there.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import importlib.util
import inspect
import re
import textwrap
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from graphpool import errors
from graphpool.typing import MemoryResource

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGES = [
    "graphpool",
    *(
        f"graphpool.{name}"
        for name in ("backends", "cache", "fleet", "graph", "memory", "profile", "runtime", "schedule")
    ),
    "graphpool.memory.cuda",
]
PACKAGES += ["graphpool.export.prometheus", "graphpool.export.opentelemetry", "graphpool.serve"]
if importlib.util.find_spec("onnx"):
    PACKAGES.append("graphpool.onnx")

PROTOCOLS = [MemoryResource]
"""What implements them need not describe their parameters again."""


class Documented(NamedTuple):
    """A function, class or method with all text that describes it."""

    name: str
    value: Any
    text: str


def _public() -> dict[str, Any]:
    """Public classes and functions of the packages, each once."""
    found = {}
    for package in map(importlib.import_module, PACKAGES):
        for name in package.__all__:
            value = getattr(package, name, None)
            if str(getattr(value, "__module__", "")).startswith("graphpool") and callable(value):
                found[f"{value.__module__}.{value.__qualname__}"] = value
    return dict(sorted(found.items()))


def _callables() -> list[Documented]:
    """These, and the methods of the classes."""
    found = {}
    for name, value in _public().items():
        if inspect.isclass(value):
            found |= {each.name: each for each in _of_class(name, value)}
        else:
            found[name] = Documented(name, value, inspect.getdoc(value) or "")
    return list(found.values())


def _of_class(name: str, cls: type) -> Iterator[Documented]:
    if not _describes_itself(cls) and "made by" not in (inspect.getdoc(cls) or "").lower():
        yield Documented(name, cls, _whole_text(cls))
    protocols = [protocol for protocol in PROTOCOLS if issubclass(cls, protocol)]
    for method, value in inspect.getmembers(cls):
        owner = next((base for base in cls.__mro__ if method in base.__dict__), object)
        is_own = owner.__module__.startswith("graphpool") and not method.startswith("_")
        if is_own and callable(value) and not inspect.isclass(value):
            inherited = [inspect.getdoc(getattr(protocol, method, None)) or "" for protocol in protocols]
            text = "\n\n".join([inspect.getdoc(value) or "", *inherited])
            yield Documented(f"{owner.__module__}.{owner.__qualname__}.{method}", value, text)


def _describes_itself(cls: type) -> bool:
    """Records, enumerations, errors and protocols hold nothing and guard nothing: their fields say it all."""
    is_record = dataclasses.is_dataclass(cls) or issubclass(cls, tuple)
    return is_record or issubclass(cls, (enum.Enum, Exception)) or getattr(cls, "_is_protocol", False)


def _whole_text(cls: type) -> str:
    """The docstrings of a class and its bases."""
    return "\n\n".join(inspect.getdoc(base) or "" for base in cls.__mro__ if base is not object)


def _parameters(item: Documented) -> list[str]:
    """Names of its parameters; of a compiled class, from the first line of its docstring."""
    try:
        names = list(inspect.signature(item.value).parameters)
    except (ValueError, TypeError):
        embedded = re.match(rf"{item.value.__name__}\(([^)]*)\)", item.text)
        parts = embedded[1].split(",") if embedded else []
        names = [part.split("=")[0].strip(" *").rpartition(" ")[2] for part in parts if part.strip(" *")]
    return [name for name in names if name not in ("self", "cls")]


def _raised(item: Documented) -> set[str]:
    """Names of graphpool's errors that its body raises, or helpers beside it that it calls; of compiled code none."""
    body = item.value.__init__ if inspect.isclass(item.value) else item.value
    raised, called = _read(body)
    module = importlib.import_module(item.value.__module__) if item.value.__module__ else None
    owner = item.value if inspect.isclass(item.value) else getattr(module, item.name.split(".")[-2], None)
    helpers = [getattr(place, name, None) for place in (module, owner) for name in called]
    return raised.union(*(_read(helper)[0] for helper in helpers if inspect.isfunction(helper)))


def _read(function: Any) -> tuple[set[str], set[str]]:
    """Errors that a body raises, and the functions and own methods that it calls."""
    try:
        nodes = list(ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))))
    except (OSError, TypeError):
        return set(), set()
    raised = {_name(node.exc.func) for node in nodes if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)}
    called = {_name(node.func) for node in nodes if isinstance(node, ast.Call)}
    return {name for name in raised if hasattr(errors, name)}, called - {""}


def _name(called: ast.expr) -> str:
    """Of a function, or of a method of ``self``; nothing for any other."""
    if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == "self":
        return called.attr
    return called.id if isinstance(called, ast.Name) else ""


def _gives_something(item: Documented) -> bool:
    """Whether its annotation says that there is a result; a class, and compiled code, has none."""
    annotations = {} if inspect.isclass(item.value) else getattr(item.value, "__annotations__", {})
    return annotations.get("return") not in (None, "None")


def _sections(text: str) -> set[str]:
    """Headings of a numpydoc docstring."""
    return set(re.findall(r"^(\w[\w ]*)\n-{3,}$", text, re.MULTILINE))


def _is_documented(name: str, text: str) -> bool:
    """Whether `name` stands in a list of parameters, alone or beside others."""
    return re.search(rf"^(?:[\w*]+, )*\**{re.escape(name)}(?:, [\w*]+)*(?: :.*)?$", text, re.MULTILINE) is not None


CLASSES = {name: value for name, value in _public().items() if inspect.isclass(value)}
CALLABLES = _callables()


def test_enough_is_looked_at() -> None:
    assert len(CLASSES) > 50
    assert len(CALLABLES) > 250


@pytest.mark.parametrize("cls", CLASSES.values(), ids=CLASSES)
def test_class(cls: type) -> None:
    assert inspect.getdoc(cls)
    if _describes_itself(cls):
        return
    whole = _whole_text(cls)
    assert "Threads:" in whole or "mmutable" in whole
    if hasattr(cls, "close"):
        assert "Ownership:" in whole
    undocumented = [
        name
        for name, value in inspect.getmembers(cls)
        if not name.startswith("_") and (callable(value) or isinstance(value, property)) and not inspect.getdoc(value)
    ]
    assert undocumented == []


@pytest.mark.parametrize("item", CALLABLES, ids=[item.name for item in CALLABLES])
def test_callable(item: Documented) -> None:
    sections, parameters = _sections(item.text), _parameters(item)
    assert item.text
    assert [name for name in parameters if not _is_documented(name, item.text)] == []
    if parameters:
        assert "Parameters" in sections
    assert sections & {"Returns", "Yields"} or not _gives_something(item)
    if _raised(item):
        assert "Raises" in sections
