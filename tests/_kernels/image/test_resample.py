from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpool._kernels.core import _dispatch
from graphpool._kernels.eltwise.eltwise import EltwiseBuilder
from graphpool._kernels.gemm.post_ops import PostOps
from graphpool._kernels.image.resample import resample
from graphpool.errors import InvalidArgumentError, InvalidShapeError, UnsupportedError
from tests.cases.inputs import normal
from tests.helpers.kernel_runs import run_checked
from tests.helpers.layouts import LAYOUTS, lay_out, read_back, strides_of
from tests.helpers.onnx_node import run_node

ISAS = _dispatch.isas()
TRANSFORMATIONS = ["half_pixel", "align_corners"]
TOLERANCE = {"nearest": 0.0, "linear": 2e-6}


def expected_axis(x, axis, m, mode, transformation):
    """Resample one axis by exact fractions."""
    n, parts = x.shape[axis], []
    for o in range(m):
        if transformation == "align_corners":
            at = Fraction(o * (n - 1), max(m - 1, 1))
        else:
            at = Fraction(2 * o + 1, 2) / Fraction(m, n) - Fraction(1, 2)
        if mode == "nearest":
            parts.append(x.take(min(max(int((at + Fraction(1, 2)).__floor__()), 0), n - 1), axis))
            continue
        at = min(max(at, Fraction(0)), Fraction(n - 1))
        low, weight = int(at), float(at - int(at))
        parts.append((1 - weight) * x.take(low, axis) + weight * x.take(min(low + 1, n - 1), axis))
    return np.stack(parts, axis) if parts else np.empty((*x.shape[:axis], 0, *x.shape[axis + 1 :]))


def expected_resample(x, dst, mode, transformation):
    out = x.astype(np.float64)
    for axis, m in enumerate(dst):
        out = expected_axis(out, axis + 2, m, mode, transformation)
    return out


def run(mode, x, dst, *, layout="NCX", src_layout=None, **options):
    shape = (*x.shape[:2], *dst)
    call = resample(
        mode, *x.shape[:2], x.shape[2:], dst, src_strides=strides_of(x.shape, src_layout or layout),
        dst_strides=strides_of(shape, layout), **options,
    )  # fmt: skip
    size = int(np.prod(shape)) * (2 if layout.endswith("gap") else 1)
    return read_back(run_checked(call, size, lay_out(x, src_layout or layout), dst_index=1), shape, layout)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
@pytest.mark.parametrize(
    ("src", "dst"),
    [
        ((5,), (11,)), ((11,), (5,)), ((4, 6), (8, 12)), ((9, 7), (3, 7)), ((3, 4, 5), (5, 2, 9)), ((1, 3), (4, 1)),
        ((2, 40), (3, 71)), ((2, 70), (2, 33)), ((33,), (130,)), ((4,), (8,)), ((8,), (16,)), ((16,), (40,)),
        ((12, 28), (24, 56)),
    ],
    ids=str,
)  # fmt: skip
def test_equals_exact_coordinates(isa, layout, mode, transformation, src, dst):
    x = normal((2, 19, *src))
    out = run(mode, x, dst, layout=layout, coordinate_transformation_mode=transformation, isa=isa)
    expected = expected_resample(x, dst, mode, transformation)
    np.testing.assert_allclose(out, expected, rtol=TOLERANCE[mode], atol=TOLERANCE[mode])


@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("dst", [(8, 10), (3, 15), (6, 5)])
def test_equals_onnx_resize(transformation, mode, dst):
    x = normal((1, 2, 4, 5))
    sizes = np.array([1, 2, *dst], np.float32)
    scales = sizes / np.array(x.shape, np.float32)
    expected = run_node(
        "Resize", {"x": x, "": None, "scales": scales}, mode=mode, nearest_mode="round_prefer_ceil",
        coordinate_transformation_mode=transformation,
    )  # fmt: skip
    assert expected.shape[2:] == dst
    out = run(mode, x, dst, coordinate_transformation_mode=transformation)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


def test_bilinear_and_trilinear_are_linear():
    x = normal((1, 2, 3, 4))
    for mode in ("bilinear", "trilinear"):
        np.testing.assert_array_equal(run(mode, x, (5, 6)), run("linear", x, (5, 6)))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_neighbours_without_weight_are_not_read(layout):
    x = normal((1, 2, 3, 3))
    x[0, :, 2, :] = np.inf
    x[0, :, :, 2] = np.nan
    out = run("linear", x, (3, 3), layout=layout)
    np.testing.assert_array_equal(out, x)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(
    ("shape", "dst"),
    [((0, 3, 4), (4,)), ((2, 0, 4), (4,)), ((2, 3, 4), (0,)), ((2, 3, 0), (0,)), ((2, 3, 0, 5), (4, 0))],
)
def test_zero_sizes(mode, shape, dst):
    assert run(mode, normal(shape), dst).size == 0


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("layout", ["NCX", "NXC"])
def test_epilogue_runs_on_every_result(isa, layout):
    x, shape = normal((2, 37, 4, 5)), (2, 37, 7, 6)
    builder = EltwiseBuilder((2, 7, 6, 37) if layout == "NXC" else shape)
    builder.store(0, "f32", None, builder.unary("square", builder.acc()))
    out = run("linear", x, shape[2:], layout=layout, post_ops=PostOps(epilogue=builder.epilogue()), isa=isa)
    expected = expected_resample(x, shape[2:], "linear", "half_pixel") ** 2
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_geometry(data):
    ndim = data.draw(st.integers(1, 3))
    src, dst = (tuple(data.draw(st.integers(1, 7)) for _ in range(ndim)) for _ in range(2))
    x = normal((data.draw(st.integers(1, 2)), data.draw(st.integers(1, 20)), *src))
    mode, transformation = (
        data.draw(st.sampled_from(["nearest", "linear"])),
        data.draw(st.sampled_from(TRANSFORMATIONS)),
    )
    layout, src_layout = data.draw(st.sampled_from(LAYOUTS)), data.draw(st.sampled_from(LAYOUTS))
    out = run(mode, x, dst, layout=layout, src_layout=src_layout, coordinate_transformation_mode=transformation)
    expected = expected_resample(x, dst, mode, transformation)
    np.testing.assert_allclose(out, expected, rtol=TOLERANCE[mode], atol=TOLERANCE[mode])


@pytest.mark.parametrize(
    ("error", "change"),
    [
        (InvalidArgumentError, {"mode": "cubic"}),
        (InvalidArgumentError, {"coordinate_transformation_mode": "asymmetric"}),
        (InvalidShapeError, {"src_spatial": (0, 4)}),
        (InvalidShapeError, {"dst_strides": (1,)}),
        (UnsupportedError, {"src_spatial": (1,) * 4}),
    ],
)
def test_bad_arguments_raise(error, change):
    good = {
        "mode": "nearest", "batch": 1, "channels": 1, "src_spatial": (4, 4), "dst_spatial": (3, 3),
        "src_strides": (16, 16, 4, 1), "dst_strides": (9, 9, 3, 1),
    }  # fmt: skip
    with pytest.raises(error):
        resample(**(good | change))
