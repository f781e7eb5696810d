"""Partition: support, ports, compilation, and what it refuses."""

import numpy as np
import pytest

import graphpool as gp
from tests.cases.graphs import GraphBuilder


@pytest.fixture
def compile_(engine):
    """Compiles for the engine, and closes what it compiled."""
    made = []

    def go(partition, inputs, outputs):
        made.append(partition.compile(inputs, outputs, engine))
        return made[-1]

    yield go
    for compiled in made:
        compiled.close()


def lt(tensor_id, shape=(2, 3), dtype="f32", **fields):
    return gp.LogicalTensor(tensor_id, dtype, shape, **fields)


def one_partition(*ops):
    graph = gp.Graph()
    for op in ops:
        graph.add_op(op)
    graph.finalize()
    [partition] = graph.get_partitions()
    return partition


def test_wildcard_and_end_are_unsupported_partitions(engine):
    graph = gp.Graph()
    graph.add_op(gp.Op(0, "ReLU", [lt(0)], [lt(1)]))
    graph.add_op(gp.Op(1, "Wildcard", [lt(1)], [lt(2)]))
    graph.add_op(gp.Op(2, "Exp", [lt(2)], [lt(3)]))
    graph.add_op(gp.Op(3, "End", [lt(3)], []))
    graph.finalize()
    partitions = graph.get_partitions()
    assert [p.is_supported for p in partitions] == [True, False, True, False]
    assert [[port.id for port in p.input_ports] for p in partitions] == [[0], [1], [2], [3]]
    assert [[port.id for port in p.output_ports] for p in partitions] == [[1], [2], [3], []]
    with pytest.raises(
        gp.UnsupportedError, match=r"op 1 \(Wildcard\)\) is not supported; check partition.is_supported"
    ):
        partitions[1].compile([lt(1)], [lt(2)], engine)


def test_end_keeps_an_inner_tensor_alive():
    graph = gp.Graph()
    graph.add_op(gp.Op(0, "ReLU", [lt(0)], [lt(1)]))
    graph.add_op(gp.Op(1, "Exp", [lt(1)], [lt(2)]))
    graph.add_op(gp.Op(2, "End", [lt(1)], []))
    graph.finalize()
    outputs = {port.id for p in graph.get_partitions() for port in p.output_ports}
    assert {1, 2} <= outputs


def test_the_whole_partition_is_all_of_them_merged():
    graph = gp.Graph()
    graph.add_op(gp.Op(0, "MatMul", [lt(0, (3, 3)), lt(1, (3, 3))], [lt(2, (3, 3))]))
    graph.add_op(gp.Op(1, "ReLU", [lt(2, (3, 3))], [lt(3, (3, 3))]))
    graph.add_op(gp.Op(2, "SoftMax", [lt(3, (3, 3))], [lt(4, (3, 3))], axis=1))
    graph.add_op(gp.Op(3, "End", [lt(3, (3, 3))], []))
    graph.finalize()
    merged = graph.merge_partitions([p for p in graph.get_partitions() if p.is_supported])
    whole = graph.whole_partition()
    assert [whole.kind, whole.backend_name, whole.is_supported] == ["merged", "cpu", True]
    assert whole.ops == tuple(op for op in merged.ops if op.kind != "End")
    assert whole.input_ports == merged.input_ports
    assert whole.output_ports == merged.output_ports
    assert [port.id for port in whole.output_ports] == [3, 4]


def test_there_is_no_whole_partition_of_ops_that_nobody_runs():
    graph = gp.Graph()
    graph.add_op(gp.Op(0, "ReLU", [lt(0)], [lt(1)]))
    graph.finalize()
    assert graph.whole_partition().kind == "ReLU"
    graph = gp.Graph()
    graph.add_op(gp.Op(0, "ReLU", [lt(0)], [lt(1)]))
    graph.add_op(gp.Op(1, "Wildcard", [lt(1)], [lt(2)]))
    with pytest.raises(gp.StateError, match="not finalised"):
        graph.whole_partition()
    graph.finalize()
    assert graph.whole_partition() is None
    graph = gp.Graph()
    graph.finalize()
    assert graph.whole_partition() is None


def test_an_input_used_twice_is_one_port():
    partition = one_partition(gp.Op(0, "Multiply", [lt(0), lt(0)], [lt(1)]))
    assert [port.id for port in partition.input_ports] == [0]


def test_from_op(engine, compile_):
    partition = gp.Partition.from_op(gp.Op(0, "ReLU", [lt(0)], [lt(1)]))
    compiled = compile_(partition, [lt(0)], [lt(1)])
    out = np.empty((2, 3), np.float32)
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    compiled.execute(gp.Stream(engine), [gp.Tensor(lt(0), engine, x)], [gp.Tensor(lt(1), engine, out)])
    np.testing.assert_array_equal(out, np.maximum(x, 0))


def test_extra_tensors_in_any_order_are_matched_by_id(engine, compile_):
    partition = one_partition(gp.Op(0, "Subtract", [lt(0), lt(1)], [lt(2)]))
    compiled = compile_(partition, [lt(9), lt(1), lt(0), lt(8, dtype="s8")], [lt(7), lt(2)])
    assert [t.id for t in compiled.inputs] == [1, 0]
    a, b = np.full((2, 3), 5, np.float32), np.full((2, 3), 3, np.float32)
    ta, tb = gp.Tensor(lt(0), engine, a), gp.Tensor(lt(1), engine, b)
    for inputs in ([tb, ta], [ta, tb]):
        [result] = compiled.execute(gp.Stream(engine), inputs)
        np.testing.assert_array_equal(result.numpy(), a - b)


@pytest.mark.parametrize(
    ("inputs", "outputs", "error", "message"),
    [
        ([], [lt(1)], gp.InvalidArgumentError, "no input tensor for port 0; accepted: ids [0]; got: ids []"),
        ([lt(0)], [lt(5)], gp.InvalidArgumentError, "no output tensor for port 1"),
        ([lt(0, dtype="f16")], [lt(1)], gp.InvalidDataTypeError, "input tensor 0: data type; accepted: f32; got: f16"),
        ([lt(0, None)], [lt(1)], gp.InvalidShapeError, "input tensor 0: shape; accepted: a known rank"),
        ([lt(0, (2, gp.UNKNOWN_DIM))], [lt(1, (3, 4))], gp.InvalidShapeError, "dimension 0 of output tensor 1"),
        ([lt(0)], [lt(1, (2, 4))], gp.InvalidShapeError, "dimension 1 of output tensor 1"),
        ([lt(0, layout="any")], [lt(1)], gp.InvalidArgumentError, "layout; accepted: strided, opaque, or any for a"),
        ([lt(0, layout="undef")], [lt(1)], gp.InvalidArgumentError, "input tensor 0: layout"),
        ([lt(0)], [lt(1, layout="undef")], gp.InvalidArgumentError, "output tensor 1: layout"),
        ([lt(0, layout="opaque", layout_id=999)], [lt(1)], gp.InvalidArgumentError, "layout id"),
    ],
)
def test_compile_refuses(engine, inputs, outputs, error, message):
    partition = one_partition(gp.Op(0, "ReLU", [lt(0)], [lt(1)]))
    with pytest.raises(error) as caught:
        partition.compile(inputs, outputs, engine)
    assert message in str(caught.value)


def test_compile_wants_an_open_engine_of_its_kind(engine):
    partition = one_partition(gp.Op(0, "ReLU", [lt(0)], [lt(1)]))
    with pytest.raises(gp.StateError, match="engine; accepted: an engine of kind cpu"):
        partition.compile([lt(0)], [lt(1)], object())
    other = gp.Engine()
    other.close()
    with pytest.raises(gp.StateError, match="is closed; create another engine"):
        partition.compile([lt(0)], [lt(1)], other)


@pytest.mark.parametrize("shape", [None, (gp.UNKNOWN_DIM, gp.UNKNOWN_DIM), (2, gp.UNKNOWN_DIM)])
def test_unknown_output_shapes_are_completed(engine, compile_, shape):
    partition = one_partition(gp.Op(0, "MatMul", [lt(0, None), lt(1, None)], [lt(2, shape)]))
    compiled = compile_(partition, [lt(0, (2, 4)), lt(1, (4, 7))], [lt(2, shape)])
    assert compiled.query_logical_tensor(2) == lt(2, (2, 7))
    assert compiled.query_logical_tensor(2).nbytes == 56


def test_one_partition_compiles_for_many_shapes(engine, compile_):
    """Shapes at compilation may differ from those of the graph, with tensors inside the partition."""
    partition = one_partition(
        gp.Op(0, "MatMul", [lt(0, (2, 3)), lt(1, (3, 4))], [lt(2, (2, 4))]),
        gp.Op(1, "ReLU", [lt(2, (2, 4))], [lt(3, (2, 4))]),
    )
    rng = np.random.default_rng(0)
    for rows in (1, 5, 64):
        x, w = rng.standard_normal((rows, 3), np.float32), rng.standard_normal((3, 4), np.float32)
        compiled = compile_(partition, [lt(0, (rows, 3)), lt(1, (3, 4))], [lt(3, None)])
        tensors = [gp.Tensor(t, engine, a) for t, a in zip(compiled.inputs, (x, w), strict=True)]
        [result] = compiled.execute(gp.Stream(engine), tensors)
        np.testing.assert_allclose(result.numpy(), np.maximum(x @ w, 0), rtol=1e-5, atol=1e-6)


def test_output_whose_shape_depends_on_content(engine, compile_):
    """Reduce with axes given as a tensor: the engine allocates the output when it is known."""
    axes = lt(1, (1,), "s32")
    partition = one_partition(gp.Op(0, "ReduceSum", [lt(0), axes], [lt(2, None)]))
    compiled = compile_(partition, [lt(0), axes], [lt(2, None)])
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for axis in (0, 1):
        target = gp.Tensor(lt(2, None), engine)
        assert not target.is_allocated
        inputs = [gp.Tensor(lt(0), engine, x), gp.Tensor(axes, engine, np.array([axis], np.int32))]
        compiled.execute(gp.Stream(engine), inputs, [target])
        np.testing.assert_array_equal(target.numpy(), x.sum(axis))
        assert target.lt.shape == (3 - axis,)


def test_layout_id_passes_from_one_partition_to_the_next(engine, compile_):
    """MatMul gives rows of its own choosing; ReLU reads them; Reorder gives plain rows again."""
    x, w = np.ones((4, 3), np.float32), np.arange(15, dtype=np.float32).reshape(3, 5) - 7
    stream = gp.Stream(engine)
    first = one_partition(gp.Op(0, "MatMul", [lt(0, None), lt(1, None)], [lt(2, None)]))
    compiled = compile_(first, [lt(0, (4, 3)), lt(1, (3, 5))], [lt(2, None, layout="any")])
    chosen = compiled.query_logical_tensor(2)
    assert chosen.layout == "opaque"
    assert chosen.nbytes == 4 * 64
    inputs = [gp.Tensor(t, engine, a) for t, a in zip(compiled.inputs, (x, w), strict=True)]
    [hidden] = compiled.execute(stream, inputs)
    second = one_partition(gp.Op(1, "ReLU", [lt(2, None)], [lt(3, None)]))
    compiled = compile_(second, [chosen], [lt(3, None, layout="any")])
    [hidden] = compiled.execute(stream, [hidden])
    reorder = gp.Partition.from_op(gp.Op(2, "Reorder", [lt(3, None)], [lt(4, None)]))
    compiled = compile_(reorder, [compiled.query_logical_tensor(3)], [lt(4, None)])
    [plain] = compiled.execute(stream, [hidden])
    np.testing.assert_allclose(plain.numpy(), np.maximum(x @ w, 0))


def test_a_constant_input_may_be_any(engine, compile_):
    """Seed "constant block weight", option 2: query the layout, reorder by hand, execute without a cache."""
    partition = one_partition(gp.Op(0, "MatMul", [lt(0, (2, 3)), lt(1, (3, 5))], [lt(2, (2, 5))]))
    wanted = lt(1, (3, 5), layout="any", property="constant")
    compiled = compile_(partition, [lt(0, (2, 3)), wanted], [lt(2, (2, 5))])
    chosen = compiled.query_logical_tensor(1)
    plain = lt(9, (3, 5))
    reorder = gp.Partition.from_op(gp.Op(0, "Reorder", [plain], [chosen.replace(id=1)]))
    packed = compile_(reorder, [plain], [chosen])
    w, x = np.arange(15, dtype=np.float32).reshape(3, 5), np.ones((2, 3), np.float32)
    stream = gp.Stream(engine)
    [weights] = packed.execute(stream, [gp.Tensor(plain, engine, w)])
    [result] = compiled.execute(stream, [gp.Tensor(lt(0, (2, 3)), engine, x), weights])
    np.testing.assert_allclose(result.numpy(), x @ w)


def test_a_chain_of_50_is_one_partition():
    builder = GraphBuilder()
    x = builder.input((4, 4))
    for k in range(50):
        x = builder.op(("ReLU", "Exp", "Tanh", "Abs", "Sigmoid")[k % 5], x)
    [partition] = builder.finish()
    assert len(partition.ops) == 50
