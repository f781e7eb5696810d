"""The oracle of the fuzzer is a second opinion: it shares no code with graphpool."""

import ast
from pathlib import Path

import pytest

FILES = sorted((Path(__file__).parents[1] / "oracle").glob("*.py"))
MAY_IMPORT = {"__future__", "collections", "functools", "itertools", "math", "operator", "typing", "ml_dtypes", "numpy"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_oracle_imports_nothing_of_graphpool(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert {alias.name.split(".")[0] for alias in node.names} <= MAY_IMPORT
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 1 or (node.module or "").split(".")[0] in MAY_IMPORT


def test_oracle_was_found():
    assert "table.py" in [path.name for path in FILES]
