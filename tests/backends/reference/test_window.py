import itertools

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
def test_out_sizes_counts_the_windows_and_meetings_are_their_elements(size, kernel, stride, dilation, pads, ceil):
    window = Window((kernel,), (stride,), (dilation,), (pads[0],), (pads[1],))
    extent, padded = dilation * (kernel - 1) + 1, size + sum(pads)
    starts = range(0, padded - extent + 1, stride)
    [count] = window.out_sizes([size])
    assert count == len(starts)
    if ceil and padded >= extent:
        assert window.out_sizes([size], ceil=True) == (count + ((padded - extent) % stride > 0),)
    array = np.arange(1.0, size + 1)
    expected, found = np.zeros((kernel, count)), np.zeros((kernel, count))
    for tap, (output, start) in itertools.product(range(kernel), enumerate(starts)):
        place = start + tap * dilation - pads[0]
        expected[tap, output] = place + 1 if 0 <= place < size else 0
    for (_, tap), (_, outputs), (_, inputs) in window.meetings([size], [count]):
        found[tap, outputs] = array[inputs]
    assert found.tolist() == expected.tolist()
    assert window.counts([size], [count], with_pads=False).tolist() == np.count_nonzero(expected, axis=0).tolist()
    assert window.counts([size], [count], with_pads=True).tolist() == [kernel] * count


HUGE = (1, 2, 3, 1000, 2**31, 2**62)


@given(st.data(), st.integers(1, 5), st.integers(1, 4), *[st.sampled_from(HUGE)] * 3)
def test_taps_that_meet_elements_are_found_in_any_geometry(data, size, count, kernel, stride, dilation):
    begin = data.draw(st.integers(0, count - 1)) * stride + data.draw(st.integers(0, min(kernel, 9) - 1)) * dilation
    begin = max(begin - data.draw(st.integers(0, size - 1)), 0)
    window = Window((kernel,), (stride,), (dilation,), (begin,), (0,))
    found = set()
    for (_, tap), (_, outputs), (_, inputs) in window.meetings([size], [count]):
        places = range(size)[inputs]
        assert [place - output * stride - tap * dilation + begin for output, place in
                zip(range(count)[outputs], places, strict=True)] == [0] * len(places)  # fmt: skip
        found |= {(output, place) for output, place in zip(range(count)[outputs], places, strict=True)}
    pairs = itertools.product(range(count), range(size))
    taps = {(output, place): place + begin - output * stride for output, place in pairs}
    expected = {pair for pair, tap in taps.items() if tap % dilation == 0 and 0 <= tap // dilation < kernel}
    assert found == expected
    met = [sum(output == own for own, _ in expected) for output in range(count)]
    assert window.counts([size], [count], with_pads=False).tolist() == met


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
    windows = [window_of(attrs | more, [8], [3]) for more in ({"auto_pad": "VALID"}, {"auto_pad": "None"}, {})]
    assert [(window.pads_begin, window.pads_end) for window in windows] == [((0,), (0,)), ((1,), (2,)), ((1,), (2,))]


@pytest.mark.parametrize("dilations", [[1] * 12, [2, 2]])
def test_dilations_may_be_longer_than_the_kernel(dilations):
    window = window_of(_attrs([1, 1], [0, 0], [0, 0], dilations=dilations), [9, 9], [3, 3])
    assert window.dilations == tuple(dilations[:2])
