"""CompileMemo: what a partition was compiled with lately, found again by identity."""

cimport cython

import weakref

cdef enum:
    MOST = 8


cdef class Record:
    """The arguments of one compilation, and what makes its like."""

    cdef tuple inputs
    cdef tuple outputs
    cdef str scratch
    cdef str weights
    cdef object engine      # weak, as is
    cdef object template    # what the backend gave

    cdef bint matches(self, tuple inputs, tuple outputs, object engine, str scratch, str weights):
        cdef Py_ssize_t i
        if len(inputs) != len(self.inputs) or len(outputs) != len(self.outputs):
            return False
        if scratch != self.scratch or weights != self.weights:
            return False
        for i in range(len(inputs)):
            if inputs[i] is not self.inputs[i]:
                return False
        for i in range(len(outputs)):
            if outputs[i] is not self.outputs[i]:
                return False
        return self.engine() is engine


cdef class CompileMemo:
    """Up to 8 compilations of one partition, the latest first.

    A record matches if the very same logical tensors, engine and modes are given again: then nothing needs to be
    checked or inferred a second time. Logical tensors are immutable, so identity is enough; what is equal and not the
    same is found in the backend's caches by structure.

    Notes
    -----
    Ownership: the logical tensors; engines and templates are referred to weakly. Threads: safe.
    """

    cdef tuple records

    def __init__(self):
        self.records = ()

    def find(self, tuple inputs not None, tuple outputs not None, engine, scratch, weights):
        """A compiled partition from the record that matches, or None."""
        cdef Record record
        cdef tuple records
        with cython.critical_section(self):
            records = self.records
        if not records or type(scratch) is not str or type(weights) is not str:
            return None
        for record in records:
            if record.matches(inputs, outputs, engine, scratch, weights):
                template = record.template()
                return None if template is None else template(engine)
        return None

    def remember(
        self, tuple inputs not None, tuple outputs not None, engine, str scratch not None, str weights not None,
        template,
    ):
        """Keep the arguments of a compilation and its template, in place of an equal or the oldest record."""
        cdef Record record, old
        cdef list kept
        cdef tuple records
        record = Record.__new__(Record)
        record.inputs, record.outputs, record.scratch, record.weights = inputs, outputs, scratch, weights
        record.engine, record.template = weakref.ref(engine), weakref.ref(template)
        kept = [record]
        with cython.critical_section(self):
            records = self.records
        for old in records:
            is_other = not old.matches(inputs, outputs, engine, scratch, weights)
            if len(kept) < MOST and is_other and old.template() is not None:
                kept.append(old)
        records = tuple(kept)
        with cython.critical_section(self):
            self.records = records
