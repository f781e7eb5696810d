"""What users may import: complete, sorted, quick to import, and listed by dir()."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import graphpool
from tests.helpers.tree import ROOT, label, module_name, sources

OPTIONAL = {"onnx": "onnx", "serve": "uvicorn"}
"""Parts that need an extra, and what it brings."""

HEAVY = (
    "numpy", "onnx", "matplotlib", "scipy", "ml_dtypes", "graphpool.backends", "graphpool.graph", "graphpool.runtime",
)  # fmt: skip
"""What ``import graphpool`` leaves for later."""


def _declared(path):
    """The names of ``__all__`` as they stand in the file, or None."""
    for node in ast.parse(path.read_text()).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            return ast.literal_eval(node.value)
    return None


def _is_installed(name: str) -> bool:
    extra = OPTIONAL.get(name)
    return extra is None or importlib.util.find_spec(extra) is not None


MODULES = [path for path in sources(".py") if _declared(path) is not None]


@pytest.mark.parametrize("path", MODULES, ids=label)
def test_all_is_sorted_and_resolves(path) -> None:
    declared = _declared(path)
    assert len(set(declared)) == len(declared)
    assert declared == sorted(declared, key=_isort_key)
    part = module_name(path).split(".")[1:2]
    if part and not _is_installed(part[0]):
        pytest.skip(f"{part[0]} needs an extra that is not installed")
    module = importlib.import_module(module_name(path))
    missing = [name for name in declared if _is_installed(name) and not hasattr(module, name)]
    assert missing == []


def _isort_key(name: str) -> tuple[int, str]:
    """Constants, then classes, then the rest, as the linter sorts them."""
    return (0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2), name


def test_type_checkers_know_the_public_names() -> None:
    """What no import statement of ``graphpool`` names would be Any to them, by its ``__getattr__``."""
    nodes = [
        node for node in ast.walk(ast.parse(Path(graphpool.__file__).read_text())) if isinstance(node, ast.ImportFrom)
    ]
    imported = {alias.asname or alias.name for node in nodes for alias in node.names}
    assert set(graphpool.__all__) - imported == set()


def test_dir_lists_the_public_names() -> None:
    assert dir(graphpool) == sorted(graphpool.__all__)


def test_dir_of_a_package_lists_names_that_are_imported_later() -> None:
    assert dir(graphpool.memory) == sorted(graphpool.memory.__all__)
    assert "write_trace" in dir(graphpool.cache)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Grahp'"):
        _ = graphpool.Grahp


def test_import_leaves_the_heavy_parts_for_later() -> None:
    code = f"import sys, graphpool; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
