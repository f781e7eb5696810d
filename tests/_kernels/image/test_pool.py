import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpool._kernels.core import _dispatch
from graphpool._kernels.eltwise.eltwise import EltwiseBuilder
from graphpool._kernels.gemm.post_ops import PostOps
from graphpool._kernels.image.pool import pooling
from graphpool.errors import InvalidArgumentError, InvalidShapeError, UnsupportedError
from tests.cases.inputs import normal
from tests.helpers.kernel_runs import run_checked
from tests.helpers.layouts import LAYOUTS, lay_out, read_back, strides_of
from tests.helpers.onnx_node import run_node

ISAS = _dispatch.isas()
RTOL = {"max": 0.0, "avg": 1e-6}


def expected_pool(mode, x, dst, kernel, strides, begin, end, dilations, exclude_pad):
    """By the definition, one window after another, in float64."""
    out = np.empty((*x.shape[:2], *dst))
    for place in itertools.product(*map(range, dst)):
        total = np.full(x.shape[:2], -np.inf if mode == "max" else 0.0)
        count = 0
        for tap in itertools.product(*map(range, kernel)):
            at = [o * s - b + k * d for o, s, b, k, d in zip(place, strides, begin, tap, dilations, strict=True)]
            inside = all(0 <= i < n for i, n in zip(at, x.shape[2:], strict=True))
            padded = all(i < n + e for i, n, e in zip(at, x.shape[2:], end, strict=True))
            count += inside if exclude_pad else padded
            if inside:
                cell = x[(..., *at)].astype(np.float64)
                total = np.maximum(total, cell) if mode == "max" else total + cell
        out[(..., *place)] = total if mode == "max" else total / max(count, 1)
    return out


def run(mode, x, dst, kernel, *, layout="NCX", src_layout=None, isa=None, epilogue=None, in_place=False, **attributes):
    """Pool x (n, c, ...), stored in a layout; the result as (n, c, ...)."""
    shape = (*x.shape[:2], *dst)
    src = lay_out(x, src_layout or layout)
    program = epilogue(shape, layout) if epilogue else b""
    call = pooling(
        mode, *x.shape[:2], x.shape[2:], dst, kernel, src_strides=strides_of(x.shape, src_layout or layout),
        dst_strides=strides_of(shape, layout), isa=isa, **attributes,
        post_ops=PostOps(epilogue=program, dst_needs_scratch=not in_place),
    )  # fmt: skip
    size = int(np.prod(shape)) * (2 if layout.endswith("gap") else 1)
    return read_back(run_checked(call, size, src, dst_index=1), shape, layout)


CASES = [
    # channels, source, result, kernel, strides, begin, end, dilations
    (3, (9,), (4,), (3,), (2,), (0,), (0,), (1,)),
    (70, (11,), (11,), (3,), (1,), (1,), (1,), (1,)),
    (5, (8, 9), (4, 5), (3, 2), (2, 2), (1, 0), (1, 1), (1, 1)),
    (17, (7, 7), (1, 1), (7, 7), (1, 1), (0, 0), (0, 0), (1, 1)),
    (3, (5, 6, 7), (3, 3, 4), (2, 3, 3), (2, 2, 2), (0, 1, 1), (1, 0, 1), (1, 1, 1)),
    (4, (10, 10), (4, 5), (3, 3), (2, 2), (1, 2), (1, 2), (2, 2)),
    (2, (6, 6), (4, 4), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1)),  # ceil: the last window sticks out
    (1, (3, 1), (3, 1), (1, 1), (1, 1), (0, 0), (0, 0), (1, 1)),
    (9, (4, 99), (4, 99), (3, 5), (1, 1), (1, 2), (1, 2), (1, 1)),  # lines of several vectors, more than are at once
    (9, (4, 99), (2, 49), (2, 3), (2, 2), (0, 0), (0, 0), (1, 1)),
    (3, (4, 99), (2, 34), (2, 3), (2, 3), (0, 1), (0, 2), (1, 2)),
    (3, (19, 70), (19, 70), (5, 5), (1, 1), (2, 2), (2, 2), (1, 1)),  # more rows and columns than are at once
    (3, (19, 70), (10, 36), (3, 3), (2, 2), (1, 2), (1, 2), (1, 1)),
    (3, (17, 37), (17, 37), (2, 3), (1, 1), (1, 1), (0, 1), (1, 1)),
    (3, (4, 30), (9, 31), (2, 2), (1, 1), (3, 1), (3, 1), (2, 1)),
    (2, (3, 5), (20, 60), (3, 3), (1, 1), (10, 29), (9, 28), (1, 1)),  # padding of more than a vector
    (2, (3, 5), (10, 33), (3, 3), (2, 2), (10, 30), (8, 32), (1, 1)),
    (2, (4, 5, 40), (3, 5, 40), (2, 3, 3), (1, 1, 1), (0, 1, 1), (0, 1, 1), (1, 1, 1)),
    (2, (5, 5, 40), (3, 5, 20), (4, 3, 2), (1, 1, 2), (1, 1, 0), (0, 1, 0), (1, 1, 1)),
    (9, (9,), (4,), (3,), (2000,), (3996,), (5994,), (1999,)),  # lines with their padding would be long
    (3, (7, 5, 9), (2, 3, 4), (2, 3, 3), (3, 9000, 2000), (1, 8999, 3996), (1, 9000, 5994), (5, 1, 1999)),
]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", ["max", "avg", "avg_pads"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_the_definition(isa, layout, mode, case):
    channels, src, dst, kernel, strides, begin, end, dilations = case
    x, exclude = normal((2, channels, *src)), mode != "avg_pads"
    mode = mode[:3]
    out = run(
        mode, x, dst, kernel, layout=layout, isa=isa, strides=strides, pads_begin=begin, pads_end=end,
        dilations=dilations, exclude_pad=exclude,
    )  # fmt: skip
    expected = expected_pool(mode, x, dst, kernel, strides, begin, end, dilations, exclude)
    np.testing.assert_allclose(out, expected, rtol=RTOL[mode], atol=RTOL[mode])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("mode", ["max", "avg", "avg_pads"])
@pytest.mark.parametrize("dtype", ["u8", "s8"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_bytes_are_pooled_less_their_zero_point(isa, mode, dtype, case):
    channels, src, dst, kernel, strides, begin, end, dilations = case
    limits = np.iinfo({"u8": np.uint8, "s8": np.int8}[dtype])
    x = np.random.default_rng(1).integers(limits.min, limits.max + 1, (2, channels, *src)).astype(limits.dtype)
    exclude, mode, attributes = mode != "avg_pads", mode[:3], {"strides": strides, "dilations": dilations}
    out = run(
        mode, x, dst, kernel, layout="NXC", isa=isa, pads_begin=begin, pads_end=end, exclude_pad=exclude,
        src_dtype=dtype, zero_point=-7, **attributes,
    )  # fmt: skip
    less = x.astype(np.float64) + 7
    expected = expected_pool(mode, less, dst, kernel, strides, begin, end, dilations, exclude)
    np.testing.assert_allclose(out, expected, rtol=RTOL[mode], atol=RTOL[mode])


@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize("count_include_pad", [0, 1])
@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
def test_equals_onnx(operator, ceil_mode, count_include_pad):
    x = normal((1, 2, 8, 7))
    attributes = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 0, 1, 1], "ceil_mode": ceil_mode}
    if operator == "AveragePool":
        attributes["count_include_pad"] = count_include_pad
    expected = run_node(operator, {"x": x}, **attributes)
    out = run(
        "max" if operator == "MaxPool" else "avg", x, expected.shape[2:], (3, 3), strides=(2, 2), pads_begin=(1, 0),
        pads_end=(1, 1), exclude_pad=not count_include_pad,
    )  # fmt: skip
    np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("kernel", "nans"), [((3, 3), 9), ((3, 7), 21), ((5, 5), 25)])
def test_nan_enters_exactly_the_windows_that_hold_it(isa, layout, kernel, nans):
    x = normal((1, 20, 10, 33))
    x[0, 3, 4, 5] = np.nan
    x[0, 4] = -np.inf
    x[0, 5] = np.inf
    pads = tuple(k // 2 for k in kernel)
    out = run("max", x, (10, 33), kernel, layout=layout, isa=isa, pads_begin=pads, pads_end=pads)
    assert np.isnan(out).sum() == nans
    expected = expected_pool("max", x, (10, 33), kernel, (1, 1), pads, pads, (1, 1), True)
    np.testing.assert_array_equal(out, expected)


def test_windows_of_padding_only():
    x = normal((1, 2, 2))
    geometry = {"strides": (4,), "pads_begin": (4,), "pads_end": (4,)}
    assert (run("max", x, (2,), (2,), **geometry)[..., 0] == -np.inf).all()
    assert (run("avg", x, (2,), (2,), **geometry)[..., 0] == 0).all()


@pytest.mark.parametrize(("shape", "dst"), [((0, 3, 4), (4,)), ((2, 0, 4), (4,)), ((2, 3, 4), (0,)), ((2, 3, 0), (1,))])
def test_zero_sizes(shape, dst):
    out = run("max", normal(shape), dst, (2,), pads_begin=(1,), pads_end=(1,))
    assert out.shape == (*shape[:2], *dst)
    assert (out == -np.inf).all() or shape[2]


def test_source_and_result_may_differ_in_layout():
    x = normal((2, 5, 6, 7))
    for layout, src_layout in itertools.permutations(LAYOUTS, 2):
        out = run("max", x, (5, 6), (2, 2), layout=layout, src_layout=src_layout)
        np.testing.assert_array_equal(
            out, expected_pool("max", x, (5, 6), (2, 2), (1, 1), (0, 0), (0, 0), (1, 1), True)
        )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("in_place", [False, True])
def test_epilogue_runs_on_every_result(isa, layout, in_place):
    x, bias = normal((2, 300, 6, 5)), normal(300, 1)

    def epilogue(shape, layout):
        last = layout == "NXC"
        builder = EltwiseBuilder((shape[0], *shape[2:], shape[1]) if last else shape)
        total = builder.binary("add", builder.acc(), builder.load(1, "f32", (0, 0, 0, 1) if last else (0, 1, 0, 0)))
        builder.store(0, "f32", None, builder.unary("relu", total))
        return builder.epilogue()

    shape = (2, 300, 3, 2)
    call = pooling(
        "avg", 2, 300, (6, 5), (3, 2), (2, 2), strides=(2, 2), src_strides=strides_of(x.shape, layout),
        dst_strides=strides_of(shape, layout), isa=isa,
        post_ops=PostOps(epilogue=epilogue(shape, layout), dst_needs_scratch=not in_place),
    )  # fmt: skip
    out = read_back(run_checked(call, int(np.prod(shape)), lay_out(x, layout), bias, dst_index=1), shape, layout)
    mean = expected_pool("avg", x, (3, 2), (2, 2), (2, 2), (0, 0), (0, 0), (1, 1), True)
    np.testing.assert_allclose(out, np.maximum(mean + bias[:, None, None], 0), rtol=1e-6, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_geometry(data):
    ndim = data.draw(st.integers(1, 3))
    draw = lambda low, high: tuple(data.draw(st.integers(low, high)) for _ in range(ndim))  # noqa: E731
    src, dst, kernel, strides, begin, end = draw(1, 6), draw(1, 5), draw(1, 3), draw(1, 3), draw(0, 2), draw(0, 2)
    dilations, mode, exclude = draw(1, 2), data.draw(st.sampled_from(["max", "avg"])), data.draw(st.booleans())
    x = normal((data.draw(st.integers(1, 2)), data.draw(st.integers(1, 20)), *src))
    out = run(
        mode, x, dst, kernel, layout=data.draw(st.sampled_from(LAYOUTS)), isa=data.draw(st.sampled_from(ISAS)),
        strides=strides, pads_begin=begin, pads_end=end, dilations=dilations, exclude_pad=exclude,
    )  # fmt: skip
    expected = expected_pool(mode, x, dst, kernel, strides, begin, end, dilations, exclude)
    np.testing.assert_allclose(out, expected, rtol=RTOL[mode], atol=RTOL[mode])


@pytest.mark.parametrize(
    ("error", "change"),
    [
        (InvalidArgumentError, {"mode": "median"}),
        (InvalidShapeError, {"kernel": (0, 2)}),
        (InvalidShapeError, {"kernel": (2,)}),
        (InvalidShapeError, {"pads_end": (1,)}),
        (InvalidShapeError, {"pads_begin": (-1, 0)}),
        (InvalidShapeError, {"src_strides": (1, 2)}),
        (InvalidShapeError, {"batch": -1}),
        (InvalidArgumentError, {"post_ops": PostOps(bias=True)}),
        (UnsupportedError, {"src_spatial": ()}),
    ],
)
def test_bad_arguments_raise(error, change):
    good = {
        "mode": "max", "batch": 1, "channels": 1, "src_spatial": (4, 4), "dst_spatial": (3, 3), "kernel": (2, 2),
        "src_strides": (16, 16, 4, 1), "dst_strides": (9, 9, 3, 1),
    }  # fmt: skip
    with pytest.raises(error):
        pooling(**(good | change))
