"""Products with constant weights: in panels that the cache keeps, plain, and in panels that the user has made."""

import numpy as np
import pytest

import graphpool as gp
from graphpool.cache import constant_tensor_cache
from tests.cases.graphs import GraphBuilder
from tests.helpers.partitions import check_graph

pytestmark = pytest.mark.usefixtures("stand_in")


@pytest.fixture
def engine():
    with gp.Engine() as engine:
        yield engine


def product(builder, m=7, k=12, n=20, dtype="f32", weights="f32", batch=(), bias=False, **attrs):
    """A MatMul of constant weights, transposed as the attributes say."""
    x = (*batch, k, m) if attrs.get("transpose_a") else (*batch, m, k)
    w = (n, k) if attrs.get("transpose_b") else (k, n)
    operands = [builder.input(x, dtype), builder.input(w, weights, property="constant")]
    operands += [builder.input((n,), dtype, property="constant")] if bias else []
    return builder.op("MatMul", *operands, **attrs)


TAILS = {
    "nothing": lambda b, y: y,
    "relu": lambda b, y: b.op("ReLU", y),
    "clamp": lambda b, y: b.op("Clamp", y, min=-0.5, max=0.25),
    "row": lambda b, y: b.op("Add", y, b.input((20,))),
    "row of one": lambda b, y: b.op("Add", y, b.input((1,))),
    "column": lambda b, y: b.op("Add", y, b.input((7, 1))),
    "residual": lambda b, y: b.op("Add", b.input((7, 20)), y),
    "residual, relu": lambda b, y: b.op("ReLU", b.op("Add", y, b.input((7, 20)))),
    "row, residual, clamp": lambda b, y: b.op(
        "Clamp", b.op("Add", b.op("Add", y, b.input((20,))), b.input((7, 20))), min=0.0, max=6.0
    ),
    "twice": lambda b, y: b.op("Add", y, y),
    "two residuals": lambda b, y: b.op("Add", b.op("Add", y, b.input((7, 20))), b.input((7, 20))),
    "relu, row": lambda b, y: b.op("Add", b.op("ReLU", y), b.input((20,))),
    "gelu": lambda b, y: b.op("GELU", y),
    "subtracted": lambda b, y: b.op("Subtract", y, b.input((20,))),
}


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("bias", [False, True])
def test_post_ops(engine, tail, bias):
    builder = GraphBuilder()
    TAILS[tail](builder, product(builder, bias=bias))
    check_graph(builder, engine, np.random.default_rng(0))


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("bias", [False, True])
def test_post_ops_behind_sums_split_along_k(engine, tail, bias):
    builder = GraphBuilder()
    TAILS[tail](builder, product(builder, k=20000, bias=bias))
    [partition] = check_graph(builder, engine, np.random.default_rng(0), scale=8, low=-0.1, high=0.1)
    shapes = {lt.id: lt.replace(shape=builder.graph_shape(lt)) for lt in builder.tensors}
    ports = ([shapes[lt.id] for lt in side] for side in (partition.input_ports, partition.output_ports))
    with partition.compile(*ports, engine) as compiled:
        names = [name.partition(":")[0] for name in compiled.implementations]
    assert names[:2] == ["f32_matmul_packed", "f32_eltwise"]  # which adds up the parts


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("batch", [(), (3,), (2, 1, 3)])
def test_types_orders_and_batches(engine, dtype, transpose_a, transpose_b, batch):
    builder = GraphBuilder()
    product(
        builder, dtype=dtype, weights=dtype, batch=batch, bias=True, transpose_a=transpose_a, transpose_b=transpose_b
    )
    check_graph(builder, engine, np.random.default_rng(0))


@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (1, 300, 7), (4, 1, 65), (130, 33, 1), (0, 5, 6), (5, 0, 6)])
def test_sizes(engine, m, k, n):
    builder = GraphBuilder()
    product(builder, m, k, n)
    check_graph(builder, engine, np.random.default_rng(0))


def test_one_weight_of_two_products(engine):
    builder = GraphBuilder()
    w = builder.input((12, 12), property="constant")
    y = builder.op("MatMul", builder.op("MatMul", builder.input((3, 12)), w), w)
    builder.op("Add", y, builder.op("MatMul", builder.input((3, 12)), w, transpose_b=True))
    check_graph(builder, engine, np.random.default_rng(0))


# ---- panels that the user has made: option 2 of the seed "constant block weight"


def compile_any(engine, *, transpose_b=False, property="constant"):
    x = gp.LogicalTensor(0, "f32", (5, 24))
    w = gp.LogicalTensor(1, "f32", (40, 24) if transpose_b else (24, 40), layout="any", property=property)
    y = gp.LogicalTensor(2, "f32", (5, 40))
    partition = gp.Partition.from_op(gp.Op(0, "MatMul", [x, w], [y], transpose_b=transpose_b))
    return partition.compile([x, w], [y], engine)


def reorder(engine, tensor, target):
    partition = gp.Partition.from_op(gp.Op(0, "Reorder", [tensor.lt], [target]))
    with partition.compile([tensor.lt], [target], engine) as compiled:
        [result] = compiled.execute(gp.Stream(engine), [tensor])
    return result


@pytest.mark.parametrize("transpose_b", [False, True])
def test_queried_panels_are_reordered_by_the_user_and_no_cache_is_involved(engine, transpose_b):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((5, 24), np.float32), rng.standard_normal((24, 40), np.float32)
    with compile_any(engine, transpose_b=transpose_b) as compiled:
        wanted = compiled.query_logical_tensor(1)
        assert wanted.layout is gp.LayoutType.OPAQUE
        plain = wanted.replace(id=9, layout="strided")
        given = np.ascontiguousarray(b.T) if transpose_b else b
        packed = reorder(engine, gp.Tensor(plain, engine, given), wanted)
        inputs = [gp.Tensor(compiled.inputs[0], engine, a), packed]
        [y] = compiled.execute(gp.Stream(engine), inputs)
        np.testing.assert_allclose(y.numpy(), a @ b, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(reorder(engine, packed, plain).numpy(), given)
        copied = reorder(engine, packed, wanted.replace(id=11))
        np.testing.assert_array_equal(copied.numpy(), packed.numpy())
    assert len(constant_tensor_cache("cpu")) == 0


def test_panels_of_another_order_or_processor_are_refused(engine):
    with compile_any(engine) as compiled:
        panels = compiled.query_logical_tensor(1)
    x, y = gp.LogicalTensor(0, "f32", (5, 24)), gp.LogicalTensor(2, "f32", (5, 40))
    odd = panels.replace(layout="opaque", layout_id=panels.layout_id + (1 << 60))
    partition = gp.Partition.from_op(gp.Op(0, "MatMul", [x, odd], [y]))
    with pytest.raises(gp.InvalidArgumentError, match="tensor 1: layout id"):
        partition.compile([x, odd], [y], engine)
    square = gp.LogicalTensor(1, "f32", (24, 24), layout="any", property="constant")
    z = gp.LogicalTensor(2, "f32", (5, 24))
    with gp.Partition.from_op(gp.Op(0, "MatMul", [x, square], [z])).compile([x, square], [z], engine) as compiled:
        panels = compiled.query_logical_tensor(1)
    turned = gp.Partition.from_op(gp.Op(0, "MatMul", [x, panels], [z], transpose_b=True))
    with pytest.raises(
        gp.UnsupportedError,
        match=r"accepted: .*transpose_b; got: f32 panels of a product; put a Reorder",
    ):
        turned.compile([x, panels], [z], engine)


def test_only_the_product_reads_panels(engine):
    with compile_any(engine) as compiled:
        panels = compiled.query_logical_tensor(1)
    out = gp.LogicalTensor(2, "f32", (24, 40))
    with pytest.raises(gp.UnsupportedError, match="tensor 1 lies in f32 panels of a product"):
        gp.Partition.from_op(gp.Op(0, "ReLU", [panels], [out])).compile([panels], [out], engine)
    x = gp.LogicalTensor(0, "f32", (24, 40))
    with pytest.raises(gp.UnsupportedError, match="cannot be written packed"):
        gp.Partition.from_op(gp.Op(0, "ReLU", [x], [panels])).compile([x], [panels], engine)
