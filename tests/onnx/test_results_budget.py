"""What runs of models make is charged to the engine: results until they are gone, arrays of host functions."""

import threading
import time

import numpy as np
import pytest
from onnx import TensorProto, helper

import graphpool as gp

ROWS, COLUMNS = 4096, 1024
X = np.ones((ROWS, COLUMNS), np.float32)


def single(op, inputs, y_type=TensorProto.FLOAT, constants=()):
    """A model of one node with inputs of any rank-2 shape."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["m", "n"])
    y = helper.make_tensor_value_info("y", y_type, ["p", "q"])
    node = helper.make_node(op, inputs, ["y"], name="node")
    graph = helper.make_graph([node], "tiny", [x], [y], list(constants))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def expand():
    shape = helper.make_tensor("s", TensorProto.INT64, [2], [ROWS, COLUMNS])
    return single("Expand", ["x", "s"], constants=[shape])


CASES = {
    "Relu": (single("Relu", ["x"]), X), "Expand": (expand(), X[:1, :1]), "Identity": (single("Identity", ["x"]), X),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_result_beyond_the_limit_is_refused_before_the_run(name):
    model_proto, x = CASES[name]
    with gp.onnx.load(model_proto, memory_limit="8MiB") as model:
        with pytest.raises(gp.OutOfMemoryError, match="asked by results of tiny") as caught:
            model.run({"x": x})
        with pytest.raises(gp.OutOfMemoryError, match="asked by results of tiny"):
            model.predict_peak({"x": x.shape})
        assert model.engine.budget.peak < 2**20
        assert model.predict_peak({"x": x.shape}, outputs=False) < 2**20
        y = np.empty_like(X)
        model.run({"x": x}, {"y": y})
        np.testing.assert_array_equal(y, X)
        assert model.engine.budget.peak < 2**20
    enough = caught.value.smallest_limit
    with gp.onnx.load(model_proto, memory_limit=enough) as model:
        assert model.predict_peak({"x": x.shape}) == enough
        for _ in range(2):
            np.testing.assert_array_equal(model.run({"x": x})["y"], X)
        assert model.engine.budget.peak == enough
    with gp.onnx.load(model_proto, memory_limit=enough - 1) as model:
        with pytest.raises(gp.OutOfMemoryError) as caught:
            model.run({"x": x})
        assert caught.value.smallest_limit == enough


def test_a_result_is_charged_until_it_is_gone_wherever_and_whenever():
    with gp.onnx.load(single("Relu", ["x"])) as model:
        budget = model.engine.budget
        held = [model.run({"x": X})["y"][:2], model.run({"x": X[:3, :4]})["y"]]
        with_both = budget.in_use
        assert with_both >= X.nbytes + held[1].nbytes
    assert budget.in_use == X.nbytes + held[1].nbytes  # after the end of model and engine
    del held[1]
    assert budget.in_use == X.nbytes
    dropping = threading.Thread(target=held.clear)
    dropping.start()
    dropping.join()
    assert budget.in_use == 0


def test_what_is_kept_for_the_next_result_comes_back_under_pressure_and_by_trim():
    with gp.Engine(memory_limit=3 * X.nbytes) as engine, gp.onnx.load(single("Relu", ["x"]), engine=engine) as model:
        model.run({"x": X})
        kept = engine.budget.in_use
        assert kept >= X.nbytes
        tensor = gp.Tensor(gp.LogicalTensor(0, "u8", (3 * X.nbytes - kept + 1,)), engine)
        assert engine.budget.in_use == tensor.nbytes + kept - X.nbytes
        del tensor
        model.run({"x": X})
        assert model.trim() >= X.nbytes
        assert engine.budget.in_use < kept - X.nbytes  # the program goes too
        model.run({"x": X})
        assert engine.trim() >= X.nbytes
        assert engine.budget.in_use == kept - X.nbytes


def test_arrays_of_host_functions_are_charged():
    proto = single("NonZero", ["x"], TensorProto.INT64)
    with gp.onnx.load(proto, memory_limit="8MiB") as model:
        with pytest.raises(gp.OutOfMemoryError):
            model.run({"x": X})
        found = model.run({"x": X[:2, :8]})["y"]
        assert model.engine.budget.in_use >= found.nbytes
        np.testing.assert_array_equal(found, np.nonzero(X[:2, :8]))
        before = model.engine.budget.in_use
        nbytes = found.nbytes
        del found
        assert model.engine.budget.in_use == before - nbytes
        assert model.engine.budget.peak <= 2**23


def test_a_copy_of_an_input_is_charged():
    with gp.onnx.load(single("Identity", ["x"]), memory_limit=X.nbytes + 5000) as model:
        y = model.run({"x": X})["y"]
        assert model.engine.budget.in_use >= y.nbytes
        with pytest.raises(gp.OutOfMemoryError):
            model.run({"x": X})
        np.testing.assert_array_equal(y, X)


@pytest.mark.parametrize(("op", "y_type"), [("Identity", TensorProto.FLOAT), ("NonZero", TensorProto.INT64)])
@pytest.mark.parametrize("ranges", [None, {"m": (1, 64), "n": (1, 96)}])
def test_what_is_copied_into_a_result_is_predicted(op, y_type, ranges):
    x = np.ones((64, 96), np.float32)
    with gp.onnx.load(single(op, ["x"], y_type), shapes=ranges) as model:
        predicted = int(model.predict_peak() if ranges else model.predict_peak({"x": x.shape}))
        y = model.run({"x": x})["y"]
        assert y.nbytes <= predicted == model.engine.budget.peak


def unique(nodes=(), axis=None, y_type=TensorProto.FLOAT):
    """A model of a Unique and others behind it."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["m", "n"])
    first = helper.make_node("Unique", ["x"], ["y" if not nodes else "u"], **({} if axis is None else {"axis": axis}))
    y = helper.make_tensor_value_info("y", y_type, None)
    graph = helper.make_graph([first, *nodes], "tiny", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("shape", [(64, 96), (3, 2000), (2000, 1), (0, 5)])
@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("has_others", [False, True])
def test_of_unique_elements_the_most_is_predicted_whatever_there_is(shape, axis, has_others):
    others = [helper.make_node("Exp", ["u"], ["v"]), helper.make_node("Neg", ["v"], ["y"])] if has_others else []
    for x in (np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 1e4, np.zeros(shape, np.float32)):
        with gp.onnx.load(unique(others, axis)) as model:
            predicted = int(model.predict_peak({"x": shape}))
            y = model.run({"x": x})["y"]
            wanted = np.unique(x, axis=axis)
            np.testing.assert_allclose(y, -np.exp(wanted) if has_others else wanted, rtol=1e-6)
            assert predicted >= model.engine.budget.peak
            is_by_kernels = axis is None  # which take less where little is found
            assert has_others or is_by_kernels or predicted == model.engine.budget.peak


@pytest.mark.parametrize("op", ["RandomNormalLike", "RandomUniformLike", "Bernoulli"])
def test_random_numbers_are_predicted(op):
    """They are drawn as doubles."""
    with gp.onnx.load(single(op, ["x"])) as model:
        predicted = int(model.predict_peak({"x": X[:64, :96]}))  # which a run copies
        assert model.run({"x": X[:64, :96]})["y"].shape == (64, 96)
        assert predicted == model.engine.budget.peak


def test_classes_that_are_drawn_are_predicted():
    node = helper.make_node("Multinomial", ["x"], ["y"], sample_size=500)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [64, 96])
    y = helper.make_tensor_value_info("y", TensorProto.INT32, [64, 500])
    proto = helper.make_model(helper.make_graph([node], "tiny", [x], [y]), ir_version=8,
                              opset_imports=[helper.make_opsetid("", 17)])  # fmt: skip
    with gp.onnx.load(proto) as model:
        predicted = int(model.predict_peak({"x": X[:64, :96]}))
        assert model.run({"x": X[:64, :96]})["y"].nbytes < predicted
        assert predicted == model.engine.budget.peak


def test_a_sequence_of_copies_is_predicted():
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [64, 96])
    y = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("SequenceConstruct", ["x", "x"], ["y"])], "tiny", [x], [y])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with gp.onnx.load(proto) as model:
        predicted = int(model.predict_peak({"x": X[:64, :96]}))
        found = model.run({"x": X[:64, :96]})["y"]
        assert sum(item.nbytes for item in found) <= predicted == model.engine.budget.peak


def test_a_constant_as_a_result_is_predicted():
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "z")]
    nodes = [helper.make_node("Identity", ["w"], ["y"]), helper.make_node("Relu", ["x"], ["z"])]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1000], np.ones(1000))
    graph = helper.make_graph(nodes, "tiny", [x], outputs, [weight])
    with gp.onnx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)) as model:
        predicted = int(model.predict_peak())
        held = model.run({"x": np.ones(4, np.float32)})
        assert held["y"].nbytes == 4000
        assert predicted == model.engine.budget.peak


def test_what_loading_computes_is_charged_meanwhile():
    """A weight of 1 MiB that is widened to 4 MiB ahead of time, by way of 8 MiB, and read as 4 MiB."""
    small = helper.make_tensor("w", TensorProto.UINT8, [1024, 1024], bytes(2**20), raw=True)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1024])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1024])
    nodes = [
        helper.make_node("Cast", ["w"], ["wide"], to=TensorProto.DOUBLE),
        helper.make_node("Cast", ["wide"], ["v"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["x", "v"], ["y0"]),
        helper.make_node("ReduceSum", ["y0"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "tiny", [x], [y], [small])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with gp.onnx.load(proto) as model:
        assert model.engine.budget.peak >= 12 * 2**20
        assert model.predict_peak() == model.engine.budget.in_use + model.specialise().demand
    with pytest.raises(gp.OutOfMemoryError, match="asked by loading"):
        gp.onnx.load(proto, memory_limit="6MiB")


def test_a_weight_that_is_unpacked_is_charged_until_it_is_gone():
    weight = helper.make_tensor("w", TensorProto.FLOAT, [256, 512], np.ones((256, 512), np.float32).tobytes(), raw=True)
    proto = single("MatMul", ["x", "w"], constants=[weight])
    with gp.onnx.load(proto.SerializeToString(), weights="packed") as model:
        model.run({"x": X[:4, :256]})
        before = model.engine.budget.in_use
        assert model.stats().constants_nbytes == 0
        plain = model.read_weight("w")
        assert model.engine.budget.in_use == before + plain.nbytes
        del plain
        assert model.engine.budget.in_use == before


def test_what_is_kept_for_results_decays():
    with gp.Engine(idle_decay_s=1000.0) as engine, gp.onnx.load(single("Relu", ["x"]), engine=engine) as model:
        model.run({"x": X})
        kept = engine.budget.in_use
        now = time.monotonic()
        assert engine.decay(now + 900) == 0
        assert engine.decay(now + 1100) >= X.nbytes
        assert engine.budget.in_use <= kept - X.nbytes
