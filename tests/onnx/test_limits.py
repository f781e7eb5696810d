"""Small files that ask for much: loading takes no more memory than the limit and twice the file, and it ends."""

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphpool as gp
from tests.helpers.onnx_models import node_model, random_array
from tests.helpers.tree import ROOT

LIMIT = 64 << 20
HUGE = 1 << 30
SLACK = 16 << 20
"""What a load takes besides: modules, compiled programs, messages. Unit: bytes."""


def value_info(name, dtype=TensorProto.FLOAT, shape=None):
    return helper.make_tensor_value_info(name, dtype, shape)


def encode(nodes, constants=(), inputs=(), *, rank=1, dtype=TensorProto.FLOAT, functions=()):
    """A serialised model that gives y."""
    infos = [value_info("y", dtype, [None] * rank)]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in dict(constants).items()]
    graph = helper.make_graph(nodes, "g", list(inputs), infos, tensors)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("f", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=functions).SerializeToString()


def fold(kind, constants, *, dtype=TensorProto.FLOAT, rank=1, **attributes):
    """One node whose inputs are all constants."""
    names = list(constants)
    return encode([helper.make_node(kind, names, ["y"], **attributes)], constants, dtype=dtype, rank=rank)


def ints(*values):
    return np.array(values, np.int64)


def doubled(kind, count, **attributes):
    """A value joined with itself, again and again."""
    nodes = [helper.make_node(kind, [f"t{k}"] * 2, [f"t{k + 1}"], **attributes) for k in range(count)]
    return encode([*nodes, helper.make_node("Identity", [f"t{count}"], ["y"])], {"t0": np.ones(4, np.float32)})


def resized(**attributes):
    nodes = [helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], **attributes)]
    return encode(nodes, {"sizes": ints(1, 1, HUGE)}, [value_info("x", shape=[1, 1, 8])], rank=3)


FLOAT = np.float32(1)
FOLDED = {
    "ConstantOfShape": fold("ConstantOfShape", {"s": ints(HUGE)}),
    "Expand": fold("Expand", {"a": FLOAT, "s": ints(HUGE)}),
    "Tile": fold("Tile", {"a": np.ones(1, np.float32), "s": ints(HUGE)}),
    "Range": fold("Range", {"a": np.int64(0), "b": np.int64(HUGE), "c": np.int64(1)}, dtype=TensorProto.INT64),
    "EyeLike": encode(
        [helper.make_node("Expand", ["a", "s"], ["t"]), helper.make_node("EyeLike", ["t"], ["y"])],
        {"a": FLOAT, "s": ints(1 << 15, 1 << 15)}, rank=2,
    ),
    "OneHot": fold("OneHot", {"i": ints(1), "d": np.int64(HUGE), "v": np.array([0, 1], np.float32)}, rank=2),
    "Pad": fold("Pad", {"a": np.ones(1, np.float32), "p": ints(0, HUGE)}),
    "Concat": doubled("Concat", 28, axis=0),
    "outer product": encode(
        [helper.make_node("ConstantOfShape", [f"s{k}"], [f"c{k}"]) for k in (0, 1)]
        + [helper.make_node("Mul", ["c0", "c1"], ["y"])],
        {"s0": ints(1 << 16, 1), "s1": ints(1, 1 << 16)}, rank=2,
    ),
    "Gather": encode(
        [helper.make_node("ConstantOfShape", ["s"], ["c"]), helper.make_node("Cast", ["c"], ["i"], to=7),
         helper.make_node("Gather", ["c", "i"], ["y"])],
        {"s": ints(1 << 10, 1 << 10)}, rank=3,
    ),
    "HannWindow": fold("HannWindow", {"n": np.int64(HUGE)}),
    "Col2Im": fold(
        "Col2Im", {"a": np.ones((1, 1, 1), np.float32), "s": ints(1 << 15, 1 << 15), "b": ints(1, 1)}, rank=4
    ),
    "CenterCropPad": fold("CenterCropPad", {"a": np.ones(1, np.float32), "s": ints(HUGE)}),
    "RandomNormal": encode([helper.make_node("RandomNormal", [], ["y"], shape=[HUGE])]),
    "Resize to a product": resized(mode="linear", coordinate_transformation_mode="asymmetric"),
    "Resize by index": resized(mode="nearest", coordinate_transformation_mode="asymmetric"),
    "Resize that blurs": encode(
        [helper.make_node("Resize", ["x", "", "s"], ["y"], mode="cubic", antialias=1)],
        {"s": np.array([1, 1, 1e-9], np.float32)}, [value_info("x", shape=[1, 1, 1 << 30])], rank=3,
    ),
    "OneHot of a run": encode(
        [helper.make_node("OneHot", ["i", "d", "v"], ["y"])],
        {"d": np.int64(HUGE), "v": np.array([0, 1], np.float32)}, [value_info("i", TensorProto.INT64, [4])], rank=2,
    ),
    "OneHot of nothing": encode(
        [helper.make_node("OneHot", ["i", "d", "v"], ["y"])],
        {"d": np.int64(HUGE), "v": np.array([0, 1], np.float32)}, [value_info("i", TensorProto.INT64, [0])], rank=2,
    ),
    "columns of bytes": encode(
        [helper.make_node("MatMulInteger", ["x", "w"], ["q"]), helper.make_node("Cast", ["q"], ["y"], to=1)], (),
        [value_info("x", TensorProto.UINT8, [0, 4]), value_info("w", TensorProto.INT8, [4, HUGE])], rank=2,
    ),
    "a pool of padding": encode(
        [helper.make_node("LpPool", ["x"], ["y"], kernel_shape=[1 << 29], pads=[1 << 28, 1 << 28])], (),
        [value_info("x", shape=[1, 1, 300])], rank=3,
    ),
    "sequences": encode(
        [helper.make_node("SequenceConstruct", ["a"] * 500, ["s"]),
         helper.make_node("ConcatFromSequence", ["s"], ["t"], axis=0),
         helper.make_node("SequenceConstruct", ["t"] * 500, ["u"]),
         helper.make_node("ConcatFromSequence", ["u"], ["y"], axis=0)],
        {"a": np.ones(1 << 8, np.float32)},
    ),
    "texts": encode(
        [*(helper.make_node("StringConcat", [f"t{k}"] * 2, [f"t{k + 1}"]) for k in range(36)),
         helper.make_node("Identity", ["t36"], ["y"])],
        {"t0": np.array(["a" * 8], object)}, dtype=TensorProto.STRING,
    ),
    "a sparse constant": encode([
        helper.make_node("Constant", [], ["c"], sparse_value=helper.make_sparse_tensor(
            numpy_helper.from_array(np.ones(1, np.float32), "v"), numpy_helper.from_array(ints(0), "i"), [HUGE])),
        helper.make_node("Identity", ["c"], ["y"]),
    ]),
}  # fmt: skip


def load(data, **options):
    """Load a model, and close it; returns the error that refuses it, and the most memory that Python and NumPy took."""
    error = None
    tracemalloc.start()
    try:
        gp.onnx.load(data, threads=1, **options).close()
    except gp.GraphpoolError as refusal:
        error = refusal
    finally:
        peak_nbytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return error, peak_nbytes


@pytest.mark.parametrize("untrusted", [False, True])
@pytest.mark.parametrize("name", FOLDED)
def test_a_small_file_takes_little_memory_to_load(name, untrusted):
    data = FOLDED[name]
    assert len(data) < 7000
    error, peak_nbytes = load(data, memory_limit=LIMIT, untrusted=untrusted)
    assert error is None or isinstance(error, (gp.LimitError, gp.OutOfMemoryError, gp.UnsupportedError))
    assert peak_nbytes <= LIMIT + 2 * len(data) + SLACK


def test_a_condition_that_follows_from_many_inputs_takes_little_memory():
    count = 3000
    names = ["i0", *(f"c{k}" for k in range(1, count))]
    nodes = [helper.make_node("Add", [names[k - 1], f"i{k}"], [names[k]]) for k in range(1, count)]
    one, other = (
        helper.make_graph([helper.make_node(kind, ["i0"], ["b"])], "b", [], [value_info("b", TensorProto.INT64, [])])
        for kind in ("Neg", "Abs")
    )
    nodes += [helper.make_node("Cast", [names[-1]], ["c"], to=TensorProto.BOOL),
              helper.make_node("If", ["c"], ["y"], then_branch=one, else_branch=other)]  # fmt: skip
    inputs = [value_info(f"i{k}", TensorProto.INT64, []) for k in range(count)]
    error, peak_nbytes = load(encode(nodes, (), inputs, rank=0, dtype=TensorProto.INT64), memory_limit=LIMIT)
    assert error is None
    assert peak_nbytes <= LIMIT + SLACK


CHILD = """
import resource, sys
import graphpool as gp
from tests.onnx.test_limits import FOLDED, LIMIT, REFUSED, load

def peak_nbytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10

for _ in range(2):  # what is imported on demand is there the second time
    load(FOLDED["ConstantOfShape"], memory_limit=LIMIT)
    before = peak_nbytes()
for data in (*FOLDED.values(), *(data for data, *_ in REFUSED.values())):
    load(data, memory_limit=LIMIT)
    load(data, memory_limit=LIMIT, untrusted=True)
print(peak_nbytes() - before)
"""


def test_neither_do_the_libraries_underneath():
    """Resident memory of a process that loads all of them: parsers and checkers are not seen by Python."""
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True, cwd=ROOT)
    assert int(done.stdout) <= LIMIT + SLACK


def test_the_error_says_what_was_asked_and_how_to_raise_the_limit():
    data = FOLDED["EyeLike"]
    with pytest.raises(gp.LimitError, match=r"node 'y': a table .* limit folded_nbytes; .* raise it: limits=") as e:
        gp.onnx.load(data, limits=gp.Limits(folded_nbytes=1000))
    assert (e.value.limit, e.value.value, e.value.asked, e.value.node) == ("folded_nbytes", 1000, 2**34, "y")


def test_what_is_too_large_to_be_computed_ahead_is_computed_in_planned_memory():
    data = fold("Expand", {"a": FLOAT, "s": ints(1 << 20)})
    with gp.onnx.load(data, limits=gp.Limits(folded_nbytes=1000)) as model:
        assert model.stats().constants_nbytes < 1000
        np.testing.assert_array_equal(model.run({})["y"], np.ones(1 << 20, np.float32))


# ---- loads that would never end

COUNTERS = [("i", TensorProto.INT64), ("c", TensorProto.BOOL)]
VECTOR = [value_info("x", shape=[4])]


def graph_of(nodes, inputs, outputs, shape=()):
    """A graph of an attribute; inputs and outputs as (name, type)."""
    infos = ([value_info(name, dtype, list(shape)) for name, dtype in side] for side in (inputs, outputs))
    return helper.make_graph(list(nodes), "inner", *infos)


def nested_loops(depth, trips):
    kept = helper.make_node("Identity", ["c"], ["d"])
    body = graph_of([kept], COUNTERS, [("d", TensorProto.BOOL)])
    for _ in range(depth):
        body = graph_of([helper.make_node("Loop", ["n", ""], ["unused"], body=body_with_value(body)), kept], COUNTERS,
                        [("d", TensorProto.BOOL)])  # fmt: skip
    nodes = [helper.make_node("Loop", ["n", "", "a"], ["y"], body=body_with_value(body, "v"))]
    return encode(nodes, {"n": np.int64(trips), "a": np.ones(1, np.float32)})


def body_with_value(body, carried=None):
    """The body of a loop with a result besides the condition: a value that is carried, or the number of the round."""
    own = helper.make_graph(body.node, "inner", list(body.input), list(body.output))
    if carried is None:
        own.output.append(value_info("i", TensorProto.INT64, []))
    else:
        own.input.append(value_info(carried, shape=[1]))
        own.output.append(value_info(carried, shape=[1]))
    return own


def endless():
    """A loop that changes a number for 2**63 iterations."""
    body = graph_of([helper.make_node("Neg", ["v"], ["w"])], COUNTERS, COUNTERS[1:])
    body.input.append(value_info("v", shape=[1]))
    body.output.append(value_info("w", shape=[1]))
    nodes = [helper.make_node("Loop", ["n", "t", "a"], ["y"], name="round", body=body)]
    return encode(nodes, {"n": np.int64(2**63 - 1), "t": np.bool_(True), "a": np.ones(1, np.float32)})


def calling(count, calls, last=("Neg", "")):
    """Functions that each call the next so many times."""
    functions = []
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("f", 1)]
    for k in range(count):
        kind, domain = last if k == count - 1 else (f"f{k + 1}", "f")
        names = ["a", *(f"t{j}" for j in range(calls - 1)), "b"]
        nodes = [helper.make_node(kind, [names[j]], [names[j + 1]], domain=domain) for j in range(calls)]
        functions.append(helper.make_function("f", f"f{k}", ["a"], ["b"], nodes, opsets))
    return encode([helper.make_node("f0", ["x"], ["y"], domain="f")], (), VECTOR, functions=functions)


def in_branches(depth):
    branch = graph_of([helper.make_node("Neg", ["x"], ["b"])], [], [("b", TensorProto.FLOAT)], [4])
    for _ in range(depth):
        node = helper.make_node("If", ["c"], ["b"], then_branch=branch, else_branch=branch)
        branch = graph_of([node], [], [("b", TensorProto.FLOAT)], [4])
    return encode([helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)], {"c": np.bool_(True)},
                  VECTOR)  # fmt: skip


def long_scan(length):
    body = graph_of([helper.make_node("Neg", ["v"], ["w"])], [("v", TensorProto.FLOAT)], [("w", TensorProto.FLOAT)])
    nodes = [helper.make_node("Scan", ["x"], ["y"], body=body, num_scan_inputs=1)]
    return encode(nodes, (), [value_info("x", shape=[length])])


def leaves(count, mode="LEAF"):
    """Trees of a leaf each."""
    node = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", nodes_treeids=range(count),
        nodes_nodeids=[0] * count, nodes_featureids=[0] * count, nodes_modes=[mode] * count,
        nodes_values=[0.0] * count, n_targets=1,
        nodes_truenodeids=[0] * count, nodes_falsenodeids=[0] * count, target_treeids=range(count),
        target_nodeids=[0] * count, target_ids=[0] * count, target_weights=[1.0] * count,
    )  # fmt: skip
    graph = helper.make_graph([node], "g", [value_info("x", shape=[None, 1])], [value_info("y", shape=[None, 1])])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


REFUSED = {
    "functions that call twice": (calling(20, 2), {}, "nodes", "f"),
    "a deep chain of functions": (calling(200, 1), {}, "depth", "f"),
    "a function that calls itself": (calling(1, 1, ("f0", "f")), {}, "depth", "f0"),
    "functions in a circle": (calling(4, 1, ("f0", "f")), {}, "depth", "f"),
    "deep branches": (in_branches(6), {"limits": gp.Limits(depth=5)}, "depth", ""),
    "many nodes": (calling(3, 8), {"limits": gp.Limits(nodes=100)}, "nodes", "f"),
    "a long attribute": (
        encode([helper.make_node("Constant", [], ["y"], value_floats=[1.0] * 50)]),
        {"limits": gp.Limits(items=49)}, "items", "Constant",
    ),
    "a long text": (
        encode([helper.make_node("Cast", ["x"], ["y"], to=1, round_mode="up" * 50)], (), VECTOR),
        {"limits": gp.Limits(text_nbytes=99)}, "text_nbytes", "Cast",
    ),
    "long words in trees": (
        leaves(5, "BRANCH_LEQ" * 5).SerializeToString(), {"limits": gp.Limits(text_nbytes=99)}, "text_nbytes",
        "TreeEnsembleRegressor",
    ),
    "a tensor of many dimensions": (
        encode([helper.make_node("Identity", ["a"], ["y"])], {"a": np.ones([1] * 20, np.float32)}, rank=20),
        {"untrusted": True}, "rank", None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_not_end_is_refused_before_it_begins(name):
    data, options, limit, node = REFUSED[name]
    with pytest.raises(gp.LimitError, match=f"limit {limit}; accepted: at most") as e:
        gp.onnx.load(data, threads=1, **options)
    assert e.value.limit == limit
    assert e.value.asked > e.value.value
    assert node is None or (e.value.node or "").startswith(node)


@pytest.mark.parametrize("count", [30, 3000])
@pytest.mark.parametrize("is_file", [True, False])
def test_words_of_trees_are_no_text(count, is_file):
    proto = leaves(count)
    data = proto.SerializeToString() if is_file else proto
    with gp.onnx.load(data, threads=1, fallback=False, limits=gp.Limits(text_nbytes=99)) as model:
        assert model.run({"x": np.zeros((2, 1), np.float32)})["y"].tolist() == [[count], [count]]


@pytest.mark.parametrize("data", [endless(), nested_loops(3, 2**62), nested_loops(6, 4000), long_scan(10**6)])
def test_long_loops_are_not_written_out(data):
    gp.onnx.load(data, threads=1, memory_limit=LIMIT).close()


@pytest.mark.parametrize("options", [
    {"limits": gp.Limits(host_steps=1000)}, {"limits": gp.Limits(host_deadline_s=0.2)}, {"untrusted": True},
])  # fmt: skip
def test_a_loop_that_never_ends_is_stopped(options):
    with gp.onnx.load(endless(), **options) as model:
        for _ in range(2):  # each run has its own
            with pytest.raises(gp.LimitError, match=r"node 'round': (work|time) of the host exceeds the limit host_"):
                model.run({})


def test_the_deadline_is_an_argument():
    with gp.onnx.load(endless(), host_deadline_s=0.1) as model, pytest.raises(gp.LimitError, match="host_deadline_s"):
        model.run({})


def test_steps_are_counted_for_each_run():
    model, inputs = node_model("Det", [random_array((3, 3))])
    with gp.onnx.load(model, limits=gp.Limits(host_steps=20)) as loaded:
        for _ in range(30):
            loaded.run(inputs)


# ---- work of one host op


def test_samples_of_a_region_are_counted_before_they_are_taken():
    """In f64, which the host runs; the kernel for f32 looks at samples within the image alone."""
    small, large = (np.array([[0.0, 0, size, size]]) for size in (3, 1e6))
    image = random_array((1, 1, 4, 4)).astype(np.float64)
    model, inputs = node_model("RoiAlign", [image, small, ints(0)], sampling_ratio=0)
    with gp.onnx.load(model) as loaded:
        loaded.run(inputs)
        with pytest.raises(gp.LimitError, match="'the_RoiAlign': work of the host"):
            loaded.run(inputs | {"x1": large})


def test_regular_expressions_do_not_backtrack():
    texts = np.array(["a" * 60, "aab"], object)
    data = encode([helper.make_node("RegexFullMatch", ["x"], ["y"], pattern="(a+)+b")], (),
                  [value_info("x", TensorProto.STRING, [2])], dtype=TensorProto.BOOL)  # fmt: skip
    with gp.onnx.load(data) as model:
        np.testing.assert_array_equal(model.run({"x": texts})["y"], [False, True])
    with pytest.raises(gp.UnsupportedError, match="RegexFullMatch"):
        gp.onnx.load(data, untrusted=True)
