"""Slices of a batch: which groups go together, and that what they compute does not depend on it."""

import pickle
import random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import graphpool as gp
from graphpool.backends.cpu.layout import slices
from graphpool.backends.cpu.match.rows import ports_by_row
from graphpool.profile import trace
from tests.helpers.guard_pages import GuardedResource

Node = helper.make_node
CHANNELS = 8


@pytest.fixture
def choose(monkeypatch):
    """Sets how many rows each group takes at a time: a function of the counts that there are."""

    def use(pick):
        for cache in (gp.cache.compiled_partition_cache(), gp.cache.primitive_cache()):
            cache.clear()
        monkeypatch.setattr(slices._Path, "leaves_caches", True)
        monkeypatch.setattr(slices._Path, "fastest", lambda path, counts: [pick(counts) for _ in path.sites])

    return use


def whole(counts):
    return counts[0]


def one(counts):
    return min(counts)


class Network:
    """A random ONNX model of convolutions, pools, sums and joins over images, with a classifier behind."""

    def __init__(self, seed, batch):
        self.rng, self.np_rng = random.Random(seed), np.random.default_rng(seed)
        self.nodes, self.tensors, self.batch = [], [], batch
        live = [("x", CHANNELS, 12)]
        for _ in range(self.rng.randint(3, 9)):
            live.append(self._grow(live))
        name, channels, _ = live[-1]
        self.add("GlobalAveragePool", [name], "pooled")
        self.add("Flatten", ["pooled"], "flat")
        self.add("MatMul", ["flat", self.constant(channels, 5)], "scores")
        self.add("Softmax", ["scores"], "y", axis=self.rng.choice([0, 1]))
        self.add("Relu", [self.rng.choice(live)[0]], "z")

    def constant(self, *shape):
        name = f"c{len(self.tensors)}"
        values = (self.np_rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        self.tensors.append(numpy_helper.from_array(values, name))
        return name

    def add(self, kind, inputs, output=None, **attributes):
        output = output or f"t{len(self.nodes)}"
        self.nodes.append(Node(kind, inputs, [output], **attributes))
        return output

    def _grow(self, live):
        name, channels, size = self.rng.choice(live[-3:])
        alike = [other for other in live if other[1:] == (channels, size)]
        wide = [other for other in live if other[2] == size]
        kind = self.rng.choice(["Conv", "Conv", "Depthwise", "MaxPool", "Relu", "Sum", "Concat", "Scale", "Reshape"])
        if kind == "Conv":
            results = self.rng.choice([4, CHANNELS, 16])
            kernel = self.rng.choice([1, 3])
            weights = self.constant(results, channels, kernel, kernel)
            return self.add("Conv", [name, weights], pads=[kernel // 2] * 4), results, size
        if kind == "Depthwise":
            weights = self.constant(channels, 1, 3, 3)
            return self.add("Conv", [name, weights], pads=[1] * 4, group=channels), channels, size
        if kind == "MaxPool" and size > 3:
            return self.add("MaxPool", [name], kernel_shape=[2, 2], strides=[2, 2]), channels, size // 2
        if kind == "Sum":
            return self.add("Add", [name, self.rng.choice(alike)[0]]), channels, size
        if kind == "Concat":
            other = self.rng.choice(wide)
            return self.add("Concat", [name, other[0]], axis=1), channels + other[1], size
        if kind == "Scale":  # as in squeeze and excitation
            squeezed = self.add("GlobalAveragePool", [name])
            return self.add("Mul", [name, self.add("Sigmoid", [squeezed])]), channels, size
        if kind == "Reshape":
            shape = numpy_helper.from_array(np.array([self.batch, channels, size * size]), f"s{len(self.nodes)}")
            back = numpy_helper.from_array(np.array([self.batch, channels, size, size]), f"b{len(self.nodes)}")
            self.tensors += [shape, back]
            flat = self.add("Softmax", [self.add("Reshape", [name, shape.name])], axis=2)
            return self.add("Reshape", [flat, back.name]), channels, size
        return self.add("Relu", [name]), channels, size

    def proto(self):
        infos = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [self.batch, CHANNELS, 12, 12])]
        results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "z")]
        graph = helper.make_graph(self.nodes, "network", infos, results, self.tensors)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10).SerializeToString()

    def image(self):
        return self.np_rng.standard_normal((self.batch, CHANNELS, 12, 12)).astype(np.float32)


def run(proto, x, threads=1):
    resource = GuardedResource()
    with gp.Engine("cpu", threads=threads, allocator=resource) as engine, gp.onnx.load(proto, engine=engine) as model:
        results = model.run({"x": x})
        return {name: np.array(array) for name, array in results.items()}, trips_of(model, x)


def trips_of(model, x):
    programs = [compiled.program for compiled in model.specialise({"x": x}).compiled]
    return [count for program in programs for count in program.loops.trips()]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("seed", range(24))
def test_slices_give_what_the_batch_gives(choose, seed, threads):
    batch = (2, 3, 4, 6)[seed % 4]
    network = Network(seed, batch)
    x, proto, rng = network.image(), network.proto(), random.Random(seed)
    choose(whole)
    expected, _ = run(proto, x)
    exact = dict(zip(expected, ReferenceEvaluator(onnx.load_from_string(proto)).run(None, {"x": x}), strict=True))
    for pick in (one, rng.choice):
        choose(pick)
        found, _ = run(proto, x, threads)
        for name, array in expected.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(found[name], exact[name], rtol=1e-4, atol=1e-5)


IMAGES = (
    Node("Conv", ["x", "a"], ["c"], pads=[1] * 4),
    Node("Relu", ["c"], ["r"]),
    Node("Conv", ["r", "b"], ["d"], pads=[1] * 4),
    Node("Add", ["d", "r"], ["e"]),
    Node("MaxPool", ["e"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
    Node("GlobalAveragePool", ["p"], ["g"]),
    Node("Flatten", ["g"], ["f"]),
    Node("MatMul", ["f", "w"], ["y"]),
)


def images(batch, size=12, nodes=IMAGES):
    """A network whose results for an image depend on that image alone."""
    rng = np.random.default_rng(1)
    shapes = {"a": (8, 3, 3, 3), "b": (8, 8, 3, 3), "w": (8, 5)}
    tensors = [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), name) for name, s in shapes.items()]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, size, size])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "images", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10).SerializeToString()


def draw(batch, size=12):
    return np.random.default_rng(batch).standard_normal((batch, 3, size, size)).astype(np.float32)


@pytest.mark.parametrize("threads", [1, 2])
def test_an_image_does_not_depend_on_the_others(choose, threads):
    choose(one)
    x = draw(4)
    other = x.copy()
    other[:3] += 1
    (first, trips), (second, _) = (run(images(4), given, threads) for given in (x, other))
    assert set(trips) == {4}
    assert first["y"][3].tobytes() == second["y"][3].tobytes()


@pytest.mark.parametrize("threads", [1, 2])
def test_memory_is_foretold_and_a_slice_of_the_batch(choose, threads):
    peaks = []
    for pick in (whole, one):
        choose(pick)
        with gp.Engine("cpu", threads=threads) as engine, gp.onnx.load(images(8), engine=engine) as model:
            peak = model.predict_peak({"x": (8, 3, 12, 12)})
            arena_nbytes = model.specialise({"x": (8, 3, 12, 12)}).arena_nbytes
        with gp.Engine("cpu", threads=threads, memory_limit=int(peak)) as engine:
            with gp.onnx.load(images(8), engine=engine) as model:
                model.run({"x": draw(8)})
                assert model.stats().largest_arena_nbytes == arena_nbytes
            assert engine.budget.peak <= int(peak)
        peaks.append(arena_nbytes)
    assert peaks[1] < peaks[0] / 2


def test_what_sees_several_rows_ends_a_slice(choose):
    choose(one)
    nodes = [*IMAGES[:4], Node("CumSum", ["e", "axis"], ["s"]), Node("Relu", ["s"], ["y"])]
    proto = onnx.load_from_string(images(4, nodes=nodes))
    proto.graph.initializer.append(numpy_helper.from_array(np.array(0, np.int64), "axis"))
    x = draw(4)
    found, trips = run(proto.SerializeToString(), x)
    assert {*trips} == {0, 4}
    expected = ReferenceEvaluator(proto).run(None, {"x": x})[0]
    np.testing.assert_allclose(found["y"], expected, rtol=1e-4, atol=1e-4)


def test_what_is_read_as_a_whole_is_made_before_the_slices_that_read_it(choose):
    shapes = {"x": (3, 2, 3, 4), "column": (3, 1)}
    proto = helper.make_model(
        helper.make_graph(
            [Node("Softplus", ["column"], ["made"]), Node("Min", ["x", "made"], ["y"])], "broadcast",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        ),
        opset_imports=[helper.make_opsetid("", 20)], ir_version=10,
    ).SerializeToString()  # fmt: skip
    rng = np.random.default_rng(6)
    inputs = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    choose(one)
    with gp.onnx.load(proto, threads=1) as model:
        found = np.array(model.run(inputs)["y"])
    np.testing.assert_allclose(found, np.minimum(inputs["x"], np.log1p(np.exp(inputs["column"]))), rtol=1e-6)


@pytest.mark.parametrize("batch", [2, 5])
def test_parts_of_a_joined_tensor_whose_output_lies_otherwise_are_those_of_a_slice(choose, batch):
    shape, wide = (batch, 8, 5, 6), (batch, 16, 5, 6)
    x, y = (gp.LogicalTensor(number, "s8", shape) for number in range(2))
    a, b = (gp.LogicalTensor(number, "f32", shape) for number in range(2, 4))
    joined, z = gp.LogicalTensor(4, "f32", wide), gp.LogicalTensor(5, "s8", wide, strides=(480, 1, 96, 16))
    graph = gp.Graph()
    graph.add_op(gp.Op(0, "Dequantize", [x], [a], scales=[0.5]))
    graph.add_op(gp.Op(1, "Dequantize", [y], [b], scales=[0.5]))
    graph.add_op(gp.Op(2, "Concat", [a, b], [joined], axis=1))
    graph.add_op(gp.Op(3, "Quantize", [joined], [z], scales=[1.0]))
    graph.finalize()
    arrays = [np.random.default_rng(number).integers(-128, 128, shape, np.int8) for number in range(2)]
    choose(one)
    with gp.Engine("cpu", threads=1, allocator=GuardedResource()) as engine:
        [partition] = graph.get_partitions()
        with partition.compile([x, y], [z], engine) as compiled:
            assert {*compiled.program.loops.trips()} == {batch}
            inputs = [gp.Tensor(tensor, engine, array) for tensor, array in zip((x, y), arrays, strict=True)]
            result = gp.Tensor(z, engine)
            compiled.execute(gp.Stream(engine), inputs, [result])
            np.testing.assert_array_equal(result.numpy(), np.rint(np.concatenate(arrays, 1) * 0.5))


@pytest.mark.parametrize(("count", "ports"), [(3, (True,)), (6, None)])
def test_scales_of_groups_are_not_those_of_each_row(count, ports):
    weights, result = (gp.LogicalTensor(k, dtype, (4, 3, 2, 2)) for k, dtype in enumerate(("s8", "f32")))
    attrs = {"scales": [0.5] * count, "zps": [0] * count, "qtype": "per_channel", "axis": 1}
    op = gp.Op(0, "Dequantize", [weights], [result], **attrs)
    assert ports_by_row(op, {0: weights.shape, 1: result.shape}) == ports


def test_a_batch_that_varies_has_as_many_trips_as_images(choose):
    choose(one)
    with gp.Engine("cpu", threads=2) as engine, gp.onnx.load(images("n"), engine=engine) as model:
        for batch in (3, 1, 8, 5):
            x = draw(batch)
            found = np.array(model.run({"x": x})["y"])
            assert set(trips_of(model, x)) == {batch}
            expected = ReferenceEvaluator(onnx.load_from_string(images(batch))).run(None, {"x": x})[0]
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
        assert model.stats().compilations <= 2  # one image is another matter to all models


def test_declared_batches_have_one_arena_for_all(choose):
    choose(one)
    engine = gp.Engine("cpu", threads=1)
    with engine, gp.onnx.load(images("n"), engine=engine, shapes={"n": (1, 16)}) as model:
        arenas = {model.specialise({"x": (batch, 3, 12, 12)}).arena_nbytes for batch in range(1, 17)}
        most = int(model.predict_peak())
    assert len(arenas) == 1
    limited = gp.Engine("cpu", threads=1, memory_limit=most)
    with limited, gp.onnx.load(images("n"), engine=limited, shapes={"n": (1, 16)}) as model:
        for batch in (16, 1, 7):
            x = draw(batch)
            expected = ReferenceEvaluator(onnx.load_from_string(images(batch))).run(None, {"x": x})[0]
            np.testing.assert_allclose(model.run({"x": x})["y"], expected, rtol=1e-4, atol=1e-4)


def test_a_trace_has_each_slice_and_what_it_held(choose):
    choose(one)
    with gp.Engine("cpu", threads=1) as engine, gp.onnx.load(images(4), engine=engine) as model:
        x = draw(4)
        model.run({"x": x})
        with trace() as recorded:
            model.run({"x": x})
        [steps] = recorded.runs()
        assert [step.trip for step in steps] == sorted(step.trip for step in steps)
        assert {step.trip for step in steps} == {0, 1, 2, 3}
        footprint = recorded.footprint()
        assert 0 < footprint.peak_nbytes <= footprint.arena_nbytes


LARGE, SMALL = 96, 8


@pytest.mark.parametrize(("batch", "size", "is_sliced"), [(8, LARGE, True), (1, LARGE, False), (8, SMALL, False)])
def test_batches_that_leave_the_caches_are_sliced(monkeypatch, batch, size, is_sliced):
    """A row is 295 KB of 8 channels; the second cache is taken to hold one of them, caches altogether two."""
    monkeypatch.setattr(slices, "l2_nbytes", lambda: 1 << 20)
    monkeypatch.setattr(slices, "CACHED_NBYTES", 2 << 20)
    with gp.Engine("cpu", threads=1) as engine, gp.onnx.load(images(batch, size), engine=engine) as model:
        assert any(trips_of(model, draw(batch, size))) == is_sliced


def test_weights_that_are_read_for_few_pixels_keep_the_batch_together(monkeypatch):
    """Products of rows by matrices that are larger than what lies between them."""
    monkeypatch.setattr(slices, "l2_nbytes", lambda: 1 << 16)
    monkeypatch.setattr(slices, "CACHED_NBYTES", 1 << 17)
    shapes = {"a": (512, 512), "b": (512, 512)}
    tensors = [numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in shapes.items()]
    nodes = Node("MatMul", ["x", "a"], ["h"]), Node("Relu", ["h"], ["r"]), Node("MatMul", ["r", "b"], ["y"])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 8, 512])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "products", [x], [y], tensors)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    with gp.Engine("cpu", threads=1) as engine, gp.onnx.load(proto.SerializeToString(), engine=engine) as model:
        assert not any(trips_of(model, np.ones((4, 8, 512), np.float32)))


def test_programs_with_loops_pickle(choose):
    choose(one)
    with gp.Engine("cpu", threads=1) as engine, gp.onnx.load(images(4), engine=engine) as model:
        [compiled] = model.specialise({"x": (4, 3, 12, 12)}).compiled
        steps = compiled.program.describe()
        assert pickle.loads(pickle.dumps(compiled.program)).describe() == steps
        assert all(loop[0] == 4 for *_, loop, _ in steps)
        assert all(name.endswith(" by slices") for name in compiled.implementations)


def test_streams_that_were_asked_for_have_the_whole_batch(choose):
    choose(one)
    with gp.Engine("cpu", threads=2) as engine:
        for policy, is_sliced in (("auto", True), ("sequential", True), ("list", False)):
            with gp.onnx.load(images(4), engine=engine, schedule=policy, streams=2) as model:
                assert any(trips_of(model, draw(4))) == is_sliced


def test_more_images_than_a_run_has_trips_for_stay_together(choose, monkeypatch):
    choose(one)
    monkeypatch.setattr(slices, "_MOST_TRIPS", 64)
    with gp.Engine("cpu", threads=1) as engine, gp.onnx.load(images("n"), engine=engine) as model:
        for batch, is_sliced in ((4, True), (60, False), (5, True)):
            assert any(trips_of(model, draw(batch))) == is_sliced
            expected = ReferenceEvaluator(onnx.load_from_string(images(batch))).run(None, {"x": draw(batch)})[0]
            np.testing.assert_allclose(model.run({"x": draw(batch)})["y"], expected, rtol=1e-4, atol=1e-4)
