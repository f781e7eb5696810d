"""What host functions, texts and loops take: predicted, bounded, or named as what only a run tells."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphpool as gp

node = helper.make_node
RNG = np.random.default_rng(5)
FLOAT, DOUBLE, INT64, STRING = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64, TensorProto.STRING
ELEM = {
    np.dtype(np.float32): FLOAT, np.dtype(np.float64): DOUBLE, np.dtype(np.int64): INT64, np.dtype("O"): STRING,
    np.dtype(bool): TensorProto.BOOL,
}  # fmt: skip
WORDS = np.array(["".join(RNG.choice(list("abcdefgh"), 12)) for _ in range(900)], object)
MATRIX = RNG.standard_normal((60, 70)).astype(np.float32)
KEYS = sorted(set(WORDS.tolist()))


def make(nodes, feeds, y, weights=()):
    """A model of these inputs' shapes."""
    infos = [helper.make_tensor_value_info(name, ELEM[value.dtype], value.shape) for name, value in feeds.items()]
    result = helper.make_tensor_value_info("y", y, None) if isinstance(y, int) else y
    graph = helper.make_graph(nodes, "g", infos, [result], list(weights))
    imports = [
        helper.make_opsetid("", 21),
        helper.make_opsetid("ai.onnx.ml", 3),
        helper.make_opsetid("com.microsoft", 1),
    ]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def sequence(elem=FLOAT):
    return helper.make_value_info("y", helper.make_sequence_type_proto(helper.make_tensor_type_proto(elem, None)))


def map_of(elem):
    return helper.make_sequence_type_proto(helper.make_map_type_proto(elem, helper.make_tensor_type_proto(FLOAT, [])))


def encoder(**attrs):
    return [node("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", **attrs)]


def texts(name, values):
    return helper.make_tensor(name, STRING, [len(values)], [value.encode() for value in values])


NUMBERS = list(range(len(KEYS)))
PLACES = {"x": MATRIX, "z": MATRIX, "p": np.array(1)}
GRID = node("AffineGrid", ["x", "n"], ["y"])
MADE = node("SequenceConstruct", ["x", "z"], ["s"])
CASES = {
    "many parts": (
        [node("SplitToSequence", ["x"], ["s"], axis=1), node("ConcatFromSequence", ["s"], ["y"], axis=1)],
        {"x": RNG.standard_normal((1, 400)).astype(np.float32)}, FLOAT),
    "det": ([node("Det", ["x"], ["y"])], {"x": RNG.standard_normal((300, 7, 7)).astype(np.float32)}, FLOAT),
    "grid": ([GRID], {"x": MATRIX[:1, :6].reshape(1, 2, 3), "n": np.array([1, 3, 50, 80])}, FLOAT),
    "grid of f64": (
        [GRID], {"x": MATRIX[:1, :6].reshape(1, 2, 3).astype(float), "n": np.array([1, 3, 50, 80])}, DOUBLE),
    "volumes of f64": (
        [GRID], {"x": MATRIX[:2, :12].reshape(2, 3, 4).astype(float), "n": np.array([2, 3, 20, 30, 9])}, DOUBLE),
    "grids": ([GRID], {"x": MATRIX[:4, :6].reshape(4, 2, 3), "n": np.array([4, 3, 50, 80])}, FLOAT),
    "volumes": ([GRID], {"x": MATRIX[:1, :12].reshape(1, 3, 4), "n": np.array([1, 3, 20, 30, 9])}, FLOAT),
    "unpool": (
        [node("MaxPool", ["x"], ["p", "i"], kernel_shape=[2, 2], strides=[2, 2]),
         node("MaxUnpool", ["p", "i"], ["y"], kernel_shape=[2, 2], strides=[2, 2])],
        {"x": MATRIX.reshape(1, 1, 60, 70)}, FLOAT),
    "insert": ([MADE, node("SequenceInsert", ["s", "x", "p"], ["y"])], PLACES, sequence()),
    "insert, joined": (
        [MADE, node("SequenceInsert", ["s", "x", "p"], ["t"]), node("ConcatFromSequence", ["t"], ["y"], axis=0)],
        PLACES, FLOAT),
    "erase": ([MADE, node("SequenceErase", ["s", "p"], ["y"])], PLACES, sequence()),
    "at": ([MADE, node("SequenceAt", ["s", "p"], ["t"]), node("Relu", ["t"], ["y"])], PLACES, FLOAT),
    "split": (
        [node("SplitToSequence", ["x", "p"], ["s"]), node("ConcatFromSequence", ["s"], ["y"], axis=1)],
        {"x": MATRIX, "p": np.array([30, 30])}, FLOAT),
    "texts to numbers": (encoder(keys_strings=KEYS, values_int64s=NUMBERS), {"x": WORDS}, INT64),
    "numbers to texts": (encoder(keys_int64s=NUMBERS, values_strings=KEYS), {"x": np.arange(500)}, STRING),
    "one hot": (
        [node("OneHotEncoder", ["x"], ["y"], domain="ai.onnx.ml", cats_strings=KEYS[:50])], {"x": WORDS}, FLOAT),
    "counts": (
        [node("TfIdfVectorizer", ["x"], ["y"], mode="IDF", min_gram_length=1, max_gram_length=1, max_skip_count=0,
              pool_strings=KEYS, ngram_counts=[0], ngram_indexes=NUMBERS)], {"x": WORDS.reshape(30, 30)}, FLOAT),
    "maps": (
        [node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=list(range(70)))], {"x": MATRIX},
        helper.make_value_info("y", map_of(INT64))),
    "rows of texts": ([node("Gather", ["t", "x"], ["y"])], {"x": np.arange(500)}, STRING, [texts("t", KEYS)]),
    "constant texts": (
        [node("Identity", ["t"], ["y"]), node("Relu", ["x"], ["z"])], {"x": MATRIX}, STRING, [texts("t", KEYS)]),
    "texts as they are": ([node("Identity", ["x"], ["y"])], {"x": WORDS}, STRING),
    "one after another": (
        [node("Unique", ["x"], ["u", "", "i"]), node("Unique", ["i"], ["v"]), node("Cast", ["v"], ["y"], to=FLOAT)],
        {"x": np.arange(4000) % 7}, FLOAT),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_no_run_takes_more_than_predicted(case):
    nodes, feeds, *rest = CASES[case]
    with gp.onnx.load(make(nodes, feeds, *rest), threads=1) as model:
        loaded = model.engine.budget.peak
        peak = model.predict_peak(feeds)
        found = model.run(feeds)
        assert found
        assert not peak.unbounded
        measured = max(loaded, model.engine.budget.peak)
        assert measured <= max(peak, loaded)
        assert measured == max(peak, loaded) or not peak.is_exact


def trips(nodes, state=("v", "w", [60, 70]), rows=()):
    """A Loop as many times as an input says."""
    name, then, shape = state
    body = helper.make_graph(
        [node("Identity", ["c"], ["d"]), *nodes], "body",
        [helper.make_tensor_value_info("n", INT64, []), helper.make_tensor_value_info("c", TensorProto.BOOL, []),
         helper.make_tensor_value_info(name, FLOAT, shape)],
        [helper.make_tensor_value_info("d", TensorProto.BOOL, []), helper.make_tensor_value_info(then, FLOAT, shape),
         *(helper.make_tensor_value_info(row, FLOAT, shape) for row in rows)],
    )  # fmt: skip
    outputs = ["last", "y"] if rows else ["y"]
    return [node("Loop", ["m", "", "x"], outputs, "round", body=body)], {"m": np.array(40), "x": MATRIX}, FLOAT


ONLY_A_RUN_TELLS = {
    "rows": trips([node("Relu", ["v"], ["w"]), node("Identity", ["w"], ["r"])], rows=["r"]),
    "growth": trips([node("Concat", ["v", "x"], ["w"], axis=0)], state=("v", "w", [None, 70])),
    "words": ([node("Tokenizer", ["x"], ["y"], "round", domain="com.microsoft", separators=["a"], mincharnum=1,
                    pad_value="#", mark=0)], {"x": WORDS}, STRING),
    "joined texts": ([node("StringConcat", ["x", "x"], ["y"], "round")], {"x": WORDS}, STRING),
    "capitals": ([node("StringNormalizer", ["x"], ["y"], "round", case_change_action="UPPER")], {"x": WORDS}, STRING),
    "numbers as texts": ([node("Cast", ["x"], ["y"], "round", to=STRING)], {"x": MATRIX}, STRING),
}  # fmt: skip


@pytest.mark.parametrize("case", ONLY_A_RUN_TELLS)
def test_what_only_a_run_tells_is_named_charged_and_refused(case):
    nodes, feeds, *rest = ONLY_A_RUN_TELLS[case]
    proto = make(nodes, feeds, *rest)
    with gp.onnx.load(proto, threads=1) as model:
        peak = model.predict_peak(feeds)
        assert peak.unbounded == ("round",)
        assert not peak.is_exact
        again = pickle.loads(pickle.dumps(peak))
        assert (again, again.unbounded, again.is_exact) == (peak, peak.unbounded, False)
        model.run(feeds)
        taken = model.engine.budget.peak
        assert taken > peak
    limited = gp.onnx.load(proto, threads=1, memory_limit=(peak + taken) // 2)
    with limited as model, pytest.raises(gp.OutOfMemoryError):
        model.run(feeds)


def test_a_state_of_fixed_shape_is_bounded_whatever_the_trips():
    nodes, feeds, y = trips([node("Relu", ["v"], ["w"])])
    for count in (0, 1, 40):
        with gp.onnx.load(make(nodes, feeds, y), threads=1) as model:
            peak = model.predict_peak(feeds | {"m": np.array(count)})
            model.run(feeds | {"m": np.array(count)})
            assert not peak.unbounded
            assert model.engine.budget.peak <= peak


def test_texts_count_until_their_array_is_gone():
    nodes, feeds, y = ONLY_A_RUN_TELLS["joined texts"]
    with gp.onnx.load(make(nodes, feeds, y), threads=1) as model:
        before = model.engine.budget.in_use
        found = model.run(feeds)["y"]
        assert model.engine.budget.in_use - before >= sum(map(len, found.tolist())) + found.nbytes
        view = found[:3]
        del found
        assert model.engine.budget.in_use > before
        del view
        assert model.engine.budget.in_use == before


def test_tables_and_constants_of_texts_count_while_the_model_is_open():
    weights = sum(map(len, KEYS))
    for nodes, feeds, *rest in (CASES["texts to numbers"], CASES["rows of texts"], CASES["constant texts"]):
        with gp.Engine(threads=1) as engine:
            with gp.onnx.load(make(nodes, feeds, *rest), engine=engine) as model:
                model.specialise(feeds)
                assert engine.budget.in_use >= weights + 8 * len(KEYS)
                assert engine.budget.holdings()["constants"] >= weights + 8 * len(KEYS)
            assert engine.budget.in_use == 0


def test_objects_of_python_are_in_the_resident_prediction():
    nodes, feeds, y = CASES["maps"]
    with gp.onnx.load(make(nodes, feeds, y), threads=1) as model:
        peak = model.predict_peak(feeds)
        assert peak.objects_nbytes >= MATRIX.size * (8 + 24)
        fixed = peak.mapped_nbytes + peak.fixed_nbytes - peak.untouched_nbytes
        assert peak.resident_nbytes == peak + fixed + peak.objects_nbytes


@pytest.mark.parametrize("place", [0, 1, 2, -1, -2])
def test_sequences_follow_places_of_the_run(place):
    one, two = MATRIX[:3], MATRIX[3:7]
    feeds = {"x": one, "z": two, "p": np.array(place)}
    with gp.onnx.load(make([MADE, node("SequenceInsert", ["s", "x", "p"], ["y"])], feeds, sequence())) as model:
        wanted = [one, two]
        wanted.insert(place, one)
        for got, expected in zip(model.run(feeds)["y"], wanted, strict=True):
            np.testing.assert_array_equal(got, expected)
    for op in ("SequenceAt", "SequenceErase"):
        y = sequence() if op == "SequenceErase" else FLOAT
        with gp.onnx.load(make([MADE, node(op, ["s", "p"], ["y"])], feeds, y)) as model:
            if place == 2:
                with pytest.raises(gp.BackendError, match="position 2 in a sequence of 2"):
                    model.run(feeds)
                continue
            found, wanted = model.run(feeds)["y"], [one, two]
            if op == "SequenceAt":
                np.testing.assert_array_equal(found, wanted[place])
            else:
                del wanted[place]
                np.testing.assert_array_equal(found[0], wanted[0])


@pytest.mark.parametrize(("split", "keepdims"), [([2, 0, 5], 1), (3, 1), (7, 1), (None, 0), (None, 1)])
def test_parts_follow_sizes_of_the_run(split, keepdims):
    x = MATRIX[:7]
    given = [] if split is None else ["p"]
    feeds = {"x": x, "c": np.array(True)} | ({} if split is None else {"p": np.array(split)})
    parts = [node("SplitToSequence", ["t", *given], ["s"], keepdims=keepdims), node("SequenceAt", ["s", "zero"], ["y"])]
    then = helper.make_graph(
        [node("Identity", ["x"], ["a"])], "t", [], [helper.make_tensor_value_info("a", FLOAT, None)]
    )
    other = helper.make_graph([node("Neg", ["x"], ["b"])], "e", [], [helper.make_tensor_value_info("b", FLOAT, None)])
    late = node("If", ["c"], ["t"], then_branch=then, else_branch=other)
    proto = make([late, *parts], feeds, FLOAT, [numpy_helper.from_array(np.array(0), "zero")])
    with gp.onnx.load(proto) as model:
        got = model.run(feeds)["y"]
    size = 1 if split is None else np.ravel(split)[0]
    np.testing.assert_array_equal(got, x[:size] if split is not None or keepdims else x[0])


@pytest.mark.parametrize(
    ("nempty", "expected", "text"),
    [(0, gp.InvalidShapeError, r"node 's' \(SplitToSequence\).* 60 in all"), (15, gp.BackendError, "of 60")],
)
def test_parts_that_do_not_add_up_are_refused(nempty, expected, text):
    """By the host where there are too many for sizes."""
    feeds = {"x": MATRIX, "p": np.array([30, 31] + [0] * nempty)}
    nodes = [node("SplitToSequence", ["x", "p"], ["s"]), node("ConcatFromSequence", ["s"], ["y"], axis=1)]
    with gp.onnx.load(make(nodes, feeds, FLOAT)) as model, pytest.raises(expected, match=text):
        model.run(feeds)


def test_branches_that_trips_keep_open_are_in_the_prediction():
    square = (64, 64)

    def branch(name):
        names = ["v", *(f"{name}{number}" for number in range(5)), f"{name}y"]
        moves = [("MatMul", [one, "v"]) if k % 2 else ("Softmax", [one]) for k, one in enumerate(names[:-1])]
        nodes = [node(op, read, [to]) for (op, read), to in zip(moves, names[1:], strict=True)]
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(names[-1], FLOAT, square)])

    choices = [node("If", ["b"], [f"i{k}"], then_branch=branch(f"t{k}"), else_branch=branch(f"e{k}")) for k in range(3)]
    odd = [node("Mod", ["n", "two"], ["r"]), node("Cast", ["r"], ["b"], to=TensorProto.BOOL)]
    nodes, feeds, y = trips([*odd, *choices, node("Mean", ["i0", "i1", "i2"], ["w"])], state=("v", "w", square))
    feeds["x"] = RNG.standard_normal(square).astype(np.float32)
    proto = make(nodes, feeds, y, [numpy_helper.from_array(np.array(2), "two")])
    with gp.onnx.load(proto, threads=1) as model:
        peak = model.predict_peak(feeds)
        wanted = model.run(feeds)["y"]
        assert not peak.unbounded
        assert model.engine.budget.peak <= peak
    with gp.onnx.load(proto, threads=1, memory_limit=int(peak)) as model:
        np.testing.assert_array_equal(model.run(feeds)["y"], wanted)


def choices_in_a_row(count, *before):
    """Branches one after another, each with a place for 64 KiB and more, behind these nodes that make s of x."""
    square = (160, 160)

    def branch(name, read, first, last):
        result = helper.make_tensor_value_info(f"{name}y", FLOAT, square)
        nodes = [node(first, [read], [f"{name}a"]), node(last, [f"{name}a"], [f"{name}y"])]
        return helper.make_graph(nodes, name, [], [result])

    nodes = [*before, node("ReduceMax", ["s"], ["m"], keepdims=0), node("Greater", ["m", "l"], ["b"])]
    nodes.append(node("Softmax", ["x"], ["i0"]))
    for k in range(count):
        branches = {"then_branch": branch(f"t{k}", f"i{k}", "Softmax", "Softmax")}
        branches["else_branch"] = branch(f"e{k}", f"i{k}", "Softmax", "Tanh")
        nodes.append(node("If", ["b"], [f"i{k + 1}"], **branches))
    nodes.append(node("Identity", [f"i{count}"], ["y"]))
    feeds = {"x": RNG.standard_normal(square).astype(np.float32)}
    return make(nodes, feeds, FLOAT, [numpy_helper.from_array(np.array(0, np.float32), "l")]), feeds


def test_what_models_inside_keep_for_the_next_run_is_in_the_prediction():
    proto, feeds = choices_in_a_row(3, node("Unique", ["x"], ["s"]))
    with gp.onnx.load(proto, threads=1) as model:
        peak = model.predict_peak(feeds)
        assert not peak.unbounded
        for sign in (1, -1, 1):
            model.run({"x": sign * abs(feeds["x"])})
            assert model.engine.budget.peak <= peak


def test_the_limit_that_a_branch_names_counts_the_run_around_it():
    proto, feeds = choices_in_a_row(1, node("Relu", ["x"], ["s"]))
    limit, inside = 1, 0
    while True:
        try:
            with gp.onnx.load(proto, threads=1, memory_limit=limit) as model:
                model.run(feeds)
                break
        except gp.OutOfMemoryError as error:
            limit = max(limit + 1, error.smallest_limit)
            inside += "inside" in str(error)
    assert inside == 1


@pytest.mark.parametrize("is_branch", [False, True])
@pytest.mark.parametrize("length", [64, 255])
def test_a_window_that_does_not_fit_is_refused_without_onnx_evaluator(length, is_branch):
    """In a process that has not imported it yet."""
    weights = [numpy_helper.from_array(np.ones((4, 1, 256), np.float32), "w")]
    nodes = [node("Conv", ["x", "w"], ["y"], "front", strides=[128])]
    if is_branch:
        weights.append(numpy_helper.from_array(np.array(True), "taken"))
        nodes[0].output[0] = "z"
        ends = {"z": nodes, "e": [node("Identity", ["x"], ["e"])]}
        names = zip(("then_branch", "else_branch"), ends.items(), strict=True)
        branches = {
            key: helper.make_graph(inside, key, [], [helper.make_tensor_value_info(name, FLOAT, None)])
            for key, (name, inside) in names
        }
        nodes = [node("If", ["taken"], ["y"], **branches)]
    proto = make(nodes, {"x": np.ones((1, 1, length), np.float32)}, FLOAT, weights)
    code = """
import sys, graphpool as gp
try:
    gp.onnx.load(sys.stdin.buffer.read())
except gp.InvalidShapeError as error:
    assert "node 'front' (Conv)" in str(error), error
    assert "gives no output along spatial dimension 0" in str(error), error
    assert "onnx.reference" not in sys.modules
    sys.exit(7)
"""
    data = proto.SerializeToString()
    assert subprocess.run([sys.executable, "-c", code], input=data, check=False).returncode == 7


def test_a_vocabulary_above_a_limit_is_told_as_such():
    nodes, feeds, y = CASES["counts"]
    with pytest.raises(gp.LimitError, match="folded_nbytes"):
        gp.onnx.load(make(nodes, feeds, y), memory_limit=3000)
