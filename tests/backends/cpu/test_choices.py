"""Forced implementations and float modes: what runs, what it computes, and that no mode takes another's forms."""

import ml_dtypes
import numpy as np
import pytest
from onnx import helper

import graphpool as gp
from graphpool import config
from graphpool._kernels.core._dispatch import isas
from graphpool._kernels.gemm.packed import HAS_BF16, has_amx
from graphpool.backends.cpu import CpuBackend
from graphpool.cache import constant_tensor_cache
from tests.cases.graphs import GraphBuilder
from tests.helpers.onnx_models import make_model, random_array
from tests.helpers.partitions import check_graph

HAS_BF16 = isas()[-1] in HAS_BF16
needs_bf16 = pytest.mark.skipif(not HAS_BF16, reason="float modes change nothing without AVX512-BF16")


@pytest.fixture
def force(monkeypatch):
    """Sets what GRAPHPOOL_IMPL says."""
    return lambda **impls: monkeypatch.setitem(config._values, "impl", {k.strip("_"): v for k, v in impls.items()})


def rounded(array):
    return array.astype(ml_dtypes.bfloat16).astype(np.float64)


def product_graph(m=5, k=70, n=40, property="constant", **options):
    builder = GraphBuilder(gp.Graph("cpu", **options))
    builder.op("MatMul", builder.input((m, k)), builder.input((k, n), property=property))
    return builder


def run_product(engine, a, b, **options):
    """The product of a partition whose weights are b, its compiled partition's steps, and its primitive's key."""
    builder = product_graph(*a.shape, b.shape[1], **options)
    x, w = builder.inputs
    [partition] = builder.finish()
    y = partition.output_ports[0].replace(shape=(a.shape[0], b.shape[1]))
    out = np.empty(y.shape, np.float32)
    with partition.compile([x, w], [y], engine) as compiled:
        tensors = [gp.Tensor(x, engine, a), gp.Tensor(w, engine, b)]
        for _ in range(2):
            compiled.execute(gp.Stream(engine), tensors, [gp.Tensor(y, engine, out)])
        return out, compiled.implementations


def steps_of(engine, builder):
    [partition] = builder.finish()
    shapes = {lt.id: lt.replace(shape=builder.graph_shape(lt)) for lt in builder.tensors}
    ports = ([shapes[lt.id] for lt in side] for side in (partition.input_ports, partition.output_ports))
    with partition.compile(*ports, engine) as compiled:
        return " ".join(compiled.implementations)


# ---- forced implementations


@pytest.mark.parametrize("m", [1, 200])
@pytest.mark.parametrize("impl", ["simd", "blas"])
def test_a_forced_implementation_runs_every_product(engine, force, m, impl):
    force(_=impl)
    assert f"f32_matmul_{impl}" in steps_of(engine, product_graph(m, property="variable"))
    constant = steps_of(engine, product_graph(m))
    assert ("matmul_packed" in constant) == (impl == "simd")
    check_graph(product_graph(m), engine, np.random.default_rng(0))


@pytest.mark.parametrize("groups", [1, 24])
@pytest.mark.parametrize("impl", ["simd", "blas"])
def test_a_forced_implementation_runs_every_convolution(engine, force, groups, impl):
    def graph(property="constant"):
        builder = GraphBuilder()
        operands = [builder.input((1, 9, 8, 24)), builder.input((24, 24 // groups, 3, 3), property=property)]
        pads = {"strides": [1, 1], "pads_begin": [1, 1], "pads_end": [1, 1], "dilations": [1, 1]}
        builder.op("Convolution", *operands, groups=groups, data_format="NXC", weights_format="OIX", **pads)
        return builder

    force(Convolution=impl)
    plain = "blas_im2col" if impl == "blas" else "plain" if groups == 1 else "depthwise"
    assert f"conv_{plain}" in steps_of(engine, graph("variable"))
    assert ("blas" in steps_of(engine, graph())) == (impl == "blas")
    check_graph(graph(), engine, np.random.default_rng(0))


def test_one_kind_is_forced_apart_from_the_others(engine, force):
    force(_="simd", MatMul="blas")
    assert "f32_matmul_blas" in steps_of(engine, product_graph(property="variable"))
    force(_="blas", MatMul="simd")
    assert "f32_matmul_simd" in steps_of(engine, product_graph(200, property="variable"))


def test_ref_hands_the_op_to_the_reference_backend(engine, force):
    force(MatMul="ref")
    builder = product_graph()
    builder.op("ReLU", builder.tensors[-1])
    partitions = builder.finish()
    assert [(p.backend_name, p.ops[0].kind) for p in partitions] == [("reference", "MatMul"), ("cpu", "ReLU")]


def test_what_is_forced_is_part_of_the_key(engine, force):
    seen = set()
    for impl in ("auto", "simd", "blas", "auto"):
        force(_=impl)
        seen.add(steps_of(engine, product_graph(200, property="variable")))
    assert len(seen) == 2


def test_an_op_kind_that_there_is_not_is_refused(force):
    force(Matmul="blas")
    with pytest.raises(gp.InvalidOpError, match=r"GRAPHPOOL_IMPL forces 'Matmul'.*MatMul"):
        CpuBackend()


# ---- float modes


@needs_bf16
@pytest.mark.parametrize("m", [1, 5, 130])
@pytest.mark.parametrize("mode", ["bf16", "any"])
def test_float_modes_multiply_numbers_rounded_to_bf16(engine, m, mode):
    a, b = random_array((m, 71)), random_array((71, 40), seed=1)
    out, steps = run_product(engine, a, b, fpmath=mode)
    assert "bf16_matmul_packed" in " ".join(steps)
    np.testing.assert_allclose(out, rounded(a) @ rounded(b), rtol=1e-5, atol=1e-5)
    bound = 2.0**-8 * (1 + 2.0**-9) * (np.abs(a).astype(np.float64) @ np.abs(b)) + 1e-5
    assert (np.abs(out - a.astype(np.float64) @ b) <= bound).all()


def test_strict_is_bit_identical_whatever_other_modes_have_run(engine):
    a, b = random_array((6, 70)), random_array((70, 33), seed=1)
    first, _ = run_product(engine, a, b)
    for mode in ("bf16", "any", "f16", "tf32", "strict"):
        out, _ = run_product(engine, a, b, fpmath=mode)
        is_exact = mode not in ("bf16", "any") or not HAS_BF16
        assert np.array_equal(out, first) == is_exact


@needs_bf16
def test_modes_keep_forms_of_their_own(engine):
    b = random_array((512, 256), seed=1)
    cache = constant_tensor_cache("cpu")
    before = cache.stats().nbytes
    run_product(engine, random_array((2, 512)), b)
    between = cache.stats().nbytes
    run_product(engine, random_array((2, 512)), b, fpmath="bf16")
    assert (between - before, cache.stats().nbytes - between) == (b.nbytes, b.nbytes // 2)


@needs_bf16
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_float_modes_leave_products_of_narrow_types_as_exact_as_they_are(engine, dtype):
    builder = GraphBuilder(gp.Graph("cpu", fpmath="bf16"))
    x, w = builder.input((5, 24), dtype), builder.input((24, 40), dtype, property="constant")
    builder.op("ReLU", builder.op("MatMul", x, w))
    check_graph(builder, engine, np.random.default_rng(0))


def test_models_take_a_float_mode():
    weights = random_array((64, 32), seed=1)
    model = make_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": random_array((3, 64))}, ["y"], {"w": weights}
    )
    x = random_array((3, 64))
    with gp.onnx.load(model) as strict, gp.onnx.load(model, fpmath="bf16") as fast:
        exact, near = strict.run({"x": x})["y"], fast.run({"x": x})["y"]
        assert all(p.fpmath == "bf16" for p in fast.partitions)
    np.testing.assert_allclose(exact, x @ weights, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(near, (rounded(x) @ rounded(weights)) if HAS_BF16 else exact, rtol=1e-5, atol=1e-5)
    with pytest.raises(gp.InvalidArgumentError, match="fpmath; accepted: strict, bf16"):
        gp.onnx.load(model, fpmath="bf8")


# ---- convolutions in bf16


def image_graph(dtype="f32", *, ic=20, groups=1, kernel=3, size=9, layout="NXC", tail=("ReLU",), **options):
    builder = GraphBuilder(gp.Graph("cpu", **options))
    shape = (2, size, size, ic) if layout == "NXC" else (2, ic, size, size)
    x = builder.input(shape, dtype)
    w = builder.input((36, ic // groups, kernel, kernel), dtype, property="constant")
    pads = {"strides": [1, 1], "pads_begin": [1, 1], "pads_end": [1, 1], "dilations": [1, 1]}
    y = builder.op("Convolution", x, w, groups=groups, data_format=layout, weights_format="OIX", **pads)
    for kind in tail:
        other = [builder.input(builder.graph_shape(y), dtype)] if kind == "Add" else []
        y = builder.op(kind, y, *other)
    return builder


@needs_bf16
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("layout", ["NXC", "NCX"])
@pytest.mark.parametrize(
    "sizes", [{}, {"ic": 3}, {"ic": 18, "groups": 2}, {"kernel": 1}, {"ic": 3, "kernel": 1}], ids=str
)
@pytest.mark.parametrize("tail", [(), ("Add", "ReLU"), ("GELU",)])
def test_convolutions_multiply_bf16(engine, dtype, layout, sizes, tail):
    mode = "bf16" if dtype == "f32" else "strict"
    if layout == "NCX":  # inside a partition images lie channels last
        tail = (*tail, "Square")
    steps = steps_of(engine, image_graph(dtype, layout=layout, tail=tail, fpmath=mode, **sizes))
    if layout == "NXC":
        assert "bf16_conv_packed" in steps

    def content(rng, lt):
        # sums of few bits are exact in every type
        return rng.integers(-3, 4, lt.shape).astype(lt.dtype.numpy) / lt.dtype.numpy.type(4)

    builder = image_graph(dtype, layout=layout, tail=tail, fpmath=mode, **sizes)
    check_graph(builder, engine, np.random.default_rng(0), content=content, scale=4.0)


def test_strict_convolutions_of_f32_stay_in_f32(engine):
    assert "bf16_conv" not in steps_of(engine, image_graph())
    assert "bf16_conv" not in steps_of(engine, image_graph("f16", fpmath="bf16"))


@needs_bf16
def test_minimal_filtering_stays_where_it_is_faster(engine):
    options = {"ic": 64, "tail": (), "prefer": "latency", "fpmath": "bf16"}
    assert ("bf16_conv_packed" if has_amx() else "winograd") in steps_of(engine, image_graph(size=28, **options))
    assert "bf16_conv_packed" in steps_of(engine, image_graph(size=7, **options))


@needs_bf16
def test_horizontally_fused_convolutions_in_bf16(engine):
    builder = GraphBuilder(gp.Graph("cpu", fpmath="bf16"))
    x = builder.op("ReLU", builder.input((1, 9, 9, 24)))
    pads = {"strides": [1, 1], "pads_begin": [0, 0], "pads_end": [0, 0], "dilations": [1, 1]}
    for channels in (16, 40):
        w = builder.input((channels, 24, 1, 1), property="constant")
        builder.op("ReLU", builder.op("Convolution", x, w, data_format="NXC", weights_format="OIX", **pads))

    def content(rng, lt):
        return rng.integers(-3, 4, lt.shape).astype(np.float32)  # sums are exact

    check_graph(builder, engine, np.random.default_rng(0), content=content)
