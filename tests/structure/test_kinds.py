"""Every op kind has the parts that it needs, and no part is of a kind that is not there."""

import re
import subprocess
import sys

import pytest

from graphpool.backends import reference
from graphpool.backends.cpu.support import ANCHORS, INSTRUCTIONS, RULES
from graphpool.graph.schema import SCHEMAS
from graphpool.onnx.ops import direct
from tests import oracle
from tests.helpers.schema_cases import CASES
from tests.helpers.tree import module_name, sources

PARTS = {
    "reference": reference.registered_kinds(),
    "oracle": oracle.KINDS,
    "minimal op": CASES,
    "instruction": INSTRUCTIONS,
    "rule": {*RULES, *ANCHORS},
    "op of ONNX": direct.KINDS.values(),
    "exact": oracle.EXACT,
    "discontinuous": oracle.DISCONTINUOUS,
}
WITHOUT = {"reference": {"End", "Wildcard"}, "oracle": {"Wildcard"}, "minimal op": set()}


@pytest.mark.parametrize("part", WITHOUT)
def test_every_kind_has_the_part(part: str) -> None:
    assert set(SCHEMAS) - set(PARTS[part]) == WITHOUT[part]


@pytest.mark.parametrize("part", PARTS)
def test_no_part_is_of_an_unknown_kind(part: str) -> None:
    assert set(PARTS[part]) - set(SCHEMAS) == set()


@pytest.mark.parametrize("kind", [kind for kind in SCHEMAS if "Backward" in kind])
def test_a_gradient_is_that_of_a_kind(kind: str) -> None:
    stem = kind.partition("Backward")[0]
    assert stem in {name.replace("Forward", "") for name in SCHEMAS}


def test_backends_read_every_module_that_registers_kinds() -> None:
    """Kinds of a module that nobody imports would go to the reference backend, without a word."""
    registering = {
        module_name(path) for path in sources(".py") if re.search(r"^@(rule|instruction)\(", path.read_text(), re.M)
    }
    code = "import sys, graphpool.backends.cpu, graphpool.backends.cuda; print(*sys.modules)"
    read = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert registering
    assert sorted(registering - set(read)) == []
