"""A run of a form: takes memory, binds what the caller gives, calls the steps, collects results."""

cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uintptr_t

from graphpool.memory._arena cimport ArenaPool
from graphpool.memory._arrays cimport ArrayAllocator
from graphpool.memory._lease cimport Lease

from ._host_call cimport HostCall
from ._ndarray cimport GP_C_CONTIGUOUS, GP_WRITEABLE, fields_of, has_shape
from ._program cimport gp_next_serial
from ._step_call cimport Addresses, StepCall
from ._trace cimport current

from collections import deque

from numpy import ndarray

from graphpool.errors import OutOfMemoryError

from . import blas_threads
from .inner_models import is_inner
from .model_port import check_output

cdef enum:
    MAX_FRAMES = 64


cdef class Frame:
    """What one run at a time uses: values by tensor id, addresses in one arena, and the calls in order.

    Parameters
    ----------
    address : int
        Of the arena.
    values : mapping of int to value
        Those of every run.
    addresses : Addresses
    arrays : ArrayAllocator
        Charges for the arrays that it makes.
    """

    def __init__(self, address, values, Addresses addresses not None, ArrayAllocator arrays not None):
        self.address, self.values, self.addresses, self.arrays = address, dict(values), addresses, arrays
        self.calls = []


cdef class FrameStore:
    """Idle frames of all forms that were made of one compilation.

    Any of them is set up for another form in a microsecond.

    Ownership: keeps frames, which refer to arenas by address alone. Threads: safe.
    """

    def __cinit__(self):
        self.idle = {}

    cdef object of(self, ArenaPool pool, address):
        """Those of an arena."""
        with cython.critical_section(self):
            idle = self.idle.get(address) if self.pool is pool else None
            if idle is None:    # a deque takes memory of the heap
                if self.pool is not pool or len(self.idle) > MAX_FRAMES:
                    self.pool, self.idle = pool, {}
                idle = self.idle[address] = deque()
            return idle

    cdef int give_back(self, Frame frame) except -1:
        idle = self.idle.get(frame.address)
        if idle is not None:
            idle.append(frame)
        return 0

    cdef int forget(self, int64_t form) except -1:
        """Let go of the programs of a form that no longer runs."""
        cdef Frame frame
        for idle in list(self.idle.values()):
            for _ in range(len(idle)):
                try:
                    frame = idle.popleft()
                except IndexError:  # another thread has taken it
                    break
                if frame.form == form:
                    frame.calls.clear()
                    frame.form = 0
                idle.append(frame)
        return 0


cdef class RunPorts:
    """What every run of a form takes and gives, whatever its sizes."""


cdef class FormRun:
    """Runs a form for one set of sizes on an arena and a frame at a time; base of `Runner`, which makes frames.

    Ownership: shares the frames of all sizes. Threads: `run` may be going on in any number of
    threads, on an arena each. Cost of `run`: about a microsecond, and half a one for each result, beyond the steps.
    """

    def connect(self, form, targets, made, bound, passing, places, results, arenas, host_budget):
        """Say what every run takes and gives, whatever its sizes.

        Parameters
        ----------
        form : ModelForm
        targets, made, bound : sequence of int
            Ids of outputs that steps write; of those of a known shape; of all tensors that the caller gives or gets,
            in the order of their numbers among addresses.
        passing : collection of int
            Of values that do not outlive a run.
        places : dict
            Number among addresses of each key of a plan's offsets.
        results : ResultArrays
        arenas : SharedArenas
        host_budget : HostBudget or None
            What host functions may take, if there are any.
        """
        cdef RunPorts ports = RunPorts.__new__(RunPorts)
        names = {i: name for name, i in form.outputs.items()}
        first = {i: name for name, i in reversed(form.outputs.items())}
        ports.inputs, ports.ids = list(form.inputs.items()), dict(form.outputs)
        ports.targets, ports.made, ports.passing = tuple(targets), list(made), tuple(passing)
        ports.outputs = [(name, i, i in ports.targets and first[i] == name) for name, i in form.outputs.items()]
        ports.names, ports.bound, ports.places = [names[i] for i in made], tuple(bound), places
        ports.results, ports.arenas, ports.host_budget = results, arenas, host_budget
        ports.frames = FrameStore()
        self.ports = ports

    def size(self, FormRun other not None, arrays not None, plan, bint uses_blas, list programs):
        """Run as another one, for these sizes.

        Parameters
        ----------
        other : FormRun
        arrays : SizedArrays
        plan : FormPlan
        uses_blas : bool
            Whether every run does.
        programs : list of Program or None
            Of the steps, where each is a `StepCall`.
        """
        cdef Py_ssize_t k
        cdef RunPorts ports = other.ports
        self.ports, self.number = ports, gp_next_serial()
        self.offsets, self.programs = plan.offsets, programs
        self.numbers, self.kinds, self.uses_blas = arrays.numbers, arrays.made, uses_blas
        if ports.bound_kinds is None:
            ports.made_kinds = [self.numbers[i] for i in ports.made]
            ports.bound_kinds = [self.numbers[i] for i in ports.bound]
            ports.all_kinds = [self.numbers[i] for i in ports.ids.values() if i in self.numbers]
        self.all_nbytes = arrays.total_nbytes(ports.all_kinds)
        self.arena_nbytes, self.host_nbytes = plan.arena_nbytes, plan.host_nbytes
        self.forms = [self.kinds[k] for k in ports.bound_kinds]
        self.wanted = [self.kinds[k] for k in ports.made_kinds]

    def clear(self):
        """Forget the frames of all sizes: their arenas go."""
        self.ports.frames.idle = {}

    def end(self):
        """Let go of what frames have of these sizes alone. No run may be going on."""
        self.ports.frames.forget(self.number)

    cpdef dict run(self, inputs, outputs=None, held=None):
        """Outputs by name, see `Executable.run`; those of `outputs`, and of `held`, are written there."""
        return self._use(inputs, self._given(outputs, held), None)

    def use(self, inputs, dict given not None, work not None):
        """What `work` returns, given a frame on which the arrays of a run are in place: those of `given` are written.

        The frame, its arena and the arrays are its own until it returns.
        """
        return self._use(inputs, given, work)

    def hold(self, work not None):
        """What `work` returns, given a frame on which the arena is in place, and nothing else.

        The frame and its arena are its own until it returns.
        """
        cdef Frame frame = self.take_frame()
        try:
            if not self.uses_blas:
                return work(frame)
            blas_threads.enter()
            try:
                return work(frame)
            finally:
                blas_threads.leave()
        finally:
            self._give_back(frame)

    cpdef Frame take_frame(self):
        """A frame on an arena of its own, until `leave_frame`."""
        cdef Lease lease = self._lease({})
        try:
            return self._take_frame(lease)
        except BaseException:
            lease.release()
            raise

    def leave_frame(self, Frame frame not None):
        """Give a frame back, and release its arena."""
        self._give_back(frame)

    cdef object _use(self, inputs, dict given, work):
        """As `use`; the outputs of a run where `work` is None."""
        cdef dict fresh = {}
        cdef Frame frame = self._take_room(given, fresh)
        try:
            if not self.uses_blas:
                return self._work(frame, inputs, given, fresh, work)
            blas_threads.enter()    # once around all partitions: theirs only count then
            try:
                return self._work(frame, inputs, given, fresh, work)
            finally:
                blas_threads.leave()
        finally:
            self._give_back(frame)

    cdef object _work(self, Frame frame, inputs, dict given, dict fresh, work):
        """Bind the arrays and work on the arena of a frame."""
        if self.ports.host_budget is not None and not is_inner():
            self.ports.host_budget.start()
        self._bind(frame, inputs, given, fresh)
        return self._run_once(frame, given) if work is None else work(frame)

    cdef dict _run_once(self, Frame frame, dict given):
        """Call the steps; the outputs."""
        recorder = current()
        if recorder is not None:
            self._run_recorded(frame, recorder)
        else:
            self._run_plainly(frame)
        return self._collect(frame, given)

    cdef int _run_plainly(self, Frame frame) except -1:
        """Call the steps; those that make arrays of their own charge the run for them."""
        cdef HostCall host
        outer = None
        try:
            for call in frame.calls:
                if type(call) is StepCall:
                    (<StepCall>call).call()
                    continue
                host = <HostCall>call if type(call) is HostCall else None
                if host is not None and not host.is_inner:
                    if outer is None:
                        outer = frame.arrays.enter()
                    host.call()
                    continue
                if outer is not None:
                    frame.arrays.leave(outer)
                    outer = None
                call()
        finally:
            if outer is not None:
                frame.arrays.leave(outer)
        return 0

    cdef dict _given(self, outputs, held):
        """The arrays that results go to, checked but for those of a session."""
        cdef dict given = {}
        if outputs is not None:
            for name in outputs:
                array, number = outputs[name], self.numbers.get(self.ports.ids[name])
                known = None if number is None else self.kinds[number]
                if known is None or not _fits(array, known):
                    check_output(name, array, self._described.get(self.ports.ids[name]))
                given[name] = array
        if held is not None:
            given.update(held)
        return given

    # ---- memory

    cdef list _missing(self, dict given):
        return [name for name in self.ports.ids if name not in given]

    cdef Frame _take_room(self, dict given, dict fresh):
        """All memory of a run: an arena, results in `fresh` by id, host arrays. Who waits for it holds none."""
        cdef Lease lease
        budget = self.ports.results.budget
        while True:
            lease = self._lease(given)
            try:
                return self._take_results(lease, given, fresh)
            except OutOfMemoryError:
                lease.release()
                self.ports.arenas.shrink(self.arena_nbytes)   # larger ones may have been needed for other shapes
                nbytes = self.check_room(self._missing(given))
                if not budget.pending or is_inner():
                    raise
            except BaseException:
                lease.release()
                raise
            budget.wait_for_room(nbytes, timeout_s=0.1)     # in vain if what others held is held on

    cdef Lease _lease(self, dict given):
        cdef ArenaPool pool
        cdef Lease lease = None
        with cython.critical_section(self):
            pool = self.pool
        if pool is not None:
            lease = pool.lease_free()
        if lease is None:
            try:
                lease = self.ports.arenas.lease(self.arena_nbytes)
            except OutOfMemoryError:
                self.check_room(self._missing(given))   # which counts the results too
                raise
            with cython.critical_section(self):
                self.pool = lease.pool
        return lease

    cdef Frame _take_results(self, Lease lease, dict given, dict fresh):
        """Take what a run needs beside an arena: a frame, results, room for host arrays."""
        cdef Frame frame = self._take_frame(lease)
        cdef int64_t nbytes = self.host_nbytes
        cdef list ids = self.ports.made, names = self.ports.names, wanted = self.wanted
        cdef Py_ssize_t k
        if not given:
            nbytes += self.all_nbytes
        elif len(given) == len(self.ports.ids):
            ids, names, wanted = [], [], []
        else:
            places = {self.ports.ids[name] for name in given}
            left = [k for k in range(len(ids)) if ids[k] not in places]
            ids, names, wanted = [ids[k] for k in left], [names[k] for k in left], [wanted[k] for k in left]
            for name in self._missing(given):
                number = self.numbers.get(self.ports.ids[name])
                nbytes += 0 if number is None else self.kinds[number][3]
        if nbytes or wanted:
            try:
                arrays = self.ports.results.take(names, wanted, frame.arrays, 2 * len(self.ports.frames.idle), nbytes)
                for k in range(len(ids)):
                    fresh[ids[k]] = arrays[k]
            except BaseException:
                frame.lease = None
                self._give_back(frame)
                raise
        return frame

    cdef Frame _take_frame(self, Lease lease):
        """An idle frame of an arena, or a new one, found again when the arena is leased again."""
        cdef Frame frame
        address = lease.pool.alignment if lease.slot == NULL else <uintptr_t>lease.slot.address
        try:
            frame = self.ports.frames.of(lease.pool, address).pop()
        except IndexError:
            frame = self._make_frame(address)
        if frame.form != self.number:
            frame.form = 0
            self._set_up_for(frame)
            frame.form = self.number
        frame.lease = lease
        return frame

    cdef int _set_up_for(self, Frame frame) except -1:
        """Let a frame be for these sizes: where all is programs, its calls stay, and run others."""
        cdef Py_ssize_t k
        if self.programs is None or not frame.calls:
            frame.calls.clear()
            self._set_up(frame)
            return 0
        for key in self.offsets:
            frame.addresses.put(self.ports.places[key], frame.address + self.offsets[key])
        for k in range(len(self.programs)):
            (<StepCall?>frame.calls[k]).program = self.programs[k]
        return 0

    cdef int _give_back(self, Frame frame) except -1:
        """Forget the arrays of a run, which belong to the caller, and release the arena."""
        cdef Lease lease = frame.lease
        frame.lease = None
        frame.addresses.unbind()
        for i in self.ports.passing:
            frame.values.pop(i, None)
        frame.arrays.unreserve()
        self.ports.frames.give_back(frame)
        if lease is not None:
            lease.release()
        return 0

    # ---- values

    cdef int _bind(self, Frame frame, inputs, dict given, dict fresh) except -1:
        """Put the arrays of a run in place."""
        cdef dict values = frame.values
        for name, i in self.ports.inputs:
            values[i] = inputs[name]
        for i in self.ports.targets:
            values[i] = None    # of unknown shape: a host function brings it
        values.update(fresh)
        for name in given:
            i = self.ports.ids[name]
            if i in self.ports.targets:
                values[i] = given[name]
        frame.addresses.bind(self.ports.bound, values, self.forms, self._tensor_of)
        return 0

    cdef dict _collect(self, Frame frame, dict given):
        """The outputs; what is not this run's own fresh array, or where it was asked for, is copied."""
        cdef dict results = {}
        cdef set places = None
        if given and len(given) < len(self.ports.ids):
            places = {self.ports.ids[name] for name in given}
        for name, i, is_own in self.ports.outputs:
            value = frame.values[i]
            if given and name in given:
                results[name] = target = given[name]
                if value is not target:
                    target[...] = value
            elif is_own and (places is None or i not in places):
                results[name] = value
            else:
                from copy import copy  # not by all who run a model

                results[name] = frame.arrays.call(copy, value)
        return results


cdef bint _fits(object array, object described) except -1:
    """Whether a result of this description can be written straight into the array."""
    cdef int flags
    shape, _, dtype, _ = described
    if type(array) is not ndarray or fields_of(array).descr != <PyObject *>dtype:
        return False
    flags = fields_of(array).flags
    return flags & GP_C_CONTIGUOUS and flags & GP_WRITEABLE and has_shape(fields_of(array), <tuple>shape)
