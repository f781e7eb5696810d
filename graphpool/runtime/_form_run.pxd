from libc.stdint cimport int64_t

from graphpool.memory._arena cimport ArenaPool
from graphpool.memory._arrays cimport ArrayAllocator
from graphpool.memory._lease cimport Lease

from ._host_call cimport HostBudget
from ._result_arrays cimport ResultArrays
from ._step_call cimport Addresses


cdef class Frame:
    cdef readonly object address
    cdef readonly dict values
    cdef readonly Addresses addresses
    cdef readonly ArrayAllocator arrays
    cdef readonly list calls
    cdef Lease lease            # of the run that uses it
    cdef int64_t form           # number of the one that it is set up for; 0: none


cdef class FrameStore:
    # Idle ones by address, which all arenas without bytes share; a list frees its memory when the last one is taken.
    cdef dict idle
    cdef ArenaPool pool         # of their arenas: those of others are gone
    cdef object of(self, ArenaPool pool, address)
    cdef int give_back(self, Frame frame) except -1
    cdef int forget(self, int64_t form) except -1


# What every run of a form takes and gives, whatever its sizes.
cdef class RunPorts:
    cdef list inputs            # (name, id)
    cdef list outputs           # (name, id, whether a step writes it where it is told to, under this name first)
    cdef dict ids               # name of an output -> id
    cdef tuple targets          # ids of outputs that steps write
    cdef list made              # ids of those of a known shape
    cdef list names             # their names
    cdef tuple bound            # ids of what is bound
    cdef tuple passing          # ids of values that do not outlive a run
    cdef list bound_kinds, made_kinds, all_kinds    # numbers of the kinds of `bound`, `made`, all outputs, once known
    cdef dict places            # key of an offset -> number among addresses
    cdef ResultArrays results
    cdef object arenas
    cdef HostBudget host_budget
    cdef FrameStore frames


cdef class FormRun:
    cdef RunPorts ports
    cdef dict numbers           # id of an output -> number of its kind, as far as that is known
    cdef list kinds             # Described of each kind
    cdef list wanted            # of each of `made` its Described
    cdef list forms             # of each of `bound` its Described
    cdef ArenaPool pool         # where the last run had its arena
    cdef int64_t arena_nbytes, host_nbytes, all_nbytes
    cdef bint uses_blas
    cdef int64_t number         # in this process, from 1
    cdef object offsets         # of what lies in the arena: key -> bytes
    cdef list programs          # of all steps; None where some step has none
    cpdef Frame take_frame(self)
    cpdef dict run(self, inputs, outputs=*, held=*)
    cdef object _use(self, inputs, dict given, work)
    cdef object _work(self, Frame frame, inputs, dict given, dict fresh, work)
    cdef dict _run_once(self, Frame frame, dict given)
    cdef int _run_plainly(self, Frame frame) except -1
    cdef dict _given(self, outputs, held)
    cdef list _missing(self, dict given)
    cdef Frame _take_room(self, dict given, dict fresh)
    cdef Lease _lease(self, dict given)
    cdef Frame _take_results(self, Lease lease, dict given, dict fresh)
    cdef Frame _take_frame(self, Lease lease)
    cdef int _set_up_for(self, Frame frame) except -1
    cdef int _give_back(self, Frame frame) except -1
    cdef int _bind(self, Frame frame, inputs, dict given, dict fresh) except -1
    cdef dict _collect(self, Frame frame, dict given)
