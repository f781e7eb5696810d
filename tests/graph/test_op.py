import pickle

import pytest

import graphpool as gp

X, W = gp.LogicalTensor(0, "f32", (2, 3)), gp.LogicalTensor(1, "f32", (3, 4))
Y = gp.LogicalTensor(2, "f32")


def matmul(**attrs):
    return gp.Op(7, "MatMul", [X, W], [Y], **attrs)


def test_a_checked_op_has_all_attributes_and_is_checked_once():
    op = matmul(transpose_a=False)
    checked = op.checked()
    assert dict(checked.attrs) == {"transpose_a": False, "transpose_b": False, "accumulation_mode": "strict"}
    assert dict(op.attrs) == {"transpose_a": False}
    assert checked.checked() is checked
    assert (checked.id, checked.kind, checked.name, checked.inputs, checked.outputs) == (7, "MatMul", "MatMul_7",
                                                                                         (X, W), (Y,))  # fmt: skip


def test_an_op_that_breaks_its_schema_is_refused():
    with pytest.raises(gp.InvalidOpError, match="transpose_c"):
        matmul(transpose_c=True).checked()
    with pytest.raises(gp.InvalidOpError, match="number of inputs"):
        gp.Op(0, "MatMul", [X], [Y]).checked()


def test_what_replaces_attributes_or_ports_is_checked_again():
    checked = matmul().checked()
    with pytest.raises(gp.InvalidOpError, match="transpose_c"):
        checked.with_attrs({"transpose_c": True}).checked()
    with pytest.raises(gp.InvalidDataTypeError):
        checked.with_ports((X, W.replace(dtype="s32")), (Y,)).checked()


def test_an_inferred_op_is_checked_and_has_the_shapes_that_follow():
    op = gp.Op.inferred(7, "MatMul", [X, W], [Y], None, {"transpose_a": False})
    same = matmul(transpose_a=False).checked()
    assert op.checked() is op
    assert (op.id, op.kind, op.name, op.inputs, op.attrs) == (7, "MatMul", "MatMul_7", (X, W), same.attrs)
    assert op.outputs == (Y.replace(shape=(2, 4)),)
    assert op.is_inferred
    assert not op.with_ports(op.inputs, op.outputs).is_inferred
    with pytest.raises(gp.InvalidOpError, match="transpose_c"):
        gp.Op.inferred(7, "MatMul", [X, W], [Y], None, {"transpose_c": True})
    with pytest.raises(gp.InvalidShapeError):
        gp.Op.inferred(7, "MatMul", [X, X], [Y], None, {})


def test_a_graph_keeps_a_checked_op_as_it_is():
    op, graph = matmul().checked(), gp.Graph()
    graph.add_op(op)
    assert graph.ops[0] is op


def test_a_pickled_op_is_checked_again():
    op = pickle.loads(pickle.dumps(matmul().checked()))
    assert op.checked() is not op
    assert dict(op.checked().attrs) == dict(op.attrs)
