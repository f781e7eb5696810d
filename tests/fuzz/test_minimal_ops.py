"""The minimal op of every kind, in every type of its first input: CPU backend, reference backend and oracle agree."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from graphpool.errors import InvalidArgumentError
from graphpool.graph.schema import SCHEMAS
from tests.fuzz.cases import Case, Node, Source
from tests.fuzz.compare import difference
from tests.helpers.schema_cases import FakeOp, case
from tests.oracle import KINDS
from tests.oracle.numbers import FLOATS, NUMPY

if TYPE_CHECKING:
    from collections.abc import Iterator


def in_every_type(kind: str) -> Iterator[FakeOp]:
    """The minimal op with other types for what shares the type of its first input, where it is valid."""
    op, schema = case(kind), SCHEMAS[kind]
    variable = schema.inputs[0].type
    for dtype in sorted(t for t in schema.types[variable] if t in NUMPY and t.bits >= 8):  # whole bytes
        inputs = [replace(t, dtype=dtype) if schema.input_port(k).type == variable else t
                  for k, t in enumerate(op.inputs)]  # fmt: skip
        outputs = [replace(t, dtype=dtype) if schema.output_port(k).type == variable else t
                   for k, t in enumerate(op.outputs)]  # fmt: skip
        one = replace(op, inputs=tuple(inputs), outputs=tuple(outputs))
        try:
            one.validate()
        except InvalidArgumentError:
            continue
        yield one


def problem_of(op: FakeOp) -> str | None:
    """What is wrong with its results; integers may be indices, and a single float a probability."""
    sources = {}
    for t in op.inputs:
        fill = {"low": 0.2, "high": 1.8 if t.shape else 0.9} if t.dtype in FLOATS else {"low": 0, "high": 1}
        sources[t.id] = Source(t.dtype.value, list(t.shape or ()), fill)
    node = Node(op.kind, list(sources), [[t.id, t.dtype.value] for t in op.outputs], dict(op.attrs))
    return difference(Case(1, sources, [node], {"policy": "fusion", "threads": 1}))


@pytest.mark.parametrize("kind", KINDS)
def test_minimal_ops_agree(kind: str) -> None:
    problems = {op.inputs[0].dtype.value: problem_of(op) for op in in_every_type(kind)}
    assert problems
    assert {dtype: problem for dtype, problem in problems.items() if problem} == {}
