"""Large constants of which all elements are one number: they keep that number alone, whatever reads them."""

import pickle
import tracemalloc

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphpool as gp
from graphpool.cache import constant_tensor_cache, fingerprint, set_packed_store
from graphpool.cache.identity import quick_fingerprint
from graphpool.runtime.constant_memory import is_one_number
from graphpool.runtime.constant_part import name_of
from tests.helpers.onnx_models import assert_close, random_array
from tests.helpers.stored_models import as_another_process, load_and_run, programs_in

SIDE = 192
"""Rows of so many elements; a few hundred of them are large."""


def node(kind, inputs, output="y", **attributes):
    return helper.make_node(kind, inputs.split(), [output], name=kind, **attributes)


def model_of(nodes, shape, number, x, dtype="float32", others=(), outputs=("y",), *, is_filled):
    """A model that reads `w`, which is filled with a number: by a node, or as an initialiser of all elements."""
    one = np.array([number], dtype)
    made, constants = [], {"shape": np.array(shape), **dict(others)}
    if is_filled:
        made = [node("ConstantOfShape", "shape", "w", value=numpy_helper.from_array(one))]
    else:
        constants["w"] = np.full(shape, one)
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for name, a in x.items()
    ]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph([*made, *nodes], "filled", infos, results, tensors)
    opsets = [helper.make_opsetid(domain, version) for domain, version in (("", 21), ("com.microsoft", 1))]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return onnx.shape_inference.infer_shapes(model)


def one_numbers(model):
    """How many constants of the form are one number."""
    return sum(map(is_one_number, model.specialise().form.constants.values()))


def case(text, nodes, shape, dtype="float32", x=None, number=0.75, others=(), *, kept=1):
    """`kept`: how many of the form's constants are one number."""
    given = {"x": random_array((4, SIDE)) if x is None else x}
    return pytest.param((nodes, shape, number, given, dtype, others), kept, id=text)


LSTM = {"hidden_size": 64}
IMAGE = random_array((2, 64, 9, 9))
CASES = [
    case("MatMul", [node("MatMul", "x w")], (SIDE, 200)),
    case("MatMul on the left", [node("MatMul", "w x")], (8200, 4)),
    case("MatMul of batches", [node("MatMul", "x w")], (3, SIDE, SIDE), x=random_array((3, 4, SIDE))),
    case("MatMul, f16", [node("MatMul", "x w")], (SIDE, 200), "float16", x=random_array((4, SIDE), "float16")),
    case("MatMul, f64", [node("MatMul", "x w")], (SIDE, 200), "float64", x=random_array((4, SIDE), "float64")),
    case("MatMul, bias and ReLU", [node("MatMul", "x w", "h"), node("Add", "h b", "s"), node("Relu", "s")], (SIDE, 200),
         others={"b": random_array((200,))}),
    case("Gemm", [node("Gemm", "x w b", transB=1, alpha=0.5)], (200, SIDE), others={"b": random_array((200,))}),
    case("Gemm, wide bias", [node("Gemm", "x v w")], (20000,), others={"v": random_array((SIDE, 20000))}),
    case("Conv", [node("Conv", "x w b", pads=[1] * 4)], (40, 64, 3, 3), x=IMAGE, others={"b": random_array((40,))}),
    case("Conv, 1x1", [node("Conv", "x w")], (300, 64, 1, 1), x=IMAGE),
    case("Conv, groups", [node("Conv", "x w", group=2, strides=[2, 2])], (80, 32, 3, 3), x=IMAGE),
    case("Conv, depthwise", [node("Conv", "x w", group=2048)], (2048, 1, 3, 3), x=random_array((1, 2048, 4, 4))),
    case("Conv, 1 axis", [node("Conv", "x w")], (100, 64, 3), x=random_array((1, 64, 30))),
    case("ConvTranspose", [node("ConvTranspose", "x w", strides=[2, 2])], (64, 40, 3, 3), x=IMAGE),
    case("Conv and BatchNormalization",
         [node("Conv", "x w", "h"), node("BatchNormalization", "h s s s v")], (40, 64, 3, 3), x=IMAGE,
         others={"s": random_array((40,)), "v": np.ones(40, "float32")}),
    case("BatchNormalization", [node("BatchNormalization", "x w w w w")], (17000,), x=random_array((2, 17000))),
    case("LayerNormalization", [node("LayerNormalization", "x w w")], (17000,), x=random_array((2, 17000))),
    case("GroupNormalization", [node("GroupNormalization", "x w w", num_groups=10)], (17000,),
         x=random_array((2, 17000, 2))),
    case("InstanceNormalization", [node("InstanceNormalization", "x w w")], (17000,), x=random_array((2, 17000, 2))),
    case("PRelu", [node("PRelu", "x w")], (SIDE, SIDE), x=random_array((2, SIDE, SIDE))),
    case("Add", [node("Add", "x w")], (100, 4, SIDE)),
    case("chain", [node("Mul", "x w", "a"), node("Sub", "w a", "b"), node("Sigmoid", "b")], (100, 4, SIDE)),
    case("Where", [node("Where", "c w x")], (100, 4, SIDE), others={"c": np.arange(4).reshape(4, 1) % 2 == 0}),
    case("Where, condition", [node("Where", "w x v")], (400, 4, SIDE), "bool", others={"v": random_array((SIDE,))}),
    case("Concat", [node("Concat", "x w", axis=0)], (100, SIDE)),
    case("Cast", [node("Cast", "w", "f", to=TensorProto.FLOAT), node("Add", "x f")], (100, 4, SIDE), "int32", number=3,
         kept=0),
    case("s32", [node("Mul", "x w")], (100, 4, SIDE), "int32", x=random_array((4, SIDE), "int32"), number=-3),
    case("s64", [node("Add", "x w")], (100, 4, SIDE), "int64", x=random_array((4, SIDE), "int64"), number=2**40),
    case("Gather from it", [node("Gather", "w x")], (100, SIDE), x=np.array([[3, 99], [0, -1]])),
    case("Gather by it", [node("Gather", "x w", axis=1)], (9000,), "int64", number=-2),
    case("GatherElements", [node("GatherElements", "x w", axis=0)], (9000, SIDE), "int64", number=3),
    case("GatherND", [node("GatherND", "x w")], (9000, 1), "int64", number=2),
    case("ScatterND", [node("ScatterND", "w i x")], (100, SIDE), others={"i": np.array([[5], [0], [7], [99]])}),
    case("ScatterND of it", [node("ScatterND", "x i w")], (4, 100, SIDE), x=random_array((8, 100, SIDE)),
         others={"i": np.array([[5], [0], [7], [1]])}),
    case("ScatterElements", [node("ScatterElements", "w i x", axis=0)], (100, SIDE),
         others={"i": np.tile(np.array([[3], [9], [1], [0]]), (1, SIDE))}),
    case("Reshape", [node("Reshape", "w to", "v"), node("MatMul", "x v")], (SIDE * 200,),
         others={"to": np.array([SIDE, 200])}),
    case("Transpose", [node("Transpose", "w", "v"), node("MatMul", "x v")], (200, SIDE)),
    case("Unsqueeze", [node("Unsqueeze", "w a", "v"), node("Add", "x v")], (100, SIDE), others={"a": np.array([1])}),
    case("Expand", [node("Expand", "o to", "v"), node("MatMul", "x v", "h"), node("Sub", "h w")], (4, 18000),
         others={"o": np.array([[2.5]], "float32"), "to": np.array([SIDE, 18000])}, kept=2),
    case("Slice", [node("Slice", "w a b", "v"), node("MatMul", "x v")], (500, 200),
         others={"a": np.array([0]), "b": np.array([SIDE])}),
    case("ArgMax", [node("Add", "x w", "s"), node("ArgMax", "s", axis=0)], (100, 4, SIDE)),
    case("Softmax", [node("Add", "x w", "s"), node("Softmax", "s")], (100, 4, SIDE)),
    case("DequantizeLinear", [node("DequantizeLinear", "w s", "v"), node("MatMul", "x v")], (SIDE, 400), "int8",
         number=7, others={"s": np.array(0.1, "float32")}),
    case("QuantizeLinear", [node("Add", "x w", "h"), node("QuantizeLinear", "h s z")], (100, 4, SIDE),
         others={"s": np.array(0.1, "float32"), "z": np.array(3, "int8")}),
    case("MatMulInteger", [node("MatMulInteger", "x w z")], (SIDE, 400), "int8", number=-7,
         x=random_array((4, SIDE), "uint8"), others={"z": np.array(2, "uint8")}),
    case("QLinearMatMul", [node("QLinearMatMul", "x s z w s z s z")], (SIDE, 400), "uint8", number=7,
         x=random_array((4, SIDE), "uint8"), others={"s": np.array(0.5, "float32"), "z": np.array(2, "uint8")}),
    case("ConvInteger", [node("ConvInteger", "x w")], (120, 64, 3, 3), "int8", number=-3,
         x=random_array((2, 64, 9, 9), "uint8")),
    case("LSTM, W", [node("LSTM", "x w r", **LSTM)], (1, 256, SIDE), x=random_array((3, 2, SIDE)),
         others={"r": 0.1 * random_array((1, 256, 64))}),
    case("LSTM, W and R", [node("LSTM", "x w w", hidden_size=SIDE)], (1, 4 * SIDE, SIDE), number=0.01,
         x=random_array((3, 2, SIDE))),
    case("GRU", [node("GRU", "x w w", hidden_size=SIDE)], (1, 3 * SIDE, SIDE), number=0.01,
         x=random_array((3, 2, SIDE))),
    case("Einsum", [node("Einsum", "x w", equation="ij,jk->ki")], (SIDE, 200)),
    case("Pad", [node("Add", "x w", "h"), node("Pad", "h p")], (100, 4, SIDE), others={"p": np.array([1] * 6)}),
    case("GridSample", [node("GridSample", "x w")], (2, 100, 100, 2), number=0.3, x=IMAGE),
    case("Tile", [node("Tile", "w n", "v"), node("Add", "x v")], (50, 4, SIDE), others={"n": np.array([2, 1, 1])},
         kept=0),
    case("CumSum", [node("CumSum", "w a", "v"), node("Add", "x v")], (100, 4, SIDE), others={"a": np.array(0)},
         kept=0),
    case("RMS", [node("SimplifiedLayerNormalization", "x w", domain="com.microsoft")], (17000,),
         x=random_array((2, 17000))),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "kept"), CASES)
def test_whatever_reads_one_number_gets_it_everywhere(arguments, kept):
    x = arguments[3]
    with gp.onnx.load(model_of(*arguments, is_filled=False)) as model:
        wanted = model.run(x)["y"]
    with gp.onnx.load(model_of(*arguments, is_filled=True)) as model:
        assert one_numbers(model) == kept
        assert_close(model.run(x)["y"], wanted)


X = {"x": random_array((4, SIDE))}
PRODUCT = [node("MatMul", "x w")], (SIDE, 300), 0.25, X


@pytest.mark.parametrize("options", [
    {"weights": "packed"}, {"weights": "cached"}, {"threads": 2, "schedule": "wavefront"}, {"memory_limit": "1MiB"},
    {"prefer": "memory"}, {"fpmath": "any"}, {"untrusted": True},
], ids=str)  # fmt: skip
def test_memory_is_the_number_s_and_what_is_predicted(options):
    with gp.onnx.load(model_of(*PRODUCT, is_filled=True), **options) as model:
        peak, form = model.predict_peak(), model.specialise()
        assert form.constants_nbytes == model.engine.budget.holdings()["constants"] - form.cached_nbytes == 4
        assert peak == model.engine.budget.in_use + form.demand
        (y,) = model.run(X).values()
        assert model.engine.budget.peak == peak
        np.testing.assert_allclose(y, np.repeat(X["x"].sum(1, keepdims=True) / 4, 300, 1), rtol=2e-2, atol=1e-2)


def test_a_model_that_is_only_looked_at_makes_no_elements():
    cache = constant_tensor_cache("cpu")
    capacity_nbytes = cache.capacity_nbytes
    cache.resize(0)
    try:
        nodes = [node("MatMul", "x w"), node("ReduceMean", "y", "z")]
        tracemalloc.start()
        with gp.onnx.load(model_of(nodes, (SIDE, 10**6), 1.0, X, outputs="z", is_filled=True), threads=1) as model:
            assert model.specialise().constants_nbytes < 100
            _, peak_nbytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        cache.resize(capacity_nbytes)
    assert peak_nbytes < 2**23 < SIDE * 10**6


def test_results_have_elements_of_their_own():
    nodes = [node("Identity", "w", "same"), node("Add", "x w")]
    with gp.onnx.load(model_of(nodes, (100, 4, SIDE), 0.5, X, outputs=("same", "y"), is_filled=True)) as model:
        found = [model.run(X)["same"] for _ in range(2)]
        assert one_numbers(model) == 1  # what the sum reads
    for array in found:
        assert array.flags.c_contiguous
        assert array.flags.writeable
        np.testing.assert_array_equal(array, np.full((100, 4, SIDE), 0.5, "float32"))
        array[...] = 3


def test_a_number_of_a_file_is_copied(tmp_path):
    """Files have numbers at any address, and are mapped; what is made of one holds neither."""
    path = tmp_path / "model.onnx"
    nodes = [node("Expand", "o shape", "v"), node("Add", "x v")]
    others = {"o": np.full((1, 1), 2.5, "float32")}
    onnx.save(model_of(nodes, (100 * SIDE, SIDE), 2.5, {"x": X["x"][:1]}, others=others, is_filled=True), path)
    with gp.onnx.load(path) as model:
        [content] = filter(is_one_number, model.specialise().form.constants.values())
        assert content.base.flags.owndata
        assert content.flags.aligned
        np.testing.assert_array_equal(model.run({"x": X["x"][:1]})["y"][7], X["x"][0] + 2.5)


@pytest.mark.parametrize("scans", [False, True])
def test_states_and_rows_of_loops(scans):
    """The first state, what is scanned and what a trip gives are one number each; trips read and write addresses."""
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [100, SIDE]) for name in ("s", "r")]
    state, row = ports if scans else (ports[0], None)
    body_nodes = [node("Add", "s r" if scans else "s w", "t"), node("Identity", "w", "v")]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [100, SIDE]) for name in ("t", "v")]
    if scans:
        body = helper.make_graph(body_nodes, "body", [state, row], results)
        loop = helper.make_node("Scan", ["w", "all"], ["y", "rows"], body=body, num_scan_inputs=1)
        nodes = [node("ConstantOfShape", "many", "all", value=numpy_helper.from_array(np.array([2], "float32"))), loop]
    else:
        extra = [helper.make_tensor_value_info("i", TensorProto.INT64, []),
                 helper.make_tensor_value_info("c", TensorProto.BOOL, [])]  # fmt: skip
        body_nodes.append(node("Identity", "c", "d"))
        done = helper.make_tensor_value_info("d", TensorProto.BOOL, [])
        body = helper.make_graph(body_nodes, "body", [*extra, state], [done, *results])
        nodes = [node("ReduceSum", "x all", "n", keepdims=0), node("Cast", "n", "trips", to=TensorProto.INT64)]
        nodes.append(helper.make_node("Loop", ["trips", "", "w"], ["y", "rows"], body=body))
    others = {"many": np.array([3, 100, SIDE]), "all": np.array([0])}
    if scans:
        del others["all"]
    x = {"x": np.array([3], "float32")}
    model = model_of(nodes, (100, SIDE), 0.5, x, others=others, outputs=("y", "rows"), is_filled=True)
    with gp.onnx.load(model) as loaded:
        found = loaded.run(x)
    np.testing.assert_array_equal(found["y"], np.full((100, SIDE), 6.5 if scans else 2, "float32"))
    np.testing.assert_array_equal(found["rows"], np.full((3, 100, SIDE), 0.5, "float32"))


# ---- in other processes


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "store"
    as_another_process(folder)
    yield folder
    set_packed_store(None)


def test_stored_forms_have_the_number(tmp_path, folder):
    path = tmp_path / "model.onnx"
    onnx.save(model_of(*PRODUCT, is_filled=True), path)
    first, _ = load_and_run(path, [X])
    assert len(programs_in(folder)) == 1
    assert programs_in(folder)[0].stat().st_size < SIDE * 300
    as_another_process(folder)
    assert load_and_run(path, [X]) == (first, False)  # nothing was read of the file


@pytest.mark.parametrize("is_shared", [False, True])
def test_pickles_and_handles_have_the_number(is_shared):
    with gp.onnx.load(model_of(*PRODUCT, is_filled=True), threads=1) as model:
        wanted = model.run(X)["y"]
        handle = gp.share(model) if is_shared else model
        text = pickle.dumps(handle)
        assert len(text) < SIDE * 300
        assert not is_shared or handle.nbytes < 2 * SIDE * 320 * 4  # packed, and nothing else that is large
        other = pickle.loads(text)
        with other.open() if is_shared else other as copy:
            assert one_numbers(copy) == 1
            np.testing.assert_array_equal(copy.run(X)["y"], wanted)


def test_names_tell_one_number_from_what_begins_with_it():
    """A digest of one element is not that of a row which has zeros behind it, as padding would make it."""
    one = np.broadcast_to(np.float32(3), (1, 2**15))
    row = np.zeros((1, 2**15), "float32")
    row[0, 0] = 3
    names = {name_of(array, take, gp.DataType.F32) for array in (one, row) for take in (fingerprint, quick_fingerprint)}
    assert len(names) == 4
