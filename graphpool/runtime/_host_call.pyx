"""The call of a host function in a run of a form, and what the host functions of one run may take."""

from libc.stdint cimport int64_t

from graphpool.memory._arrays cimport ArrayAllocator
from graphpool.memory._gate cimport clock_ns

from ._ndarray cimport fields_of

import threading

from numpy import ndarray

from graphpool.errors import LimitError, OutOfMemoryError

from .inner_models import InnerModels


cdef int64_t MOST = 2**60    # steps that are told apart


cdef class Spent:
    """What the run that this thread is at has taken, and until when it may go on."""


cdef class HostBudget:
    """Steps and wall time of host functions, for each thread that runs a model anew with each run.

    Parameters
    ----------
    limits : Limits

    Notes
    -----
    Threads: safe. One call of NumPy or of ONNX's evaluator is not interrupted: what it may do is bounded before it
    starts. Cost: 0.1 microseconds a call.
    """

    def __init__(self, limits):
        self.limits, self.local = limits, threading.local()
        self.most_steps, self.most_ns = min(limits.host_steps, MOST), int(min(limits.host_deadline_s, 1e9) * 1e9)

    cdef Spent of_thread(self):
        try:
            return <Spent?>self.local.spent
        except AttributeError:
            self.local.spent = Spent()
            self.start()
            return <Spent?>self.local.spent

    cpdef start(self):
        """Begin a run."""
        cdef Spent spent = self.of_thread()
        spent.steps, spent.end_ns = 0, clock_ns() + self.most_ns

    cpdef spend(self, steps, node):
        """Count steps before they are done, and look at the clock.

        Parameters
        ----------
        steps : int
        node : str
            Who does them; named in errors.

        Raises
        ------
        LimitError
            There are too many, or the time is over.
        """
        self.count(min(steps, MOST), node)

    cdef int count(self, int64_t steps, node) except -1:
        """As `spend`."""
        cdef Spent spent = self.of_thread()
        cdef int64_t late_ns
        spent.steps = min(spent.steps + steps, MOST + 1)
        if spent.steps > self.most_steps:
            raise self.limits.error("host_steps", spent.steps, f"node {node!r}: work of the host", node)
        late_ns = clock_ns() - spent.end_ns
        if late_ns > 0:
            taken_s = self.limits.host_deadline_s + late_ns * 1e-9
            raise self.limits.error("host_deadline_s", round(taken_s, 3), f"node {node!r}: time of the host", node)
        return 0

    def __reduce__(self):
        return HostBudget, (self.limits,)


cdef class HostCall:
    """A host function on the values of a run.

    Parameters
    ----------
    step : ModelStep
    values : dict
        Of the run, by tensor id: it has the function's inputs, and the arrays that its results go to.
    are_plain : sequence of bool
        Which outputs have such an array.
    budget : HostBudget or None
    arrays : ArrayAllocator
        Charges for the arrays that the function makes.
    keeps_room : bool
        Whether what is reserved for the arrays of host functions is still needed behind inner models, which have room
        of their own.

    Notes
    -----
    Threads: one call at a time. Cost: half a microsecond beside the function.
    """

    def __cinit__(self, step, dict values not None, are_plain, HostBudget budget, ArrayAllocator arrays not None,
                  bint keeps_room=True):
        self.step, self.function, self.label = step, step.function, step.label
        self.inputs, self.outputs, self.are_plain = step.inputs, step.outputs, list(are_plain)
        if len(self.are_plain) != len(self.outputs):
            raise ValueError(f"{len(self.are_plain)} of {len(self.outputs)} outputs")
        self.values, self.budget, self.arrays = values, budget, arrays
        self.is_inner = isinstance(step.function, InnerModels)
        self.copies_inputs = not (all(self.are_plain) or self.is_inner or step.gives_fresh)
        self.makes_texts, self.keeps_room = getattr(step.function, "makes_texts", False), keeps_room

    def __call__(self):
        """Run the function, and keep its results, or copy them to where they belong.

        Raises
        ------
        BackendError
            The function failed, or gave other results than were inferred.
        LimitError, OutOfMemoryError
            It may not take as much.
        """
        outer = None if self.is_inner else self.arrays.enter()
        try:
            self.call()
        finally:
            if outer is not None:
                self.arrays.leave(outer)

    cdef int call(self) except -1:
        """As `__call__`, where `arrays` is entered for all but inner models, which check, count and name themselves."""
        cdef list sources = [self.values[i] for i in self.inputs], targets = []
        cdef Py_ssize_t k
        for k in range(len(self.outputs)):
            targets.append(self.values[self.outputs[k]] if self.are_plain[k] else None)
        if self.is_inner:
            if not self.keeps_room:
                self.arrays.unreserve()
            return self.put(targets, self.function(sources, targets))
        if self.budget is not None:
            self.budget.count(1, self.label)
        try:
            if self.copies_inputs:
                self.copy_arrays(sources)
            results = self.function(sources, targets)
            if self.makes_texts:
                for result in results:
                    self.charge_texts(result)
        except (LimitError, OutOfMemoryError):
            raise
        except Exception as error:
            reason = self.arrays.reason(error)
            if reason is not error:
                raise reason from error
            raise self.step.host_error("failed", got=f"{type(error).__name__}: {error}") from error
        return self.put(targets, results)

    cdef int copy_arrays(self, list sources) except -1:
        """Results of unknown shapes may be views of inputs, and arenas are written again; no objects are there."""
        cdef Py_ssize_t k
        for k in range(len(sources)):
            if isinstance(sources[k], ndarray) and not sources[k].dtype.hasobject:
                sources[k] = sources[k].copy()
        return 0

    cdef int charge_texts(self, result) except -1:
        """Charge for the texts of what the function has made."""
        while isinstance(result, ndarray) and not result.flags.owndata:
            result = result.base
        if isinstance(result, ndarray):
            self.arrays.charge_texts(result, fields_of(result).data)
        return 0

    cdef int put(self, list targets, results) except -1:
        cdef Py_ssize_t k
        if len(results) != len(targets):
            accepted, got = f"{len(targets)}", f"{len(results)}"
            raise self.step.host_error("gave another number of results", accepted=accepted, got=got)
        for k in range(len(targets)):
            result = results[k]
            if targets[k] is None:
                self.values[self.outputs[k]] = result
            elif result is not targets[k]:
                self.step.copy_result(targets[k], result)
        return 0
