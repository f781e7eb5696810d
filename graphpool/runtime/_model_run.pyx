"""A run of a model: checks what the caller gives, finds the form for its shapes, and lets it run in turn."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t

from graphpool.cache._lookup cimport gpc_look_up
from graphpool.memory._arrays cimport ArrayAllocator
from graphpool.memory._budget cimport Budget

from ._counters cimport JobRunner, UseCount
from ._form_cache cimport FormCache, FormUse
from ._form_run cimport FormRun
from ._ndarray cimport GP_ALIGNED, GP_C_CONTIGUOUS, fields_of, gp_array, has_shape

from numpy import dtype, may_share_memory, ndarray

from graphpool import spans
from graphpool.errors import GraphpoolError, InvalidArgumentError, OutOfMemoryError, explain
from graphpool.log import error_log, execute_log, profile_log

from .model_port import as_input, check_is_mapping, check_names, refuse_index

cdef object OBJECTS = dtype(object)


cdef class InputPorts:
    """Takes arrays for the inputs of a model.

    Parameters
    ----------
    ports : iterable of ModelPort

    Notes
    -----
    Threads: immutable. Cost of `take`: a tenth of a microsecond an input that fits, and a look at each index.
    """

    def __init__(self, ports):
        self.ports = tuple(ports)
        self.names = [port.name for port in self.ports]
        self.dtypes = [
            OBJECTS if port.is_text else None if port.dtype is None else port.dtype.numpy for port in self.ports
        ]
        self.indices = [None if port.indices is None else tuple(port.indices[:2]) for port in self.ports]
        self.shapes = [
            None if port.shape is None else tuple([dim if isinstance(dim, int) else -1 for dim in port.shape])
            for port in self.ports
        ]

    cpdef dict take(self, inputs):
        """The inputs by name, each as an array where it is a tensor of numbers, dense or not.

        Raises
        ------
        InvalidArgumentError, InvalidDataTypeError, InvalidShapeError
            An input is missing or unknown, or does not fit; the message names it.
        """
        cdef dict arrays = {}
        cdef bint is_dict = type(inputs) is dict
        cdef Py_ssize_t k
        if not is_dict or len(<dict>inputs) != len(self.names):
            check_names(inputs, self.names)
        for k in range(len(self.names)):
            name = self.names[k]
            value = gpc_look_up(<dict>inputs, name) if is_dict else inputs[name]
            if value is None:
                check_names(inputs, self.names)
            value = value if self._fits(k, value) else as_input(self.ports[k], value)
            if self.indices[k] is not None:
                low, high = <tuple>self.indices[k]
                if not _are_within(value, low, high):
                    refuse_index(self.ports[k], value)
            arrays[name] = value
        return arrays

    cpdef dict dense(self, dict arrays, ArrayAllocator copies):
        """What `take` has given, tensors of numbers as dense aligned arrays: copies where they were none.

        Raises `OutOfMemoryError`.
        """
        cdef dict found = arrays
        cdef Py_ssize_t k
        for k in range(len(self.names)):
            if self.dtypes[k] is None or self.dtypes[k] is OBJECTS:
                continue
            value = arrays[self.names[k]]
            if not is_dense(value):
                found = dict(arrays) if found is arrays else found
                found[self.names[k]] = copies.call(ndarray.copy, value)
        return found

    cdef bint _fits(self, Py_ssize_t k, object value) except -1:
        """Whether a value is a dense aligned array of the right type and shape, of texts each a ``str``."""
        cdef gp_array *array
        if type(value) is not ndarray:
            return False
        array = fields_of(value)
        if array.descr != <PyObject *>self.dtypes[k] and <object>array.descr != self.dtypes[k]:
            return False    # those of arrays that were unpickled are equal, not the same
        if not is_dense(value):
            return False
        if self.shapes[k] is not None and not has_shape(array, <tuple>self.shapes[k]):
            return False
        return self.dtypes[k] is not OBJECTS or _are_texts(<PyObject **>array.data, value.size)


cpdef bint is_dense(object array) except -1:
    """Whether kernels can read a NumPy array where it is: contiguous, and aligned."""
    cdef int flags = fields_of(array).flags
    return flags & GP_C_CONTIGUOUS and flags & GP_ALIGNED


cdef bint _are_within(object array, int64_t low, int64_t high) except -1:
    """Whether all elements of an array, s32 or s64, are in a range."""
    if not is_dense(array):
        return not array.size or (low <= array.min() and array.max() <= high)
    cdef const int64_t *wide = <const int64_t *>fields_of(array).data
    cdef const int32_t *narrow = <const int32_t *>wide
    cdef Py_ssize_t k, count = array.size
    cdef bint found = True
    if array.itemsize == sizeof(int64_t):
        for k in range(count):
            found &= low <= wide[k] <= high
    else:
        for k in range(count):
            found &= low <= narrow[k] <= high
    return found


cdef bint _are_texts(PyObject **items, Py_ssize_t count) except -1:
    """Whether each item of a dense array of objects is a ``str``."""
    cdef Py_ssize_t k
    for k in range(count):
        if items[k] == NULL or not isinstance(<object>items[k], str):
            return False
    return True


def check_outputs(outputs, dict inputs not None, frozenset names not None):
    """Raise `InvalidArgumentError` unless the names are those of outputs, and no two arrays may share memory."""
    cdef list taken = []
    if type(outputs) is not dict:
        check_is_mapping("outputs", outputs, "names of outputs as keys, and arrays for them")
    for name, array in inputs.items():
        if isinstance(array, ndarray):
            taken.append(("input", name, array))
    for name in outputs:
        if name not in names:
            raise InvalidArgumentError(explain(f"unknown output {name!r}", accepted=sorted(names)), output=name)
        array = outputs[name]
        if not isinstance(array, ndarray):
            continue
        for side, other, memory in taken:
            if _may_share(array, memory):
                what = f"output {name!r} shares memory with {side} {other!r}"
                raise InvalidArgumentError(explain(what, hint="pass separate arrays"), output=name)
        taken.append(("output", name, array))


cdef bint _may_share(object one, object other) except -1:
    """Whether two arrays may have a byte in common."""
    cdef char *first = fields_of(one).data
    cdef char *second = fields_of(other).data
    cdef int64_t nbytes
    if fields_of(one).flags & fields_of(other).flags & GP_C_CONTIGUOUS:
        nbytes = one.nbytes if first <= second else other.nbytes
        if (second - first if first <= second else first - second) >= nbytes:
            return False
    return may_share_memory(one, other)


cdef bytes shapes_of(dict arrays):
    """The rank of each array, -1 for other values, and its sizes, as one row of numbers to find a form by."""
    cdef Py_ssize_t count = 0, k
    cdef gp_array *array
    cdef bytes found
    cdef int64_t *place
    for value in arrays.values():
        count += 1 + (fields_of(value).nd if isinstance(value, ndarray) else 0)
    found = PyBytes_FromStringAndSize(NULL, count * sizeof(int64_t))
    place = <int64_t *>PyBytes_AS_STRING(found)
    for value in arrays.values():
        if not isinstance(value, ndarray):
            place[0] = -1
            place += 1
            continue
        array = fields_of(value)
        place[0] = array.nd
        for k in range(array.nd):
            place[1 + k] = array.dimensions[k]
        place += 1 + array.nd
    return found


cdef class ModelRun:
    """What each run of a model goes through; base of `ModelForms`, which makes the forms.

    Parameters
    ----------
    name : str
    inputs, outputs : sequence of ModelPort
    deciding : sequence of str
        Inputs whose content forms are found by, beside shapes.
    cache : FormCache
    count : UseCount
    queue : MemoryQueue
    host_budget : Budget

    Attributes
    ----------
    declared : DeclaredShapes or None
    copies : ArrayAllocator
        Charges for copies that runs make of inputs and results.

    Notes
    -----
    Threads: safe. Cost of a run on shapes that are known: two and a half microseconds beyond its steps.
    """

    def __init__(self, str name not None, inputs, outputs, deciding, FormCache cache not None, UseCount count not None,
                 JobRunner queue not None, Budget host_budget not None):
        self.name, self.deciding, self.cache, self.count, self.queue = name, tuple(deciding), cache, count, queue
        self.inputs, self.outputs = InputPorts(inputs), frozenset([port.name for port in outputs])
        self.copies = ArrayAllocator(host_budget, f"copies of {name}")

    def run(self, inputs, outputs=None):
        """See `Model.run`: alone, where it found too little memory beside other runs."""
        cdef dict arrays = self.inputs.take(inputs)
        if outputs is not None:
            check_outputs(outputs, arrays, self.outputs)
        try:
            return self._run_in_turn(arrays, self._run, (arrays, outputs))
        except GraphpoolError as error:
            error_log.info("%s: %s: %s", self.name, type(error).__name__, error)
            raise

    def run_in_turn(self, dict arrays not None, work, *given):
        """What `in_turn` returns of a run for these inputs; whoever listens is told of it."""
        return self._run_in_turn(arrays, work, given)

    cdef object _run_in_turn(self, dict arrays, work, tuple given):
        """As `run_in_turn`."""
        if spans.opener is not None or execute_log.is_on() or profile_log.is_on():
            return self._run_told(arrays, work, *given)
        return self._in_turn(work, given)

    def in_turn(self, work, *given):
        """What a job returns that waits for memory, where the engine's queue lets it."""
        return self._in_turn(work, given)

    cdef object _in_turn(self, work, tuple given):
        """As `in_turn`."""
        try:
            return self.queue.run(work, self._between_runs_nbytes, given)
        except OutOfMemoryError as error:
            if not self._may_fit_alone(error):
                raise
        return self.queue.run(work, self._between_runs_nbytes, given)

    cpdef dict dense(self, InputPorts ports, dict given):
        """What `InputPorts.dense` gives, charged; raises `OutOfMemoryError` that names what all of the run takes."""
        try:
            return ports.dense(given, self.copies)
        except OutOfMemoryError:
            self.peak(given, True, False)
            raise

    def _run(self, dict given, outputs):
        cdef dict arrays = self.dense(self.inputs, given)
        cdef FormUse use = self.enter(arrays)
        cdef int64_t runs = 0
        try:
            if self.declared is not None:
                self._make_room_for(use)
            results = (<FormRun?>use.executable.runner).run(arrays, outputs)
            runs = 1
            return results
        finally:
            self.cache.leave(use, runs)

    cpdef FormUse enter(self, dict arrays, states=None):
        """The form for these inputs, made if need be; it stays open until the cache is told that it is left."""
        contents = tuple([arrays[name].tobytes() for name in self.deciding]) if self.deciding else ()
        key = shapes_of(arrays), contents, None if states is None else states.key
        self.count.touch()
        try:
            return self.cache.enter(key, self._make, (arrays, states))
        finally:
            if self.cache.is_closed:    # meanwhile: the form lives until this run ends
                self._end_late()
