import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphpool.backends.reference.window import Window, window_of


def _attrs(strides, pads_begin, pads_end, **more):
    return {"strides": strides, "pads_begin": pads_begin, "pads_end": pads_end, **more}


@given(
    size=st.integers(0, 12),
    kernel=st.integers(1, 4),
    stride=st.integers(1, 4),
    dilation=st.integers(1, 3),
    pads=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    ceil=st.booleans(),
)
def test_out_sizes_counts_the_windows_and_region_finds_their_elements(size, kernel, stride, dilation, pads, ceil):
    window = Window((kernel,), (stride,), (dilation,), (pads[0],), (pads[1],))
    extent, padded = dilation * (kernel - 1) + 1, size + sum(pads)
    starts = range(0, padded - extent + 1, stride)
    [count] = window.out_sizes([size])
    assert count == len(starts)
    if ceil and padded >= extent:
        assert window.out_sizes([size], ceil=True) == (count + ((padded - extent) % stride > 0),)
    buffer = window.pad(np.arange(1.0, size + 1), [count])
    for position in window.positions():
        expected = [start + position[0] * dilation - pads[0] for start in starts]
        found = buffer[window.region(position, [count])]
        assert found.tolist() == [i + 1.0 if 0 <= i < size else 0.0 for i in expected]


@given(size=st.integers(1, 20), kernel=st.integers(1, 5), stride=st.integers(1, 4), dilation=st.integers(1, 3))
def test_same_pads_give_one_output_for_each_stride(size, kernel, stride, dilation):
    attrs = _attrs([stride], [9], [9], dilations=[dilation])
    upper = window_of(attrs | {"auto_pad": "SAME_UPPER"}, [size], [kernel])
    lower = window_of(attrs | {"auto_pad": "SAME_LOWER"}, [size], [kernel])
    assert upper.out_sizes([size]) == lower.out_sizes([size]) == (-(-size // stride),)
    assert (upper.pads_begin, upper.pads_end) == (lower.pads_end, lower.pads_begin)
    assert upper.pads_end[0] - upper.pads_begin[0] in (0, 1)


def test_valid_pads_nothing_and_none_keeps_the_attributes():
    attrs = _attrs([1], [1], [2])
    assert window_of(attrs | {"auto_pad": "VALID"}, [8], [3]).padded_sizes([8]) == (8,)
    assert window_of(attrs | {"auto_pad": "None"}, [8], [3]).padded_sizes([8]) == (11,)
    assert window_of(attrs, [8], [3]).padded_sizes([8]) == (11,)


@pytest.mark.parametrize("dilations", [[1] * 12, [2, 2]])
def test_dilations_may_be_longer_than_the_kernel(dilations):
    window = window_of(_attrs([1, 1], [0, 0], [0, 0], dilations=dilations), [9, 9], [3, 3])
    assert window.dilations == tuple(dilations[:2])
