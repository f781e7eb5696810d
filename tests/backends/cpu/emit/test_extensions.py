"""Extension kinds that move, look up and scan equal the reference for random shapes, types, attributes and layouts."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import graphpool as gp
from graphpool.errors import InvalidArgumentError
from graphpool.graph.schema import SCHEMAS
from graphpool.typing import DataType
from tests.backends.cpu.lower.test_wide_types import content
from tests.cases.graphs import GraphBuilder
from tests.helpers.partitions import check_graph, run_reference

FUZZ = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
DIMS = st.integers(0, 5)
BYTES = sorted(SCHEMAS["Slice"].types["T"])
NUMBERS = sorted(SCHEMAS["CumSum"].types["T"])
REDUCTIONS = ["ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum"]
SEEDS = st.integers(0, 999)


def shapes(least=0, most=6, smallest=0):
    dims = st.one_of(st.integers(smallest, 5), st.sampled_from([1, 33]))
    return st.lists(dims, min_size=least, max_size=most).filter(lambda s: np.prod(s) < 4000)


def check(engine, seed, builder, *, indices=None, small=False):
    """Run on the CPU backend.

    `indices` has the id of an input of indices, the size of their axis, and how far they may lie outside; `small` keeps
    sums finite.
    """

    def fill(rng, lt):
        if indices is not None and lt.id == indices[0]:
            _, size, beyond = indices
            return rng.integers(-size - beyond, size + beyond, lt.shape).astype(lt.dtype.numpy)
        if small and lt.dtype.value[0] in "fb" and lt.dtype is not DataType.BOOLEAN:
            return rng.normal(size=lt.shape).astype(lt.dtype.numpy)
        return content(rng, lt)

    partitions = check_graph(builder, engine, np.random.default_rng(seed), scale=20.0, content=fill)
    assert {p.backend_name for p in partitions} == {"cpu"}


def axis_of(data, shape):
    return data.draw(st.integers(-len(shape), len(shape) - 1))


@FUZZ
@given(st.data(), shapes(), st.sampled_from(BYTES), SEEDS)
def test_slice(engine, data, shape, dtype, seed):
    axes = data.draw(st.lists(st.integers(0, max(len(shape) - 1, 0)), unique=True, max_size=len(shape)))
    bounds = st.one_of(st.integers(-8, 8), st.sampled_from([2**63 - 1, -(2**63)]))
    starts, ends = ([data.draw(bounds) for _ in axes] for _ in range(2))
    steps = [data.draw(st.sampled_from([1, 2, 3, -1, -2])) for _ in axes]
    builder = GraphBuilder()
    y = builder.op("Slice", builder.input(shape, dtype), starts=starts, ends=ends, axes=axes, steps=steps)
    if data.draw(st.booleans()) and dtype == "f32":
        builder.op("Abs", y)
    check(engine, seed, builder)


@FUZZ
@given(st.data(), shapes(1), st.sampled_from(BYTES), st.integers(1, 4), SEEDS)
def test_split(engine, data, shape, dtype, count, seed):
    builder, axis = GraphBuilder(), axis_of(data, shape)
    sizes = [data.draw(DIMS) for _ in range(count)]
    shape[axis] = sum(sizes)
    if data.draw(st.booleans()):
        sizes, shape[axis] = [], sum(sizes) * count
    builder.op("Split", builder.input(shape, dtype), n=count, axis=axis, split=sizes)
    check(engine, seed, builder)


@FUZZ
@given(st.data(), shapes(), st.sampled_from(BYTES), SEEDS)
def test_expand_and_tile(engine, data, shape, dtype, seed):
    builder = GraphBuilder()
    wanted = [data.draw(st.sampled_from([1, dim])) if dim != 1 else data.draw(DIMS) for dim in shape]
    wanted = wanted[data.draw(st.integers(0, len(wanted))) :]
    if len(wanted) == len(shape) and len(shape) < 6:
        wanted = [data.draw(DIMS), *wanted]
    builder.op("Expand", builder.input(shape, dtype), shape=wanted)
    builder.op(
        "Tile", builder.input(shape, dtype), repeats=[data.draw(st.sampled_from([0, 1, 1, 2, 3])) for _ in shape]
    )
    check(engine, seed, builder)


@pytest.mark.parametrize("rank", [7, 9, 12])
def test_tile_of_high_rank(engine, rank):
    builder = GraphBuilder()
    builder.op("Tile", builder.input([2] * rank, "u8"), repeats=[2, 1] * (rank // 2) + [2] * (rank % 2))
    check(engine, 0, builder)


@FUZZ
@given(st.data(), shapes(0, 4), st.sampled_from(BYTES), SEEDS)
def test_pad(engine, data, shape, dtype, seed):
    mode = data.draw(st.sampled_from(["constant", "reflect", "edge", "wrap"]))
    most = 3 if mode == "constant" else 20
    pads = [[data.draw(st.integers(0, most)) if dim or mode == "constant" else 0 for dim in shape] for _ in range(2)]
    if mode == "constant":
        pads[0] = [data.draw(st.integers(-(dim // 2), pad)) for dim, pad in zip(shape, pads[0], strict=True)]
        pads[1] = [data.draw(st.integers(-(dim // 2), pad)) for dim, pad in zip(shape, pads[1], strict=True)]
    value = data.draw(st.sampled_from([0.0, 1.0, 7.0] if dtype[0] in "su" else [0.0, 1.0]))
    builder = GraphBuilder()
    builder.op("Pad", builder.input(shape, dtype), pads_begin=pads[0], pads_end=pads[1], mode=mode, value=value)
    check(engine, seed, builder)


@FUZZ
@given(shapes(2), st.sampled_from(BYTES), st.booleans(), st.integers(-7, 7) | st.just(2**60), SEEDS)
def test_trilu(engine, shape, dtype, upper, k, seed):
    builder = GraphBuilder()
    builder.op("Trilu", builder.input(shape, dtype), upper=upper, k=k)
    check(engine, seed, builder)


@FUZZ
@given(st.data(), shapes(1, 4, 1), shapes(0, 3), st.sampled_from(BYTES), st.sampled_from(["s32", "s64"]), SEEDS)
def test_gather(engine, data, shape, picked, dtype, index, seed):
    builder, axis = GraphBuilder(), axis_of(data, shape)
    x, indices = builder.input(shape, dtype), builder.input(picked, index)
    builder.op("Gather", x, indices, axis=axis)
    check(engine, seed, builder, indices=(indices.id, shape[axis], 0))


@FUZZ
@given(st.data(), shapes(1, 4, 1), st.sampled_from(BYTES), st.sampled_from(["s32", "s64"]), SEEDS)
def test_elements_by_index(engine, data, shape, dtype, index, seed):
    builder, axis = GraphBuilder(), axis_of(data, shape)
    picked = [data.draw(st.integers(0, dim)) for dim in shape]
    picked[axis] = data.draw(st.integers(0, 9))
    x, indices = builder.input(shape, dtype), builder.input(picked, index)
    builder.op("GatherElements", x, indices, axis=axis)
    reductions = ["none", "add", "mul", "max", "min"] if dtype in NUMBERS else ["none"]
    reduction = data.draw(st.sampled_from(reductions))
    builder.op("ScatterElements", x, indices, builder.input(picked, dtype), axis=axis, reduction=reduction)
    check(engine, seed, builder, indices=(indices.id, shape[axis], 0), small=reduction != "none")


@FUZZ
@given(st.data(), shapes(1, 4, 1), shapes(0, 2), st.sampled_from(BYTES), SEEDS)
def test_tuples_of_indices(engine, data, shape, picked, dtype, seed):
    builder = GraphBuilder()
    batch = data.draw(st.integers(0, len(shape) - 1))
    size = data.draw(st.integers(1, len(shape) - batch))
    x, indices = builder.input(shape, dtype), builder.input([*shape[:batch], *picked, size], "s64")
    builder.op("GatherND", x, indices, batch_dims=batch)
    check(engine, seed, builder, indices=(indices.id, min(shape), 0))
    builder = GraphBuilder()
    size = data.draw(st.integers(1, len(shape)))
    x, indices = builder.input(shape, dtype), builder.input([*picked, size], "s64")
    reduction = data.draw(st.sampled_from(["none", "add", "max"] if dtype in NUMBERS else ["none"]))
    builder.op("ScatterND", x, indices, builder.input([*picked, *shape[size:]], dtype), reduction=reduction)
    check(engine, seed, builder, indices=(indices.id, min(shape), 0), small=reduction != "none")


@FUZZ
@given(st.data(), shapes(0, 4), st.sampled_from(NUMBERS), st.sampled_from(BYTES), st.integers(1, 6), SEEDS)
def test_one_hot(engine, data, shape, index, dtype, depth, seed):
    builder = GraphBuilder()
    indices, values = builder.input(shape, index), builder.input([2], dtype)
    builder.op("OneHot", indices, values, dtype=dtype, depth=depth, axis=axis_of(data, [*shape, 1]))
    check(engine, seed, builder, indices=None if index[0] == "u" else (indices.id, depth, 2))


@FUZZ
@given(st.data(), shapes(1, 4, 1), st.sampled_from(NUMBERS), SEEDS)
def test_extremes_and_the_k_best(engine, data, shape, dtype, seed):
    builder, axis = GraphBuilder(), axis_of(data, shape)
    x = builder.input(shape, dtype)
    for kind in ("ArgMax", "ArgMin"):
        flags = {name: data.draw(st.booleans()) for name in ("keep_dims", "select_last_index")}
        builder.op(kind, x, dtype="s64", axis=axis, **flags)
    k = data.draw(st.integers(0, shape[axis]))
    builder.op("TopK", x, n=2, dtype=[dtype, "s64"], axis=axis, k=k, largest=data.draw(st.booleans()))
    check(engine, seed, builder)


@FUZZ
@given(st.data(), shapes(1, 4), st.sampled_from(["CumSum", "CumProd"]), st.sampled_from(NUMBERS), SEEDS)
def test_running_sums_and_products(engine, data, shape, kind, dtype, seed):
    flags = {name: data.draw(st.booleans()) for name in ("exclusive", "reverse")}
    builder = GraphBuilder()
    builder.op(kind, builder.input(shape, dtype), axis=axis_of(data, shape), **flags)
    check(engine, seed, builder, small=True)


@FUZZ
@given(st.data(), shapes(1, 4), st.sampled_from(REDUCTIONS), st.sampled_from(NUMBERS), st.booleans(), SEEDS)
def test_reductions(engine, data, shape, kind, dtype, keep, seed):
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))
    builder = GraphBuilder()
    builder.op(kind, builder.input(shape, dtype), axes=axes, keep_dims=keep)
    check(engine, seed, builder, small=True)


@FUZZ
@given(st.data(), st.sampled_from(["f32", "bf16", "f16"]), st.booleans(), st.booleans(), SEEDS)
def test_rotary_embedding(engine, data, dtype, interleaved, flat, seed):
    batch, heads, length, half = (data.draw(st.integers(1, 4)) for _ in range(4))
    size = 2 * half + data.draw(st.integers(0, 3))
    builder = GraphBuilder()
    x = builder.input((batch, length, heads * size) if flat else (batch, heads, length, size), dtype)
    positions = data.draw(st.booleans())
    caches = [builder.input((7, half) if positions else (batch, length, half), dtype) for _ in range(2)]
    ids = [builder.input((batch, length), "s64")] if positions else []
    builder.op("RotaryEmbedding", x, *caches, *ids, interleaved=interleaved, num_heads=heads,
               rotary_embedding_dim=2 * half)  # fmt: skip
    check(engine, seed, builder, indices=(ids[0].id, 7, 0) if ids else None, small=True)


ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)
BY_INDEX = {
    "Gather": ([ROWS], [], {"axis": 0}, [[0, 3, -4]], 4),
    "GatherElements": ([ROWS], [], {"axis": 1}, [[0, -3], [2, 1]], 3),
    "GatherND": ([ROWS], [], {}, [[3, -3], [-4, 2]], 3),
    "ScatterElements": ([ROWS], [np.ones((2, 2), np.float32)], {"axis": 1}, [[0, -3], [2, 1]], -4),
    "ScatterND": ([ROWS], [np.ones(2, np.float32)], {"reduction": "add"}, [[3, -3], [-4, 2]], 4),
    "ReverseSequence": ([ROWS], [], {}, [4, 0, 1], 5),
    "RotaryEmbedding": (
        [np.ones((1, 1, 4, 2), np.float32), *[np.ones((4, 1), np.float32)] * 2],
        [],
        {},
        [[0, 1, 3, -4]],
        -5,
    ),
}


@pytest.mark.parametrize("dtype", ["s32", "s64"])
@pytest.mark.parametrize("kind", BY_INDEX)
@pytest.mark.parametrize("threads", [1, 2])
def test_an_index_outside_raises(kind, dtype, threads):
    front, behind, attrs, indices, wrong = BY_INDEX[kind]
    good = np.array(indices).astype(DataType(dtype).numpy)
    bad = good.copy()
    bad.flat[1] = wrong
    builder = GraphBuilder()
    ports = [builder.input(array.shape, DataType.parse(array.dtype).value) for array in (*front, good, *behind)]
    y = builder.op(kind, *ports, **attrs)
    [partition] = builder.finish()
    with gp.Engine("cpu", threads=threads) as engine, partition.compile(ports, [y], engine) as compiled:
        stream = gp.Stream(engine)

        def run(content):
            arrays = (*front, content, *behind)
            [result] = compiled.execute(stream, [gp.Tensor(lt, engine, a) for lt, a in zip(ports, arrays, strict=True)])
            return result.numpy()

        expected = run(good)
        with pytest.raises(InvalidArgumentError, match=f"{kind}.*: an index.*outside its axis"):
            run(bad)
        np.testing.assert_array_equal(run(good), expected)
        values = dict(zip((lt.id for lt in ports), (*front, bad, *behind), strict=True))
        with pytest.raises(InvalidArgumentError, match="an index"):
            run_reference(builder.graph.ops, values)


@FUZZ
@given(st.data(), SEEDS)
def test_strided_inputs_and_outputs(engine, data, seed):
    """Ops read and write arrays with gaps, and transposed ones."""
    rng = np.random.default_rng(seed)
    kind, attrs, extra = data.draw(st.sampled_from([
        ("Slice", {"starts": [3], "ends": [-9], "axes": [1], "steps": [-1]}, []), ("Tile", {"repeats": [2, 1, 2]}, []),
        ("Pad", {"pads_begin": [1, 0, 2], "pads_end": [0, 2, 1], "mode": "wrap"}, []), ("Trilu", {}, []),
        ("CumSum", {"axis": 1}, []), ("Floor", {}, []), ("Expand", {"shape": [2, 1, 1, 1]}, []),
        ("Gather", {"axis": 1}, [rng.integers(0, 3, (4, 2))]), ("ArgMax", {"axis": 1}, []),
        ("GatherElements", {"axis": 1}, [rng.integers(0, 3, (2, 3, 4)).T[..., ::2].T]),
    ]))  # fmt: skip
    order = data.draw(st.permutations(range(3)))
    memory = rng.integers(-9, 9, [(3, 5, 4)[k] for k in order] + [2]).astype(np.float32)
    x = memory[..., 0].transpose(np.argsort(order))
    builder = GraphBuilder()
    tensors = [builder.input(a.shape, DataType.parse(a.dtype).value) for a in (x, *extra)]
    builder.op(kind, *tensors, dtype="s64" if kind == "ArgMax" else None, **attrs)
    [partition] = builder.finish()
    values = dict(zip((t.id for t in tensors), (x, *extra), strict=True))
    expected = run_reference(builder.graph.ops, values)[partition.output_ports[0].id]
    arrays = (x, *extra)
    inputs = [t.replace(strides=_steps(a)) for t, a in zip(tensors, arrays, strict=True)]
    out = np.full((*expected.shape, 2), 77, expected.dtype)
    output = partition.output_ports[0].replace(shape=expected.shape, strides=_steps(out[..., 0]))
    with partition.compile(inputs, [output], engine) as compiled:
        given_tensors = [gp.Tensor(lt, engine, a) for lt, a in zip(inputs, arrays, strict=True)]
        compiled.execute(gp.Stream(engine), given_tensors, [gp.Tensor(output, engine, out[..., 0])])
    np.testing.assert_array_equal(out[..., 0], expected)
    assert (out[..., 1] == 77).all()


def _steps(array):
    return [stride // array.itemsize for stride in array.strides]


def _finish(builder, kind, inputs, **fields):
    builder.op(kind, *inputs, **fields)
    builder.finish()


@pytest.mark.parametrize(
    ("kind", "shapes_", "attrs"),
    [
        ("Slice", [(3, 4)], {"starts": [0], "ends": [1, 2]}),
        ("Slice", [(3, 4)], {"starts": [0], "ends": [1], "steps": [0]}),
        ("Slice", [(3, 4)], {"starts": [0], "ends": [1], "axes": [2]}),
        ("Slice", [(3, 4)], {"starts": [0, 0], "ends": [1, 1], "axes": [1, -1]}),
        ("Split", [(3, 4)], {"axis": 1, "split": [5]}),
        ("Split", [(3, 4)], {"axis": 2}),
        ("Expand", [(3, 4)], {"shape": [2, 4]}),
        ("Expand", [(3, 4)], {"shape": [-1]}),
        ("Tile", [(3, 4)], {"repeats": [2]}),
        ("Tile", [(3, 4)], {"repeats": [2, -1]}),
        ("Tile", [(3, 4)], {"repeats": [2**40, 2**40]}),
        ("Pad", [(3, 4)], {"pads_begin": [1], "pads_end": [1, 1]}),
        ("Pad", [(3, 4)], {"pads_begin": [-2, 0], "pads_end": [-2, 0]}),
        ("Pad", [(3, 4)], {"pads_begin": [-1, 0], "pads_end": [0, 0], "mode": "edge"}),
        ("Pad", [(0, 4)], {"pads_begin": [1, 0], "pads_end": [0, 0], "mode": "reflect"}),
        ("Trilu", [(3,)], {}),
        ("CumSum", [()], {}),
        ("ArgMax", [(3, 0)], {"axis": 1}),
        ("TopK", [(3, 4)], {"k": 5}),
        ("TopK", [(3, 4)], {"k": -1}),
    ],
)
def test_wrong_attributes_are_refused(kind, shapes_, attrs):
    builder = GraphBuilder()
    outs = {"TopK": ["f32", "s64"], "ArgMax": ["s64"]}.get(kind, ["f32"])
    inputs = [builder.input(shape) for shape in shapes_]
    with pytest.raises(InvalidArgumentError):
        _finish(builder, kind, inputs, dtype=outs, n=len(outs), **attrs)


@pytest.mark.parametrize(
    ("kind", "ports", "attrs"),
    [
        ("Gather", [("f32", (3, 4)), ("s64", (2,))], {"axis": 2}),
        ("Gather", [("f32", (3, 0)), ("s64", (2,))], {"axis": 1}),
        ("Gather", [("f32", (3, 4)), ("u8", (2,))], {}),
        ("GatherElements", [("f32", (3, 4)), ("s64", (2,))], {}),
        ("GatherElements", [("f32", (3, 4)), ("s64", (2, 5))], {"axis": 0}),
        ("Pad", [("s32", (3,))], {"pads_begin": [1], "pads_end": [1], "value": 2147483647.0}),
        ("Pad", [("u8", (3,))], {"pads_begin": [1], "pads_end": [1], "value": 0.5}),
        ("GatherND", [("f32", (3, 4)), ("s64", (2, 3))], {}),
        ("GatherND", [("f32", (3, 4)), ("s64", (2, 1))], {"batch_dims": 1}),
        ("GatherND", [("f32", (3, 4)), ("s64", ())], {}),
        ("ScatterND", [("f32", (3, 4)), ("s64", (2, 1)), ("f32", (2, 3))], {}),
        ("ScatterElements", [("f32", (3, 4)), ("s64", (2, 2)), ("f32", (2, 1))], {}),
        ("ScatterElements", [("boolean", (3, 4)), ("s64", (2, 2)), ("boolean", (2, 2))], {"reduction": "add"}),
        ("OneHot", [("s64", (3,)), ("f32", (2,))], {"depth": 0}),
        ("OneHot", [("s64", (3,)), ("f32", (3,))], {"depth": 2}),
        ("RotaryEmbedding", [("f32", (1, 2, 3, 4)), ("f32", (1, 3, 3)), ("f32", (1, 3, 3))], {}),
        ("RotaryEmbedding", [("f32", (1, 3, 8)), ("f32", (1, 3, 2)), ("f32", (1, 3, 2))], {"num_heads": 3}),
    ],
)
def test_inputs_that_do_not_fit_are_refused(kind, ports, attrs):
    builder = GraphBuilder()
    inputs = [builder.input(shape, dtype) for dtype, shape in ports]
    with pytest.raises(InvalidArgumentError):
        _finish(builder, kind, inputs, dtype=inputs[1].dtype if kind == "OneHot" else None, **attrs)
