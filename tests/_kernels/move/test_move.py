import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpool._kernels.core._dispatch import call, isas
from graphpool._kernels.move import move
from graphpool.errors import InvalidShapeError, UnsupportedError
from tests.helpers.guard_pages import guarded_array, guarded_copy
from tests.helpers.guarded import Guarded

ITEMS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def element_strides(array):
    return [stride // array.itemsize for stride in array.strides]


def numbered(shape, itemsize):
    return (np.arange(int(np.prod(shape)), dtype=np.uint64) * 2654435761 % 251).astype(ITEMS[itemsize]).reshape(shape)


def run_copy(view, itemsize, isa=None):
    """Copy a view of a contiguous array to a dense array."""
    out = Guarded(view.size * itemsize)
    dense = np.empty(view.shape, view.dtype)
    kernel = move.copy(view.shape, element_strides(view), element_strides(dense), itemsize, isa=isa)
    kernel(view.__array_interface__["data"][0], out.bytes)
    return out.array(view.dtype, view.shape)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("itemsize", ITEMS)
@pytest.mark.parametrize(
    "shape", [(), (0,), (1,), (7, 0, 3), (31, 33), (32, 32), (49, 121), (64, 129), (3, 5, 40, 41), (2, 300_000)]
)
def test_transpose(shape, itemsize, isa):
    view = numbered(shape, itemsize).transpose()
    np.testing.assert_array_equal(run_copy(view, itemsize, isa), view)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("width", [1, 5, 31, 63, 64, 65, 127, 128, 200, 511, 512, 513, 700])
@pytest.mark.parametrize("repeats", [1, 2, 5])
def test_rows_of_any_length_that_repeat(repeats, width, isa):
    rows = numbered((9, 1, width + 3), 1)[:, :, :width]
    view = np.broadcast_to(rows, (9, repeats, width))
    np.testing.assert_array_equal(run_copy(view, 1, isa), view)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_copy_of_any_view(data):
    shape = data.draw(st.lists(st.integers(1, 7), max_size=6))
    itemsize = data.draw(st.sampled_from(sorted(ITEMS)))
    view = numbered(shape, itemsize).transpose(data.draw(st.permutations(range(len(shape)))))
    slices = tuple(slice(None, None, data.draw(st.sampled_from([1, 2, -1]))) for _ in shape)
    view = view[slices]
    if data.draw(st.booleans()):
        view = np.broadcast_to(view, (3, *view.shape))
    np.testing.assert_array_equal(run_copy(view, itemsize), view)


@settings(max_examples=100, deadline=None)
@given(st.permutations(range(4)), st.permutations(range(4)), st.sampled_from(sorted(ITEMS)))
def test_copy_between_permuted_layouts(order, target_order, itemsize):
    shape = (3, 34, 5, 33)
    view = numbered([shape[axis] for axis in order], itemsize).transpose(np.argsort(order))
    out = np.zeros([shape[axis] for axis in target_order], ITEMS[itemsize]).transpose(np.argsort(target_order))
    kernel = move.copy(shape, element_strides(view), element_strides(out), itemsize)
    kernel(view.__array_interface__["data"][0], out.__array_interface__["data"][0])
    np.testing.assert_array_equal(out, view)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("itemsize", ITEMS)
@pytest.mark.parametrize("planes", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("pixels", [0, 1, 7, 161, 40_001])
def test_planes_to_pixels_and_back(pixels, planes, itemsize, isa):
    for shape in ((2, planes, pixels), (2, pixels, planes)):
        view = numbered(shape, itemsize).transpose(0, 2, 1)
        np.testing.assert_array_equal(run_copy(view, itemsize, isa), view)
        cut = view[:, : shape[2] - shape[2] // 3, 1:] if planes else view
        np.testing.assert_array_equal(run_copy(cut, itemsize, isa), cut)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("itemsize", ITEMS)
@pytest.mark.parametrize("shape", [(5, 7), (17, 33), (64, 66), (9, 130), (131, 6)])
def test_what_is_turned_ends_where_a_page_does(shape, itemsize, isa):
    src, dst = guarded_copy(numbered(shape, itemsize)), guarded_array(shape[::-1], ITEMS[itemsize])
    move.copy(shape[::-1], (1, shape[1]), (shape[0], 1), itemsize, isa=isa)(src, dst)
    np.testing.assert_array_equal(dst, src.T)


def test_copy_leaves_gaps_alone():
    src, dst = numbered((40, 50), 4), np.full((50, 80), 7, np.uint32)
    move.copy((50, 40), (1, 50), (80, 2), 4)(src, dst)
    np.testing.assert_array_equal(dst[:, ::2], src.T)
    assert (dst[:, 1::2] == 7).all()


def test_copy_in_any_split():
    src = numbered((700, 900), 4)
    kernel = move.copy((900, 700), (1, 900), (700, 1), 4)
    assert kernel.ntasks > 3
    out = np.zeros((900, 700), np.uint32)
    for begin, end in ((kernel.ntasks - 1, kernel.ntasks), (0, 1), (1, kernel.ntasks - 1)):
        call(kernel.kernel, kernel.params, (src, out), begin, end)
    np.testing.assert_array_equal(out, src.T)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("itemsize", ITEMS)
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_concat(axis, itemsize, isa):
    arrays = []
    for dim in (1, 5, 0, 2, 17):
        shape = [6, 7, 8]
        shape[axis] = dim
        arrays.append(numbered(shape, itemsize))
    expected = np.concatenate(arrays, axis)
    out = Guarded(expected.nbytes)
    move.concat([a.shape for a in arrays], axis, itemsize, isa=isa)(*arrays, out.bytes)
    np.testing.assert_array_equal(out.array(expected.dtype, expected.shape), expected)


def test_concat_of_64_in_many_tasks():
    arrays = [numbered((50, 40 + k), 4) for k in range(64)]
    kernel = move.concat([a.shape for a in arrays], 1, 4)
    assert kernel.ntasks > 4
    expected = np.concatenate(arrays, 1)
    out = Guarded(expected.nbytes)
    for task in reversed(range(kernel.ntasks)):
        call(kernel.kernel, kernel.params, [*arrays, out.bytes], task, task + 1)
    np.testing.assert_array_equal(out.array(expected.dtype, expected.shape), expected)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("first", [0, 40])
def test_concat_of_columns_of_every_width(first, isa):
    arrays = [numbered((97, width), 1) for width in range(first, first + 40)]
    kernel = move.concat([a.shape for a in arrays], 1, 1, isa=isa)
    expected = np.concatenate(arrays, 1)
    out = Guarded(expected.nbytes)
    for task in reversed(range(kernel.ntasks)):
        call(kernel.kernel, kernel.params, [*arrays, out.bytes], task, task + 1)
    np.testing.assert_array_equal(out.array(expected.dtype, expected.shape), expected)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 300, 77), (0, 3), (3, 0), (20_000, 1, 2)])
def test_gen_index(shape, isa):
    for axis in range(-len(shape), len(shape)):
        expected = np.indices(shape, np.int32)[axis]
        out = Guarded(expected.nbytes)
        move.gen_index(shape, axis, isa=isa)(out.bytes)
        np.testing.assert_array_equal(out.array(np.int32, shape), expected)


def test_errors():
    with pytest.raises(UnsupportedError, match="1, 2, 4, 8"):
        move.copy((3,), (1,), (1,), 3)
    with pytest.raises(InvalidShapeError, match="1 of them"):
        move.copy((3,), (1, 2), (1,), 4)
    with pytest.raises(UnsupportedError, match=r"1 \.\. 64"):
        move.concat([], 0, 4)
    with pytest.raises(UnsupportedError, match=r"1 \.\. 64"):
        move.concat([(1,)] * 65, 0, 4)
    with pytest.raises(InvalidShapeError, match="equal but for axis 0"):
        move.concat([(1, 2), (1, 3)], 0, 4)
    with pytest.raises(InvalidShapeError, match="no such axis"):
        move.gen_index((2, 3), 2)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("itemsize", ITEMS)
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1), (5, 7), (7, 5), (2, 3, 40, 41), (2, 300, 500)])
def test_triangle(shape, itemsize, isa):
    src = guarded_copy(numbered(shape, itemsize) + 1)
    for diagonal in (-(2**62), -4, -1, 0, 2, 2**62):
        for is_upper, expected in ((False, np.tril), (True, np.triu)):
            out = Guarded(src.nbytes)
            move.triangle(shape, diagonal, itemsize, is_upper=is_upper, isa=isa)(src, out.bytes)
            np.testing.assert_array_equal(
                out.array(src.dtype, shape), expected(src, max(min(diagonal, shape[-1]), -shape[-2]))
            )


def test_triangles_of_other_items_are_refused():
    with pytest.raises(UnsupportedError, match="item size"):
        move.triangle((2, 2), 0, 3, is_upper=True)
