import pytest

import graphpool as gp
from graphpool.graph.shapes import scale_group_axis


@pytest.mark.parametrize(("shape", "axis", "count", "other"), [
    ((6, 4, 3), 1, 8, 0), ((6, 4, 3), 1, 24, 0), ((2, 3, 4), 1, 6, 0), ((5, 3, 6), 1, 9, 2),
])  # fmt: skip
def test_scales_of_each_group_and_channel(shape, axis, count, other):
    assert scale_group_axis(shape, axis, count) == other


@pytest.mark.parametrize(("axis", "count"), [(1, 3), (1, 6), (1, 20), (0, 12)])
def test_scales_that_do_not_divide_are_refused(axis, count):
    with pytest.raises(gp.InvalidShapeError, match=f"scales along axis {axis}"):
        scale_group_axis((6, 4, 7), axis, count)


def test_fewer_scales_than_the_axis_has_indices_are_refused_when_shapes_are_known():
    x = gp.LogicalTensor(0, "f32", (gp.UNKNOWN_DIM, 4))
    q = gp.LogicalTensor(1, "u8", None)
    graph = gp.Graph("cpu")
    graph.add_op(gp.Op(0, "Quantize", [x], [q], qtype="per_channel", axis=0, scales=[0.5] * 5, zps=[0] * 5))
    graph.finalize()
    [partition] = graph.get_partitions()
    with gp.Engine("cpu") as engine, pytest.raises(gp.InvalidShapeError, match="scales along axis 0"):
        partition.compile([x.replace(shape=(7, 4))], [q], engine)
