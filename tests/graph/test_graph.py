"""Graph: its rules, each with the message that a user would see."""

import pytest

import graphpool as gp


def relu(op_id, source, target, **fields):
    return gp.Op(op_id, "ReLU", [source], [target], **fields)


@pytest.fixture
def tensors():
    return [gp.LogicalTensor(i, "f32", (2, 3)) for i in range(6)]


def test_ops_may_come_in_any_order(tensors):
    graph = gp.Graph()
    graph.add_op(relu(1, tensors[1], tensors[2]))
    graph.add_op(relu(0, tensors[0], tensors[1]))
    graph.finalize()
    assert [op.id for op in graph.ops] == [0, 1]


def test_duplicate_op_id_raises_and_leaves_the_graph(tensors):
    graph = gp.Graph()
    graph.add_op(relu(0, tensors[0], tensors[1]))
    with pytest.raises(gp.InvalidGraphError, match="op id 0 is taken; accepted: unique ids") as caught:
        graph.add_op(relu(0, tensors[1], tensors[2]))
    assert caught.value.op_id == 0
    assert caught.value.status == "invalid_graph"
    assert len(graph.ops) == 1
    assert set(graph.tensors) == {0, 1}


def test_one_id_is_one_tensor(tensors):
    graph = gp.Graph()
    graph.add_op(relu(0, tensors[0], tensors[1]))
    with pytest.raises(gp.InvalidGraphError, match="tensor id 1 means two tensors") as caught:
        graph.add_op(relu(1, gp.LogicalTensor(1, "f32", (3, 2)), tensors[2]))
    assert caught.value.tensor_id == 1


def test_one_producer(tensors):
    graph = gp.Graph()
    graph.add_op(relu(0, tensors[0], tensors[1]))
    with pytest.raises(gp.InvalidGraphError, match="tensor 1 has a producer already; accepted: one producer"):
        graph.add_op(relu(1, tensors[2], tensors[1]))


def test_an_op_may_not_read_what_it_writes(tensors):
    with pytest.raises(gp.InvalidGraphError, match="tensor 0 is its input and its output"):
        gp.Graph().add_op(relu(0, tensors[0], tensors[0]))


def test_cycle_is_named(tensors):
    graph = gp.Graph()
    graph.add_op(relu(0, tensors[0], tensors[1]))
    graph.add_op(gp.Op(1, "Add", [tensors[1], tensors[3]], [tensors[2]]))
    graph.add_op(relu(2, tensors[2], tensors[3], name="back"))
    with pytest.raises(gp.InvalidGraphError) as caught:
        graph.finalize()
    assert "the graph has a cycle" in str(caught.value)
    assert "op 2 (ReLU 'back')" in str(caught.value)
    assert sorted(caught.value.op_ids) == [1, 2]
    assert not graph.is_finalized


@pytest.mark.parametrize(
    ("op", "error", "message"),
    [
        (lambda t: gp.Op(0, "Relu", [t[0]], [t[1]]), gp.InvalidOpError, "ReLU"),
        (lambda t: gp.Op(0, "ReLU", [t[0], t[1]], [t[2]]), gp.InvalidOpError, "inputs"),
        (lambda t: gp.Op(0, "ReLU", [t[0]], [t[1]], slope=1.0), gp.InvalidOpError, "slope"),
        (lambda t: gp.Op(0, "Elu", [t[0]], [t[1]]), gp.InvalidOpError, "alpha"),
        (lambda t: gp.Op(0, "Elu", [t[0]], [t[1]], alpha="x"), gp.InvalidOpError, "alpha"),
        (lambda t: gp.Op(0, "ReLU", [t[0]], [t[1].replace(dtype="bf16")]), gp.InvalidDataTypeError, "bf16"),
        (
            lambda t: gp.Op(
                0, "MaxPool", [gp.LogicalTensor(0, "f32", (1, 4, 4, 2))], [gp.LogicalTensor(1, "f32", None)],
                strides=[1, 1], pads_begin=[0, 0], pads_end=[0, 0], kernel=[2, 2], rounding_type="up",
            ),
            gp.InvalidOpError, "rounding_type",
        ),
    ],
)  # fmt: skip
def test_schema_is_checked_at_add_op(tensors, op, error, message):
    graph = gp.Graph()
    with pytest.raises(error) as caught:
        graph.add_op(op(tensors))
    assert message in str(caught.value)
    assert graph.ops == []
    assert graph.add_op(op(tensors), allow_exception=False) == error.status


def test_status_instead_of_exception(tensors):
    graph = gp.Graph()
    assert graph.add_op(relu(0, tensors[0], tensors[1]), allow_exception=False) == "success"
    assert graph.add_op(relu(0, tensors[0], tensors[1]), allow_exception=False) == "invalid_graph"


def test_finalised_graph_is_closed(tensors):
    graph = gp.Graph()
    graph.add_op(relu(0, tensors[0], tensors[1]))
    with pytest.raises(gp.StateError, match=r"not finalised; call graph.finalize\(\) first"):
        graph.get_partitions()
    graph.finalize()
    graph.finalize()
    with pytest.raises(gp.InvalidGraphError, match="the graph is finalised"):
        graph.add_op(relu(1, tensors[1], tensors[2]))


def test_contradictory_shapes_name_tensor_and_dimension():
    graph = gp.Graph()
    x, y = gp.LogicalTensor(0, "f32", (2, 3)), gp.LogicalTensor(1, "f32", (2, 4))
    graph.add_op(relu(0, x, y))
    with pytest.raises(gp.InvalidShapeError, match="dimension 1 of output tensor 1") as caught:
        graph.finalize()
    assert (caught.value.tensor_id, caught.value.dim) == (1, 1)


def test_shapes_are_inferred_as_far_as_known():
    x, w = gp.LogicalTensor(0, "f32", (gp.UNKNOWN_DIM, 3)), gp.LogicalTensor(1, "f32", (3, 5))
    y, z = gp.LogicalTensor(2, "f32"), gp.LogicalTensor(3, "f32")
    graph = gp.Graph()
    graph.add_op(gp.Op(0, "MatMul", [x, w], [y]))
    graph.add_op(relu(1, y, z))
    graph.finalize()
    assert graph.shape(3) == (gp.UNKNOWN_DIM, 5)


@pytest.mark.parametrize("kind", ["npu", "", None])
def test_engine_kind_is_checked(kind):
    with pytest.raises(gp.InvalidArgumentError, match="engine kind; accepted: cpu, gpu"):
        gp.Graph(kind)


def test_policy_and_fpmath_are_checked(tensors):
    with pytest.raises(gp.InvalidArgumentError, match="fpmath; accepted: strict"):
        gp.Graph(fpmath="fast")
    graph = gp.Graph()
    graph.add_op(relu(0, tensors[0], tensors[1]))
    graph.finalize()
    with pytest.raises(gp.InvalidArgumentError, match="policy; accepted: fusion, debug"):
        graph.get_partitions("best")


def test_empty_graph_has_no_partitions():
    graph = gp.Graph()
    graph.finalize()
    assert graph.get_partitions() == []
    assert graph.get_partitions("debug") == []


def test_partitioning_twice_gives_new_ids(tensors):
    graph = gp.Graph()
    graph.add_op(relu(0, tensors[0], tensors[1]))
    graph.add_op(relu(1, tensors[1], tensors[2]))
    graph.finalize()
    fused, again, single = graph.get_partitions(), graph.get_partitions(), graph.get_partitions("debug")
    assert [len(p.ops) for p in fused] == [len(p.ops) for p in again] == [2]
    assert [len(p.ops) for p in single] == [1, 1]
    ids = [p.id for p in (*fused, *again, *single)]
    assert len(set(ids)) == len(ids)


def test_op_refuses_bad_ids_and_ports(tensors):
    with pytest.raises(gp.InvalidArgumentError, match="op id; accepted: an int from 0 to"):
        gp.Op(-2, "ReLU", [tensors[0]], [tensors[1]])
    with pytest.raises(gp.InvalidArgumentError, match=r"ReLU_0: inputs\[0\]; accepted: a LogicalTensor"):
        gp.Op(0, "ReLU", ["x"], [tensors[1]])
