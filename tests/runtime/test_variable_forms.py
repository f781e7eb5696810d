"""A model compiled for sizes that vary runs, for other shapes, what a fresh compilation for them would run."""

import random
import warnings
from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import graphpool as gp
from graphpool.demo import model_path
from graphpool.runtime.model_form import ModelForm
from tests.cases.graphs import GraphBuilder
from tests.cases.training import Training
from tests.cases.unknown_sizes import MODELS, DynamicModel
from tests.fuzz.execute import build
from tests.fuzz.generate import generate
from tests.helpers.variable_programs import Comparison, make_unknown, other_shapes

onnx = pytest.importorskip("onnx")

FEWEST_ALIKE = {"cnn": 1, "attention": 4, "attention_of_bytes": 3, "host": 0, "control": 15, "deciding": 17}
"""Model -> random shapes that its compilation for the largest ones must serve, where these are fewer than 20 of 32."""


@pytest.fixture(scope="module")
def engine():
    with gp.Engine("cpu", threads=2) as engine:
        yield engine


@pytest.fixture(scope="module")
def alone():
    """Where several threads share them, products of sizes that do not vary may be divided into other tasks."""
    with gp.Engine("cpu", threads=1) as engine:
        yield engine


@cache
def node_cases():
    """Models of one node and their inputs, which are arrays all."""
    from onnx.backend.test.loader import load_model_tests

    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of making the data
        cases = load_model_tests(kind="node")
    for case in cases:
        inputs = [] if case.model is None else case.data_sets[0][0]
        if inputs and all(isinstance(array, (np.ndarray, np.generic)) for array in inputs):
            names = [value.name for value in case.model.graph.input]
            found.append((case.name, case.model, dict(zip(names, map(np.asarray, inputs), strict=True))))
    return found


def compare_case(name, model, inputs, engine, counts):
    try:
        loaded = gp.onnx.load(make_unknown(model), engine=engine)
    except gp.GraphpoolError:
        counts["not loaded"] += 1
        return
    with loaded:
        try:
            comparison = Comparison.of(loaded, inputs)
        except gp.GraphpoolError:
            counts["not variable"] += 1
            return
        with comparison:
            comparison.compare(other_shapes(inputs))
            counts.update(comparison.counts)


def compare_cases(cases, engine):
    counts, failed = Counter(), {}
    for name, model, inputs in cases:
        try:
            compare_case(name, model, inputs, engine, counts)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"[:600]
    assert failed == {}
    return counts


@pytest.mark.parametrize("part", range(4))
def test_models_of_one_node(engine, part):
    cases = random.Random(part).sample(node_cases(), 40)
    counts = compare_cases(cases, engine)
    assert counts["alike"] > 30


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_all_models_of_one_node(engine, part):
    assert compare_cases(node_cases()[part::8], engine)["alike"] > 100


def of_graph(case):
    """What specialises a random graph: sizes of its sources that are no constants may vary."""
    contents = case.inputs()
    names = {i: f"x{i}" for i, source in case.sources.items() if not source.constant}

    def specialise(shapes, deciding):
        own = {i: replace(source, shape=shapes.get(names.get(i), source.shape)) for i, source in case.sources.items()}
        graph = build(replace(case, sources=own, options={}))
        constants = {i: contents[i] for i in case.sources if i not in names}
        results = {i for partition in graph.get_partitions() for i in [port.id for port in partition.output_ports]}
        return ModelForm(graph, constants, {name: i for i, name in names.items()}, {f"y{i}": i for i in results}, {})

    return specialise, {name: contents[i] for i, name in names.items()}


@pytest.mark.parametrize("part", range(8))
def test_random_graphs(engine, part):
    counts, failed = Counter(), {}
    for seed in range(part, 240, 8):
        specialise, inputs = of_graph(generate(seed))
        dims = {name: (None,) * array.ndim for name, array in inputs.items()}
        try:
            with Comparison(specialise, engine, dims, inputs) as comparison:
                comparison.compare(other_shapes(inputs))
                counts.update(comparison.counts)
        except gp.UnsupportedError:
            counts["on the reference backend"] += 1
        except Exception as error:
            failed[seed] = f"{type(error).__name__}: {error}"[:600]
    assert failed == {}
    assert counts["alike"] > 10


@pytest.mark.parametrize(("name", "mode"), [*[(name, "strict") for name in MODELS], ("compressed", "int8")])
def test_small_models(alone, name, mode):
    case, rng = MODELS[name], np.random.default_rng(1)
    with case.load(alone, fpmath=mode) as model:
        arrays = case.arrays({key: most for key, (_, most) in case.sizes.items()}, rng)
        others = [case.arrays(case.draw(rng), rng) for _ in range(30)] + [
            case.arrays(dict.fromkeys(case.sizes, k), rng) for k in (0, 1)
        ]
        shapes = [{key: array.shape for key, array in other.items()} for other in others]
        with Comparison.of(model, arrays) as comparison:
            comparison.compare(shapes)
            outcome = "alike but for sizes" if name in ("positions", "resized") else "alike"
            assert comparison.counts[outcome] >= FEWEST_ALIKE.get(name, 20)


@pytest.mark.parametrize("name", ["mlp", "attention", "recurrent", "shared"])
def test_many_threads_ask_for_few_compilations_more(alone, name):
    """How many tasks there are decides nothing, but for products of few rows, which are one task."""
    case, declined = MODELS[name], []
    with gp.Engine("cpu", threads=16) as many:
        for engine in (alone, many):
            rng = np.random.default_rng(1)
            arrays = case.arrays({key: most for key, (_, most) in case.sizes.items()}, rng)
            others = [case.arrays(case.draw(rng), rng) for _ in range(20)]
            with case.load(engine) as model, Comparison.of(model, arrays) as comparison:
                comparison.compare([{key: array.shape for key, array in other.items()} for other in others])
                declined.append(comparison.counts["declined"])
    assert declined[1] <= declined[0] + 4


def test_attention_does_not_ask_which_size_is_larger(alone):
    case, rng = MODELS["attention"], np.random.default_rng(3)
    sizes = [(12, 5, 30), (5, 12, 30), (30, 8, 5), (8, 30, 5), (40, 4, 9), (4, 50, 20)]
    given = [case.arrays(dict(zip("blp", found, strict=True)), rng) for found in [(3, 9, 20), *sizes]]
    shapes = [{name: array.shape for name, array in arrays.items()} for arrays in given[1:]]
    with case.load(alone) as model, Comparison.of(model, given[0]) as comparison:
        comparison.compare(shapes)
        assert comparison.counts["alike"] + comparison.counts["alike but for sizes"] == len(sizes)


@pytest.mark.parametrize("stride", [1, 2])
def test_images_of_few_channels_of_any_width_share_a_compilation(alone, stride):
    """Tasks of such convolutions are rows, or parts of rows where those are wide."""
    pads = {"pads": [1] * 4}
    nodes = (
        onnx.helper.make_node("Conv", ["x", "a"], ["c"], strides=[stride] * 2, **pads),
        onnx.helper.make_node("HardSwish", ["c"], ["r"]),
        onnx.helper.make_node("Conv", ["r", "b"], ["d"], **pads),
        onnx.helper.make_node("Add", ["d", "r"], ["y"]),
    )
    rng = np.random.default_rng(2)
    weights = {"a": (8, 3, 3, 3), "b": (8, 8, 3, 3)}
    constants = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in weights.items()}
    sizes = {"n": (2, 3), "h": (9, 40), "w": (20, 900)}
    case = DynamicModel(nodes, {"x": ("f", "n", 3, "h", "w")}, {"y": 4}, constants, sizes)
    with case.load(alone) as model:
        shapes = [{"x": (2, 3, 16, width)} for width in (383, 384, 385, 767, 768, 769, 1537)]
        shapes += [{"x": case.arrays(case.draw(rng), rng)["x"].shape} for _ in range(12)]
        for first in (500, 300):
            with Comparison.of(model, {"x": np.zeros((2, 3, 20, first * stride), np.float32)}) as comparison:
                comparison.compare(shapes)
                assert not comparison.counts.keys() - {"alike", "alike but for sizes"}  # known images run by slices


def of_training(direction, **options):
    """What specialises attention in training: its batch and the lengths of its sequences may vary."""

    def specialise(shapes, deciding):
        (batch, heads, queries, _), (_, _, keys, _) = shapes["q"], shapes["k"]
        g = GraphBuilder()
        training = Training(g, (batch, heads), queries=queries, keys=keys, **options)
        getattr(training, direction)()
        results = {port.id for partition in g.finish() for port in partition.output_ports}
        names = {"q": training.q.id, "k": training.k.id} | {f"x{lt.id}": lt.id for lt in g.inputs[2:]}
        return ModelForm(g.graph, {}, names, {f"y{i}": i for i in results}, {})

    return specialise


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(
    "options", [{}, {"dtype": "bf16", "mask": "full"}, {"select": "bottom_right"}, {"dropout": True}]
)
def test_attention_in_training(engine, direction, options):
    specialise, rng = of_training(direction, **options), np.random.default_rng(0)
    own = {"q": (2, 3, 100, 8), "k": (2, 3, 90, 8)}
    inputs = {name: np.broadcast_to(np.float32(0), shape) for name, shape in own.items()}
    others = rng.integers(2, (5, 200, 200), (20, 3)).tolist()
    shapes = [{"q": (batch, 3, queries, 8), "k": (batch, 3, keys, 8)} for batch, queries, keys in others]
    with Comparison(specialise, engine, dict.fromkeys(own, ("batch", 3, None, 8)), inputs) as comparison:
        comparison.compare(shapes)
        assert comparison.counts["alike"] >= 7


@pytest.mark.parametrize("name", ["digits_cnn", "digits_transformer"])
def test_models_of_the_demonstration(alone, name):
    model = onnx.load(model_path(name))
    [port] = model.graph.input
    shape = [dim.dim_value for dim in port.type.tensor_type.shape.dim]
    port.type.tensor_type.shape.dim[0].dim_param = "batch"
    batches = [np.zeros([batch, *shape[1:]], np.float32) for batch in (64, 0, 1, 2, 5, 63, 65, 200)]
    with gp.onnx.load(model, engine=alone) as loaded, Comparison.of(loaded, {port.name: batches[0]}) as comparison:
        comparison.compare([{port.name: batch.shape} for batch in batches])
        assert comparison.counts["alike"] >= 1
