"""The dispatch table: which kernels this build has, which of them the processor can run, and a door to call one.

The C kernels are linked into this extension alone; others reach them as `Kernel` objects.
"""

from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport free
from libc.string cimport memset
from cpython.buffer cimport PyBUF_ANY_CONTIGUOUS, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer, Py_buffer

from graphpool import config
from graphpool._kernels.core.blas import load_blas
from graphpool.errors import InvalidArgumentError, UnsupportedError, explain


cdef extern from "<stdlib.h>" nogil:
    void *aligned_alloc(size_t alignment, size_t size)

cdef extern from "core/gp_tables.h" nogil:
    ctypedef struct gp_record:
        const char *name
        const char *text
        int64_t nbytes

    ctypedef struct gp_kernel_entry:
        const char *name
        gp_kernel_fn fn
        const gp_record *params

    ctypedef struct gp_isa:
        const char *isa
        const gp_kernel_entry *const *tables
        int supported

    int gp_list_isas(gp_isa *isas)


cdef class Kernel:
    """One kernel of the table for one instruction set; immutable, usable from any thread.

    `name` is that without instruction set; `params` names the C struct, of `params_nbytes`, that its parameter block
    begins with.
    """

    def __repr__(self):
        return f"<Kernel {self.name}__{self.isa}>"

    def __reduce__(self):
        return lookup, (self.name,)


cdef tuple _load():
    """Read the C tables: the instruction sets of this build, weakest first, {isa: {name: Kernel}} for those of them
    that the processor has, and {name: (text, nbytes)} of what kernels share with Python, the same in all of them.
    """
    cdef gp_isa isas[8]
    cdef int n = gp_list_isas(isas)
    cdef int i, t, k
    cdef const gp_kernel_entry *entry
    cdef const gp_record *params
    cdef Kernel kernel
    cdef tuple record
    built, found, records = [], {}, {}
    for i in range(n):
        isa = isas[i].isa.decode()
        built.append(isa)
        if not isas[i].supported:
            continue
        table = found[isa] = {}
        t = 0
        while isas[i].tables[t] != NULL:
            k = 0
            entry = isas[i].tables[t]
            while entry[k].name != NULL:
                params = entry[k].params
                record = params.text.decode(), params.nbytes
                name = params.name.decode()
                if records.setdefault(name, record) != record:
                    raise ImportError(f"kernels know two meanings of {name}")
                if entry[k].fn != NULL:
                    kernel = Kernel.__new__(Kernel)
                    kernel.fn = entry[k].fn
                    kernel.name = entry[k].name.decode()
                    kernel.isa = isa
                    kernel.params = name
                    kernel.params_nbytes = params.nbytes
                    table[kernel.name] = kernel
                k += 1
            t += 1
    return built, found, records


_BUILT, _TABLES, _RECORDS = _load()


def isas():
    """Names of the instruction sets that this build and this processor have, weakest first, capped by
    ``GRAPHPOOL_MAX_ISA``.
    """
    limit = config.get("max_isa")
    allowed = _BUILT[: _BUILT.index(limit) + 1] if limit in _BUILT else _BUILT
    return [isa for isa in allowed if isa in _TABLES]


def names(isa=None):
    """Sorted names of the kernels for one instruction set (default: the best)."""
    return sorted(_TABLES[isa or isas()[-1]])


def lookup(str name, isa=None):
    """The kernel `name` for `isa`; by default for the best instruction set that may be used.

    Raises
    ------
    UnsupportedError
        There is no such kernel, or the processor lacks the instruction set.
    """
    table = _TABLES.get(isa or isas()[-1])
    if table is None:
        raise UnsupportedError(explain(f"instruction set {isa}", accepted=", ".join(isas())), isa=isa)
    kernel = table.get(name)
    if kernel is None:
        raise UnsupportedError(explain(f"no kernel {name}", accepted=", ".join(sorted(table))), kernel=name)
    return kernel


def describe(str name):
    """What a name that C shares stands for there: its text, and its size in bytes. KeyError: it is not shared.

    The text is what the compiler read: fields between braces, enumerators, or the value of a macro, whose size is 0.
    """
    return _RECORDS[name]


cdef uintptr_t _blas[2]


def blas_slot(str dtype):
    """Where kernels find the BLAS product of a type, ``"f32"`` or ``"f64"``, once `load_blas` was called: an address.

    Most programs have steps that call BLAS for the day when a packed weight is not kept, and never run them.
    """
    return <uintptr_t>&_blas[dtype == "f64"]


def set_blas(uintptr_t sgemm, uintptr_t dgemm):
    """Fill the slots; `_blas` does so when it is imported."""
    _blas[0], _blas[1] = sgemm, dgemm


def call(Kernel kernel not None, params, args, int64_t begin, int64_t end, int64_t scratch_nbytes=0, bint poison=False):
    """Run the tasks [begin, end) of a kernel on Python buffers, without the GIL: the door of tests and benchmarks.

    `params` is its parameter block, `args` its arguments in order: contiguous buffers, writable where it writes, or
    addresses. `poison` fills the scratch with bytes 0xFF (NaN in every float type) first. Returns what the kernel does:
    1 where an index lay outside of what it counts, else 0. InvalidArgumentError: the block is too small, or there are
    too many arguments.
    """
    cdef Py_buffer views[GP_MAX_ARGS + 1]
    cdef void *pointers[GP_MAX_ARGS]
    cdef int n = len(args), held = 0, i
    cdef void *scratch = NULL
    cdef const void *block
    cdef int64_t status
    if "blas" in kernel.name:
        load_blas()
    if n > GP_MAX_ARGS:
        raise InvalidArgumentError(explain("too many kernel arguments", accepted=f"at most {GP_MAX_ARGS}", got=n))
    try:
        PyObject_GetBuffer(params, &views[0], PyBUF_ANY_CONTIGUOUS)
        held = 1
        block = views[0].buf
        if views[0].len < kernel.params_nbytes:
            raise InvalidArgumentError(
                explain(f"parameter block of {kernel.name}", accepted=f">= {kernel.params_nbytes} bytes",
                        got=views[0].len)
            )
        for i in range(n):
            if isinstance(args[i], int):
                pointers[i] = <void *><uintptr_t>args[i]
                continue
            _get_view(args[i], &views[held])
            pointers[i] = views[held].buf
            held += 1
        if scratch_nbytes > 0:
            scratch = aligned_alloc(64, (scratch_nbytes + 63) // 64 * 64)
            if scratch == NULL:
                raise MemoryError()
            if poison:
                memset(scratch, 0xFF, scratch_nbytes)
        with nogil:
            status = kernel.fn(block, pointers, begin, end, scratch)
        return status
    finally:
        free(scratch)
        for i in range(held):
            PyBuffer_Release(&views[i])


cdef int _get_view(object array, Py_buffer *view) except -1:
    """A contiguous view, writable where the object allows it."""
    try:
        return PyObject_GetBuffer(array, view, PyBUF_ANY_CONTIGUOUS | PyBUF_WRITABLE)
    except (BufferError, ValueError):
        return PyObject_GetBuffer(array, view, PyBUF_ANY_CONTIGUOUS)
