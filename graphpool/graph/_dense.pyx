"""Strides of shapes as nearly all tensors have them."""

from libc.stdint cimport int64_t

from graphpool._sizes cimport Size


def dense_layout(shape, int64_t most):
    """Row-major strides of a tuple of sizes and plain ints of 0 and more with fewer elements than `most`, or None.

    Dimensions of 0 count as 1. `most` is at most 2**60.
    """
    cdef int64_t dim, step = 1
    cdef Py_ssize_t axis, ndim
    if type(shape) is not tuple:
        return None
    ndim = len(<tuple>shape)
    strides = [None] * ndim
    for axis in range(ndim - 1, -1, -1):
        item = (<tuple>shape)[axis]
        if type(item) is Size:
            return _variable_layout(<tuple>shape, strides, axis, step, most)
        if type(item) is not int or not 0 <= item < most:
            return None
        dim = item
        strides[axis] = step
        if dim > 1:
            if step > (most - 1) // dim:
                return None
            step *= dim
    return tuple(strides)


cdef tuple _variable_layout(tuple shape, list strides, Py_ssize_t axis, step, most):
    """The same from an axis on of which the size varies, and behind which `step` elements lie."""
    for axis in range(axis, -1, -1):
        item = shape[axis]
        if type(item) is not Size and type(item) is not int or not 0 <= item:
            return None
        strides[axis] = step
        if axis == 0:   # nothing lies further apart than all of these
            return tuple(strides) if step < most and step * item < most else None
        if item != 0:
            step = step * item
    return tuple(strides) if step < most else None
