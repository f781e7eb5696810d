"""Weights of 8 and 4 bits that stay as they are in memory."""

import pickle

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import graphpool as gp
from tests.helpers.onnx_models import peer_session, random_array

K, N, BLOCK = 64, 24, 16


def implementations(model, inputs):
    """Kernels of all partitions of a model for these inputs."""
    return " ".join(name for names in model.specialise(inputs).implementations for name in names)


def dequantised_product(elem_type, block, per_channel=True, zeros=True):
    """X times weights behind a DequantizeLinear."""
    low, high = {TensorProto.INT4: (-8, 8), TensorProto.UINT4: (0, 16), TensorProto.INT8: (-128, 128),
                 TensorProto.UINT8: (0, 256)}[elem_type]  # fmt: skip
    dtype = helper.tensor_dtype_to_np_dtype(elem_type)
    rng = np.random.default_rng(0)
    shape = (K // block, N) if block else (N,) if per_channel else ()
    given = {
        "w": rng.integers(low, high, (K, N)).astype(np.int16).astype(dtype),
        "scale": rng.uniform(0.01, 0.1, shape).astype(np.float32),
    }
    if zeros:
        given["zero"] = rng.integers(low, high, shape).astype(np.int16).astype(dtype)
    axis = {"axis": 0, "block_size": block} if block else {"axis": 1}
    nodes = [
        helper.make_node("DequantizeLinear", list(given), ["f"], **axis),
        helper.make_node("MatMul", ["x", "f"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, (3, K))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (3, N))],
        [numpy_helper.from_array(value, name) for name, value in given.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("elem_type", [TensorProto.INT4, TensorProto.UINT4, TensorProto.INT8, TensorProto.UINT8])
@pytest.mark.parametrize(("block", "per_channel"), [(BLOCK, True), (0, True), (0, False)])
@pytest.mark.parametrize("zeros", [False, True])
def test_weights_of_a_product_are_not_blown_up(elem_type, block, per_channel, zeros):
    proto, x = dequantised_product(elem_type, block, per_channel, zeros), random_array((3, K))
    with gp.onnx.load(proto, fallback=False) as model:
        [expected] = ReferenceEvaluator(proto).run(None, {"x": x})
        np.testing.assert_allclose(model.run({"x": x})["y"], expected, rtol=1e-4, atol=1e-4)
        assert "f32_matmul_compressed" in implementations(model, {"x": x})


NOT_MATRICES = [((6, 4, 3, 3), 0, 0), ((6, 4, 3, 3), 1, 2), ((5,), 0, 0), ((8,), 0, 4), ((), 0, 0), ((3, 8, 5), -1, 0),
                ((3, 8, 5), 1, 4)]  # fmt: skip
"""Shapes, axes and sizes of blocks."""


def raw_nibbles(rng, shape):
    count = int(np.prod(shape, dtype=int))
    raw = rng.integers(0, 256, -(-count // 2), np.uint8)
    raw[-1] &= 255 >> 4 * (count % 2)
    return raw.tobytes()


@pytest.mark.parametrize("elem_type", [TensorProto.INT4, TensorProto.UINT4])
@pytest.mark.parametrize(("shape", "axis", "block"), NOT_MATRICES)
@pytest.mark.parametrize("zeros", [False, True])
def test_four_bits_that_are_no_matrix_take_a_byte_each(elem_type, shape, axis, block, zeros, tmp_path):
    rng = np.random.default_rng(2)
    scales = tuple(dim // block if k == axis else dim for k, dim in enumerate(shape)) if block else shape[axis:][:1]
    given = [
        helper.make_tensor("q", elem_type, shape, raw_nibbles(rng, shape), raw=True),
        numpy_helper.from_array(rng.random(scales, np.float32), "s"),
    ]
    if zeros:
        given.append(helper.make_tensor("z", elem_type, scales, raw_nibbles(rng, scales), raw=True))
    options = {"axis": axis} | ({"block_size": block} if block else {})
    nodes = [
        helper.make_node("DequantizeLinear", [tensor.name for tensor in given], ["w"], **options),
        helper.make_node("Mul", ["x", "w"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", *shape]) for name in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], given)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(proto, tmp_path / "m.onnx")
    reference = ReferenceEvaluator(proto)
    for source in (tmp_path / "m.onnx", (tmp_path / "m.onnx").read_bytes(), proto):
        with gp.onnx.load(source, threads=1) as model, pickle.loads(pickle.dumps(model)) as copy:
            for rows in (1, 3):
                inputs = {"x": random_array((rows, *shape))}
                [expected] = reference.run(None, inputs)
                for one in (model, copy):
                    np.testing.assert_allclose(one.run(inputs)["y"], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("shape", "axis", "block"), [((64, 32, 3, 3), 0, 0), ((8, 64, 32), 1, 32)])
def test_constants_of_four_bits_are_counted_with_a_byte_each(shape, axis, block):
    rng, count = np.random.default_rng(2), int(np.prod(shape))
    scales = tuple(dim // block if k == axis else dim for k, dim in enumerate(shape)) if block else shape[:1]
    given = [
        helper.make_tensor("q", TensorProto.INT4, shape, raw_nibbles(rng, shape), raw=True),
        numpy_helper.from_array(rng.random(scales, np.float32), "s"),
    ]
    options = {"axis": axis} | ({"block_size": block} if block else {})
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s"], ["w"], **options),
        helper.make_node("Conv" if len(shape) == 4 else "MatMul", ["x", "w"], ["y"]),
    ]
    dims = (1, shape[1], 8, 8) if len(shape) == 4 else (shape[0], 2, shape[1])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], given)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with gp.onnx.load(proto.SerializeToString(), threads=1, prefer="memory") as model:
        stats, inputs = model.stats(), {"x": random_array(dims)}
        [expected] = ReferenceEvaluator(proto).run(None, inputs)
        np.testing.assert_allclose(model.run(inputs)["y"], expected, rtol=1e-4, atol=1e-3)
        beside = 4 * int(np.prod(scales)) + count // 2  # scales, and the file's bytes
        assert stats.constants_nbytes + stats.cached_nbytes <= count + beside + 4096


@pytest.mark.parametrize("elem_type", [TensorProto.INT4, TensorProto.UINT4])
@pytest.mark.parametrize("shape", [(3, 3), (64, 96)])
@pytest.mark.parametrize("other", [None, "DequantizeLinear", "Cast"])
def test_four_bits_are_the_same_however_they_come_and_who_reads_them(elem_type, shape, other, tmp_path):
    rng, count = np.random.default_rng(1), shape[0] * shape[1]
    raw = rng.integers(0, 256, -(-count // 2), np.uint8)
    raw[-1] &= 255 >> 4 * (count % 2)
    given = {"s": rng.random(shape[1], np.float32), "r": rng.random(shape[0], np.float32)}
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s"], ["f"], axis=1),
        helper.make_node("MatMul", ["x", "f"], ["y"]),
    ]
    if other is not None:
        options = (["q", "r"], {"axis": 0}) if other == "DequantizeLinear" else (["q"], {"to": TensorProto.FLOAT})
        nodes.append(helper.make_node(other, options[0], ["z"], **options[1]))
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "yz"[: len(nodes) - 1]]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", shape[0]])], infos,
        [helper.make_tensor("q", elem_type, shape, raw.tobytes(), raw=True),
         *(numpy_helper.from_array(value, name) for name, value in given.items())],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    path, beside, x = tmp_path / "m.onnx", tmp_path / "beside.onnx", random_array((5, shape[0]))
    path.write_bytes(proto.SerializeToString())
    onnx.save(proto, beside, save_as_external_data=True, location="w.bin", size_threshold=0)
    proto = onnx.load(path)
    expected = ReferenceEvaluator(proto).run(None, {"x": x})

    def check(model):
        for found, wanted in zip(model.run({"x": x}).values(), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)

    for source, weights in ((path, "scoped"), (beside, "scoped"), (path.read_bytes(), "packed"), (proto, "cached")):
        with gp.onnx.load(source, weights=weights) as model:
            model.run({"x": x[:2]})
            check(model)
            found = model.read_weight("q")
            assert found.dtype == helper.tensor_dtype_to_np_dtype(elem_type)
            np.testing.assert_array_equal(found, numpy_helper.to_array(proto.graph.initializer[0]))
            with pickle.loads(pickle.dumps(model)) as other_model:
                check(other_model)


def in_nibbles(array):
    """Two numbers of 4 bits to a byte, along the last axis."""
    array = np.pad(array, ((0, 0), (0, array.shape[1] % 2)))
    return (array[:, 0::2] | array[:, 1::2] << 4).astype(np.uint8)


def in_quarters(array):
    """Four numbers of 2 bits to a byte, along the last axis."""
    array = np.pad(array, ((0, 0), (0, -array.shape[1] % 4))).reshape(len(array), -1, 4)
    return (array << [0, 2, 4, 6]).sum(-1).astype(np.uint8)


def nbits_product(
    bits, *, zeros=False, bias=False, dtype="float32", batch=(2, 3), k=K, block=BLOCK, level=None, has_floats=False
):
    """A MatMulNBits, and what its weights stand for."""
    rng = np.random.default_rng(bits)
    groups = -(-k // block)
    q, points = rng.integers(0, 1 << bits, (N, groups * block)), rng.integers(0, 1 << bits, (N, groups))
    scales = rng.uniform(0.01, 0.1, (N, groups)).astype(dtype)
    pack = {2: in_quarters, 4: in_nibbles, 8: np.uint8}[bits]
    given = {"b": pack(q).reshape(N, groups, -1), "scales": scales}
    names = ["a", "b", "scales", "", "", ""]
    if has_floats:
        points = (points + 0.25).astype(dtype)
    if zeros:
        given["zeros"], names[3] = points if has_floats else pack(points), "zeros"
    if bias:
        given["bias"], names[5] = random_array((N,), dtype), "bias"
    own = {"K": k, "N": N, "bits": bits, "block_size": block} | ({} if level is None else {"accuracy_level": level})
    node = helper.make_node("MatMulNBits", names, ["y"], domain="com.microsoft", **own)
    proto = contributed(node, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), (*batch, k), (*batch, N), given)
    shift = np.repeat(points, block, 1) if zeros else 1 << (bits - 1)
    weights = (q - shift) * np.repeat(scales.astype(np.float64), block, 1)
    return proto, weights[:, :k].T, given.get("bias", 0)


def contributed(node, elem_type, shape, result, given, *, source=None):
    """A model of a node of domain com.microsoft; `source` is the type of its input where that is another."""
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info(node.input[1 if source else 0], source or elem_type, shape)],
        [helper.make_tensor_value_info("y", elem_type, result)],
        [value if isinstance(value, TensorProto) else numpy_helper.from_array(value, name)
         for name, value in given.items()],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("k", [K, 3 * BLOCK, K - 4])
def test_matmul_nbits(bits, zeros, bias, k):
    proto, weights, added = nbits_product(bits, zeros=zeros, bias=bias, k=k)
    a = random_array((2, 3, k))
    with gp.onnx.load(proto, fallback=False) as model:
        np.testing.assert_allclose(model.run({"a": a})["y"], a @ weights + added, rtol=1e-4, atol=1e-4)
        assert "f32_matmul_compressed" in implementations(model, {"a": a})


@pytest.mark.parametrize(("dtype", "error"), [("float32", 1e-4), ("float16", 4e-3)])
@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize("bits", [2, 4])
def test_zero_points_that_are_floats(dtype, error, level, bits):
    proto, weights, _ = nbits_product(bits, zeros=True, dtype=dtype, has_floats=True, level=level, k=K - 4)
    a = random_array((2, 3, K - 4), dtype)
    with gp.onnx.load(proto, fallback=False) as model:
        np.testing.assert_allclose(model.run({"a": a})["y"], a.astype(float) @ weights, rtol=error, atol=error)


@pytest.mark.parametrize(
    ("elem_type", "bits"),
    [(TensorProto.UINT8, 4), (TensorProto.UINT8, 8), (TensorProto.UINT4, 4), (TensorProto.INT4, 4)],
)
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("width", "dtype"), [(64, "float32"), (39, "float16")])
@pytest.mark.parametrize("is_file", [False, True])
def test_rows_of_a_quantised_table(elem_type, bits, zeros, width, dtype, is_file, tmp_path):
    rng, block = np.random.default_rng(0), 16
    low, high = (-8, 8) if elem_type == TensorProto.INT4 else (0, 1 << bits)
    q, points = rng.integers(low, high, (300, width)), rng.integers(low, high, (300, -(-width // block)))
    scales = rng.uniform(0.01, 0.1, points.shape).astype(dtype)
    is_packed = elem_type == TensorProto.UINT8 and bits == 4
    width += width % 2 if is_packed else 0
    q = np.pad(q, ((0, 0), (0, width - q.shape[1])))

    def tensor(name, array):
        if elem_type == TensorProto.UINT8:
            return numpy_helper.from_array(in_nibbles(array) if is_packed else array.astype(np.uint8), name)
        return numpy_helper.from_array(array.astype(helper.tensor_dtype_to_np_dtype(elem_type)), name)

    given = {"q": tensor("q", q), "scales": scales} | ({"points": tensor("points", points)} if zeros else {})
    options = {"block_size": block} | ({"bits": bits} if elem_type == TensorProto.UINT8 else {})
    node = helper.make_node("GatherBlockQuantized", ["q", "i", *list(given)[1:]], ["y"], domain="com.microsoft",
                            **options)  # fmt: skip
    proto = contributed(node, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), ("b", 3), ("b", 3, width), given,
                        source=TensorProto.INT64)  # fmt: skip
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    least = 1 << (bits - 1) if elem_type == TensorProto.UINT8 else 0
    shift = np.repeat(points, block, 1)[:, :width] if zeros else least
    expected = ((q - shift) * np.repeat(scales.astype(float), block, 1)[:, :width]).astype(dtype)
    with gp.onnx.load(path if is_file else proto, fallback=False) as model:
        for rows in (1, 4):
            i = rng.integers(-300, 300, (rows, 3))
            np.testing.assert_array_equal(model.run({"i": i})["y"], expected[i])


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize(("k", "block"), [(K, 64), (21, 16)])
def test_products_with_numbers_of_a_table(kind, k, block):
    pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(kind)
    rows = 25
    given = {
        "b": rng.integers(0, 256, (rows * k + 1) // 2).astype(np.uint8),
        "scales": rng.uniform(0.1, 2, -(-rows * k // block)).astype(np.float32),
    }
    node = helper.make_node("MatMulBnb4", ["a", *given], ["y"], domain="com.microsoft", K=k, N=rows, block_size=block,
                            quant_type=kind)  # fmt: skip
    proto = contributed(node, TensorProto.FLOAT, (3, k), (3, rows), given)
    a = random_array((3, k))
    peer = peer_session(proto)
    with gp.onnx.load(proto, fallback=False) as model:
        np.testing.assert_allclose(model.run({"a": a})["y"], peer.run(None, {"a": a})[0], rtol=1e-5, atol=1e-5)


def test_matmul_nbits_of_half_precision():
    proto, weights, _ = nbits_product(4, zeros=False, bias=False, dtype="float16")
    a = random_array((2, 3, K), "float16")
    with gp.onnx.load(proto, fallback=False) as model:
        result = model.run({"a": a})["y"]
    assert result.dtype == np.float16
    np.testing.assert_allclose(result.astype(float), a.astype(float) @ weights, rtol=4e-3, atol=4e-3)


def test_forms_for_other_shapes_share_the_weights():
    proto, weights, _ = nbits_product(4, zeros=False, bias=False, batch=("n", "m"))
    with gp.onnx.load(proto, fallback=False) as model:
        for batch in ((1, 1), (2, 5)):
            a = random_array((*batch, K))
            np.testing.assert_allclose(model.run({"a": a})["y"], a @ weights, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("block", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 9])
def test_accuracy_level_4_rounds_activations_to_8_bits(bits, zeros, block, rows):
    proto, weights, _ = nbits_product(bits, zeros=zeros, batch=(rows,), k=512, block=block, level=4)
    a = random_array((rows, 512))
    parts = a.reshape(rows, -1, min(block, 128))
    most = np.abs(parts).max(-1, keepdims=True)
    seen = (np.rint(parts * (np.float32(127) / most)) * (most / np.float32(127)).astype(np.float64)).reshape(a.shape)
    with gp.onnx.load(proto, fallback=False) as model:
        result = model.run({"a": a})["y"]
        assert "f32_matmul_compressed_dynamic" in implementations(model, {"a": a})
    np.testing.assert_allclose(result, seen @ weights, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(result, a @ weights, atol=0.02 * np.abs(a @ weights).max())


@pytest.mark.parametrize(
    ("level", "mode", "is_rounded"),
    [(None, "strict", False), (0, "strict", False), (1, "strict", False), (2, "int8", False), (3, "strict", False),
     (0, "int8", True), (1, "int8", False), (4, "strict", True), (None, "int8", True)],
)  # fmt: skip
def test_accuracy_levels_and_float_modes(level, mode, is_rounded):
    plain, _, _ = nbits_product(4)
    proto, _, _ = nbits_product(4, level=level)
    a = random_array((2, 3, K))
    with gp.onnx.load(plain) as exact, gp.onnx.load(proto, fpmath=mode) as model:
        assert ("dynamic" in implementations(model, {"a": a})) == is_rounded
        assert np.array_equal(model.run({"a": a})["y"], exact.run({"a": a})["y"]) == (not is_rounded)


def test_rows_of_8_bits_are_the_same_in_batches_of_other_sizes():
    proto, _, _ = nbits_product(8, batch=("n",), level=4)
    a = random_array((9, K))
    with gp.onnx.load(proto, fallback=False) as model:
        whole = model.run({"a": a})["y"]
        for rows in (1, 2, 4, 5):
            np.testing.assert_array_equal(model.run({"a": a[:rows]})["y"], whole[:rows])


def test_columns_of_another_number_are_refused():
    proto, _, _ = nbits_product(4, batch=("n",))
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = K - 4
    with (
        gp.onnx.load(proto, fallback=False) as model,
        pytest.raises(gp.InvalidShapeError, match="columns of input A"),
    ):
        model.run({"a": random_array((2, K - 4))})


@pytest.mark.parametrize("change", [{"block_size": 24}, {"bits": 2}, {"bits": 3}, {"accuracy_level": 5}])
def test_what_has_no_expression_is_refused(change):
    proto, _, _ = nbits_product(4, level=0)
    for attribute in proto.graph.node[0].attribute:
        attribute.i = change.get(attribute.name, attribute.i)
    with pytest.raises(gp.UnsupportedError, match="MatMulNBits"):
        gp.onnx.load(proto, fallback=False)
