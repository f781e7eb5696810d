# What NumPy's C interface lays out of an array for all versions (PyArrayObject_fields, and bits of its flags): reading
# it costs no call.
from cpython.object cimport PyObject


cdef extern from *:
    """
    typedef struct {
        PyObject_HEAD
        char *data;
        int nd;
        Py_ssize_t *dimensions;
        Py_ssize_t *strides;
        PyObject *base;
        PyObject *descr;
        int flags;
    } gp_array;

    #define GP_C_CONTIGUOUS 0x0001
    #define GP_ALIGNED 0x0100
    #define GP_WRITEABLE 0x0400
    """
    ctypedef struct gp_array:
        char *data
        int nd
        Py_ssize_t *dimensions
        Py_ssize_t *strides
        PyObject *descr
        int flags
    int GP_C_CONTIGUOUS
    int GP_ALIGNED
    int GP_WRITEABLE


# The fields of an `ndarray`; the caller has checked that it is one.
cdef inline gp_array *fields_of(object array) noexcept:
    return <gp_array *><PyObject *>array


# Whether an array has this shape, of which negative sizes stand for any.
cdef inline bint has_shape(gp_array *array, tuple shape) except -1:
    cdef Py_ssize_t i, size
    if array.nd != len(shape):
        return False
    for i in range(array.nd):
        size = shape[i]
        if size >= 0 and array.dimensions[i] != size:
            return False
    return True


# Bytes from the first to the last element, gaps included, of an array with this shape and these strides, which are
# counted in elements; -1 if it has others.
cdef inline Py_ssize_t span_nbytes(gp_array *array, Py_ssize_t itemsize, tuple shape, tuple strides) except? -2:
    cdef Py_ssize_t i, stride, last = 0
    if not has_shape(array, shape):
        return -1
    for i in range(array.nd):
        if array.dimensions[i] == 0:
            return 0    # whatever its strides are: NumPy has zeros for a fresh one
    for i in range(array.nd):
        if array.dimensions[i] > 1:
            stride = strides[i]
            if array.strides[i] != stride * itemsize:
                return -1
            last += array.strides[i] * (array.dimensions[i] - 1)
    return last + itemsize
