"""LogicalTensor: what it accepts, what it knows, that it never changes."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphpool as gp
from graphpool.typing import DataType


def test_dense_tensor_knows_strides_and_size():
    lt = gp.LogicalTensor(3, "f32", (2, 3, 4))
    assert (lt.ndim, lt.strides, lt.size, lt.nbytes) == (3, (12, 4, 1), 24, 96)
    assert lt.is_dense
    assert lt.dtype is DataType.F32


@pytest.mark.parametrize(
    ("dtype", "shape", "nbytes"),
    [("s4", (3,), 2), ("u4", (5, 3), 8), ("bf16", (), 2), ("f32", (0, 7), 0), ("boolean", (9,), 9), ("s64", (2,), 16)],
)
def test_nbytes(dtype, shape, nbytes):
    assert gp.LogicalTensor(0, dtype, shape).nbytes == nbytes


def test_strides_with_gaps_count():
    assert gp.LogicalTensor(0, "f32", (3, 4), strides=(16, 1)).nbytes == 4 * (2 * 16 + 3 + 1)


@given(st.lists(st.integers(0, 6), max_size=4), st.data())
def test_nbytes_is_what_numpy_spans(shape, data):
    strides = [data.draw(st.integers(1, 50)) for _ in shape]
    lt = gp.LogicalTensor(0, "s16", shape, strides=strides)
    low, high = np.lib.array_utils.byte_bounds(
        np.lib.stride_tricks.as_strided(np.zeros(1, np.int16), shape, [2 * s for s in strides])
    )
    assert lt.nbytes == (high - low if lt.size else 0)


@pytest.mark.parametrize("shape", [None, (gp.UNKNOWN_DIM, 4)])
def test_unknown_shape_has_no_size(shape):
    lt = gp.LogicalTensor(7, "f32", shape)
    assert not lt.is_shape_known
    assert lt.strides is None
    with pytest.raises(gp.InvalidShapeError, match="tensor 7 has no known shape"):
        _ = lt.nbytes


def test_any_layout_has_no_size():
    with pytest.raises(gp.InvalidShapeError, match="layout any has no size yet; query the compiled partition"):
        _ = gp.LogicalTensor(1, "f32", (2,), layout="any").nbytes


@pytest.mark.parametrize(
    ("arguments", "keywords", "error", "message"),
    [
        ((-1, "f32"), {}, gp.InvalidArgumentError, "tensor id; accepted: an int from 0 to 2**64 - 1; got: -1"),
        ((True, "f32"), {}, gp.InvalidArgumentError, "tensor id"),
        ((2**64, "f32"), {}, gp.InvalidArgumentError, "tensor id; accepted: an int from 0 to 2**64 - 1"),
        ((10**5000, "f32"), {}, gp.InvalidArgumentError, "tensor id"),
        ((0, None), {}, gp.InvalidDataTypeError, "unknown data type None"),
        ((0, 7), {}, gp.InvalidDataTypeError, "unknown data type 7"),
        ((0, "f32", (10**5000,)), {}, gp.InvalidShapeError, "number of elements"),
        ((0, "f32", (-(10**5000),)), {}, gp.InvalidShapeError, "dimension 0"),
        ((0, "f32", 3), {}, gp.InvalidShapeError, "shape; accepted: a sequence of ints"),
        (("x", "f32"), {}, gp.InvalidArgumentError, "tensor id"),
        ((0, "float"), {}, gp.InvalidDataTypeError, "unknown data type 'float'; accepted: f64, f32"),
        ((0, "f32", (2, -3)), {}, gp.InvalidShapeError, "tensor 0: dimension 1; accepted: at least 0"),
        ((0, "f32", (1.5,)), {}, gp.InvalidShapeError, "tensor 0: shape; accepted: a sequence of ints"),
        ((0, "f32", (1,) * 13), {}, gp.InvalidShapeError, "rank; accepted: at most 12; got: 13"),
        ((0, "f32", (2**31, 2**31)), {}, gp.InvalidShapeError, "number of elements"),
        ((0, "f32", (2,)), {"layout": "blocked"}, gp.InvalidArgumentError, "unknown layout; accepted: undef, any"),
        ((0, "f32", (2,)), {"property": "const"}, gp.InvalidArgumentError, "unknown property"),
        ((0, "f32", (2, 2)), {"strides": (1,)}, gp.InvalidShapeError, "strides; accepted: one stride of at least 0"),
        ((0, "f32", (2,)), {"strides": (-1,)}, gp.InvalidShapeError, "strides"),
        ((0, "f32", (2,)), {"strides": (1.5,)}, gp.InvalidShapeError, "strides"),
        ((0, "f32", (2,)), {"strides": 1}, gp.InvalidShapeError, "strides"),
        ((0, "f32", (2,)), {"strides": (10**5000,)}, gp.InvalidShapeError, "strides"),
        ((0, "f32", (1,)), {"strides": (2**60,)}, gp.InvalidShapeError, "less than 2**60 apart"),
        ((0, "f32", (5, 3)), {"strides": (2**58, 1)}, gp.InvalidShapeError, "less than 2**60 apart"),
        ((0, "f32", (0, 5)), {"strides": (1, 2**58)}, gp.InvalidShapeError, "less than 2**60 apart"),
        ((0, "f32", (2,)), {"layout": "opaque", "layout_id": "17"}, gp.InvalidArgumentError, "tensor 0: layout id"),
        ((0, "f32", (2,)), {"layout": "opaque", "layout_id": -1}, gp.InvalidArgumentError, "tensor 0: layout id"),
        ((0, "f32", (2,)), {"layout": []}, gp.InvalidArgumentError, "unknown layout"),
        ((0, "f32", (2,)), {"strides": (1,), "layout": "any"}, gp.InvalidShapeError, "strides"),
        ((0, "f32", (2,)), {"layout": "opaque"}, gp.InvalidArgumentError, "layout_id belongs to the opaque layout"),
        ((0, "f32", (2,)), {"layout_id": 5}, gp.InvalidArgumentError, "layout_id belongs to the opaque layout"),
        ((0, "f32", (2,)), {"property": "host_scalar"}, gp.InvalidShapeError, "tensor 0 is a host scalar"),
        ((0, "f32", (2,)), {"property": "constant", "value": 1.0}, gp.InvalidArgumentError, "shape (2,)"),
        ((0, "f32"), {"property": "constant", "value": 1.0}, gp.InvalidArgumentError, "a constant of one element"),
        ((0, "f32", ()), {"value": 1.0}, gp.InvalidArgumentError, "tensor 0: value; accepted: a finite number"),
        ((0, "f32", ()), {"property": "constant", "value": np.inf}, gp.InvalidArgumentError, "a finite number"),
        ((0, "f32", ()), {"property": "constant", "value": "1"}, gp.InvalidArgumentError, "a finite number"),
        ((0, "f32", ()), {"property": "constant", "value": 10**400}, gp.InvalidArgumentError, "a finite number"),
        ((0, "bf16", ()), {"property": "host_scalar"}, gp.InvalidShapeError, "s32, s64 or f32"),
    ],
)
def test_refuses(arguments, keywords, error, message):
    with pytest.raises(error, match=None) as caught:
        gp.LogicalTensor(*arguments, **keywords)
    assert message in str(caught.value)


def test_is_immutable():
    lt = gp.LogicalTensor(0, "f32", (2,))
    with pytest.raises(AttributeError, match=r"tensor.replace\(shape=...\)"):
        lt.shape = (3,)
    assert lt.shape == (2,)


def test_nothing_else_has_the_content_type_of_a_tensor():
    assert not gp.LogicalTensor(0, "f32", (2,)).has_same_content_type(None)


def test_replace_keeps_the_rest():
    lt = gp.LogicalTensor(4, "f32", (2, 3), strides=(8, 1), property="constant")
    assert lt.replace(id=5).strides == (8, 1)
    assert lt.replace(shape=(4, 3)) == gp.LogicalTensor(4, "f32", (4, 3), property="constant")
    half = gp.LogicalTensor(5, "f32", (1,), property="constant", value=np.float32(0.5))
    assert (half.value, half.replace(id=6, shape=(1,)).value) == (0.5, 0.5)
    assert half.replace(shape=(4,)).value is half.replace(property="undef").value is None
    assert half.replace(dtype="s8").value is None
    assert half.replace(shape=[1], dtype=np.float32, property="constant").value == 0.5
    assert lt.replace(shape=np.array([4, 3])).shape == (4, 3)
    opaque = lt.replace(layout="opaque", layout_id=17)
    assert opaque.nbytes == 2 * 64
    assert opaque.replace(layout="strided").layout_id is None


@pytest.mark.parametrize("shape", [None, (), (4,), (2, gp.UNKNOWN_DIM)])
@pytest.mark.parametrize(
    "keywords",
    [
        {}, {"shape": (2, 3), "strides": (8, 1)}, {"shape": (2,), "layout": "any", "property": "variable"},
        {"shape": (2,), "layout": "opaque", "layout_id": 17}, {"shape": (1,), "property": "constant", "value": 0.5},
    ],
)  # fmt: skip
def test_with_shape_is_replace(shape, keywords):
    lt = gp.LogicalTensor(4, "f32", **keywords)
    assert lt.with_shape(shape) == lt.replace(shape=shape)
    assert lt.with_shape(shape).strides == lt.replace(shape=shape).strides


@pytest.mark.parametrize("shape", [(-2,), (2**60,), (1,) * 13])
def test_with_shape_refuses_what_replace_refuses(shape):
    with pytest.raises(gp.InvalidShapeError, match="tensor 4"):
        gp.LogicalTensor(4, "f32").with_shape(shape)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("f32", np.array([0.1])), ("s64", -(2**63)), ("u8", 255), ("boolean", True), ("f16", 65504.0), ("undef", 0.5)],
)
def test_a_value_that_the_type_holds(dtype, value):
    lt = gp.LogicalTensor(0, dtype, (1,), property="constant", value=value)
    assert lt.value == float(np.reshape(value, ()))


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("f32", 1e39), ("f32", np.zeros(2)), ("f32", np.zeros((1, 1))), ("f32", np.inf), ("f32", 1j), ("f16", 65520.0),
     ("s32", 0.5), ("s8", 128), ("u8", -1), ("u4", 16), ("s64", 2**63), ("s64", 2**53 + 1), ("boolean", 2),
     ("f32", "0.5"), ("f32", [])],
)  # fmt: skip
def test_a_value_that_the_type_or_the_shape_does_not_hold(dtype, value):
    with pytest.raises(gp.InvalidArgumentError, match="tensor 7: value"):
        gp.LogicalTensor(7, dtype, (1,), property="constant", value=value)


def test_equality_is_by_content():
    a = gp.LogicalTensor(0, "f32", (2, 3))
    assert a == gp.LogicalTensor(0, "f32", (2, 3), strides=(3, 1))
    assert a.is_equal(gp.LogicalTensor(0, "f32", (2, 3)))
    assert hash(a) == hash(gp.LogicalTensor(0, "f32", (2, 3)))
    half = gp.LogicalTensor(0, "f32", (), property="constant", value=0.5)
    assert half != half.replace(value=0.25) != half.replace(value=None)
    for other in (a.replace(id=1), a.replace(dtype="f16"), a.replace(shape=(3, 2)), a.replace(layout="any")):
        assert a != other
    assert a.replace(id=9, property="constant").has_same_content_type(a)


@pytest.mark.parametrize("numpy_type", [np.float32, np.dtype("int8"), bool])
def test_takes_numpy_types(numpy_type):
    assert gp.LogicalTensor(0, numpy_type, (1,)).dtype.numpy == np.dtype(numpy_type)


def test_pickles():
    for lt in (
        gp.LogicalTensor(0, "f32", (2, 3), strides=(5, 1), property="constant"),
        gp.LogicalTensor(1, "bf16", None),
        gp.LogicalTensor(3, "f32", (1, 1), property="constant", value=-2.5),
        gp.LogicalTensor(2, "f32", (2, 3), layout="opaque", layout_id=17),
    ):
        assert pickle.loads(pickle.dumps(lt)) == lt


def test_repr_evaluates_in_words():
    assert repr(gp.LogicalTensor(0, "f32", (2, gp.UNKNOWN_DIM))) == "LogicalTensor(0, 'f32', (2, ?))"
    assert repr(gp.LogicalTensor(0, "f32", (2,), property="constant")) == (
        "LogicalTensor(0, 'f32', (2,), property='constant')"
    )
