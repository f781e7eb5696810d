"""ArrayAllocator: NumPy arrays that a budget counts until they are gone.

NumPy asks a handler for the data of each array that it makes, and each array gives its data back to the handler that it
came from, whoever lets go of it and whenever that is. The handlers made here charge a budget before they allocate.
Source: NumPy Enhancement Proposal 49, "Data allocation strategies"; the numbers are those of NumPy's C interface.
"""

cimport cython
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_REFCNT
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, strcpy

from graphpool._atomic cimport gp_add, gp_exchange, gp_load, gp_sub_within
from graphpool.memory._budget cimport Budget
from graphpool.memory._host cimport HUGE_PAGE, map_block, unmap_block

import threading
from math import prod

import numpy as np
from numpy._core._multiarray_umath import _ARRAY_API
from numpy._core.multiarray import get_handler_name

from graphpool.errors import OutOfMemoryError
from graphpool.memory._check import MAX_NBYTES, out_of_memory

cdef enum:
    SET_HANDLER = 304       # its place in NumPy's table of functions
    HEADER_NBYTES = 64      # before each block: a `Header`; as large as a cache line, so that data stay aligned

cdef struct Header:
    size_t nbytes           # of the data
    size_t texts_nbytes     # of texts that they point to
    Account *account

ctypedef object (*SetHandler)(object handler)

cdef extern from "Python.h":
    ctypedef struct PyASCIIObject:
        pass
    ctypedef struct PyCompactUnicodeObject:
        pass
    bint PyUnicode_IS_ASCII(object text)
    int PyUnicode_KIND(object text)

cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void **address, size_t alignment, size_t nbytes)

cdef SetHandler _set_handler = <SetHandler>(<void **>PyCapsule_GetPointer(_ARRAY_API, NULL))[SET_HANDLER]
_refused = threading.local()    # the error behind NumPy's MemoryError
cdef bint _was_refused = False  # whether there ever was one, in any thread: looking for it takes longer than most calls


cdef bint _charge(Account *account, int64_t nbytes) noexcept nogil:
    """Take what is reserved first, and charge the budget for the rest."""
    cdef int64_t taken = nbytes
    if not gp_sub_within(&account.reserved, nbytes):
        taken = gp_exchange(&account.reserved, 0)
        if taken > nbytes:      # another thread reserved meanwhile
            gp_add(&account.reserved, taken - nbytes)
            taken = nbytes
        if not (<Budget>account.budget)._try_charge(nbytes - taken) and not _charge_slowly(account, nbytes - taken):
            gp_add(&account.reserved, taken)
            return False
    gp_add(&account.nbytes, nbytes)
    return True


cdef bint _charge_slowly(Account *account, int64_t nbytes) noexcept with gil:
    """Let the budget ask its holders for memory."""
    global _was_refused
    try:
        (<Budget>account.budget).charge(nbytes, holder=<object>account.holder)
    except BaseException as error:
        _refused.error, _was_refused = error, True
        return False
    return True


cdef void _uncharge(Account *account, int64_t nbytes) noexcept nogil:
    """Unless the account was closed meanwhile."""
    if gp_sub_within(&account.nbytes, nbytes):
        (<Budget>account.budget)._try_uncharge(nbytes)


cdef void _unreserve(Account *account) noexcept nogil:
    (<Budget>account.budget)._try_uncharge(gp_exchange(&account.reserved, 0))


cdef void *_with_header(void *context, char *block, size_t nbytes, size_t texts_nbytes) noexcept nogil:
    cdef Header *header = <Header *>block
    header.nbytes, header.texts_nbytes, header.account = nbytes, texts_nbytes, <Account *>context
    return block + HEADER_NBYTES


cdef bint _is_mapped(size_t nbytes) noexcept nogil:
    """Whether data have a mapping of their own, which goes when they do: in the C heap they would leave holes."""
    return nbytes + HEADER_NBYTES >= HUGE_PAGE


cdef void *_malloc(void *context, size_t nbytes) noexcept nogil:
    cdef void *block = NULL
    if nbytes > <size_t>MAX_DATA or not _charge(<Account *>context, nbytes):
        return NULL
    if _is_mapped(nbytes):
        block = map_block(nbytes + HEADER_NBYTES, HEADER_NBYTES)
    elif posix_memalign(&block, HEADER_NBYTES, nbytes + HEADER_NBYTES) != 0:
        block = NULL
    if block == NULL:
        _uncharge(<Account *>context, nbytes)
        return NULL
    return _with_header(context, <char *>block, nbytes, 0)


cdef void *_calloc(void *context, size_t count, size_t nbytes) noexcept nogil:
    cdef char *block
    if nbytes and count > <size_t>MAX_DATA // nbytes:
        return NULL
    if _is_mapped(count * nbytes):
        return _malloc(context, count * nbytes)     # fresh pages are zero
    if not _charge(<Account *>context, count * nbytes):
        return NULL
    block = <char *>calloc(1, count * nbytes + HEADER_NBYTES)
    if block == NULL:
        _uncharge(<Account *>context, count * nbytes)
        return NULL
    return _with_header(context, block, count * nbytes, 0)


cdef void *_realloc(void *context, void *data, size_t nbytes) noexcept nogil:
    cdef char *block
    cdef void *moved
    cdef size_t old, texts_nbytes
    if data == NULL:
        return _malloc(context, nbytes)
    block = <char *>data - HEADER_NBYTES
    old, texts_nbytes = (<Header *>block).nbytes, (<Header *>block).texts_nbytes
    if _is_mapped(old) or _is_mapped(nbytes):
        moved = _malloc(context, nbytes)
        if moved != NULL:
            memcpy(moved, data, min(old, nbytes))
            (<Header *>(<char *>moved - HEADER_NBYTES)).texts_nbytes = texts_nbytes
            (<Header *>block).texts_nbytes = 0
            _free(context, data, old)
        return moved
    if nbytes > <size_t>MAX_DATA or not _charge(<Account *>context, nbytes):
        return NULL
    block = <char *>realloc(block, nbytes + HEADER_NBYTES)
    _uncharge(<Account *>context, nbytes if block == NULL else old)
    return NULL if block == NULL else _with_header(context, block, nbytes, texts_nbytes)


cdef void _free(void *context, void *data, size_t nbytes) noexcept nogil:
    cdef char *block
    cdef size_t held
    if data == NULL:
        return
    block = <char *>data - HEADER_NBYTES
    held = (<Header *>block).nbytes
    _uncharge(<Account *>context, held + (<Header *>block).texts_nbytes)
    if _is_mapped(held):
        unmap_block(block, held + HEADER_NBYTES)
    else:
        free(block)


cdef void _end(object capsule) noexcept:
    """The allocator and its last array are gone."""
    cdef Account *account = <Account *>PyCapsule_GetPointer(capsule, "mem_handler")
    Py_DECREF(<object>account.budget)
    Py_DECREF(<object>account.holder)
    free(account)


cdef int64_t MAX_DATA = MAX_NBYTES


@cython.no_gc   # `__dealloc__` needs the account; a capsule and a text are in no cycle
cdef class ArrayAllocator:
    """Charges a budget for the arrays that NumPy makes in calls through it, until they are gone.

    Parameters
    ----------
    budget : Budget
    holder : str
        Who asks; named in errors.

    Notes
    -----
    Ownership: arrays belong to whoever holds them, and keep the budget alive. Threads: safe; any may let go of an
    array. Cost: 0.3 microseconds a call, and an atomic addition an array.
    """

    def __cinit__(self, Budget budget not None, str holder not None):
        cdef Account *account = <Account *>calloc(1, sizeof(Account))
        if account == NULL:
            raise MemoryError()
        strcpy(account.handler.name, "graphpool")
        account.handler.version = 1
        account.handler.allocator.context = account
        account.handler.allocator.malloc = _malloc
        account.handler.allocator.calloc = _calloc
        account.handler.allocator.realloc = _realloc
        account.handler.allocator.free = _free
        Py_INCREF(budget)
        Py_INCREF(holder)
        account.budget, account.holder = <PyObject *>budget, <PyObject *>holder
        self.account, self.holder = account, holder
        self.handler = PyCapsule_New(account, "mem_handler", _end)

    def __dealloc__(self):
        if self.account != NULL:
            _unreserve(self.account)

    @property
    def reserved(self):
        """What is reserved and no array was made of. Unit: bytes."""
        return gp_load(&self.account.reserved)

    @property
    def nbytes(self):
        """What the arrays take now. Unit: bytes."""
        return gp_load(&self.account.nbytes)

    cpdef empty(self, tuple shape, dtype):
        """An array whose content is undefined; raises as `call` does."""
        if 0 in shape:
            return np.empty(shape, dtype)  # for which NumPy allocates an element
        outer = _set_handler(self.handler)
        try:
            return np.empty(shape, dtype)
        except MemoryError as error:
            raise self.reason(error) from error
        finally:
            _set_handler(outer)

    def call(self, function, *args):
        """What a function returns; the data of the arrays that it makes are charged, those of temporaries as well.

        Raises
        ------
        OutOfMemoryError
            The budget or the system has no room for an array.
        """
        outer = self.enter()
        try:
            return function(*args)
        except Exception as error:
            reason = self.reason(error)
            if reason is error:
                raise
            raise reason from error
        finally:
            self.leave(outer)

    cdef object enter(self):
        """Let NumPy ask for the data of arrays here, in this thread until `leave`, which takes what is returned."""
        outer = _set_handler(self.handler)
        if _was_refused:
            _refused.error = None
        return outer

    cdef int leave(self, outer) except -1:
        _set_handler(outer)
        if _was_refused:
            _refused.error = None
        return 0

    cdef object reason(self, error):
        """The error to raise for one: for a lack of memory behind it, who refused how much."""
        reason, refused = _memory_error(error), getattr(_refused, "error", None)
        _refused.error = None
        if reason is None or (refused is None and isinstance(reason, OutOfMemoryError)):
            return error
        return refused or _system_error(reason, self.holder)

    cdef int charge_texts(self, array, char *data) except -1:
        """Charge for the texts of an array, which owns these data, until they are gone, if a call has made them.

        Each text counts in equal shares for all that hold it. Raises `OutOfMemoryError` where the budget has no room.
        """
        cdef Header *header = <Header *>(data - HEADER_NBYTES)
        if not array.dtype.hasobject or get_handler_name(array) != "graphpool":
            return 0
        if header.account != self.account or header.texts_nbytes:
            return 0
        cdef int64_t nbytes = _texts_nbytes(array, True)
        if not _charge(self.account, nbytes):
            error = getattr(_refused, "error", None)
            _refused.error = None
            raise error or _system_error(MemoryError(), self.holder)
        header.texts_nbytes = nbytes
        return 0

    cpdef reserve(self, int64_t nbytes):
        """Charge for arrays to come, in this thread or others.

        Raises
        ------
        OutOfMemoryError
            The budget has no room; nothing is charged.
        """
        cdef Budget budget = <Budget>self.account.budget
        if not 0 <= nbytes <= MAX_DATA or not budget._try_charge(nbytes):
            budget.charge(nbytes, holder=self.holder)
        gp_add(&self.account.reserved, nbytes)

    cpdef unreserve(self):
        """Take back what is reserved and no array was made of."""
        _unreserve(self.account)

    def hand_over(self):
        """Let go of the charge for all arrays that are there; others are to charge for what stays."""
        (<Budget>self.account.budget)._try_uncharge(gp_exchange(&self.account.nbytes, 0))

    def __repr__(self):
        return f"<ArrayAllocator of {self.holder}: {self.nbytes} bytes>"


def texts_nbytes(array):
    """Memory of the texts of an array of objects; those of one letter, which the interpreter shares, take none.

    Parameters
    ----------
    array : ndarray of object

    Returns
    -------
    nbytes : int
        Unit: bytes.
    """
    return _texts_nbytes(array, False)


cdef int64_t _texts_nbytes(array, bint in_shares):
    """With `in_shares` a text that several hold counts in parts."""
    cdef int64_t found = 0, nbytes
    cdef object item
    for item in array.flat:
        if type(item) is not str or len(<str>item) < 2:
            continue
        nbytes = sizeof(PyASCIIObject) if PyUnicode_IS_ASCII(item) else sizeof(PyCompactUnicodeObject)
        nbytes += (len(<str>item) + 1) * PyUnicode_KIND(item)
        nbytes = (nbytes + 15) // 16 * 16
        # beside the loop's own references
        found += nbytes // max(<int64_t>Py_REFCNT(item) - 1, 1) if in_shares else nbytes
    return found


def _memory_error(error):
    """The lack of memory behind an error, or None."""
    while error is not None and not isinstance(error, MemoryError):
        error = error.__cause__ or error.__context__
    return error


def _system_error(error, holder):
    """The error for an array that the system has no memory for; NumPy tells its shape and type."""
    requested = prod(getattr(error, "shape", (0,))) * np.dtype(getattr(error, "dtype", np.uint8)).itemsize
    return out_of_memory(requested, in_use=0, limit=MAX_NBYTES, resource=f"the system, for {holder},")
