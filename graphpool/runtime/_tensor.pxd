from libc.stdint cimport int64_t, uint64_t


# Equal numbers: one data type, shape and layout.
cdef class Signature:
    cdef int64_t number
    cdef object __weakref__


# What tensors of one engine and one explicit id share.
cdef class Content:
    cdef int64_t version
    cdef object __weakref__


cdef class Tensor:
    cdef readonly object lt
    cdef readonly object engine
    cdef readonly int64_t nbytes
    cdef readonly bint is_readonly
    cdef uint64_t lt_id
    cdef int64_t signature
    cdef Signature described    # whose number it is
    cdef char *data          # NULL while the tensor has no buffer yet
    cdef readonly object owner   # keeps `data` alive; None when the tensor allocated it itself
    cdef object resource     # gives `data` back to it; None when the data is the user's
    cdef object user_id
    cdef Content content     # None without an explicit id
    cdef int64_t own_version
    cdef int64_t *version_at    # of the content: its own, or that of all tensors of its id
    cdef object __weakref__
    cdef int _describe(self, object lt, object engine) except -1
    cdef int _sign(self, object lt) except -1
    cdef int _share_content(self, object id) except -1
    cdef int _allocate(self) except -1
    cdef bint _bind_strided(self, object array) except -1


cdef Signature signature_of(object lt)
