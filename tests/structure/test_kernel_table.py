"""Every kernel exists for every instruction set, and tests that run on all of them name it."""

import re

import pytest

from graphpool._kernels.core._dispatch import isas, names
from tests.helpers.tree import ROOT

TESTS = {path.name: path.read_text() for path in (ROOT / "tests" / "_kernels").glob("test_*.py")}
TYPE = re.compile(r"^(?:[fus]\d+|bf16|int)_")


@pytest.mark.parametrize("isa", isas())
def test_every_instruction_set_has_every_kernel(isa: str) -> None:
    assert names(isa) == names("generic")


@pytest.mark.parametrize("kernel", names("generic"))
def test_a_test_file_exercises_the_kernel(kernel: str) -> None:
    """One file holds every word of the name but the type, which tests put together from cases."""
    words = TYPE.sub("", kernel).split("_")
    assert [name for name, text in TESTS.items() if "isas()" in text and all(word in text for word in words)]
