"""Strides of plain shapes, which nearly all tensors have."""

from libc.stdint cimport int64_t


def dense_layout(shape, int64_t most):
    """Row-major strides of a tuple of plain ints of 0 and more with fewer elements than `most`; None for others.

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
        if type(item) is not int or not 0 <= item < most:
            return None
        dim = item
        strides[axis] = step
        if dim > 1:
            if step > (most - 1) // dim:
                return None
            step *= dim
    return tuple(strides)
