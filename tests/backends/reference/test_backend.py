"""The reference backend as a backend: what the content of an input decides is known only when it runs."""

import numpy as np
import pytest

import graphpool as gp
from graphpool.errors import GraphpoolError, InvalidShapeError


def run(op, arrays):
    """The result of a graph of one op on these arrays."""
    graph = gp.Graph()
    graph.add_op(op)
    graph.finalize()
    [partition] = graph.get_partitions()
    assert partition.backend_name == "reference"
    [out] = op.outputs
    with gp.Engine(threads=1) as engine, partition.compile(op.inputs, [out], engine) as compiled:
        result = gp.Tensor(out, engine)
        tensors = [gp.Tensor(lt, engine, array) for lt, array in zip(op.inputs, arrays, strict=True)]
        compiled.execute(gp.Stream(engine), tensors, [result])
        return np.array(result.numpy())


def reduction(axis):
    tensors = [gp.LogicalTensor(0, "f32", (2, 3)), gp.LogicalTensor(1, "s32", (1,)), gp.LogicalTensor(2, "f32", (2,))]
    arrays = [np.arange(6, dtype=np.float32).reshape(2, 3), np.asarray([axis], np.int32)]
    return run(gp.Op(0, "ReduceSum", tensors[:2], tensors[2:]), arrays)


def test_axes_that_come_as_a_tensor():
    assert reduction(1).tolist() == [3.0, 12.0]


def test_axes_that_give_another_shape():
    with pytest.raises(InvalidShapeError, match=r"accepted: \(2,\); got: \(3,\)"):
        reduction(0)


def test_axes_that_are_none():
    with pytest.raises(GraphpoolError, match=r"axes.* got: 7"):
        reduction(7)


def test_sizes_that_come_as_a_tensor():
    def interpolated(*sizes):
        shapes = [("f32", (1, 1, 2, 2)), ("s32", (2,)), ("f32", (1, 1, 4, 2))]
        tensors = [gp.LogicalTensor(number, *facts) for number, facts in enumerate(shapes)]
        op = gp.Op(0, "Interpolate", tensors[:2], tensors[2:], mode="nearest", data_format="NCX")
        return run(op, [np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2), np.asarray(sizes, np.int32)])

    assert interpolated(4, 2)[0, 0].tolist() == [[0, 1], [0, 1], [2, 3], [2, 3]]
    with pytest.raises(InvalidShapeError):
        interpolated(3, 2)
