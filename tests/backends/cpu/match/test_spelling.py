"""Functions that a graph spells out: one partition, one kernel, however the terms and factors stand."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphpool as gp
from graphpool import config
from graphpool.backends.cpu.patterns import SPELLINGS
from graphpool.graph.spelling import respell
from graphpool.graph.view import GraphView
from tests.cases.graphs import GraphBuilder
from tests.cases.inputs import random_array
from tests.helpers.partitions import assert_close, check_graph, cover_is_valid, run_partitions, run_reference

SHAPE = (3, 4, 8)


class Chain(GraphBuilder):
    """A graph whose constants of one element are known numbers."""

    def number(self, value, dtype="f32", shape=()):
        return self.input(shape, dtype, property="constant", value=value)

    def vector(self, size=8, dtype="f32"):
        return self.input((size,), dtype, property="constant")


def check(g, engine, scale=2.0):
    """Run the graph, compare with the reference, and return the kernels of each partition without their variants."""
    partitions = check_graph(g, engine, np.random.default_rng(0), scale=scale)
    return [kernels(partition, engine, g.graph) for partition in partitions]


def kernels(partition, engine, graph=None):
    outputs = [lt.replace(shape=None) for lt in partition.output_ports]
    inputs = [lt if lt.is_shape_known else lt.replace(shape=graph.shape(lt.id)) for lt in partition.input_ports]
    with partition.compile(inputs, outputs, engine) as compiled:
        names = [name.partition(" ") for name in compiled.implementations]
    return [kernel.partition(":")[0] + (f" {what}" if what else "") for kernel, _, what in names]


def product(g, factors, form):
    a, b, c = factors
    if form == "left":
        return g.op("Multiply", g.op("Multiply", a, b), c)
    return g.op("Multiply", a, g.op("Multiply", b, c))


@pytest.fixture
def engine():
    with gp.Engine(threads=1) as made:
        yield made


def erf_gelu(g, x, scaling="Divide", order=(0, 1, 2), form="left", dtype="f32"):
    if scaling == "Divide":
        inner = g.op("Divide", x, g.number(2**0.5, dtype))
    else:
        inner = g.op("Multiply", g.number(0.5**0.5, dtype), x)
    gate = g.op("Add", g.number(1.0, dtype), g.op("Erf", inner))
    return product(g, [(x, g.number(0.5, dtype), gate)[k] for k in order], form)


def tanh_gelu(g, x, cube="Pow", order=(0, 1, 2)):
    scale, cubic = g.number((2 / np.pi) ** 0.5), g.number(0.044715)
    if cube == "factored":
        bracket = g.op("Add", g.number(1.0), g.op("Multiply", cubic, g.op("Square", x)))
        inner = g.op("Multiply", g.op("Multiply", x, scale), bracket)
    else:
        power = g.op("Pow", x, beta=3.0) if cube == "Pow" else g.op("Multiply", x, g.op("Multiply", x, x))
        inner = g.op("Multiply", g.op("Add", x, g.op("Multiply", power, cubic)), scale)
    gate = g.op("Add", g.op("Tanh", inner), g.number(1.0))
    return product(g, [(x, g.number(0.5), gate)[k] for k in order], "left")


def spread(g, x, square, root, axes=(-1,)):
    """1 / sqrt(mean of squares + epsilon) in one of its spellings: what to do with it, and itself."""
    squares = g.op("Multiply", x, x) if square == "Multiply" else g.op("Square", x)
    total = g.op("Add", g.op("ReduceMean", squares, axes=list(axes), keep_dims=True), g.number(1e-3))
    if root == "Pow":
        return "Multiply", g.op("Pow", total, beta=-0.5)
    if root == "Reciprocal":
        return "Multiply", g.op("Reciprocal", g.op("Sqrt", total))
    if root == "Divide":
        return "Divide", g.op("Sqrt", total)
    return "Multiply", g.op("Divide", g.number(1.0), g.op("Sqrt", total))


def centred(g, x, axes=(-1,)):
    return g.op("Subtract", x, g.op("ReduceMean", x, axes=list(axes), keep_dims=True))


def layer_norm(g, x, square="Square", root="Divide", axes=(-1,), affine=True, size=8):
    shifted = centred(g, x, axes)
    kind, scale = spread(g, shifted, square, root, axes)
    normal = g.op(kind, shifted, scale)
    return g.op("Add", g.vector(size), g.op("Multiply", normal, g.vector(size))) if affine else normal


def rms_norm(g, x, root="Divide"):
    kind, scale = spread(g, x, "Square", root)
    return g.op("Multiply", g.vector(), g.op(kind, x, scale))


def keras_layer_norm(g, x, square="Square", root="Reciprocal", affine=True, negated=None):
    """x * s + (beta - mean * s), s read twice, as ``tf.nn.batch_normalization`` has it."""
    mean = g.op("ReduceMean", x, axes=[-1], keep_dims=True)
    kind, spreading = spread(g, g.op("Subtract", x, mean), square, root)
    s = spreading if kind == "Multiply" else g.op("Reciprocal", spreading)
    s = g.op("Multiply", s, g.vector()) if affine else s
    moved = g.op("Multiply", g.op("Neg", mean) if negated == "factor" else mean, s)
    beta = [g.vector()] if affine else []
    if negated == "factor":
        shift = g.op("Add", *beta, moved) if beta else moved
    elif negated == "term" or not affine:
        shift = g.op("Neg", moved)
        shift = g.op("Add", shift, *beta) if beta else shift
    else:
        shift = g.op("Subtract", *beta, moved)
    return g.op("Add", g.op("Multiply", x, s), shift)


def log_softmax(g, x, form="shifted"):
    highest = g.op("ReduceMax", x, axes=[1], keep_dims=True)
    shifted = g.op("Subtract", x, highest)
    log = g.op("Log", g.op("ReduceSum", g.op("Exp", shifted), axes=[1], keep_dims=True))
    if form == "shifted":
        return g.op("Subtract", shifted, log)
    if form == "negated":
        return g.op("Add", shifted, g.op("Neg", log))
    return g.op("Subtract", x, g.op("Add", log, highest))


def hard_swish(g, x):
    gate = g.op("Clamp", g.op("Add", x, g.number(3.0)), min=0.0, max=6.0)
    return g.op("Multiply", g.op("Multiply", x, gate), g.number(1 / 6))


def mish(g, x):
    return g.op("Multiply", x, g.op("Tanh", g.op("SoftPlus", x)))


def softmax(g, x):
    raised = g.op("Exp", g.op("Subtract", x, g.op("ReduceMax", x, axes=[1], keep_dims=True)))
    return g.op("Divide", raised, g.op("ReduceSum", raised, axes=[1], keep_dims=True))


FUNCTIONS = {
    "erf_gelu": (erf_gelu, "f32_eltwise eltwise(GELU)"),
    "tanh_gelu": (tanh_gelu, "f32_eltwise eltwise(GELU)"),
    "hard_swish": (hard_swish, "f32_eltwise eltwise(HardSwish)"),
    "mish": (mish, "f32_eltwise eltwise(Mish)"),
    "layer_norm": (layer_norm, "f32_layer_norm"),
    "rms_norm": (rms_norm, "f32_layer_norm"),
    "softmax": (softmax, "f32_softmax"),
    "keras_layer_norm": (keras_layer_norm, "f32_layer_norm"),
    "log_softmax": (log_softmax, "f32_softmax"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_one_kernel(name, engine):
    g, (spell, kernel) = Chain(), FUNCTIONS[name]
    spell(g, g.input(SHAPE))
    assert check(g, engine) == [[kernel]]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_a_file_is_one_kernel(name, engine, tmp_path):
    g, (spell, kernel) = Chain(), FUNCTIONS[name]
    spell(g, g.input(SHAPE))
    g.graph.to_json(tmp_path / "graph.json")
    graph = gp.Graph.from_json(tmp_path / "graph.json")
    graph.finalize()
    [partition] = graph.get_partitions()
    assert [op.id for op in partition.ops] == sorted(op.id for op in g.graph.ops)  # the file's own ops
    assert kernels(partition, engine) == [kernel]
    values = {lt.id: random_array(lt, np.random.default_rng(0)) for lt in g.inputs}
    [port] = partition.output_ports
    got, expected = run_partitions([partition], values, engine), run_reference(g.graph.ops, values)
    assert_close(got[port.id], expected[port.id], port.dtype, scale=2.0)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_post_ops_and_casts_join_a_function(name, engine):
    g, (spell, kernel) = Chain(), FUNCTIONS[name]
    x = g.op("TypeCast", g.input(SHAPE, "bf16"), dtype="f32")
    y = g.op("Add", spell(g, x), g.input(SHAPE))
    g.op("TypeCast", g.op("ReLU", y), dtype="bf16")
    partitions = check_graph(g, engine, np.random.default_rng(0))
    assert len(partitions) == 1
    assert any(name.startswith(kernel.split()[0]) for name in kernels(partitions[0], engine))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("form", ["left", "right"])
@pytest.mark.parametrize("scaling", ["Divide", "Multiply"])
def test_every_spelling_of_the_exact_gelu(order, form, scaling, engine):
    g = Chain()
    erf_gelu(g, g.input(SHAPE), scaling, order, form)
    assert check(g, engine) == [["f32_eltwise eltwise(GELU)"]]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("cube", ["Pow", "Multiply", "factored"])
def test_every_spelling_of_the_tanh_gelu(order, cube, engine):
    g = Chain()
    tanh_gelu(g, g.input(SHAPE), cube, order)
    assert check(g, engine) == [["f32_eltwise eltwise(GELU)"]]


@pytest.mark.parametrize("square", ["Multiply", "Square"])
@pytest.mark.parametrize("root", ["Divide", "Reciprocal", "Pow", "one"])
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm(square, root, affine, engine):
    g = Chain()
    layer_norm(g, g.input(SHAPE), square, root, affine=affine)
    assert check(g, engine) == [["f32_layer_norm"]]


@pytest.mark.parametrize("root", ["Divide", "Reciprocal", "Pow", "one"])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("negated", [None, "factor", "term"])
def test_layer_norm_as_keras_has_it(root, affine, negated, engine):
    g = Chain()
    keras_layer_norm(g, g.input(SHAPE), root=root, affine=affine, negated=negated)
    assert check(g, engine) == [["f32_layer_norm"]]


def test_a_shift_by_another_mean_is_no_layer_norm(engine):
    g = Chain()
    x, other = g.input(SHAPE), g.input((3, 4, 1))
    _, s = spread(g, centred(g, x), "Square", "Reciprocal")
    g.op("Subtract", g.op("Multiply", x, s), g.op("Multiply", other, s))
    assert all(name != "f32_layer_norm" for names in check(g, engine) for name in names)


@pytest.mark.parametrize("form", ["shifted", "negated", "together"])
def test_log_softmax(form, engine):
    g = Chain()
    log_softmax(g, g.input(SHAPE), form)
    assert check(g, engine) == [["f32_softmax"]]


@pytest.mark.parametrize(("factors", "inner", "is_gelu"), [(2, 1, True), (1, 1, False), (1, -1, False), (2, -1, False)])
def test_negated_factors(factors, inner, is_gelu, engine):
    """(-x) / 2 (-(1 + erf(x / sqrt(2)))) is one; with another sign in one place it is none."""
    g = Chain()
    x = g.input(SHAPE)
    gate = g.op("Add", g.op("Erf", g.op("Divide", x, g.number(inner * 2**0.5))), g.number(1.0))
    gate = g.op("Neg", gate) if factors > 1 else gate
    g.op("Multiply", g.op("Neg", x), g.op("Multiply", gate, g.number(0.5)))
    assert (check(g, engine) == [["f32_eltwise eltwise(GELU)"]]) == is_gelu


def test_layer_norm_by_squared_difference(engine):
    g = Chain()
    x = g.input(SHAPE)
    mean = g.op("ReduceMean", x, axes=[2], keep_dims=True)
    variance = g.op("ReduceMean", g.op("SquaredDifference", x, mean), axes=[2], keep_dims=True)
    normal = g.op("Divide", g.op("Subtract", x, mean), g.op("Sqrt", g.op("Add", variance, g.number(1e-5))))
    g.op("Add", g.op("Multiply", normal, g.vector()), g.vector())
    assert check(g, engine) == [["f32_layer_norm"]]


def test_layer_norm_over_several_axes(engine):
    g = Chain()
    layer_norm(g, g.input(SHAPE), axes=(1, -1), affine=False)
    assert check(g, engine) == [["f32_layer_norm"]]


@pytest.mark.parametrize("root", ["Divide", "Reciprocal", "Pow", "one"])
def test_rms_norm(root, engine):
    g = Chain()
    rms_norm(g, g.input(SHAPE), root)
    assert check(g, engine) == [["f32_layer_norm"]]


def test_hard_swish_by_hard_sigmoid(engine):
    g = Chain()
    x = g.input(SHAPE)
    g.op("Multiply", g.op("HardSigmoid", x, alpha=1 / 6, beta=0.5), x)
    assert check(g, engine) == [["f32_eltwise eltwise(HardSwish)"]]


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_narrow_types(dtype, engine):
    g = Chain()
    erf_gelu(g, g.input(SHAPE, dtype), dtype=dtype)
    [partition] = g.finish()
    assert kernels(partition, engine) == ["f32_eltwise eltwise(GELU)"]
    values = {lt.id: random_array(lt, np.random.default_rng(0)) for lt in g.inputs}
    [port] = partition.output_ports
    wide = values[0].astype(np.float64)
    expected = 0.5 * wide * (1 + np.vectorize(math.erf)(wide / 2**0.5))
    got = run_partitions([partition], values, engine)[port.id]
    assert_close(got, expected.astype(got.dtype), port.dtype)


def test_shapes_that_become_known_later(engine):
    g = Chain()
    x = g.input((-(2**63), 8))
    layer_norm(g, x)
    [partition] = g.finish()
    inputs = [lt if lt.is_shape_known else lt.replace(shape=(5, 8)) for lt in partition.input_ports]
    with partition.compile(inputs, partition.output_ports, engine) as compiled:
        assert [name.partition(":")[0] for name in compiled.implementations] == ["f32_layer_norm"]


def test_a_partition_is_right_for_shapes_that_its_graph_did_not_have(engine):
    """A vector that turns out to be a column is no gamma."""
    g = Chain()
    x, gamma = g.input(None), g.input(None)
    y = rms_norm(g, x)
    g.op("Multiply", y, gamma)
    [*partitions] = g.finish()
    rng = np.random.default_rng(0)
    values = {lt.id: random_array(lt, rng) for lt in g.inputs if lt.shape is not None}
    values |= {x.id: random_array(x.replace(shape=(8, 8)), rng), gamma.id: random_array(x.replace(shape=(8, 1)), rng)}
    got, expected = run_partitions(partitions, values, engine), run_reference(g.graph.ops, values)
    [port] = partitions[-1].output_ports
    assert_close(got[port.id], expected[port.id], port.dtype, scale=2.0)


def test_numbers_that_are_not_known_fuse_nothing(engine):
    g = Chain()
    x = g.input(SHAPE)
    erf = g.op("Erf", g.op("Multiply", x, g.input((), property="constant")))
    g.op("Multiply", x, g.op("Add", erf, g.number(1.0)))
    assert all("GELU" not in name for names in check(g, engine) for name in names)


@pytest.mark.parametrize("number", [0.7, -(0.5**0.5)])
def test_other_numbers_are_another_function(number, engine):
    g = Chain()
    x = g.input(SHAPE)
    gate = g.op("Add", g.op("Erf", g.op("Multiply", x, g.number(number))), g.number(1.0))
    g.op("Multiply", g.op("Multiply", x, gate), g.number(0.5))
    assert all("GELU" not in name for names in check(g, engine) for name in names)


def test_means_over_different_axes_are_no_layer_norm(engine):
    g = Chain()
    x = g.input(SHAPE)
    kind, scale = spread(g, centred(g, x, (0,)), "Square", "Divide")
    g.op("Multiply", g.op(kind, x, scale), g.vector())
    assert all(name != "f32_layer_norm" for names in check(g, engine) for name in names)


def test_numbers_that_enlarge_the_result(engine):
    g = Chain()
    x = g.input((8,))
    gate = g.op("Add", g.op("Erf", g.op("Divide", x, g.number(2**0.5))), g.number(1.0, shape=(1, 1)))
    g.op("Multiply", g.op("Multiply", x, gate), g.number(0.5))
    assert all("GELU" not in name for names in check(g, engine) for name in names)


def gelu_with_a_gate(g):
    x = g.input(SHAPE)
    gate = g.op("Add", g.op("Erf", g.op("Divide", x, g.number(2**0.5))), g.number(1.0))
    g.op("Multiply", g.op("Multiply", x, gate), g.number(0.5))
    return gate


def test_what_others_read_is_computed(engine):
    g = Chain()
    g.op("Tanh", gelu_with_a_gate(g))
    assert all("GELU" not in name for names in check(g, engine) for name in names)


def test_what_leaves_the_graph_is_computed(engine):
    g = Chain()
    gate = gelu_with_a_gate(g)
    g.graph.add_op(gp.Op(100, "End", [gate]))
    partitions = g.finish()
    assert any(port.id == gate.id for partition in partitions for port in partition.output_ports)
    partitions = [partition for partition in partitions if partition.is_supported]
    assert not any("GELU" in name for partition in partitions for name in kernels(partition, engine, g.graph))


def test_forced_to_the_reference_backend_it_stays_spelt_out(engine, monkeypatch):
    monkeypatch.setitem(config._values, "impl", {"GELU": "ref"})
    g = Chain()
    erf_gelu(g, g.input(SHAPE))
    assert all("GELU" not in name for names in check(g, engine) for name in names)


def test_traces_name_the_function(engine):
    g = Chain()
    layer_norm(g, g.input(SHAPE))
    [partition] = g.finish()
    with partition.compile(partition.input_ports, partition.output_ports, engine) as compiled:
        assert compiled.primitive.details.kinds == ("LayerNorm",)


def test_every_op_is_a_partition_of_its_own_for_debugging():
    g = Chain()
    layer_norm(g, g.input(SHAPE))
    g.graph.finalize()
    assert [len(partition.ops) for partition in g.graph.get_partitions("debug")] == [1] * len(g.graph.ops)


def test_layers_with_other_numbers_are_other_programs():
    structures = []
    for number in (0.5**0.5, 0.7):
        g = Chain()
        x = g.input(SHAPE)
        g.op("Erf", g.op("Multiply", x, g.number(number)))
        [partition] = g.finish()
        structures.append(partition.structure)
    assert structures[0] != structures[1]


def test_a_long_chain_is_looked_through_in_linear_time():
    """Each of n products could be the last of n factors."""
    g = Chain()
    x = g.input(SHAPE)
    for _ in range(2000):
        x = g.op("Multiply", x, g.number(1.5))
    g.op("Erf", x)
    g.op("Add", x, g.number(1.0))
    g.graph.finalize()
    view, seen = GraphView(g.graph.ops), []
    found = respell(view, SPELLINGS, {}, lambda op: seen.append(op) is None)
    assert [new.op for new in found] == view.ops
    assert len(seen) <= len(view.ops)


@pytest.mark.parametrize(("one", "is_gelu"), [(1.0, True), (1 + 2**-7, False)])
def test_numbers_of_narrow_types_are_told_apart(one, is_gelu, engine):
    """The next number after 1 is another one, though 2**0.5 is what it was rounded to."""
    g = Chain()
    x = g.input(SHAPE, "bf16")
    root = float(np.asarray(2**0.5, x.dtype.numpy))
    gate = g.op("Add", g.op("Erf", g.op("Divide", x, g.number(root, "bf16"))), g.number(one, "bf16"))
    g.op("Multiply", g.op("Multiply", x, gate), g.number(0.5, "bf16"))
    partitions = g.finish()
    assert any("GELU" in name for partition in partitions for name in kernels(partition, engine, g.graph)) == is_gelu


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_graphs_of_functions(data):
    """Functions one behind another, with readers and numbers of any rank in between, equal the reference."""
    g = Chain()
    pool = [g.input((3, 4, 8)), g.input((4, 8))]
    for _ in range(data.draw(st.integers(1, 5))):
        x = data.draw(st.sampled_from(pool))
        name = data.draw(st.sampled_from([*FUNCTIONS, "Multiply", "Add", "Subtract"]))
        if name in FUNCTIONS:
            before = len(g.tensors)
            pool.append(FUNCTIONS[name][0](g, x))
            inner = [lt for lt in g.tensors[before:] if lt not in g.inputs]
            pool += data.draw(st.lists(st.sampled_from(inner), max_size=1))
        else:
            number = g.number(data.draw(st.sampled_from([0.5, 1.0, 2.0])), shape=data.draw(st.sampled_from([(), (1,)])))
            pool.append(g.op(name, x, data.draw(st.sampled_from([number, *pool]))))
    with gp.Engine(threads=1) as engine:
        partitions = check_graph(g, engine, np.random.default_rng(0), scale=50.0)
    assert cover_is_valid(g.graph, partitions)
