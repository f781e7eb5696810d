"""Products with constant weights of 8 and 4 bits behind a Dequantize: read as they are, kept or not."""

import numpy as np
import pytest

import graphpool as gp
from graphpool import config
from graphpool.cache import constant_tensor_cache
from graphpool.typing import DataType
from tests.cases.graphs import GraphBuilder
from tests.cases.inputs import random_array
from tests.helpers.partitions import check_graph

RANGES = {DataType.S8: (-128, 128), DataType.U8: (0, 256), DataType.S4: (-8, 8), DataType.U4: (0, 16)}


@pytest.fixture
def engine():
    with gp.Engine() as engine:
        yield engine


def content(rng, lt):
    """Random content over the whole range of quantised types; small positive scales."""
    if lt.dtype in RANGES:
        return rng.integers(*RANGES[lt.dtype], lt.shape).astype(np.int16).astype(lt.dtype.numpy)
    return random_array(lt, rng, 0.0, 0.05) if lt.property == "constant" else random_array(lt, rng)


def weights(b, dtype="s8", k=48, n=40, *, scheme="per_channel", transposed=False, zeros=True, group=16, to="f32"):
    """Constant weights behind a DynamicDequantize."""

    def lay(rows, cols):
        return (cols, rows) if transposed else (rows, cols)

    shape = {"per_tensor": (1,), "per_channel": (n,), "per_group": lay(k // group, n)}[scheme]
    own = {
        "per_tensor": {},
        "per_channel": {"axis": 0 if transposed else 1},
        "per_group": {"group_shape": lay(group, 1)},
    }
    inputs = [b.input(lay(k, n), dtype, property="constant"), b.input(shape, to, property="constant")]
    inputs += [b.input(shape, dtype, property="constant")] if zeros else []
    return b.op("DynamicDequantize", *inputs, dtype=to, qtype=scheme, **own[scheme])


def is_compressed(engine, builder):
    """Whether the graph reads compressed weights; also compares all results with the reference."""
    partitions = check_graph(builder, engine, np.random.default_rng(0), scale=10.0, content=content)
    steps = []
    for partition in partitions:
        ports = [[lt.replace(shape=builder.graph_shape(lt)) for lt in side]
                 for side in (partition.input_ports, partition.output_ports)]  # fmt: skip
        with partition.compile(*ports, engine) as compiled:
            steps += compiled.implementations
    return any("f32_matmul_compressed" in step for step in steps)


@pytest.mark.parametrize("dtype", ["s8", "u8", "s4", "u4"])
@pytest.mark.parametrize("scheme", ["per_tensor", "per_channel", "per_group"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("m", [1, 7])
def test_types_and_schemes(engine, dtype, scheme, transposed, zeros, m):
    b = GraphBuilder()
    w = weights(b, dtype, scheme=scheme, transposed=transposed, zeros=zeros)
    b.op("MatMul", b.input((m, 48)), w, transpose_b=transposed)
    assert is_compressed(engine, b)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_one_zero_point_stands_for_all_columns(engine, shape, transposed):
    b = GraphBuilder()
    inputs = [b.input((40, 48) if transposed else (48, 40), "u8", property="constant")]
    inputs += [b.input((40,), property="constant"), b.input(shape, "u8", property="constant")]
    w = b.op("DynamicDequantize", *inputs, dtype="f32", qtype="per_channel", axis=0 if transposed else 1)
    b.op("MatMul", b.input((5, 48)), w, transpose_b=transposed)
    assert is_compressed(engine, b)


@pytest.mark.parametrize("dtype", ["s8", "u8"])
@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize("zps", [None, 3, "different"])
def test_scales_and_zero_points_may_be_attributes(engine, dtype, count, zps):
    b = GraphBuilder()
    rng = np.random.default_rng(1)
    points = {} if zps is None else {"zps": [3] * count if zps == 3 else rng.integers(0, 100, count).tolist()}
    w = b.op(
        "Dequantize", b.input((48, 40), dtype, property="constant"), dtype="f32", axis=1,
        qtype="per_tensor" if count == 1 else "per_channel", scales=rng.uniform(0.01, 0.05, count).tolist(), **points,
    )  # fmt: skip
    b.op("MatMul", b.input((3, 48)), w)
    assert is_compressed(engine, b)


TAILS = {
    "bias, relu": lambda b, y: b.op("ReLU", b.op("Add", y, b.input((40,)))),
    "residual": lambda b, y: b.op("Add", y, b.input((5, 40))),
    "gelu": lambda b, y: b.op("GELU", y),
    "cast": lambda b, y: b.op("TypeCast", y, dtype="bf16"),
}


@pytest.mark.parametrize("tail", TAILS)
def test_post_ops(engine, tail):
    b = GraphBuilder()
    TAILS[tail](b, b.op("MatMul", b.input((5, 48)), weights(b)))
    assert is_compressed(engine, b)


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("batch", [(), (3,), (2, 1, 3)])
def test_batches_and_transposed_activations(engine, transpose_a, batch):
    b = GraphBuilder()
    x = b.input((*batch, 48, 5) if transpose_a else (*batch, 5, 48))
    b.op("MatMul", x, weights(b, "u4", scheme="per_group"), b.input((40,)), transpose_a=transpose_a)
    assert is_compressed(engine, b)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_narrow_activations(engine, dtype):
    b = GraphBuilder()
    b.op("MatMul", b.input((5, 48), dtype), weights(b, to=dtype))
    assert is_compressed(engine, b)


def group_of_four(b):
    return b.op("MatMul", b.input((5, 48)), weights(b, scheme="per_group", group=4))


def scales_of_rows(b):
    w, s = b.input((48, 40), "s8", property="constant"), b.input((48,), property="constant")
    return b.op("MatMul", b.input((5, 48)), b.op("DynamicDequantize", w, s, dtype="f32", qtype="per_channel", axis=0))


def variable(b):
    w, s = b.input((48, 40), "s8"), b.input((40,))
    return b.op("MatMul", b.input((5, 48)), b.op("DynamicDequantize", w, s, dtype="f32", qtype="per_channel", axis=1))


def read_twice(b):
    w = weights(b)
    return b.op("Add", b.op("MatMul", b.input((5, 48)), w), b.op("MatMul", b.input((5, 48)), w))


def batch_of_weights(b):
    w, s = b.input((2, 48, 40), "s8", property="constant"), b.input((1,), property="constant")
    return b.op("MatMul", b.input((2, 5, 48)), b.op("DynamicDequantize", w, s, dtype="f32", qtype="per_tensor"))


@pytest.mark.parametrize("build", [group_of_four, scales_of_rows, variable, read_twice, batch_of_weights])
def test_other_weights_are_dequantised_first(engine, build):
    b = GraphBuilder()
    build(b)
    assert not is_compressed(engine, b)


def test_forced_blas_reads_floats(engine, monkeypatch):
    monkeypatch.setitem(config._values, "impl", {"MatMul": "blas"})
    b = GraphBuilder()
    b.op("MatMul", b.input((5, 48)), weights(b))
    assert not is_compressed(engine, b)


def test_the_cache_keeps_the_compressed_form_and_results_are_the_same_without(engine):
    b = GraphBuilder()
    b.op("MatMul", b.input((1, 1024)), weights(b, "u4", 1024, 512, scheme="per_group", zeros=False, group=32))
    [partition] = b.finish()
    [y] = [lt.replace(shape=(1, 512)) for lt in partition.output_ports]
    rng, cache, stream = np.random.default_rng(0), constant_tensor_cache("cpu"), gp.Stream(engine)
    tensors = [gp.Tensor(lt, engine, content(rng, lt)) for lt in b.inputs]
    with partition.compile(b.inputs, [y], engine) as compiled:
        before = cache.stats().nbytes
        [kept] = compiled.execute(stream, tensors)
        assert cache.stats().nbytes - before == 1024 * 512 // 2 + 32 * 512 * 4
        cache.set_capacity(0)
        try:
            [plain] = compiled.execute(stream, tensors)
        finally:
            cache.set_capacity(None)
        np.testing.assert_array_equal(kept.numpy(), plain.numpy())


# ---- activations of 8 bits


def graph_of(mode="int8", *, m=3, scheme="per_group", own=None, tail=False, **options):
    """A product with weights of 8 bits by default, in a float mode of the graph or one of its own."""
    b = GraphBuilder(gp.Graph("cpu", fpmath=mode))
    y = b.op("MatMul", b.input((m, 48)), weights(b, scheme=scheme, **options), **({"fpmath": own} if own else {}))
    if tail:
        b.op("GELU", b.op("Add", b.op("Add", y, b.input((40,))), b.input((m, 40))))
    return b


def run(engine, builder):
    """The result, the steps, and all inputs in the order of the graph."""
    [partition] = builder.finish()
    [y] = [lt.replace(shape=builder.graph_shape(lt)) for lt in partition.output_ports]
    rng = np.random.default_rng(0)
    tensors = [gp.Tensor(lt, engine, content(rng, lt)) for lt in builder.inputs]
    with partition.compile(builder.inputs, [y], engine) as compiled:
        [out] = compiled.execute(gp.Stream(engine), tensors)
        return out.numpy().astype(np.float64), " ".join(compiled.implementations), [t.numpy() for t in tensors]


def quantised(a, block):
    """Activations as multiples of 1/127 of the largest of their row and block."""
    parts = a.reshape(len(a), -1, block)
    most = np.abs(parts).max(-1, keepdims=True)
    return (np.rint(parts * (np.float32(127) / most)) * (most / np.float32(127)).astype(np.float64)).reshape(a.shape)


@pytest.mark.parametrize(("scheme", "block"), [("per_group", 16), ("per_channel", 48), ("per_tensor", 48)])
@pytest.mark.parametrize("dtype", ["s8", "u8", "s4", "u4"])
@pytest.mark.parametrize("m", [1, 3, 40])
def test_a_float_mode_rounds_activations_to_8_bits(engine, dtype, scheme, block, m):
    out, steps, (a, q, scales, zeros) = run(engine, graph_of(dtype=dtype, scheme=scheme, m=m))
    assert "f32_matmul_compressed_dynamic" in steps
    spread = (lambda x: np.repeat(x, 16, 0)) if scheme == "per_group" else (lambda x: x)
    values = (q.astype(int) - spread(zeros.astype(int))) * spread(scales.astype(np.float64))
    np.testing.assert_allclose(out, quantised(a, block) @ values, rtol=1e-5, atol=1e-5)


def test_post_ops_behind_activations_of_8_bits(engine):
    near, steps, _ = run(engine, graph_of(tail=True))
    exact, other, _ = run(engine, graph_of("strict", tail=True))
    assert "f32_matmul_compressed_dynamic" in steps
    assert "dynamic" not in other
    np.testing.assert_allclose(near, exact, atol=0.02 * np.abs(exact).max())


def test_an_op_may_have_a_float_mode_of_its_own(engine):
    exact, _, _ = run(engine, graph_of("strict"))
    near, _, _ = run(engine, graph_of("int8"))
    assert not np.array_equal(exact, near)
    for mode, own, expected in (("int8", "strict", exact), ("strict", "int8", near), ("any", None, exact)):
        np.testing.assert_array_equal(run(engine, graph_of(mode, own=own))[0], expected)


def test_other_products_stay_as_they_are_in_mode_int8(engine):
    results = []
    for mode in ("strict", "int8"):
        b = GraphBuilder(gp.Graph("cpu", fpmath=mode))
        b.op("MatMul", b.input((3, 48)), b.input((48, 40), property="constant"))
        results.append(run(engine, b)[0])
    np.testing.assert_array_equal(*results)


def test_modes_share_packed_weights_and_results_are_the_same_without(engine):
    cache, results = constant_tensor_cache("cpu"), []
    b = graph_of(m=2)
    [partition] = b.finish()
    [y] = [lt.replace(shape=(2, 40)) for lt in partition.output_ports]
    rng, stream = np.random.default_rng(0), gp.Stream(engine)
    tensors = [gp.Tensor(lt, engine, content(rng, lt)) for lt in b.inputs]
    with partition.compile(b.inputs, [y], engine) as compiled:
        results += [out.numpy().copy() for out in compiled.execute(stream, tensors)]
        before = cache.stats().nbytes
        strict = gp.Graph("cpu")
        for op in partition.ops:
            strict.add_op(op)
        strict.finalize()
        [other] = strict.get_partitions()
        with other.compile(b.inputs, [y], engine) as exact:
            exact.execute(stream, tensors)
        assert cache.stats().nbytes == before
        cache.set_capacity(0)
        try:
            results += [out.numpy().copy() for out in compiled.execute(stream, tensors)]
        finally:
            cache.set_capacity(None)
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_one_zero_point_stands_for_all_groups(engine, kept, transposed):
    b = GraphBuilder()
    inputs = [b.input((40, 48) if transposed else (48, 40), "u4", property="constant")]
    inputs += [b.input((40, 3) if transposed else (3, 40), property="constant")]
    inputs += [b.input((1, 1), "u8", property="constant", **({"value": 5} if kept else {}))]
    group = [1, 16] if transposed else [16, 1]
    w = b.op("DynamicDequantize", *inputs, dtype="f32", qtype="per_group", group_shape=group)
    b.op("MatMul", b.input((5, 48)), w, transpose_b=transposed)
    fixed = lambda rng, lt: np.full((1, 1), 5, np.uint8) if lt.shape == (1, 1) else content(rng, lt)  # noqa: E731
    check_graph(b, engine, np.random.default_rng(0), scale=10.0, content=fixed)
    other = GraphBuilder()
    other.op("DynamicDequantize", *[other.input(t.shape, t.dtype.value) for t in inputs], dtype="f32",
             qtype="per_group", group_shape=group)  # fmt: skip
    check_graph(other, engine, np.random.default_rng(0), content=content)
