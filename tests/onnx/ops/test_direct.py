"""Ops that are one of our kinds: the minimal op of each kind as a node, and its definition beside ONNX's."""

import numpy as np
import pytest
from onnx import defs

from graphpool.graph.schema import get_schema
from graphpool.onnx import ops
from graphpool.onnx.ops import direct
from tests.helpers.onnx_models import check_against_evaluator, node_model
from tests.helpers.schema_cases import CASES, tensor

OWN = [op for op, convert in ops.CONVERTERS.items() if convert is direct.CONVERTERS.get(op)]


def content(text, seed):
    """Normal numbers; indices and truth values 0 and 1 by turns."""
    one = tensor(text, 0)
    if one.dtype.value[0] == "f":
        return np.random.default_rng(seed).standard_normal(one.shape).astype(one.dtype.numpy)
    return (np.arange(np.prod(one.shape, dtype=int)).reshape(one.shape) % 2).astype(one.dtype.numpy)


def example(op):
    """The minimal op of the kind: its inputs in ONNX's order, which of them are constants, the node's attributes."""
    given, sources, _ = CASES[direct.KINDS[op]]
    tensors = iter([content(text, seed) for seed, text in enumerate(sources)])
    schema, attributes, inputs = get_schema(direct.KINDS[op]), dict(given), {}
    for item in schema.attributes.values():
        if item.onnx_input is not None:
            inputs[item.onnx_input] = np.array(attributes.pop(item.name, item.default), np.int64)
        elif item.name == "keep_dims":
            attributes["keepdims"] = attributes.pop(item.name)
    constants = set(inputs)
    for place in range(len(sources) + len(inputs)):
        if place not in inputs:
            inputs[place] = next(tensors)
    return [inputs[place] for place in sorted(inputs)], constants, attributes


@pytest.mark.parametrize("op", OWN)
def test_the_minimal_op_runs_natively(op):
    inputs, constants, attributes = example(op)
    if op in ("TopK", "ArgMax", "ArgMin"):
        inputs[0] = np.round(inputs[0])  # equal elements too
        inputs[1:] = [k.reshape(1) for k in inputs[1:]]
    noutputs, opset = len(CASES[direct.KINDS[op]][2]), max(21, defs.get_schema(op).since_version)
    with np.errstate(all="ignore"):
        model = node_model(op, inputs, constants=constants, noutputs=noutputs, opset=opset, **attributes)
        assert check_against_evaluator(*model) == 0


@pytest.mark.parametrize("op", OWN)
def test_the_kind_has_onnx_attributes_and_inputs(op):
    """Attributes of ONNX are ours, with the same defaults; each of its inputs is a port or an attribute."""
    schema, theirs = get_schema(direct.KINDS[op]), defs.get_schema(op)
    renamed = {direct._RENAMED.get(item.name, item.name): item for item in schema.attributes.values()}
    for name, attribute in theirs.attributes.items():
        default = attribute.default_value
        assert name in renamed
        if attribute.required:
            assert renamed[name].required
        elif default.name:
            ours = direct._DEFAULTS.get(schema.kind, {}).get(name, renamed[name].default)
            given = default.s.decode() if default.s else default.f or default.i
            assert given == (ours if isinstance(ours, str) else pytest.approx(float(ours)))
    taken = [item.onnx_input for item in schema.attributes.values() if item.onnx_input is not None]
    assert len(theirs.inputs) == len(schema.inputs) + len(taken)
    assert set(taken) <= set(range(len(theirs.inputs)))
    assert len(theirs.outputs) == len(schema.outputs)
