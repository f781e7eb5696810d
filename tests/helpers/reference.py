"""Calls into the reference backend in float64, numerical gradients of its operations, and ONNX as a second opinion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from graphpool.backends.reference import OutputSpec, evaluate
from graphpool.typing import DataType

OPSET = 21


def run(kind: str, inputs: Sequence[Any], count: int = 1, dtype: str = "f64", **attrs: Any) -> list[np.ndarray]:
    """The first `count` outputs of `kind`, all of type `dtype`."""
    return evaluate(kind, [np.asarray(x) for x in inputs], attrs, [OutputSpec(DataType(dtype))] * count)


def run_one(kind: str, *inputs: Any, dtype: str = "f64", **attrs: Any) -> np.ndarray:
    """The first output of `kind`."""
    return run(kind, inputs, 1, dtype, **attrs)[0]


def numeric_gradient(
    kind: str, inputs: Sequence[np.ndarray], wrt: int, diff_dst: np.ndarray, attrs: Mapping[str, Any]
) -> np.ndarray:
    """Central differences of ``sum(diff_dst * kind(inputs))`` by each element of ``inputs[wrt]``."""
    step = 1e-5
    point = np.array(inputs[wrt], dtype=np.float64)
    gradient = np.zeros_like(point)
    for index in np.ndindex(point.shape):
        sides = []
        for sign in (1, -1):
            moved = point.copy()
            moved[index] += sign * step
            result = run(kind, [*inputs[:wrt], moved, *inputs[wrt + 1 :]], **attrs)[0]
            sides.append(np.sum(diff_dst * result))
        gradient[index] = (sides[0] - sides[1]) / (2 * step)
    return gradient


def assert_gradient(
    actual: np.ndarray,
    kind: str,
    inputs: Sequence[np.ndarray],
    wrt: int,
    diff_dst: np.ndarray,
    attrs: Mapping[str, Any],
) -> None:
    """`actual` equals the numerical gradient of `kind`."""
    expected = numeric_gradient(kind, inputs, wrt, diff_dst, attrs)
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-8)


def onnx_run(op: str, inputs: Sequence[np.ndarray | None], outputs: int = 1, **attrs: Any) -> list[np.ndarray]:
    """What ONNX's reference evaluator computes for one node; None stands for an omitted input."""
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, names, results, **attrs)
    given = {name: x for name, x in zip(names, inputs, strict=True) if x is not None}
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in given.items()
    ]
    unknown = [helper.make_tensor_value_info(name, onnx.TensorProto.DOUBLE, None) for name in results]
    graph = helper.make_graph([node], op, infos, unknown)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    with np.errstate(all="ignore"):
        return list(ReferenceEvaluator(model).run(None, given))


def channels_last(array: np.ndarray) -> np.ndarray:
    """NCX to NXC."""
    return np.moveaxis(array, 1, -1)
