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


ROWS = gp.LogicalTensor(0, "f32", (1, 1, 4, 1)), gp.LogicalTensor(1, "s32", (2,))


def interpolation(out):
    """A partition whose output's last two sizes only the content of an input tells, if `out` leaves them open."""
    return gp.Partition.from_op(gp.Op(0, "Interpolate", ROWS, [out], mode="nearest", data_format="NCX"))


@pytest.mark.parametrize("is_open", [True, False])
def test_outputs_that_do_not_fit_are_refused_unwritten(is_open):
    out = gp.LogicalTensor(2, "f32", None if is_open else (1, 1, 4, 1))
    rows = np.arange(4, dtype=np.float32).reshape(1, 1, 4, 1)
    readonly = np.zeros((1, 1, 4, 1), np.float32)
    readonly.flags.writeable = False
    with gp.Engine(threads=1) as engine, gp.Engine(threads=1) as other:
        compiled = interpolation(out).compile(ROWS, [out], engine)
        sources = [
            gp.Tensor(lt, engine, data) for lt, data in zip(ROWS, [rows, np.array([4, 1], np.int32)], strict=True)
        ]

        def refuses(error, message, dtype, array, on=engine):
            before, target = array.copy(), gp.Tensor(gp.LogicalTensor(2, dtype, array.shape), on, array)
            with pytest.raises(error, match=message):
                compiled.execute(gp.Stream(engine), sources, [target])
            assert np.array_equal(array, before)

        refuses(InvalidShapeError, "is not what was compiled", "s32", np.zeros((1, 1, 4, 1), np.int32))
        refuses(gp.InvalidArgumentError, r"4, 5\)", "f32", np.zeros((1, 1, 4, 5), np.float32))  # would broadcast
        refuses(gp.StateError, "belongs to", "f32", np.zeros((1, 1, 4, 1), np.float32), on=other)
        refuses(gp.InvalidArgumentError, "shares memory with tensor 0", "f32", rows)
        refuses(gp.InvalidArgumentError, "read-only", "f32", readonly)


def test_outputs_that_share_memory_are_refused():
    dst, x, scale = (gp.LogicalTensor(i, "f32", shape) for i, shape in enumerate([(4, 3), (4, 3), (3,)]))
    outs = [gp.LogicalTensor(3, "f32", (4, 3)), gp.LogicalTensor(4, "f32", (3,)), gp.LogicalTensor(5, "f32", (3,))]
    mean = [gp.LogicalTensor(i, "f32", (3,)) for i in (6, 7)]
    op = gp.Op(0, "BatchNormTrainingBackward", [x, dst, *mean, scale], outs, epsilon=1e-5, data_format="NXC")
    with gp.Engine(threads=1) as engine:
        compiled = gp.Partition.from_op(op).compile(op.inputs, outs, engine)
        sources = [gp.Tensor(lt, engine, np.ones(lt.shape, np.float32)) for lt in op.inputs]
        memory = np.zeros(5, np.float32)
        arrays = [np.zeros((4, 3), np.float32), memory[:3], memory[2:]]
        targets = [gp.Tensor(lt, engine, array) for lt, array in zip(outs, arrays, strict=True)]
        with pytest.raises(gp.InvalidArgumentError, match="tensor 5 shares memory with tensor 4"):
            compiled.execute(gp.Stream(engine), sources, targets)
        assert not memory.any()
