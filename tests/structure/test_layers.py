"""Imports point downward only: leaves <- islands <- runtime <- backends <- what users call."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import pytest

from tests.helpers.tree import ROOT, label, module_name, sources

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LEAVES = {
    "_atomic", "_backend_loader", "_collection", "_dataclasses", "_finalizing", "_lazy", "_size_bounds",
    "_size_program", "_size_records", "_sizes", "_unraisable", "_version", "config", "csv_rows", "drawing", "errors",
    "fork", "limits", "log", "mapped_file", "notebook", "spans", "typing",
}  # fmt: skip
ISLANDS = {"graph", "memory", "cache", "schedule", "_kernels"}
BELOW_BACKENDS = LEAVES | ISLANDS | {"runtime"}
TOP = BELOW_BACKENDS | {"backends"}

MAY_IMPORT = {
    "_atomic": set(),
    "_backend_loader": set(),
    "_collection": set(),
    "_dataclasses": set(),
    "_sizes": {"errors"},
    "_size_program": {"_sizes", "errors"},
    "_size_records": {"_sizes"},
    "_size_bounds": {"_size_program", "_sizes", "errors"},
    "_finalizing": set(),
    "_lazy": set(),
    "_unraisable": set(),
    "_version": set(),
    "fork": set(),
    "errors": set(),
    "limits": {"_dataclasses", "errors"},
    "drawing": {"_dataclasses", "errors"},
    "notebook": set(),
    "typing": {"errors", "fork"},
    "config": {"_dataclasses", "errors"},
    "log": {"config"},
    "spans": {"errors", "fork"},
    "csv_rows": {"errors", "mapped_file"},
    "mapped_file": {"_dataclasses", "errors"},
    **dict.fromkeys(ISLANDS, LEAVES),
    "runtime": LEAVES | ISLANDS,
    "backends": BELOW_BACKENDS,
    "profile": TOP,
    "export": LEAVES | {"cache", "runtime"},
    "onnx": TOP | {"profile"},
    "serve": LEAVES | {"cache", "runtime", "export"},
    "worker_model": {"cache", "fork", "runtime"},
    "rows": LEAVES | {"runtime", "worker_model"},
    "dask": {"errors", "rows", "runtime", "worker_model"},
    "ray": {"errors", "onnx", "rows", "runtime", "serve", "typing", "worker_model"},
    "spark": {"errors", "rows", "runtime", "typing", "worker_model"},
    "fleet": LEAVES | {"profile", "runtime", "serve"},
    "demo": TOP | {"profile", "onnx"},
    "cli_graph": TOP | {"cli_terminal", "graphpool"},
    "cli_picture": LEAVES | {"profile"},
    "cli_text": {"_dataclasses", "drawing"},
    "cli_bench": LEAVES | {"runtime"},
    "cli_cache": LEAVES | {"cache", "cli_terminal"},
    "cli_fleet": LEAVES | {"cli_serve", "fleet", "runtime", "graphpool"},
    "cli_serve": LEAVES | {"runtime", "graphpool"},
    "cli_terminal": set(),
    "cli": TOP
    | {
        "cli_bench",
        "cli_cache",
        "cli_fleet",
        "cli_graph",
        "cli_picture",
        "cli_serve",
        "cli_terminal",
        "cli_text",
        "profile",
        "onnx",
        "demo",
        "graphpool",
    },
    "__main__": {"cli"},
    "pytest_plugin": {"errors", "typing", "runtime"},
    "graphpool": TOP | {"fleet", "profile", "onnx", "rows", "serve"},
}
"""For each part of the package, the parts that it may import; ``graphpool`` stands for ``graphpool/__init__.py``."""

TYPES_OF = {"graphpool/graph/partition.py": {"runtime"}}
"""Parts above that a module may import for types alone: `Partition.compile` gives what the runtime makes."""

KERNEL_FLOORS = {
    "core": set(),
    "eltwise": {"core"},
    "norm": {"core", "eltwise"},
    "move": {"core", "eltwise"},
    "gemm": {"core", "eltwise"},
    "image": {"core", "eltwise", "gemm"},
    "conv": {"core", "eltwise", "move", "gemm", "image"},
    "cuda": {"core", "eltwise"},
}
"""For each folder of kernels, the folders that it may import and include."""

_BELOW_MATCH = {"choices", "support"}
_BELOW_LOWER = _BELOW_MATCH | {"match", "layout"}
CPU_FLOORS = {
    "choices": set(),
    "support": {"choices"},
    "key": {"choices"},
    "match": _BELOW_MATCH,
    "layout": _BELOW_MATCH | {"match"},
    "lower": _BELOW_LOWER,
    "products": _BELOW_LOWER | {"lower"},
    "emit": _BELOW_LOWER | {"lower", "products"},
    "patterns": {"match", "emit"},
    "rewrites": {"support", "match", "patterns"},
    "place": {"lower"},
}
CPU_FLOORS["backend"] = set(CPU_FLOORS)
CPU_FLOORS["__init__"] = {"backend"}
"""For each part of the CPU backend, the parts that it may import, for types alone too."""

CPU_SOURCES = [path for path in sources(".py") if label(path).startswith("graphpool/backends/cpu/")]

_INCLUDE = re.compile(r'#include "(\w+)/\w+\.h"')
_CYTHON_IMPORT = re.compile(r"^\s*(?:from\s+(\.*[\w.]*)\s+c?import\s+([\w, ]+)|c?import\s+([\w.]+))", re.MULTILINE)


def _part(name: str) -> str:
    """The part that a dotted name is in."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def _absolute(path: Path, module: str, level: int, names: list[str]) -> list[str]:
    """Dotted names that ``from <level dots><module> import <names>`` reads."""
    if level:
        package = module_name(path).split(".")
        package = package if path.name == "__init__.py" else package[:-1]
        base = package[: len(package) - level + 1]
        module = ".".join([*base, module] if module else base)
    return [f"{module}.{name}" for name in names] if module == "graphpool" else [module]


def _is_for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _python_imports(path: Path, *, for_types: bool = True) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    if not for_types:
        tree.body = [node for node in tree.body if not _is_for_types(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from _absolute(path, node.module or "", node.level, [alias.name for alias in node.names])


def _cython_imports(path: Path) -> Iterator[str]:
    for origin, names, plain in _CYTHON_IMPORT.findall(path.read_text()):
        if plain:
            yield plain
        else:
            module = origin.lstrip(".")
            listed = [name.split(" as ")[0].strip() for name in names.split(",")]
            yield from _absolute(path, module, len(origin) - len(module), listed)


@pytest.mark.parametrize("path", sources(".py", ".pyx", ".pxd", ".pyi"), ids=label)
def test_imports_point_downward(path: Path) -> None:
    own = _part(module_name(path))
    assert own in MAY_IMPORT, f"{own} has no place among the layers yet"
    read = _cython_imports(path) if path.suffix in (".pyx", ".pxd") else _python_imports(path)
    parts = {_part(name) for name in read if name.split(".")[0] == "graphpool"}
    assert parts - {own} <= MAY_IMPORT[own] | TYPES_OF.get(label(path), set())


@pytest.mark.parametrize("path", [ROOT / name for name in TYPES_OF], ids=label)
def test_types_from_above_are_not_imported_in_a_run(path: Path) -> None:
    parts = {_part(name) for name in _python_imports(path, for_types=False) if name.split(".")[0] == "graphpool"}
    assert not parts & TYPES_OF[label(path)]


@pytest.mark.parametrize("floor", KERNEL_FLOORS)
def test_folders_of_kernels_read_those_below(floor: str) -> None:
    paths = [path for path in sources(".py", ".c", ".h") if label(path).startswith(f"graphpool/_kernels/{floor}/")]
    read = set()
    for path in paths:
        if path.suffix == ".py":
            read |= {name.split(".")[2] for name in _python_imports(path) if name.startswith("graphpool._kernels.")}
        else:
            read |= set(_INCLUDE.findall(path.read_text()))
    assert paths
    assert read - {floor} <= KERNEL_FLOORS[floor]


@pytest.mark.parametrize("path", CPU_SOURCES, ids=label)
def test_parts_of_the_cpu_backend_read_those_below(path: Path) -> None:
    floor = label(path).split("/")[3].removesuffix(".py")
    read = {name.split(".")[3] for name in _python_imports(path) if name.startswith("graphpool.backends.cpu.")}
    assert read - {floor} <= CPU_FLOORS[floor]


def test_modules_of_the_cpu_backend_import_no_circle() -> None:
    """Not for types either: whoever reads a module reads what is below it first."""
    imports = {module_name(path): set(_python_imports(path)) for path in CPU_SOURCES}
    done: set[str] = set()
    while ready := {name for name, read in imports.items() if name not in done and (read & imports.keys()) <= done}:
        done |= ready
    assert imports.keys() - done == set()


def test_kernels_are_free_of_the_interpreter() -> None:
    """C files see neither Python nor an allocator."""
    forbidden = re.compile(r"Python\.h|\b(malloc|calloc|realloc|free)\s*\(")
    assert not [label(path) for path in sources(".c", ".h") if forbidden.search(path.read_text())]


def _imported_by(folder: str) -> Iterator[tuple[str, str]]:
    """(file, what it imports) for each import of a folder beside the package."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        yield from ((label(path), name) for name in _python_imports(path))


def test_tests_know_nothing_of_the_benchmarks() -> None:
    assert [(path, name) for path, name in _imported_by("tests") if name.split(".")[0] == "bench"] == []


def test_benchmarks_know_nothing_of_the_tests_but_the_cases() -> None:
    read = [(path, name) for path, name in _imported_by("bench") if name.split(".")[0] == "tests"]
    assert read
    assert [(path, name) for path, name in read if not name.startswith("tests.cases")] == []
