"""Whole models on engines of kind gpu: results, copies, memory, constants and errors."""

import gc
import pickle
import threading

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import graphpool as gp
from graphpool import demo
from graphpool.backends.cuda import support
from graphpool.cache import constant_tensor_cache
from graphpool.runtime.cuda.gpu_graph import GpuGraph, _Captured
from graphpool.runtime.executable import Executable
from graphpool.runtime.model_form import ModelForm

RNG = np.random.default_rng(3)
WEIGHTS = RNG.standard_normal((6, 5), np.float32), RNG.standard_normal((5, 6), np.float32)


def onnx_model(nodes, inputs, outputs, constants=()):
    """A model of (op, inputs, outputs, attributes), ports by name with type and shape, and constants by name."""
    graph = helper.make_graph(
        [helper.make_node(op, ins, outs, **attributes) for op, ins, outs, attributes in nodes],
        "test",
        *[
            [helper.make_tensor_value_info(name, *described) for name, described in ports.items()]
            for ports in (inputs, outputs)
        ],
        [numpy_helper.from_array(array, name) for name, array in dict(constants).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def perceptron(middle=()):
    """Two products, with other nodes between `h` and `g`, on any number of rows."""
    f32 = onnx.TensorProto.FLOAT
    between = middle or [("Relu", ["h"], ["g"], {})]
    nodes = [("MatMul", ["x", "a"], ["h"], {}), *between, ("MatMul", ["g", "b"], ["y"], {})]
    ports = {"x": (f32, ["n", 6])}, {"y": (f32, ["n", 6])}
    return onnx_model(nodes, *ports, {"a": WEIGHTS[0], "b": WEIGHTS[1]})


STATISTICS = {f"given{k}": row for k, row in enumerate(RNG.random((4, 5), np.float32))}


def hosted(source, result):
    """A node that no kernel computes, which reads the constants `STATISTICS`."""
    return ("BatchNormalization", [source, *STATISTICS], [result, "mean", "variance"], {"training_mode": 1})


def with_host_op():
    made = perceptron([hosted("h", "c"), ("Exp", ["c"], ["g"], {})])
    made.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in STATISTICS.items())
    return made


def on_cpu(source, inputs):
    with gp.onnx.load(source) as model:
        return model.run(inputs)


def check(found, expected):
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)


def rows(count):
    return {"x": RNG.standard_normal((count, 6), np.float32)}


@pytest.mark.parametrize("name", ["digits_cnn", "digits_transformer"])
def test_demonstration_models(driver, gpu, name):
    """Results within the CPU's tolerances, memory as predicted, to the byte; a warm run makes nothing in the driver."""
    images, labels = (array[:2] for array in demo.test_images())
    expected = on_cpu(demo.model_path(name), {"image": images})
    with gp.onnx.load(demo.model_path(name), engine=gpu) as model:
        predicted = model.predict_peak({"image": images})
        for seed in range(3):
            driver.seed(seed)
            found = model.run({"image": images})
            check(found, expected)
            assert (found["probabilities"].argmax(1) == labels).all()
        assert gpu.budget.peak == gpu.stats().peak_nbytes == predicted
        count, live = gpu.stats().total_count, driver.live()
        model.run({"image": images})
        assert (gpu.stats().total_count, driver.live()) == (count, live)


# ---- runs


def test_each_shape_has_a_form(gpu):
    source = perceptron()
    with gp.onnx.load(source, engine=gpu) as model:
        for count in (1, 7, 1, 300, 0):
            inputs = rows(count)
            check(model.run(inputs), on_cpu(source, inputs))
        assert model.stats().compilations == 4
        out = {"y": np.empty((7, 6), np.float32)}
        inputs = rows(7)
        assert model.run(inputs, out)["y"] is out["y"]
        check(out, on_cpu(source, inputs))


def test_threads_run_side_by_side(driver, gpu):
    source, errors = with_host_op(), []
    inputs = [rows(4) for _ in range(3)]
    expected = [on_cpu(source, given) for given in inputs]
    with gp.onnx.load(source, engine=gpu) as model:

        def work(number):
            try:
                for _ in range(3):
                    check(model.run(inputs[number]), expected[number])
            except BaseException as error:  # told by the main thread
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []


@pytest.mark.parametrize("seed", range(3))
def test_ops_without_a_kernel_are_computed_by_the_host_between_counted_copies(driver, gpu, seed):
    driver.seed(seed)
    source, inputs = with_host_op(), rows(4)
    copies = gpu.device.copies
    with gp.onnx.load(source, engine=gpu) as model:
        form = model.specialise({"x": (4, 6)})
        assert sum(name[0].startswith("host:numpy") for name in form.implementations if name) == 1
        before = copies.uploads, copies.downloads
        check(model.run(inputs), on_cpu(source, inputs))
        # the input and what the host gives; what the host takes and the result
        assert (copies.uploads - before[0], copies.downloads - before[1]) == (2, 2)


def test_outputs_that_the_host_reads_too(driver, gpu):
    f32 = onnx.TensorProto.FLOAT
    nodes = [("Exp", ["x"], ["e"], {}), hosted("e", "c"), ("Neg", ["c"], ["y"], {})]
    source = onnx_model(nodes, {"x": (f32, [3, 5])}, {name: (f32, [3, 5]) for name in "ecy"}, STATISTICS)
    inputs = {"x": RNG.standard_normal((3, 5), np.float32)}
    with gp.onnx.load(source, engine=gpu) as model:
        for _ in range(2):
            check(model.run(inputs), on_cpu(source, inputs))
        out = {name: np.empty((3, 5), np.float32) for name in "ecy"}
        check(model.run(inputs, out), on_cpu(source, inputs))


def test_what_the_host_alone_reads_stays_there(gpu):
    """What the host normalises is not copied, nor are the constants that it does so with."""
    f32 = onnx.TensorProto.FLOAT
    nodes = [hosted("x", "e"), ("MatMul", ["e", "b"], ["y"], {})]
    ports = {"x": (f32, [3, 5])}, {"y": (f32, [3, 6]), "x": (f32, [3, 5])}
    source = onnx_model(nodes, *ports, {**STATISTICS, "b": WEIGHTS[1]})
    inputs = {"x": RNG.standard_normal((3, 5), np.float32)}
    with gp.onnx.load(source, engine=gpu) as model:
        before = gpu.device.copies.uploads
        check(model.run(inputs), on_cpu(source, inputs))
        assert gpu.device.copies.uploads == before + 1  # what the host gives
        assert gpu.budget.peak == model.predict_peak()
        assert model.stats().cached_nbytes == WEIGHTS[1].nbytes


def test_rows_are_looked_up_on_the_device(gpu):
    i64, f32 = onnx.TensorProto.INT64, onnx.TensorProto.FLOAT
    table = RNG.standard_normal((300, 6), np.float32)
    nodes = [("Gather", ["table", "numbers"], ["e"], {}), ("MatMul", ["e", "a"], ["y"], {})]
    source = onnx_model(nodes, {"numbers": (i64, [4])}, {"y": (f32, [4, 5])}, {"table": table, "a": WEIGHTS[0]})
    inputs = {"numbers": np.array([5, -1, 0, 299])}
    with gp.onnx.load(source, engine=gpu) as model:
        check(model.run(inputs), on_cpu(source, inputs))
        assert not any(name.startswith("host") for names in model.specialise().implementations for name in names)


def test_graphs_inside_nodes_run_there(gpu):
    """Trips of a loop are runs of the model inside."""
    f32, i64, flag = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL
    body = helper.make_graph(
        [helper.make_node("MatMul", ["s", "w"], ["m"]), helper.make_node("Tanh", ["m"], ["t"]),
         helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [helper.make_tensor_value_info("k", i64, []), helper.make_tensor_value_info("go", flag, []),
         helper.make_tensor_value_info("s", f32, [2, 4])],
        [helper.make_tensor_value_info("on", flag, []), helper.make_tensor_value_info("t", f32, [2, 4])],
    )  # fmt: skip
    constants = {"w": RNG.standard_normal((4, 4), np.float32)}
    ports = {"count": (i64, []), "x": (f32, [2, 4])}, {"y": (f32, [2, 4])}
    source = onnx_model([("Loop", ["count", "", "x"], ["y"], {"body": body})], *ports, constants)
    inputs = {"count": np.array(5), "x": RNG.standard_normal((2, 4), np.float32)}
    with gp.onnx.load(source, engine=gpu) as model:
        check(model.run(inputs), on_cpu(source, inputs))


@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize("name", ["INT4", "UINT4"])
def test_weights_of_four_bits(gpu, monkeypatch, name, on_host):
    """They stay packed where they are dequantised: on the device, or on the host if no kernel read them."""
    if on_host:
        monkeypatch.setattr(support, "FROM_NIBBLES", frozenset())
    f32, four_bits = onnx.TensorProto.FLOAT, getattr(onnx.TensorProto, name)
    low = -8 if name == "INT4" else 0
    codes = RNG.integers(low, low + 16, (6, 4))
    nodes = [("DequantizeLinear", ["q", "scale"], ["w"], {}), ("MatMul", ["x", "w"], ["y"], {})]
    source = onnx_model(nodes, {"x": (f32, [3, 6])}, {"y": (f32, [3, 4])}, {"scale": np.array(0.25, np.float32)})
    raw = ((codes[:, ::2] & 15) | (codes[:, 1::2] & 15) << 4).astype(np.uint8).tobytes()
    source.graph.initializer.append(helper.make_tensor("q", four_bits, codes.shape, raw, raw=True))
    source.opset_import[0].version = 21
    inputs = rows(3)
    with gp.onnx.load(source, engine=gpu) as model:
        for _ in range(2):
            check(model.run(inputs), {"y": inputs["x"] @ (codes.astype(np.float32) * 0.25)})
        hosted = [name for names in model.specialise().implementations for name in names if name.startswith("host")]
        packed_nbytes = codes.size // 2 + 4  # the scale too
        assert (len(hosted), model.stats().cached_nbytes) == ((1, 0) if on_host else (0, packed_nbytes))


def test_outputs_that_nothing_computes(gpu):
    f32 = onnx.TensorProto.FLOAT
    nodes = [("Identity", ["x"], ["same"], {}), ("Relu", ["x"], ["y"], {})]
    source = onnx_model(nodes, {"x": (f32, [3])}, {"same": (f32, [3]), "y": (f32, [3]), "w": (f32, [6, 5])},
                        {"w": WEIGHTS[0]})  # fmt: skip
    inputs = {"x": np.array([-1, 0, 2], np.float32)}
    with gp.onnx.load(source, engine=gpu) as model:
        check(model.run(inputs), {"same": inputs["x"], "y": np.maximum(inputs["x"], 0), "w": WEIGHTS[0]})


# ---- graphs and schedules


def branches(width=3):
    """Branches of three nodes each on one input, whose results are joined: what several streams are for."""
    f32 = onnx.TensorProto.FLOAT
    nodes, ends = [], []
    for k in range(width):
        nodes += [
            ("MatMul", ["x", f"w{k}"], [f"m{k}"], {}),
            ("Softmax", [f"m{k}"], [f"s{k}"], {}),
            ("MatMul", [f"s{k}", f"v{k}"], [f"e{k}"], {}),
        ]
        ends.append(f"e{k}")
    nodes += [("Concat", ends, ["c"], {"axis": 1}), ("Softmax", ["c"], ["y"], {})]
    constants = {f"{name}{k}": RNG.standard_normal((6, 6), np.float32) for k in range(width) for name in "wv"}
    return onnx_model(nodes, {"x": (f32, [70, 6])}, {"y": (f32, [70, 6 * width])}, constants)


class Counted:
    """Counts the calls of a method, and leaves one of them out."""

    def __init__(self, monkeypatch, owner, name):
        self.left_out, self.count = None, 0
        method = getattr(owner, name)

        def counted(*args):
            self.count += 1
            return None if self.count - 1 == self.left_out else method(*args)

        monkeypatch.setattr(owner, name, counted)


@pytest.mark.parametrize("policy", ["wavefront", "asap", "nimble", "list", "ios"])
def test_schedules_have_parallel_branches_in_one_graph(driver, gpu, monkeypatch, policy):
    source = branches()
    captures, launches = Counted(monkeypatch, GpuGraph, "_capture"), Counted(monkeypatch, GpuGraph, "launch")
    inputs = [{"x": RNG.standard_normal((70, 6), np.float32)} for _ in range(3)]
    with gp.onnx.load(source, engine=gpu, schedule=policy, streams=3) as model:
        assert model.stats().streams > 1
        predicted = model.predict_peak()
        for seed, given in enumerate(inputs):
            driver.seed(seed)
            check(model.run(given), on_cpu(source, given))
            assert (captures.count, launches.count) == (1, seed + 1)  # one graph for all inputs
        assert gpu.budget.peak == predicted


@pytest.mark.planted
@pytest.mark.parametrize("policy", ["wavefront", "asap"])
def test_waits_that_are_left_out_of_a_model_are_found(driver, gpu, monkeypatch, policy):
    """Those between launches are: what forks and joins the capture itself is refused by the driver at once."""
    waits, source = Counted(monkeypatch, _Captured, "wait"), branches()
    inputs = {"x": RNG.standard_normal((70, 6), np.float32)}
    seen = set()
    with gp.onnx.load(source, engine=gpu, schedule=policy, streams=3) as model:
        model.run(inputs)
        count = waits.count
    assert driver.reports() == []
    for left_out in range(count):
        waits.left_out, waits.count = left_out, 0
        try:
            with gp.onnx.load(source, engine=gpu, schedule=policy, streams=3) as model:
                model.run(inputs)
        except gp.BackendError:
            seen.add("refused")
        seen |= driver.kinds()
        gc.collect()
    assert {"use without order", "refused"} <= seen


# ---- memory


@pytest.mark.parametrize("source", [perceptron(), with_host_op()], ids=["kernels", "host"])
def test_limit_refuses_before_anything_runs(driver, twins, source):
    inputs = rows(9)

    def run(limit):
        with gp.Engine("gpu", memory_limit=limit) as engine, gp.onnx.load(source, engine=engine) as model:
            model.run(inputs)
            assert engine.budget.peak == model.predict_peak(inputs)
            return engine.budget.peak

    needed = run(None)
    assert run(needed) == needed
    with gp.Engine("gpu", memory_limit=needed - 1) as engine, gp.onnx.load(source, engine=engine) as model:
        copies = engine.device.copies
        with pytest.raises(gp.OutOfMemoryError) as caught:
            model.run(inputs)
        assert caught.value.smallest_limit == needed
        assert (copies.uploads, engine.stats().total_count) == (0, 0)
        del caught


def test_memory_goes_back(gpu):
    source, inputs = perceptron(), rows(9)
    with gp.onnx.load(source, engine=gpu) as model:
        model.run(inputs)
        kept = gpu.budget.in_use
        assert model.trim() > 0
        weights_nbytes = sum(array.nbytes for array in WEIGHTS)
        assert gpu.budget.in_use == model.stats().cached_nbytes == weights_nbytes < kept
        check(model.run(inputs), on_cpu(source, inputs))
    assert gpu.budget.in_use == 0


# ---- constants


def test_models_share_constants(gpu):
    """Two files with equal weights: the cache of the device has one copy of each, until the last model is closed."""
    cache, inputs, nbytes = constant_tensor_cache("gpu", 0), rows(2), sum(array.nbytes for array in WEIGHTS)
    with gp.onnx.load(perceptron(), engine=gpu) as one:
        one.run(inputs)
        before = gpu.device.copies.uploads
        with gp.onnx.load(perceptron(), engine=gpu) as other:
            other.run(inputs)
            assert gpu.device.copies.uploads == before + 1  # the input
            assert (one.stats().cached_nbytes, gpu.constants.held) == (nbytes, nbytes)
        one.run(inputs)
    assert len(cache) == 0
    with gp.onnx.load(perceptron(), engine=gpu, weights="cached") as one:
        one.run(inputs)
    assert gpu.constants.held == nbytes
    gpu.constants.close()


def test_engines_of_other_contexts_share_none(gpu, twins):
    inputs = rows(2)
    with gp.Engine("gpu", context="other") as engine, gp.onnx.load(perceptron(), engine=engine) as other:
        other.run(inputs)
        with gp.onnx.load(perceptron(), engine=gpu) as model:
            model.run(inputs)
            assert gpu.constants.held == engine.constants.held > 0


def test_constants_beyond_the_capacity_are_the_forms_own(gpu):
    cache, inputs, source = constant_tensor_cache("gpu", 0), rows(2), perceptron()
    capacity = cache.capacity_nbytes
    cache.set_capacity(WEIGHTS[0].nbytes)
    try:
        with gp.onnx.load(source, engine=gpu) as model:
            predicted = model.predict_peak(inputs)
            check(model.run(inputs), on_cpu(source, inputs))
            assert (gpu.constants.held, gpu.budget.peak) == (WEIGHTS[0].nbytes, predicted)
            stats = model.stats()
            assert (stats.cached_nbytes, stats.constants_nbytes) == (WEIGHTS[0].nbytes, WEIGHTS[1].nbytes)
    finally:
        cache.set_capacity(capacity)


# ---- errors


def test_what_a_gpu_does_not_do_is_refused(gpu):
    f32 = onnx.TensorProto.FLOAT
    nodes = [("Concat", ["past", "x"], ["present"], {"axis": 0})]
    source = onnx_model(nodes, {"past": (f32, ["t", 2]), "x": (f32, [1, 2])}, {"present": (f32, ["u", 2])})
    with gp.onnx.load(source, engine=gpu) as model:
        with pytest.raises(gp.UnsupportedError, match="sessions on an engine of kind gpu"):
            model.session({"present": "past"}, capacity={"t": 4})
        inputs = {"past": np.ones((3, 2), np.float32), "x": np.zeros((1, 2), np.float32)}
        check(model.run(inputs), on_cpu(source, inputs))


def test_host_functions_that_fail_leave_the_device_usable(driver, gpu):
    tensors = [gp.LogicalTensor(k, "f32", (8, 16)) for k in range(4)]
    graph = gp.Graph("gpu")
    for k, kind in enumerate(("ReLU", "Wildcard", "Exp")):
        graph.add_op(gp.Op(k, kind, [tensors[k]], [tensors[k + 1]]))
    graph.finalize()
    results = [None, np.zeros((8, 17), np.float32), np.ones((8, 16), np.float32)]

    def host(inputs, outputs):
        return [results[0]] if results[0] is not None else 1 / 0

    executable = Executable(ModelForm(graph, {}, {"x": 0}, {"y": 3}, {1: host}), gpu)
    for message in ("failed; got: ZeroDivisionError", "gave another result than inferred"):
        with pytest.raises(gp.BackendError, match=message):
            executable.run({"x": np.zeros((8, 16), np.float32)})
        del results[0]
    found = executable.run({"x": np.zeros((8, 16), np.float32)})
    np.testing.assert_allclose(found["y"], np.e, rtol=1e-6)
    executable.close()


def test_pickled_models_run_on_an_engine_of_their_own(gpu):
    inputs = rows(3)
    with gp.onnx.load(perceptron(), engine=gpu) as model:
        other = pickle.loads(pickle.dumps(model))
        with other, other.engine:
            check(other.run(inputs), model.run(inputs))


def test_a_constant_of_one_number_takes_one_element_of_the_device(driver, gpu):
    f32 = onnx.TensorProto.FLOAT
    half = numpy_helper.from_array(np.array([0.5], np.float32))
    nodes = [
        ("ConstantOfShape", ["shape"], ["w"], {"value": half}), ("MatMul", ["x", "w"], ["h"], {}),
        ("Add", ["h", "w"], ["y"], {}),
    ]  # fmt: skip
    source = onnx_model(nodes, {"x": (f32, [150, 150])}, {"y": (f32, [150, 150])}, {"shape": np.array([150, 150])})
    inputs = {"x": RNG.standard_normal((150, 150), np.float32)}
    with gp.onnx.load(source, engine=gpu) as model:
        assert all(partition.is_supported for partition in model.partitions)
        assert model.specialise().cached_nbytes == 4
        check(model.run(inputs), on_cpu(source, inputs))
        assert model.predict_peak() == gpu.budget.peak
