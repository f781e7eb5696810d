"""What a shape costs that a model has not seen: calls of Python, plans of memory, compilations."""

import gc
import random
import sys
from itertools import combinations, pairwise

import numpy as np
import pytest

import graphpool as gp
from graphpool._size_program import Numbers
from graphpool.runtime._form_run import Frame
from graphpool.runtime.variable_partition import Plan, VariablePartition
from tests.cases.unknown_sizes import DynamicModel

onnx = pytest.importorskip("onnx")
Node = onnx.helper.make_node


@pytest.fixture
def engine():
    with gp.Engine("cpu", threads=2) as engine:
        yield engine


def rows(count):
    """So many inputs, an output of each."""
    nodes = [Node("Relu", [f"x{k}"], [f"y{k}"]) for k in range(count)]
    inputs = {f"x{k}": ("f", "n", 8) for k in range(count)}
    return DynamicModel(nodes, inputs, {f"y{k}": 2 for k in range(count)}, {}, {"n": (2, 40)})


def count_calls(work):
    """Python functions and built-in ones that are called."""
    count = 0

    def note(frame, event, arg):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def calls_of_a_new_shape(case, engine):
    """More calls than those of a shape that was seen."""
    found, rng = [], np.random.default_rng(0)
    with case.load(engine) as model:
        for n in (20, 19, 18, 17):
            arrays = case.arrays({"n": n}, rng)
            found.append(count_calls(lambda arrays=arrays: model.run(arrays)))
            seen = count_calls(lambda arrays=arrays: model.run(arrays))
        assert model.stats().compilations == 1
    return min(found[1:]) - seen


def test_a_new_shape_makes_nothing_for_each_port(engine):
    few, many = (calls_of_a_new_shape(rows(count), engine) for count in (4, 44))
    assert many - few < 4 * 40


@pytest.mark.parametrize("options", [{}, {"memory_limit": 1 << 24, "on_pressure": "wait"}], ids=["free", "waiting"])
def test_a_new_shape_asks_nothing_of_the_constants_of_forms_that_are_kept(options):
    nodes = [Node("Add", [f"x{k}" if k else "x", f"c{k}"], [f"x{k + 1}"]) for k in range(40)]
    constants = {f"c{k}": np.ones((1, 1100), np.float32) for k in range(40)}
    case = DynamicModel(nodes, {"x": ("f", "n", 1100)}, {"x40": 2}, constants, {"n": (2, 40)})
    found, rng = [], np.random.default_rng(0)
    with gp.Engine("cpu", threads=1, **options) as engine, case.load(engine) as model:
        for n in range(30, 18, -1):
            arrays = case.arrays({"n": n}, rng)
            found.append(count_calls(lambda arrays=arrays: model.run(arrays)))
        assert model.stats().forms == 12
    assert min(found[8:]) < min(found[2:6]) + 40


def calls_of_a_word(count, engine):
    """In a session of so many caches, of a length that is new."""
    nodes = [Node("Concat", [f"past{k}", "x"], [f"present{k}"], axis=0) for k in range(count)]
    pasts = {f"past{k}": ("f", "p", 8) for k in range(count)}
    case = DynamicModel(
        (*nodes, Node("Relu", ["x"], ["y"])), {"x": ("f", 1, 8), **pasts},
        {"y": 2, **{f"present{k}": 2 for k in range(count)}}, {}, {"p": (0, 40)},
    )  # fmt: skip
    states, word = {f"present{k}": f"past{k}" for k in range(count)}, {"x": np.ones((1, 8), np.float32)}
    with case.load(engine) as model, model.session(states, {"p": 40}) as session:
        found = [count_calls(lambda: session.run(word)) for _ in range(6)]
        assert session.length == 6
    return min(found[2:])


def test_a_word_in_a_session_describes_no_state(engine):
    few, many = (calls_of_a_word(count, engine) for count in (4, 24))
    assert many - few < 20 * 10


def mlp():
    rng = np.random.default_rng(1)
    sizes = (24, 512, 640, 40)
    weights = {f"w{k}": rng.standard_normal(pair).astype(np.float32) / 8 for k, pair in enumerate(pairwise(sizes))}
    nodes = [
        Node("MatMul", ["x", "w0"], ["a"]), Node("Relu", ["a"], ["b"]), Node("MatMul", ["b", "w1"], ["c"]),
        Node("Relu", ["c"], ["d"]), Node("MatMul", ["d", "w2"], ["y"]),
    ]  # fmt: skip
    return DynamicModel(nodes, {"x": ("f", "n", 24)}, {"y": 2}, weights, {"n": (1, 4000)})


def test_one_compilation_serves_products_of_all_numbers_of_rows(engine):
    case, rng = mlp(), np.random.default_rng(2)
    with case.load(engine) as model:
        for n in (300, 4, 6, 7, 64, 65, 96, 97, 700, 4000, 1):
            arrays = case.arrays({"n": n}, rng)
            with case.load(engine, {"n": n}) as fixed:
                np.testing.assert_array_equal(model.run(arrays)["y"], fixed.run(arrays)["y"])
        assert model.stats().compilations <= 3  # one row, and what is one task, are cases of their own


def one_hot(axis):
    """Indices, negative ones too, as rows or columns of the length of another input."""
    nodes = [Node("Shape", ["x"], ["depth"], end=1), Node("OneHot", ["i", "depth", "values"], ["y"], axis=axis)]
    values = {"values": np.array([2, 5], np.float32)}
    return DynamicModel(nodes, {"i": ("i", "n", 3), "x": ("f", "m")}, {"y": 3}, values, {"n": (0, 9), "m": (1, 40)})


def node_of(kind, **attrs):
    return DynamicModel(
        [Node(kind, ["x"], ["y"], **attrs)], {"x": ("f", "n", "m")}, {"y": 2}, {}, {"n": (1, 9), "m": (1, 40)}
    )


def blocks():
    """Overlapping blocks, of which an image of another input's size is the sum."""
    nodes = [Node("Shape", ["image"], ["size"], start=1), Node("Col2Im", ["x", "size", "block"], ["y"])]
    inputs = {"x": ("f", 2, 12, "n * m"), "image": ("f", 1, "n + 1", "m + 1")}
    return DynamicModel(nodes, inputs, {"y": 4}, {"block": np.array([2, 2])}, {"n": (1, 9), "m": (1, 40)})


def window_node(kind, reads="y", **attrs):
    """A node whose windows slide over images of any height and width, or of any number of channels."""
    nodes = [Node(kind, ["x"], ["y", "z"] if reads == "z" else ["y"], **attrs), Node("Cast", [reads], ["found"], to=1)]
    return DynamicModel(nodes, {"x": ("f", "n", "n", 7, "m + 3")}, {"found": 4}, {}, {"n": (1, 9), "m": (1, 40)})


PADDED = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 0, 1], "dilations": [2, 2]}


def unpooled():
    nodes = [
        Node("MaxPool", ["x"], ["most", "places"], kernel_shape=[2, 2], strides=[2, 2]),
        Node("MaxUnpool", ["most", "places"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    return DynamicModel(nodes, {"x": ("f", 2, 3, "2 * n", "2 * m")}, {"y": 4}, {}, {"n": (1, 9), "m": (1, 40)})


def grid_of_another(is_aligned):
    """The grid for images of another input's size."""
    nodes = [Node("Shape", ["x"], ["size"]), Node("AffineGrid", ["theta", "size"], ["y"], align_corners=is_aligned)]
    inputs = {"x": ("f", 2, 3, "n", "m"), "theta": ("f", 2, 2, 3)}
    return DynamicModel(nodes, inputs, {"y": 4}, {}, {"n": (1, 9), "m": (1, 40)})


def moved_taps():
    nodes = [Node("DeformConv", ["x", "w", "offset", "b", "mask"], ["y"], group=2, offset_group=2, pads=[1, 1, 1, 1])]
    space = "n + 2", "m + 2"
    inputs = {"x": ("f", 2, 4, *space), "offset": ("f", 2, 36, *space), "mask": ("f", 2, 18, *space)}
    rng = np.random.default_rng(0)
    constants = {"w": rng.normal(size=(6, 2, 3, 3)).astype(np.float32), "b": np.arange(6, dtype=np.float32)}
    return DynamicModel(nodes, inputs, {"y": 4}, constants, {"n": (1, 9), "m": (1, 40)})


def attention_spelt_out():
    """Four heads, of any numbers of queries and keys."""
    nodes = [
        Node("MatMul", ["q", "k"], ["scores"]), Node("Mul", ["scores", "scale"], ["scaled"]),
        Node("Softmax", ["scaled"], ["parts"], axis=-1), Node("MatMul", ["parts", "v"], ["y"]),
    ]  # fmt: skip
    inputs = {"q": ("f", 1, 4, "n", 16), "k": ("f", 1, 4, 16, "m"), "v": ("f", 1, 4, "m", 16)}
    return DynamicModel(nodes, inputs, {"y": 4}, {"scale": np.float32(0.25)}, {"n": (1, 9), "m": (1, 40)})


@pytest.mark.parametrize(
    ("case", "most"),
    [
        (attention_spelt_out(), 1),
        (one_hot(-1), 1),
        (blocks(), 2),
        (node_of("Unique", axis=0), 1),
        (node_of("Unique", axis=1), 1),
        (one_hot(0), 1),
        (node_of("Hardmax"), 1),
        *((node_of("EyeLike", k=k), 1) for k in (0, 2, -3)),
        *((window_node("MaxPool", "z", **PADDED, storage_order=order), 1) for order in (0, 1)),
        (window_node("MaxPool", "z", kernel_shape=[3, 3], strides=[1, 2], auto_pad="SAME_LOWER"), 1),
        (window_node("AveragePool", **PADDED), 1),
        (window_node("AveragePool", **PADDED, count_include_pad=1, ceil_mode=1), 1),
        (window_node("LpPool", kernel_shape=[3, 3], pads=[1, 1, 1, 1]), 1),
        (unpooled(), 1),
        (grid_of_another(0), 1),
        (grid_of_another(1), 1),
        (moved_taps(), 1),
    ],
    ids=[
        "attention",
        "OneHot",
        "Col2Im",
        "Unique rows",
        "Unique columns",
        "OneHot first",
        "Hardmax",
        "EyeLike",
        "EyeLike above",
        "EyeLike below",
        "places of maxima",
        "places of maxima by columns",
        "places of maxima, as many",
        "AveragePool with gaps",
        "AveragePool with pads",
        "LpPool",
        "MaxUnpool",
        "AffineGrid",
        "AffineGrid aligned",
        "DeformConv",
    ],
)
def test_few_compilations_serve_all_sizes(engine, case, most):
    """One, and another where an image is small enough for one task; none where sizes are equal by chance."""
    rng = np.random.default_rng(4)

    def check(model, sizes):
        arrays = case.arrays(sizes, rng)
        with case.load(engine, sizes) as fixed:
            [found], [wanted] = model.run(arrays).values(), fixed.run(arrays).values()
        np.testing.assert_array_equal(found, wanted)

    with case.load(engine) as model:
        for sizes in [{"n": 3, "m": 5}, *({"n": n, "m": m} for n in (2, 7) for m in (2, 3, 4, 17))]:
            check(model, sizes)
        assert model.stats().compilations <= most
        for sizes in ({"n": 1, "m": 1}, {"n": 1, "m": 6}, {"n": 4, "m": 1}):
            check(model, sizes)


def convolutions(dtype):
    """Two convolutions, 3 x 3 and 1 x 1, over images of any size, of floats or of bytes."""
    rng = np.random.default_rng(6)
    shapes = {"w": (40, 3, 3, 3), "v": (24, 40, 1, 1)}
    if dtype == "f32":
        weights = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        nodes = [Node("Conv", ["x", "w"], ["a"]), Node("Relu", ["a"], ["b"]), Node("Conv", ["b", "v"], ["y"])]
    else:
        weights = {name: rng.integers(-9, 9, shape).astype(np.int8) for name, shape in shapes.items()}
        weights |= {"scale": np.float32(0.02), "zero": np.uint8(3), "none": np.int8(0), "wide": np.float32(0.5)}
        side, ports = ["scale", "zero"], ["scale", "none", "wide", "zero"]
        nodes = [
            Node("QuantizeLinear", ["x", *side], ["q"]), Node("QLinearConv", ["q", *side, "w", *ports], ["a"]),
            Node("QLinearConv", ["a", "wide", "zero", "v", *ports], ["b"]),
            Node("DequantizeLinear", ["b", "wide", "zero"], ["y"]),
        ]  # fmt: skip
    return DynamicModel(
        nodes, {"x": ("f", "n", 3, "h", "w")}, {"y": 4}, weights, {"n": (2, 3), "h": (9, 9), "w": (9, 9)}
    )


@pytest.mark.parametrize(
    "node",
    [
        Node("ReduceMax", ["x"], ["y"], keepdims=1),
        Node("ReduceSum", ["x", "last"], ["y"], keepdims=1),
        Node("Softmax", ["x"], ["y"], axis=0),
        Node("Softmax", ["x"], ["y"], axis=1),
    ],
    ids=["all", "rows", "columns", "lines"],
)
def test_one_compilation_serves_reductions_of_any_length(engine, node):
    """However many results make a task."""
    case = DynamicModel([node], {"x": ("f", "n", "m")}, {"y": 2}, {"last": np.array([1])}, {"n": (2, 5000)})
    rng = np.random.default_rng(9)
    with case.load(engine) as model:
        for n, m in ((3, 5), (4000, 4), (4, 5000), (300, 70), (17, 33), (2, 9000)):
            arrays = case.arrays({"n": n, "m": m}, rng)
            with case.load(engine, {"n": n, "m": m}) as fixed:
                np.testing.assert_array_equal(model.run(arrays)["y"], fixed.run(arrays)["y"])
        assert model.stats().compilations == 1


@pytest.mark.parametrize(("dtype", "mode"), [("f32", "strict"), ("f32", "bf16"), ("bytes", "strict")])
def test_one_compilation_serves_convolutions_of_all_images(engine, dtype, mode):
    """However many pixels make a task."""
    case, rng = convolutions(dtype), np.random.default_rng(7)
    with case.load(engine, fpmath=mode) as model:
        for n, h, w in ((2, 20, 30), (3, 5, 200), (2, 90, 12), (2, 4, 2100), (2, 60, 300), (4, 40, 41), (2, 700, 5)):
            arrays = case.arrays({"n": n, "h": h, "w": w}, rng)
            with case.load(engine, {"n": n, "h": h, "w": w}, fpmath=mode) as fixed:
                np.testing.assert_array_equal(model.run(arrays)["y"], fixed.run(arrays)["y"])
        assert model.stats().compilations == 1


@pytest.mark.parametrize(("equation", "dims"), [("ii->i", "nn"), ("bii->b", "mnn"), ("ibij->jb", "nmnm")])
def test_diagonals_of_all_sizes_share_a_compilation(engine, equation, dims):
    case = DynamicModel([Node("Einsum", ["x"], ["y"], equation=equation)], {"x": ("f", *dims)}, {"y": 1}, {}, {})
    rng = np.random.default_rng(8)
    with case.load(engine) as model:
        for n, m in ((3, 2), (4, 2), (7, 5), (2, 9), (30, 4), (5, 5)):
            arrays = case.arrays({"n": n, "m": m}, rng)
            np.testing.assert_allclose(model.run(arrays)["y"], np.einsum(equation, arrays["x"]), rtol=1e-5, atol=1e-5)
        assert model.stats().compilations == 1


def count_frames():
    return sum(type(found) is Frame for found in gc.get_objects())


def test_forms_of_one_compilation_share_what_runs_keep(engine):
    case, rng = mlp(), np.random.default_rng(5)
    gc.collect()
    before = count_frames()
    with case.load(engine) as model:
        for n in (1000, 40, 700, 2000, 41, 39, 1999, 40):
            model.run(case.arrays({"n": n}, rng))
        assert model.stats().forms == 7
        assert count_frames() - before <= model.stats().compilations
    assert count_frames() == before


def test_sizes_that_grow_share_plans(engine, monkeypatch):
    plans, plan = [], VariablePartition._plan_of
    monkeypatch.setattr(VariablePartition, "_plan_of", lambda *args: plans.append(plan(*args)) or plans[-1])
    case, rng = mlp(), np.random.default_rng(3)
    with case.load(engine) as model:
        for n in range(1000, 2000, 20):
            model.run(case.arrays({"n": n}, rng))
        assert model.stats().compilations == 1
    assert len(plans) <= 10


def test_sizes_at_random_share_plans(engine, monkeypatch):
    """Small and large ones in turn have plans of their own."""
    plans, plan = [], VariablePartition._plan_of
    monkeypatch.setattr(VariablePartition, "_plan_of", lambda *args: plans.append(plan(*args)) or plans[-1])
    case, rng = mlp(), np.random.default_rng(5)
    with case.load(engine) as model:
        for n in rng.integers(500, 4000, 100):
            model.run(case.arrays({"n": int(n)}, rng))
    assert len(plans) <= 15


def branches(seed):
    """Products, sums and rows of two unknown numbers of rows, which steps on streams compute in many orders."""
    rng, nodes, weights = random.Random(seed), [], {}
    values = [("x", "n", 48), ("z", "m", 48)]  # name, rows, columns
    for number in range(rng.randint(6, 24)):
        name, rows_of, columns = rng.choice(values[-6:])
        kind = rng.choice(["Sigmoid", "Softmax", "Add", "weights", "weights", "scores"])
        if kind == "weights" and isinstance(columns, int):
            shape = columns, rng.choice([24, 48, 96, 200])
            weights[f"w{number}"] = np.full(shape, 1 / columns, np.float32)
            nodes.append(Node("MatMul", [name, f"w{number}"], [f"v{number}"]))
            values.append((f"v{number}", rows_of, shape[1]))
        elif kind == "scores" and isinstance(columns, int):
            other, length, _ = rng.choice([value for value in values if value[2] == columns])
            nodes.append(Node("Transpose", [other], [f"t{number}"]))
            nodes.append(Node("MatMul", [name, f"t{number}"], [f"v{number}"]))
            values.append((f"v{number}", rows_of, length))
        else:
            other = rng.choice([value for value in values if value[1:] == (rows_of, columns)])[0]
            is_sum = kind == "Add"
            nodes.append(Node("Add" if is_sum else "Softmax", [name, other] if is_sum else [name], [f"v{number}"]))
            values.append((f"v{number}", rows_of, columns))
    used = {name for node in nodes for name in node.input}
    inputs = {name: ("f", count, 48) for name, count in (("x", "n"), ("z", "m")) if name in used}
    outputs = {name: 2 for name, *_ in values[2:] if name not in used}
    return DynamicModel(tuple(nodes), inputs, outputs, weights, {"n": (1, 900), "m": (1, 900)})


@pytest.mark.parametrize("schedule", ["auto", "list", "wavefront"])
@pytest.mark.parametrize("seed", range(8))
def test_arenas_of_streams_take_an_eighth_more_than_the_largest_shape_needs(engine, seed, schedule):
    """What a shape needs is what it needs on one stream, times what streams take beyond one in a compilation."""
    case, rng, numbers = branches(seed), random.Random(seed), np.random.default_rng(0)
    sizes, options = {"n": rng.choice([3, 30, 300]), "m": 30}, {"schedule": schedule, "streams": 2}
    most, ratio = 0, 1.0
    with case.load(engine, **options) as model:
        for _ in range(10):
            arrays = case.arrays(sizes, numbers)
            found = model.run(arrays)
            with case.load(engine, sizes, **options) as fixed:
                for name, wanted in fixed.run(arrays).items():
                    np.testing.assert_allclose(found[name], wanted, 1e-4, 1e-5)
                stats = fixed.stats()
                most = max(most, stats.sequential_arena_nbytes)
                ratio = max(ratio, stats.largest_arena_nbytes / max(1, stats.sequential_arena_nbytes))
            assert model.stats().arena_nbytes <= 1.125 * most * ratio
            step = rng.choice([0.9, 1.05, 1.1, 1.3, 2.0])
            sizes = {name: max(1, int(size * step)) if rng.random() < 0.6 else rng.randint(1, 900)
                     for name, size in sizes.items()}  # fmt: skip


def test_a_wider_plan_keeps_temporaries_apart():
    rng = np.random.default_rng(4)
    for _ in range(300):
        count = int(rng.integers(0, 12))
        sizes = [int(size) for size in rng.integers(0, rng.choice([70, 700, 70000]), count)]
        offsets = [64 * int(offset) for offset in rng.integers(0, 1500, count)]
        nbytes = max(map(sum, zip(offsets, sizes, strict=True)), default=0)
        exact = Plan(Numbers(sizes), Numbers(offsets), nbytes)
        wider = exact.wider()
        assert nbytes <= wider.nbytes <= nbytes + nbytes // 8
        assert all(offset % 64 == 0 for offset in wider.offsets)
        assert all(a <= b for a, b in zip(sizes, wider.sizes, strict=True))
        assert all(9 * size // 8 <= most + 128 for size, most in zip(sizes, wider.sizes, strict=True))
        assert all(sum(row) <= wider.nbytes for row in zip(wider.offsets, wider.sizes, strict=True))
        most = nbytes + nbytes // 8  # a small one has all of its last 64 bytes, where the arena does not end before
        rows = zip(sizes, wider.sizes, wider.offsets, strict=True)
        assert all(room >= min(-(-size // 64) * 64, most - offset) for size, room, offset in rows)
        for a, b in combinations(range(count), 2):
            for one, other in ((a, b), (b, a)):
                if offsets[one] + sizes[one] <= offsets[other]:
                    assert wider.offsets[one] + wider.sizes[one] <= wider.offsets[other]
