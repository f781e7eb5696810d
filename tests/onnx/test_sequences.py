"""Sequences of known length are values side by side: no host function makes or takes them."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphpool as gp

node = helper.make_node
NUMBERS = {"zero": 0, "one": 1, "two": 2, "last": -1}
BODY = helper.make_graph(
    [
        node("Gather", ["x", "i"], ["row"], axis=0),
        node("SequenceInsert", ["before", "row"], ["after"]),
        node("Identity", ["goes"], ["on"]),
    ],
    "body",
    [
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
        helper.make_tensor_value_info("goes", TensorProto.BOOL, []),
        helper.make_tensor_sequence_value_info("before", TensorProto.FLOAT, None),
    ],
    [
        helper.make_tensor_value_info("on", TensorProto.BOOL, []),
        helper.make_tensor_sequence_value_info("after", TensorProto.FLOAT, None),
    ],
)
MAPPED = helper.make_graph(
    [node("Shape", ["item"], ["shape"]), node("Size", ["shape"], ["rank"]), node("Equal", ["rank", "two"], ["flat"]),
     node("If", ["flat"], ["sum"], then_branch=helper.make_graph(
         [node("Add", ["item", "other"], ["a"])], "then", [], [helper.ValueInfoProto(name="a")]),
         else_branch=helper.make_graph(
             [node("Identity", ["item"], ["b"])], "else", [], [helper.ValueInfoProto(name="b")]))],
    "mapped", [helper.ValueInfoProto(name="item"), helper.ValueInfoProto(name="other")],
    [helper.ValueInfoProto(name="sum")])  # fmt: skip
"""A sum, by a branch that sees what is outside."""

PAIR = [node("Relu", ["x"], ["r"]), node("SequenceConstruct", ["x", "r"], ["s"])]
EMPTY = node("SequenceEmpty", [], ["e"], dtype=TensorProto.FLOAT)


def relu(x):
    return np.maximum(x, 0)


CASES = {
    "an element": ([*PAIR, node("SequenceAt", ["s", "last"], ["y"])], relu),
    "one put in": (
        [*PAIR, node("SequenceInsert", ["s", "x", "zero"], ["t"]), node("SequenceErase", ["t", "two"], ["u"]),
         node("ConcatFromSequence", ["u"], ["y"], axis=1)],
        lambda x: np.concatenate([x, x], 1)),
    "a stack": (
        [*PAIR, node("ConcatFromSequence", ["s"], ["y"], axis=-1, new_axis=1)], lambda x: np.stack([x, relu(x)], -1)),
    "given parts": (
        [node("SplitToSequence", ["x", "sizes"], ["s"], axis=1), node("SequenceAt", ["s", "one"], ["y"])],
        lambda x: x[:, 2:]),
    "parts of one size": (
        [node("SplitToSequence", ["x", "two"], ["s"]), node("SequenceAt", ["s", "last"], ["y"])],
        lambda x: x[len(x) - (len(x) % 2 or 2) :]),
    "rows": (
        [node("SplitToSequence", ["x"], ["s"], keepdims=0), node("SequenceAt", ["s", "one"], ["y"])], lambda x: x[1]),
    "rows as PyTorch writes unbind": (
        [node("SplitToSequence", ["x", "one"], ["s"], keepdims=0), node("SequenceAt", ["s", "last"], ["y"])],
        lambda x: x[-1]),
    "a length": (
        [node("SplitToSequence", ["x"], ["s"]), node("SequenceLength", ["s"], ["n"]),
         node("Cast", ["n"], ["f"], to=1), node("Mul", ["x", "f"], ["y"])],
        lambda x: x * np.float32(len(x))),
    "rows that a loop collects": (
        [EMPTY, node("Loop", ["two", "", "e"], ["s"], body=BODY), node("ConcatFromSequence", ["s"], ["y"], axis=0)],
        lambda x: x[:2].reshape(-1)),
    "a map": (
        [*PAIR, node("SequenceMap", ["s", "x"], ["t"], body=MAPPED), node("ConcatFromSequence", ["t"], ["y"], axis=0)],
        lambda x: np.concatenate([2 * x, relu(x) + x])),
    "a map as a result": (
        [*PAIR, node("SequenceMap", ["s", "x"], ["y"], body=MAPPED)], lambda x: [2 * x, relu(x) + x]),
    "an optional": (
        [node("Optional", ["x"], ["o"]), node("OptionalGetElement", ["o"], ["g"]), node("Neg", ["g"], ["y"])],
        lambda x: -x),
    "what a search finds": (
        [node("Greater", ["x", "floor"], ["m"]), node("NonZero", ["m"], ["found"]),
         node("Cast", ["found"], ["c"], to=1),
         node("SequenceConstruct", ["c", "x"], ["s"]), node("SequenceAt", ["s", "zero"], ["y"])],
        lambda x: np.array(np.nonzero(x > 0), np.float32)),
    "as a result": ([*PAIR, node("SequenceInsert", ["s", "r"], ["y"])], lambda x: [x, relu(x), relu(x)]),
    "an empty result": ([node("Identity", ["e"], ["y"]), EMPTY][::-1], lambda x: []),
    "a result with what a search finds": (
        [node("Greater", ["x", "floor"], ["m"]), node("NonZero", ["m"], ["found"]),
         node("SequenceConstruct", ["found"], ["y"])],
        lambda x: [np.array(np.nonzero(x > 0))]),
}  # fmt: skip


def load(nodes):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    tensors = [numpy_helper.from_array(np.array(number), key) for key, number in NUMBERS.items()]
    tensors += [numpy_helper.from_array(np.array([2, 2]), "sizes"), numpy_helper.from_array(np.float32(0), "floor")]
    graph = helper.make_graph(nodes, "g", [x], [helper.ValueInfoProto(name="y")], tensors)
    file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    return gp.onnx.load(file, fallback=False)


@pytest.mark.parametrize("name", CASES)
def test_sequences(name):
    nodes, expected = CASES[name]
    with load(nodes) as model:
        for n in (3, 6, 5):
            x = np.random.default_rng(n).standard_normal((n, 4)).astype(np.float32)
            got, want = model.run({"x": x})["y"], expected(x)
            assert isinstance(got, list) == isinstance(want, list)
            if not isinstance(want, list):
                got, want = [got], [want]
            assert len(got) == len(want)
            for mine, theirs in zip(got, want, strict=True):
                np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("name", ["parts of one size", "rows", "rows as PyTorch writes unbind", "a length"])
def test_a_compilation_serves_any_number_of_parts(name):
    nodes, expected = CASES[name]
    with load(nodes) as model:
        for n in (4, 70, 2, 8, 5000):
            x = np.random.default_rng(n).standard_normal((n, 4)).astype(np.float32)
            np.testing.assert_array_equal(model.run({"x": x})["y"], expected(x))
        assert model.stats().compilations == 1


def test_as_many_parts_share_a_compilation():
    with load([node("SplitToSequence", ["x", "two"], ["y"])]) as model:
        for n in (7, 8, 7):
            x = np.random.default_rng(n).standard_normal((n, 4)).astype(np.float32)
            for mine, first in zip(model.run({"x": x})["y"], (0, 2, 4, 6), strict=True):
                np.testing.assert_array_equal(mine, x[first : first + 2])
        assert model.stats().compilations == 1


@pytest.mark.parametrize("n", [5, 64, 65, 300])
def test_an_item_that_an_input_chooses(n):
    nodes = [node("SplitToSequence", ["x", "one"], ["s"], keepdims=0), node("SequenceAt", ["s", "i"], ["y"])]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4]),
              helper.make_tensor_value_info("i", TensorProto.INT64, [])]  # fmt: skip
    one = numpy_helper.from_array(np.array(1), "one")
    model = helper.make_model(helper.make_graph(nodes, "g", inputs, [helper.ValueInfoProto(name="y")], [one]))
    x = np.random.default_rng(n).standard_normal((n, 4)).astype(np.float32)
    with gp.onnx.load(model, fallback=False) as loaded:
        for i in (0, n - 1, -n):
            np.testing.assert_array_equal(loaded.run({"x": x, "i": np.array(i)})["y"], x[i])
