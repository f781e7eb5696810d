import numpy as np
import pytest

from graphpool._kernels._dispatch import isas
from graphpool._kernels.eltwise import INT_OPS, EltwiseBuilder
from graphpool.errors import UnsupportedError
from tests.helpers.guarded import Guarded

SIZES = (0, 1, 7, 8, 15, 16, 17, 127, 128, 129, 1000)
INT_CASES = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum, "min": np.minimum, "ge": np.greater_equal,
    "gt": np.greater, "le": np.less_equal, "lt": np.less, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize(("dtype", "name"), [("s32", "int32"), ("s64", "int64")])
def test_integers_are_exact(dtype, name, isa):
    info = np.iinfo(name)
    rng = np.random.default_rng(2)
    assert set(INT_CASES) | {"select"} == INT_OPS
    for n in SIZES:
        x, y = (rng.integers(info.min, info.max, n, name, endpoint=True) for _ in range(2))
        y[::4] = x[::4]
        for op, reference in INT_CASES.items():
            expected = reference(x, y)
            builder = EltwiseBuilder((n,), integer=True)
            value = builder.binary(op, builder.load(0, dtype), builder.load(1, dtype))
            builder.store(2, "boolean" if expected.dtype == bool else dtype, None, value)
            out = Guarded(expected.nbytes)
            builder.build(isa)(x, y, out.bytes)
            np.testing.assert_array_equal(out.array(expected.dtype, n), expected)


def test_integer_select_of_mixed_types():
    condition = np.array([True, False, True, False, True])
    x, y = np.arange(5, dtype=np.int8) - 2, np.arange(5, dtype=np.uint8) + 250
    builder = EltwiseBuilder((5,), integer=True)
    value = builder.ternary("select", *(builder.load(k, d) for k, d in enumerate(("boolean", "s8", "u8"))))
    builder.store(3, "s32", None, value)
    out = np.zeros(5, np.int32)
    builder.build()(condition, x, y, out)
    np.testing.assert_array_equal(out, np.where(condition, x.astype(int), y.astype(int)))


def test_errors_of_integer_programs():
    builder = EltwiseBuilder((4,), integer=True)
    value = builder.load(0, "s32")
    for wrong in (
        lambda: builder.const(1),
        lambda: builder.load(0, "f32"),
        lambda: builder.unary("exp", value),
        lambda: builder.binary("div", value, value),
        builder.epilogue,
    ):
        with pytest.raises(UnsupportedError):
            wrong()
