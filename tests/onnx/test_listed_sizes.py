"""Loops of which each trip takes sizes from arrays of integers at its number, as embeddings of bags are exported."""

import numpy as np
import pytest
from onnx import TensorProto

import graphpool as gp
from tests.onnx.test_loops import UNWRITTEN, body_of, floats, info, make, node

INT64 = TensorProto.INT64
FEW_RUNS = 6  # of the model, and where a decision comes out otherwise


SUM = node("ReduceSum", ["rows", "zero"], ["row"], keepdims=0)
MAGNITUDE = node("ReduceL1", ["rows"], ["row"], axes=[0], keepdims=0)
ALL = node("Identity", ["rows"], ["row"])


def bags(reduction=SUM, dtype=INT64):
    """What becomes of the rows of a table at each run of places, which are those from `begins` to `ends`."""
    cut = [
        node("Gather", ["begins", "i"], ["b"], axis=0), node("Gather", ["ends", "i"], ["e"], axis=0),
        node("Unsqueeze", ["b", "zero"], ["from"]), node("Unsqueeze", ["e", "zero"], ["to"]),
        node("Slice", ["places", "from", "to", "zero"], ["own"]), node("Gather", ["table", "own"], ["rows"], axis=0),
    ]  # fmt: skip
    body = body_of([*cut, reduction], [], [info("row", None)])
    nodes = [
        node("Shape", ["begins"], ["shape"]), node("Squeeze", ["shape"], ["n"]),
        node("Loop", ["n", "yes"], ["y"], body=body),
    ]  # fmt: skip
    ports = [info("begins", ["n"], dtype), info("ends", ["m"], dtype), info("places", ["k"], INT64)]
    return make(nodes, [*ports, info("table", [9, 3])], {"y": None}, {"zero": np.array([0]), "yes": np.array(True)})


def expected(begins, ends, places, table, reduce):
    """The same with NumPy, of which slices are those of ONNX where steps are 1."""
    return np.stack([reduce(table[places[b:e]]) for b, e in zip(begins, ends, strict=False)])


def test_sums_of_bags(runs):
    table, rng = floats(9, 3), np.random.default_rng(0)
    with gp.onnx.load(bags(), fallback=False, limits=UNWRITTEN) as model:
        for count in (1, 2, 40, 300):
            begins = np.sort(rng.integers(0, 90, count))
            ends = np.append(begins[1:], 90)
            places = rng.integers(0, 9, 90)
            feeds = {"begins": begins, "ends": ends, "places": places, "table": table}
            model.run(feeds)
            before = len(runs)
            found = model.run(feeds)["y"]
            np.testing.assert_allclose(found, expected(*feeds.values(), lambda rows: rows.sum(0)), rtol=2e-5, atol=1e-5)
            assert len(runs) - before <= count // 2 + FEW_RUNS


@pytest.mark.parametrize("dtype", [INT64, TensorProto.INT32])
def test_bounds_anywhere(dtype):
    table, rng = floats(9, 3), np.random.default_rng(1)
    numpy_type = np.int64 if dtype == INT64 else np.int32
    with gp.onnx.load(bags(MAGNITUDE, dtype), fallback=False, limits=UNWRITTEN) as model:
        for least, most in ((0, 12), (-30, 30), (-3, 40), (5, 6)):
            begins, ends = (rng.integers(least, most, 50).astype(numpy_type) for _ in range(2))
            feeds = {"begins": begins, "ends": ends, "places": rng.integers(0, 9, 12), "table": table}
            found = model.run(feeds)["y"]
            np.testing.assert_allclose(found, expected(*feeds.values(), lambda rows: abs(rows).sum(0)), rtol=2e-5)


def test_bounds_of_64_bits():
    big = 2**62
    feeds = {
        "begins": np.array([0, -big, big, 1, -(2**63)]), "ends": np.array([big, big, big, -big, 2**63 - 1]),
        "places": np.arange(5), "table": floats(9, 3),
    }  # fmt: skip
    with gp.onnx.load(bags(), fallback=False, limits=UNWRITTEN) as model:
        found = model.run(feeds)["y"]
    np.testing.assert_allclose(found, expected(*feeds.values(), lambda rows: rows.sum(0)), rtol=2e-5, atol=1e-6)


def test_more_ends_than_trips():
    feeds = {"begins": np.array([0, 2]), "ends": np.array([2, 3, 4, 5]), "places": np.arange(5), "table": floats(9, 3)}
    with gp.onnx.load(bags(), fallback=False, limits=UNWRITTEN) as model:
        found = model.run(feeds)["y"]
    np.testing.assert_allclose(found, expected(*feeds.values(), lambda rows: rows.sum(0)), rtol=2e-5, atol=1e-6)


def test_fewer_ends_than_trips():
    feeds = {"begins": np.array([0, 2, 3]), "ends": np.array([2, 3]), "places": np.arange(5), "table": floats(9, 3)}
    with gp.onnx.load(bags(), fallback=False, limits=UNWRITTEN) as model, pytest.raises(gp.GraphpoolError):
        model.run(feeds)


def test_rows_as_long_as_the_bags():
    feeds = {"begins": np.arange(4), "ends": np.arange(3, 7), "places": np.arange(8), "table": floats(9, 3)}
    with gp.onnx.load(bags(ALL), fallback=False, limits=UNWRITTEN) as model:
        found = model.run(feeds)["y"]
        np.testing.assert_array_equal(found, expected(*feeds.values(), lambda rows: rows))
        with pytest.raises(gp.GraphpoolError, match="what a trip gives"):
            model.run(feeds | {"ends": np.array([3, 4, 5, 7])})


def test_no_bags():
    feeds = {"begins": np.zeros(0, int), "ends": np.arange(2), "places": np.arange(8), "table": floats(9, 3)}
    with gp.onnx.load(bags(), fallback=False, limits=UNWRITTEN) as model:
        assert len(model.run(feeds)["y"]) == 0
