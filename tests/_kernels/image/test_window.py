import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphpool._kernels.core.records import record
from graphpool._kernels.gemm.post_ops import NO_POST_OPS, PostOps
from graphpool._kernels.image.window import Window, merged_stride, plan_rows
from graphpool.errors import InvalidShapeError, UnsupportedError


def make(src=(4, 6), dst=(4, 6), kernel=(1, 1), **change):
    """A channels-first window, with some arguments changed."""
    shape = {"src_strides": (24, 24, 6, 1), "dst_strides": (24, 24, 6, 1)}
    return Window.make(src, dst, kernel, **({"strides": None, "dilations": None, "pads_begin": None} | shape | change))


def test_missing_axes_are_filled_in_front():
    window = make(kernel=(2, 3), strides=(1, 2), pads_begin=(1, 0))
    assert (window.src, window.kernel, window.strides) == ((1, 4, 6), (1, 2, 3), (1, 1, 2))
    assert (window.dilations, window.pads_begin) == ((1, 1, 1), (0, 1, 0))
    assert window.src_strides == (24, 24, 0, 6, 1)
    assert window.pixels == 24


def test_fields_hold_the_geometry():
    fields = make(kernel=(2, 3), pads_begin=(1, 0)).fields()
    numbers = np.frombuffer(record("gp_window").pack(fields), np.int64).tolist()
    assert numbers[6:9] == [1, 2, 3]  # kernel
    assert numbers[-4:] == [0, 6, 1, 0]  # strides of dst, channels_last


@pytest.mark.parametrize(
    ("dst", "dst_strides", "last"),
    [((4, 6), (24, 24, 6, 1), False), ((4, 6), (48, 1, 12, 2), True), ((1, 1), (3, 7, 1, 1), True),
     ((1, 6), (12, 1, 99, 2), True), ((4, 1), (8, 4, 1, 1), False)],
)  # fmt: skip
def test_order_of_results_follows_the_strides(dst, dst_strides, last):
    assert make(dst=dst, dst_strides=dst_strides).channels_last is last


@pytest.mark.parametrize(
    ("error", "change"),
    [
        (UnsupportedError, {"src": ()}),
        (UnsupportedError, {"src": (1, 1, 1, 1)}),
        (InvalidShapeError, {"dst": (4,)}),
        (InvalidShapeError, {"dst": (4, -1)}),
        (InvalidShapeError, {"kernel": (0, 1)}),
        (InvalidShapeError, {"strides": (1, 0)}),
        (InvalidShapeError, {"dilations": (1, 0)}),
        (InvalidShapeError, {"pads_begin": (-1, 0)}),
        (InvalidShapeError, {"src_strides": (1, 2, 3)}),
        (InvalidShapeError, {"dst_strides": (1, 2, 3, 4, 5)}),
    ],
)
def test_bad_geometry_raises(error, change):
    with pytest.raises(error):
        make(**change)


@given(shape=st.lists(st.integers(1, 4), max_size=4), step=st.integers(1, 3), gap=st.booleans())
def test_merged_stride_walks_the_axes(shape, step, gap):
    strides = [step * int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
    wide = [axis for axis, extent in enumerate(shape) if extent > 1]
    if gap and len(wide) > 1:
        strides[wide[0]] += 1
    places = sum(
        (np.arange(n).reshape(-1, *[1] * (len(shape) - axis - 1)) * stride)
        for axis, (n, stride) in enumerate(zip(shape, strides, strict=True))
    )
    merged = merged_stride(list(zip(shape, strides, strict=True)))
    if merged is None:
        assert gap
    else:
        np.testing.assert_array_equal(np.ravel(places), np.arange(int(np.prod(shape))) * merged)


def test_rows_are_divided_by_channels_too():
    window = make(dst=(4, 6), dst_strides=(24 * 500, 1, 3000, 500))
    fields, ntasks, scratch = plan_rows(window, 3, 500, NO_POST_OPS)
    assert (ntasks, scratch) == (3 * 2 * 4, 0)
    assert (fields["channels"], fields["channel_block"]) == (500, 256)
    _, _, scratch = plan_rows(window, 3, 500, PostOps(epilogue=b"program."))
    assert scratch == 256 * 6 * 4
    with pytest.raises(InvalidShapeError):
        plan_rows(window, -1, 2, NO_POST_OPS)
