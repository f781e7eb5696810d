import numpy as np
import pytest

from graphpool.errors import InvalidShapeError
from graphpool.typing import DataType
from tests.helpers.reference import run_one


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat(axis):
    parts = [np.full((2, 3), float(i)) for i in range(3)]
    np.testing.assert_array_equal(run_one("Concat", *parts, axis=axis), np.concatenate(parts, axis))
    assert run_one("Concat", parts[0], np.zeros((0, 3)), axis=0).shape == (2, 3)


@pytest.mark.parametrize("source", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("target", ["f32", "f16", "bf16"])
def test_type_cast_rounds_as_numpy_does(source, target):
    src = np.random.default_rng(1).normal(size=(4, 5)).astype(DataType(source).numpy)
    expected = src.astype(np.float32).astype(DataType(target).numpy)
    np.testing.assert_array_equal(run_one("TypeCast", src, dtype=target).astype(float), expected.astype(float))


def test_reorder_keeps_every_bit_of_a_strided_view():
    src = np.arange(12, dtype=np.float32).reshape(3, 4).T[::2]
    result = run_one("Reorder", src, dtype="f32")
    np.testing.assert_array_equal(result, src)
    assert result.flags.c_contiguous


@pytest.mark.parametrize(
    ("shape", "target", "special_zero", "expected"),
    [
        ((2, 3, 4), [6, 4], False, (6, 4)),
        ((2, 3, 4), [0, -1], True, (2, 12)),
        ((2, 3, 4), [0, 0, -1], True, (2, 3, 4)),
        ((2, 0, 4), [0, 8], False, (0, 8)),
        ((2, 0, 4), [0, 0, 4], True, (2, 0, 4)),
        ((0, 3), [-1, 3], False, (0, 3)),
        ((0, 3), [-1, 0], False, (0, 0)),
        ((1, 1), [], False, ()),
        ((), [1, -1], False, (1, 1)),
    ],
)
def test_reshape(shape, target, special_zero, expected):
    src = np.arange(np.prod(shape)).reshape(shape).astype(float)
    result = run_one("StaticReshape", src, shape=target, special_zero=special_zero)
    assert result.shape == expected
    assert result.ravel().tolist() == src.ravel().tolist()


def test_reshape_to_another_number_of_elements_is_refused():
    with pytest.raises(InvalidShapeError, match="StaticReshape"):
        run_one("StaticReshape", np.zeros((2, 3)), shape=[4, -1], special_zero=False)


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [1, 2, 0], []])
def test_transpose(order):
    src = np.arange(24.0).reshape(2, 3, 4)
    result = run_one("StaticTranspose", src, order=order)
    for index in np.ndindex(result.shape):
        source = [0] * 3
        for axis, position in zip(order or [2, 1, 0], index, strict=True):
            source[axis] = position
        assert result[index] == src[tuple(source)]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gen_index(axis):
    result = run_one("GenIndex", np.zeros((2, 3)), axis=axis, dtype="s32")
    assert result.dtype == np.int32
    np.testing.assert_array_equal(result, np.indices((2, 3))[axis])
    assert run_one("GenIndex", np.zeros((0, 3)), axis=axis, dtype="s32").shape == (0, 3)
