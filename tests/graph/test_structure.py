"""What a partition computes, free of ids and names."""

import graphpool as gp
from graphpool.graph.partition import Structure


def ops(first=0, name=None, alpha=1.0, dtype="f32", crossed=False):
    """y = x @ w; z = Elu(y); s = z + y, or y + z."""
    x, w, y, z, s = (gp.LogicalTensor(first + k, dtype, (4, 4)) for k in range(5))
    addends = [y, z] if crossed else [z, y]
    return [
        gp.Op(first, "MatMul", [x, w], [y], name=name),
        gp.Op(first + 1, "Elu", [y], [z], alpha=alpha),
        gp.Op(first + 2, "Add", addends, [s]),
    ]


def test_equal_whatever_ids_and_names():
    a, b = Structure(ops(), "strict"), Structure(ops(70, "other"), "strict")
    assert a.content == b.content
    assert a.numbers == {0: 0, 1: 1, 2: 2, 3: 3, 4: 4}
    assert b.numbers == {70 + k: k for k in range(5)}


def test_differs_in_attributes_types_wires_and_float_mode():
    base = Structure(ops(), "strict")
    for other in (
        Structure(ops(alpha=2.0), "strict"),
        Structure(ops(dtype="bf16"), "strict"),
        Structure(ops(crossed=True), "strict"),
        Structure(ops()[:2], "strict"),
        Structure(ops(), "bf16"),
    ):
        assert base.content != other.content


def test_is_computed_once():
    partition = gp.Partition.from_op(ops()[0])
    assert partition.structure is partition.structure
