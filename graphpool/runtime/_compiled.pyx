"""A compiled partition: what executes."""

cimport cython
from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer, Py_buffer
from cpython.object cimport PyObject

from graphpool._finalizing cimport gp_is_finalizing

from ._constants cimport Constants, acquire, release
from ._program cimport ARENA_BYTES, BLAS, check_run
from ._stream cimport Stream
from ._tensor cimport Signature, Tensor, signature_of

import warnings

from . import blas_threads
from .constant_part import execution_key
from .scheduling import SEQUENTIAL
from ._program import FIRST_EXTERNAL
from ._tensor import as_tensors
from graphpool.errors import InvalidArgumentError, InvalidShapeError, StateError, brief, check_choice, explain

cdef enum:
    MAX_PORTS = 4096

ALIGNMENT = 64
cdef char _nowhere = 0   # the arena of programs without temporaries
SCRATCH_MODES = ("primitive", "shared", "none", "caller")
WEIGHTS_MODES = ("cached", "scoped")


cdef class PortTable:
    """The ports of a compiled partition, inputs first."""

    def __cinit__(self, int64_t nports):
        self.ports = <Port *>calloc(nports + 1, sizeof(Port))
        if self.ports == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.ports)


cdef class CompiledPartition:
    """A partition compiled for given shapes and layouts; made by `Partition.compile`.

    Parameters
    ----------
    partition : Partition
    inputs, outputs : sequence of LogicalTensor
        In the order in which tensors are passed to `execute`; layouts settled. Shapes of outputs may be unknown only
        when `host_function` computes them.
    engine : Engine
    primitive : Primitive, optional
        What runs.
    host_function : callable, optional
        Instead of a primitive: takes a list of input arrays, returns a list of output arrays.
    implementations : sequence of str, optional
        What the host function calls, one name a step; a primitive brings its own.
    scratch : {"primitive", "shared", "none", "caller"}, default="primitive"
        Where executions have their temporaries: in a pool that compilation reserves with the primitive and `close`
        returns to it; in arenas that all partitions of the engine share; in memory allocated for each run; or in what
        the caller passes to each `execute`, and has charged to the budget, with the primitive, himself.
    weights : {"cached", "scoped"}, default="cached"
        Whether packed constants stay in the constant tensor cache when the partition is closed, or leave it with the
        last compiled partition that uses them.

    Attributes
    ----------
    step_ops : tuple of int
        Id of the op that each step computes, or of the first of several.
    inplace_ports : tuple of (int, int)
        Ids of (input, output) that may share one buffer.

    Notes
    -----
    Ownership: a user of its primitive until it is closed; tensors are the caller's. Pickles with its engine, by
    description: what is loaded has an engine of its own, which it shares with all that was pickled together.
    Threads: immutable; any number of threads may execute it at once. Cost of `execute`: about a fifth of a microsecond
    beyond the kernels, without allocation or lock when warm.
    Source: oneDNN Graph's programming model, Compiled Partition; RFC "primitive memory caching".
    """

    def __init__(self, partition, inputs, outputs, engine, *, primitive=None, host_function=None, implementations=(),
                 str scratch="primitive", str weights="cached"):
        if engine.is_closed:
            raise StateError(explain(f"{engine!r} is closed", hint="create another engine"))
        check_choice("scratch", scratch, SCRATCH_MODES)
        check_choice("weights", weights, WEIGHTS_MODES)
        self.closed = True
        self.partition = partition
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.engine = engine
        self.primitive = primitive
        self.host_function = host_function
        self.scratch = scratch
        self.weights = weights
        self.ninputs = len(self.inputs)
        self.noutputs = len(self.outputs)
        nparts = 0 if primitive is None else len(primitive.constant_parts)
        if self.ninputs + self.noutputs + nparts > MAX_PORTS - FIRST_EXTERNAL:
            raise InvalidArgumentError(
                explain("ports of a partition and forms of its constants", got=self.ninputs + self.noutputs + nparts,
                        accepted=f"at most {MAX_PORTS - FIRST_EXTERNAL}")
            )
        self._describe_ports()
        if primitive is None:
            self.implementations = tuple(implementations)
            self.inplace_ports = ()
        else:
            self._use(primitive)
        self.closed = False

    def _use(self, primitive):
        """Take from a primitive what it says in positions, and a pool of its arenas."""
        self.program = primitive.program
        self.scratch_nbytes = self.program.arena_nbytes
        self.implementations = primitive.implementations
        self.inplace_ports = tuple([(self.inputs[i].id, self.outputs[j].id) for i, j in primitive.inplace_ports])
        self.nparts = len(primitive.constant_parts)
        if self.scratch == "caller":
            return
        primitives = self.engine.primitives
        self.engine.budget.check(primitives.missing_nbytes(primitive) + self.scratch_nbytes, holder=repr(primitive))
        self.share = primitives.acquire(primitive, reserves=self.scratch == "primitive")
        if self.scratch == "primitive":
            self.arenas = self.share.arenas
        elif self.scratch == "shared":
            self.shared = self.engine.shared_arenas
            self.shared.require(self.scratch_nbytes)

    cdef CompiledPartition copy(self, object engine):
        """Another one like it, open, for `engine`; the share counts it as a user already."""
        cdef CompiledPartition other = CompiledPartition.__new__(CompiledPartition)
        other.partition, other.inputs, other.outputs = self.partition, self.inputs, self.outputs
        other.engine, other.primitive, other.program = engine, self.primitive, self.program
        other.scratch, other.implementations = self.scratch, self.implementations
        other.weights, other.nparts = self.weights, self.nparts
        other.inplace_ports, other.scratch_nbytes = self.inplace_ports, self.scratch_nbytes
        other.ports, other.table, other.ninputs, other.noutputs = self.ports, self.table, self.ninputs, self.noutputs
        other.share, other.arenas, other.shared = self.share, self.arenas, self.shared
        return other

    def resized(self, Program program not None, dict ports, shared=None):
        """Another one like it for other sizes, open; its constants are this one's, which must stay open.

        Parameters
        ----------
        program : Program
            The steps for these sizes.
        ports : dict
            Position, inputs first -> the logical tensor there, where it differs.
        shared : optional
            Arenas in which executions have their temporaries; by default it has its own.

        Returns
        -------
        compiled : CompiledPartition
        """
        cdef CompiledPartition other = self.copy(self.engine)
        cdef int64_t k
        found = list(self.inputs + self.outputs)
        other.table = PortTable(self.ninputs + self.noutputs)
        other.ports = other.table.ports
        memcpy(other.ports, self.ports, (self.ninputs + self.noutputs) * sizeof(Port))
        other.table.signatures = list(self.table.signatures)
        for k, lt in ports.items():
            found[k] = lt
            other.table.signatures[k] = signature_of(lt)
            other.ports[k].signature = (<Signature>other.table.signatures[k]).number
        other.program, other.scratch_nbytes = program, program.arena_nbytes
        other.inputs, other.outputs = tuple(found[:self.ninputs]), tuple(found[self.ninputs:])
        other.constants = self.all_constants() if self.nparts else None
        other.share, other.arenas, other.borrows = None, None, True
        if shared is not None:
            other.shared = shared
        return other

    def _describe_ports(self):
        """Fill in the table of ports."""
        cdef int64_t i
        self.table = PortTable(self.ninputs + self.noutputs)
        self.ports = self.table.ports
        self.table.signatures = [signature_of(lt) for lt in self.inputs + self.outputs]
        for i, lt in enumerate(self.inputs + self.outputs):
            self.ports[i].id = lt.id
            self.ports[i].signature = (<Signature>self.table.signatures[i]).number

    cdef Constants all_constants(self):
        """The constants of the primitive's parts, made now if nobody has asked for them before."""
        cdef Constants made
        if self.constants is None:
            first = FIRST_EXTERNAL + self.ninputs + self.noutputs
            made = Constants(self.primitive.constant_parts, self.engine, first)
            with cython.critical_section(self):
                if self.constants is None:
                    self.constants = made
            if self.closed:     # since `close` may have looked before
                self.constants.close(release=self.weights == "scoped")
        return self.constants

    # ---- what is known after compilation

    @property
    def scratchpad_nbytes(self):
        """Memory that one execution needs beside its tensors. Unit: bytes."""
        return self.scratch_nbytes

    @property
    def step_ops(self):
        ops = self.partition.ops
        return tuple([op.id for op in ops] if self.primitive is None else [ops[k].id for k in self.primitive.step_ops])

    @property
    def schedule(self):
        """How the steps are placed on streams, a `Schedule`; None when they were compiled to follow one another."""
        return None if self.primitive is None else self.primitive.details.schedule

    @property
    def sequential_nbytes(self):
        """What `scratchpad_nbytes` would be if every step followed the one before. Unit: bytes."""
        if self.primitive is None or self.borrows:
            return self.scratch_nbytes
        return self.primitive.details.sequential_nbytes

    @property
    def is_closed(self):
        """Whether `close` was called."""
        return self.closed or self.engine.is_closed

    def query_logical_tensor(self, id):
        """The logical tensor of a port with shape, layout and size settled.

        Parameters
        ----------
        id : int
            Of a port.

        Returns
        -------
        tensor : LogicalTensor

        Raises
        ------
        InvalidArgumentError
            No port has this id.
        """
        for lt in self.inputs + self.outputs:
            if lt.id == id:
                return lt
        raise InvalidArgumentError(
            explain(f"no port with id {brief(id)}", accepted=[lt.id for lt in self.inputs + self.outputs]), tensor_id=id
        )

    def predict_peak(self, executions=1):
        """Memory that the engine will have handed out at most for executions at once, tensors not counted.

        Parameters
        ----------
        executions : int, default=1
            How many at once.

        Returns
        -------
        nbytes : int
            Exact for the arenas, and for the packed constants that the cache has room for, if it has none of them
            yet. Unit: bytes.
        """
        if self.shared is not None:
            arenas = self.shared.current().nbytes * executions
        else:
            arenas = self.scratch_nbytes * executions
        return self.all_constants().predict_peak(arenas) if self.nparts else arenas

    def cached_constants(self):
        """The packed constants that the constant tensor cache keeps for it now, those that others share included.

        Returns
        -------
        nbytes : dict
            Key of the entry -> its size. Unit: bytes.
        """
        return {} if self.constants is None else self.constants.kept()

    def has_cached_constants(self):
        """Whether the constant tensor cache keeps now all that kernels want packed."""
        return self.constants is None or self.constants.has_all()

    def stats(self):
        """Statistics of the arenas that the partition uses; None when it has none."""
        if self.shared is not None:
            return self.shared.current().stats()
        return None if self.arenas is None else self.arenas.stats()

    # ---- execution

    def execute(self, Stream stream not None, inputs, outputs=None, *, scratchpad=None, options=None):
        """Compute the outputs from the inputs.

        Parameters
        ----------
        stream : Stream
            Of the engine that the partition was compiled for.
        inputs : sequence of Tensor
            In the order of `inputs`; another order is matched by id.
        outputs : sequence of Tensor, optional
            Where the results go, likewise; None lets the engine allocate them. They may share a buffer with an input
            only as `inplace_ports` says.
        scratchpad : Tensor or writable buffer, optional
            Memory for the temporaries, aligned to 64 bytes, of at least `scratchpad_nbytes`; it must not be used by
            another execution at the same time.
        options : ExecuteOptions, optional
            The name under which constants are cached.

        Returns
        -------
        outputs : sequence of Tensor

        Raises
        ------
        StateError
            The partition or the stream is closed, or the stream belongs to another engine.
        InvalidArgumentError, InvalidShapeError, InvalidDataTypeError
            A tensor is missing, does not match what was compiled, is read-only, or overlaps another one.
        OutOfMemoryError
            There is no memory for the temporaries; nothing was run.
        InvalidArgumentError
            Also where an op met an index outside its axis, which is found while it runs; all outputs are written then.
        KeyboardInterrupt, or what another signal handler raises
            In the main thread, within about 50 ms and what is under way; outputs are written in part.

        Notes
        -----
        Inputs that are constant are cached in the form that the kernels want, under the name of their content, see
        `identity_of`. What the cache does not keep is computed by kernels for the plain layout. A change of a constant
        must be announced by `Tensor.invalidate`.
        """
        cdef char *bases[MAX_PORTS]
        cdef PyObject *held[MAX_PORTS]
        cdef int64_t nbytes[MAX_PORTS]
        if stream.engine is not self.engine or stream.closed or self.closed:
            self._check_stream(stream)
        key = None if options is None else execution_key(options)
        if outputs is None:
            outputs = [Tensor(lt, self.engine) for lt in self.outputs]
        # tuples of our own: nobody can take a tensor out of them, and so free its memory, while the program runs
        cdef tuple sources = self._bind(inputs, 0, self.ninputs, bases + 2, nbytes)
        if self.host_function is not None:
            self._execute_on_host(sources, outputs, bases + 2, nbytes)
            return outputs
        _targets = self._bind(outputs, self.ninputs, self.noutputs, bases + 2 + self.ninputs, nbytes + self.ninputs)
        self._check_overlap(bases + 2, nbytes)
        if self.nparts == 0:
            self._run(bases, nbytes, stream, scratchpad)
            return outputs
        if self.constants is None:
            self.all_constants()
        acquire(self.constants, sources, key, bases, held)
        try:
            self._run(bases, nbytes, stream, scratchpad)
        finally:
            release(self.constants, held)
        return outputs

    def prepare(self, inputs, *, options=None, Stream stream=None):
        """Bring the constants among `inputs` into the cache now rather than at the first execution.

        Parameters
        ----------
        inputs : sequence of Tensor
            As for `execute`; those that are not constant need no data.
        options : ExecuteOptions, optional
        stream : Stream, optional
            Whose threads help.

        Raises
        ------
        StateError
            The partition is closed, or a constant has no data or belongs to another engine.
        InvalidArgumentError, InvalidShapeError
            A tensor is missing, or a constant does not match what was compiled.

        Notes
        -----
        Threads: safe. Cost: a read of each constant for its name, a read and a write for its form.
        """
        cdef char *bases[MAX_PORTS]
        cdef PyObject *held[MAX_PORTS]
        if self.closed:
            raise StateError(explain("the compiled partition is closed", hint="compile the partition again"))
        key = execution_key(options)
        if self.nparts:
            tensors = self._match(as_tensors(inputs), 0, self.ninputs)
            constants = self.all_constants()
            for position in sorted({position for part in constants.parts for position in part.sources}):
                self._check_tensor(tensors[position], position)
                (<Tensor>tensors[position])._check_allocated()
            constants.bring(tensors, key, None if stream is None else stream.team)
            acquire(constants, tensors, key, bases, held)
            release(constants, held)

    def _know_constants(self, keys):
        """Take the `PackedKey` of each constant part, for the tensors of all executions, instead of finding it."""
        self.all_constants().known = list(keys)

    def own_constant(self, int64_t part, inputs, Stream stream not None):
        """The form of a part of the primitive, for who keeps it whatever the cache does: see `Constants.own`.

        Parameters
        ----------
        part : int
            Index in `primitive.constant_parts`.
        inputs : sequence of Tensor
            As for `prepare`.
        stream : Stream
            Whose threads help.
        """
        return self.all_constants().own(part, tuple(inputs), stream.team)

    def replace_constant(self, int64_t part, tuple key, buffer, inputs):
        """Let executions with given inputs use a form of a constant from now on, whatever the cache does.

        Parameters
        ----------
        part : int
            Index in `primitive.constant_parts`.
        key : tuple
            Of the form, as the cache knows it.
        buffer : ConstantBuffer
            The form; kept.
        inputs : sequence of Tensor
            As for `prepare`.
        """
        self.all_constants().stand_in(part, key, buffer, tuple(inputs))

    cdef int _run(self, char **bases, int64_t *nbytes, Stream stream, object scratchpad) except -1:
        if self.program.needs(BLAS, bases):
            blas_threads.enter()
            try:
                return self._run_program(bases, nbytes, stream, scratchpad)
            finally:
                blas_threads.leave()
        return self._run_program(bases, nbytes, stream, scratchpad)

    cdef int _run_program(self, char **bases, int64_t *nbytes, Stream stream, object scratchpad) except -1:
        cdef void *arena = NULL
        cdef Py_buffer view
        cdef int64_t status
        if self.scratch_nbytes == 0:
            bases[0] = &_nowhere
            return self._run_once(bases, stream)
        if type(scratchpad) is Tensor:
            (<Tensor>scratchpad)._check_allocated()
            self._check_scratchpad(<uintptr_t>(<Tensor>scratchpad).data, (<Tensor>scratchpad).nbytes,
                                   (<Tensor>scratchpad).is_readonly)
            self._check_apart((<Tensor>scratchpad).data, bases + 2, nbytes)
            bases[0] = (<Tensor>scratchpad).data
            return self._run_once(bases, stream)
        if scratchpad is not None:
            _get_buffer(scratchpad, &view)
            try:
                self._check_scratchpad(<uintptr_t>view.buf, view.len, view.readonly)
                self._check_apart(<char *>view.buf, bases + 2, nbytes)
                bases[0] = <char *>view.buf
                return self._run_once(bases, stream)
            finally:
                PyBuffer_Release(&view)
        if self.arenas is None:
            return self._run_without_pool(bases, stream)
        if not self.program.needs(ARENA_BYTES, bases):
            bases[0] = &_nowhere
            return self._run_once(bases, stream)
        arena = self.arenas.acquire()
        bases[0] = <char *>arena
        with nogil:
            status = self.program.run(bases, stream.team)
            self.arenas.release(arena)
        return check_run(status, self.program, self)

    cdef int _run_once(self, char **bases, Stream stream) except -1:
        """Run where all memory is there."""
        cdef int64_t status
        with nogil:
            status = self.program.run(bases, stream.team)
        return check_run(status, self.program, self)

    cdef int _run_without_pool(self, char **bases, Stream stream) except -1:
        """Run in an arena of the engine, or in memory allocated for this run alone."""
        cdef uintptr_t address
        if self.scratch == "caller":
            raise InvalidArgumentError(explain("scratchpad", got=None, hint="it was compiled with scratch='caller'",
                                               accepted=f"{self.scratch_nbytes} bytes, aligned to {ALIGNMENT}"))
        if self.shared is not None:
            with self.shared.lease(self.scratch_nbytes) as lease:
                address = lease.address
                bases[0] = <char *>address
                return self._run_once(bases, stream)
        address = self.engine.resource.allocate(self.scratch_nbytes, ALIGNMENT)
        bases[0] = <char *>address
        try:
            return self._run_once(bases, stream)
        finally:
            self.engine.resource.deallocate(address, self.scratch_nbytes, ALIGNMENT)

    cdef tuple _bind(self, object given, int64_t first, int64_t count, char **pointers, int64_t *nbytes):
        """Fill in the addresses of `count` tensors for the ports from `first` on; the tensors."""
        cdef int64_t i
        cdef Tensor tensor
        cdef tuple tensors = given if type(given) is tuple else as_tensors(given)
        if len(tensors) != count:
            tensors = self._match(tensors, first, count)
        for i in range(count):
            item = tensors[i]
            if type(item) is not Tensor or (<Tensor>item).lt_id != self.ports[first + i].id:
                return self._bind(self._match(tensors, first, count), first, count, pointers, nbytes)
            tensor = <Tensor>item
            if tensor.signature != self.ports[first + i].signature or tensor.engine is not self.engine:
                self._check_tensor(tensor, first + i)
            if tensor.data == NULL:
                tensor._check_allocated()
            if first >= self.ninputs and tensor.is_readonly:
                tensor._check_writable()
            pointers[i] = tensor.data
            nbytes[i] = tensor.nbytes
        return tensors

    cdef int _check_overlap(self, char **pointers, int64_t *nbytes) except -1:
        """An output overlaps no other output, and an input only as an in-place pair."""
        cdef int64_t i, j
        for j in range(self.ninputs, self.ninputs + self.noutputs):
            for i in range(j):
                if pointers[i] < pointers[j] + nbytes[j] and pointers[j] < pointers[i] + nbytes[i]:
                    self._check_inplace(i, j, pointers[i] == pointers[j])
        return 0

    def _check_inplace(self, int64_t i, int64_t j, bint same_start):
        pair = (self.ports[i].id, self.ports[j].id)
        if i >= self.ninputs or not same_start or pair not in self.inplace_ports:
            raise InvalidArgumentError(
                explain(f"output tensor {pair[1]} shares memory with tensor {pair[0]}",
                        accepted=f"in-place pairs {list(self.inplace_ports)}", hint="pass separate buffers"),
                tensor_id=pair[1],
            )

    def _match(self, tensors, int64_t first, int64_t count):
        """The tensors for the ports from `first` on, found by id."""
        by_id = {}
        for tensor in tensors:
            if type(tensor) is not Tensor:
                raise InvalidArgumentError(explain("not a tensor", accepted="graphpool.Tensor", got=brief(tensor)))
            by_id.setdefault((<Tensor>tensor).lt_id, tensor)
        wanted = [self.ports[first + i].id for i in range(count)]
        side = "output" if first >= self.ninputs and count == self.noutputs else "input"
        for id in wanted:
            if id not in by_id:
                raise InvalidArgumentError(
                    explain(f"no {side} tensor with id {id}", accepted=f"ids {wanted}", got=f"ids {list(by_id)}"),
                    tensor_id=id,
                )
        return tuple([by_id[id] for id in wanted])

    def _check_tensor(self, Tensor tensor, int64_t port):
        """Say what of a tensor differs from the port."""
        lt = (self.inputs + self.outputs)[port]
        if tensor.engine is not self.engine:
            raise StateError(
                explain(f"tensor {lt.id} belongs to {tensor.engine!r}", accepted=repr(self.engine),
                        hint="make the tensor with the engine that the partition was compiled for"),
                tensor_id=lt.id,
            )
        if tensor.signature != self.ports[port].signature:
            raise InvalidShapeError(
                explain(f"tensor {lt.id} is not what was compiled", accepted=repr(lt), got=repr(tensor.lt),
                        hint="compile the partition for this tensor"),
                tensor_id=lt.id,
            )

    def _check_stream(self, Stream stream):
        if self.is_closed:
            raise StateError(explain("the compiled partition is closed", hint="compile the partition again"))
        if stream.closed:
            raise StateError(explain("the stream is closed", hint="create another stream from the engine"))
        raise StateError(
            explain(f"stream belongs to {stream.engine!r}", accepted=repr(self.engine),
                    hint="create the stream from the engine that the partition was compiled for")
        )

    def _check_scratchpad(self, uintptr_t address, int64_t size, bint is_readonly):
        if size < self.scratchpad_nbytes or address % ALIGNMENT or is_readonly:
            state = "read-only" if is_readonly else "writable"
            raise InvalidArgumentError(
                explain("scratchpad", got=f"{size} {state} bytes at an address of alignment {address & -address}",
                        accepted=f"at least {self.scratchpad_nbytes} writable bytes, aligned to {ALIGNMENT}")
            )

    cdef int _check_apart(self, char *arena, char **pointers, int64_t *nbytes) except -1:
        """The scratchpad overlaps no tensor: kernels keep tables of pointers in it."""
        cdef int64_t i
        for i in range(self.ninputs + self.noutputs):
            if pointers[i] < arena + self.scratch_nbytes and arena < pointers[i] + nbytes[i]:
                raise InvalidArgumentError(
                    explain(f"the scratchpad shares memory with tensor {self.ports[i].id}",
                            accepted="memory of its own", hint="pass separate buffers"),
                    tensor_id=self.ports[i].id,
                )
        return 0

    cdef int _execute_on_host(self, tuple sources, object outputs, char **pointers, int64_t *nbytes) except -1:
        """Put what the host function makes of the inputs, whose `pointers` are known, into the outputs."""
        cdef int64_t i
        cdef Tensor tensor
        cdef tuple targets = self._match(as_tensors(outputs), self.ninputs, self.noutputs)
        for i in range(self.noutputs):
            tensor = targets[i]
            self._check_host_output(tensor, i)
            pointers[self.ninputs + i], nbytes[self.ninputs + i] = tensor.data, tensor.nbytes
        self._check_overlap(pointers, nbytes)
        for tensor, result in zip(targets, self.host_function([source.numpy() for source in sources])):
            tensor.fill(result)

    def _check_host_output(self, Tensor tensor, int64_t i):
        """As `_check_tensor`; a shape that no port states is compared with the result's when there is one."""
        lt = self.outputs[i]
        if lt.is_shape_known or tensor.engine is not self.engine or tensor.lt.dtype is not lt.dtype:
            self._check_tensor(tensor, self.ninputs + i)
        tensor._check_writable()

    # ---- life

    def trim(self):
        """Give back the memory of arenas that nobody uses or has reserved; returns its bytes."""
        return 0 if self.arenas is None else self.arenas.trim()

    def close(self):
        """End the use of the primitive, which keeps its pool; runs under way finish, later ones raise. Idempotent."""
        if not self.closed:
            self.closed = True
            if self.constants is not None and not self.borrows:
                self.constants.close(release=self.weights == "scoped")
            if self.share is not None:
                self.share.leave(self.arenas is not None)

    def __del__(self):
        if not self.closed and not gp_is_finalizing():
            if self.scratch_nbytes and self.arenas is not None and not self.engine.is_closed:
                warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self)
            self.close()

    def __reduce__(self):
        """Pickles by what was compiled; the copy is compiled anew, or found in the caches, where it is loaded."""
        if self.is_closed:
            raise StateError(explain("the compiled partition is closed", hint="pickle it while it is open"))
        how = SEQUENTIAL if self.primitive is None else self.primitive.details.options
        modes = {"scratch": self.scratch, "weights": self.weights, "schedule": how.policy, "streams": how.streams}
        return _recompile, (self.partition, self.inputs, self.outputs, self.engine, modes)

    def __copy__(self):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()

    def __repr__(self):
        state = ", closed" if self.closed else ""
        return (f"CompiledPartition({self.partition!r}, scratchpad {self.scratchpad_nbytes} bytes, "
                f"{', '.join(self.implementations)}{state})")

    def _repr_html_(self):
        """For notebooks."""
        from graphpool.drawing import describe_size
        from graphpool.notebook import brief_list, html_table

        sides = {side: brief_list(getattr(self, side)) for side in ("inputs", "outputs")}
        rows = {"kernels": brief_list(self.implementations) if self.implementations else "on the host"} | sides
        rows["scratchpad"] = describe_size(self.scratchpad_nbytes)
        state = ", closed" if self.closed else ""
        return html_table(f"CompiledPartition of {self.partition.kind}{state}", rows)


def _recompile(partition, inputs, outputs, engine, modes):
    return partition.compile(inputs, outputs, engine, **modes)


cdef int _get_buffer(object scratchpad, Py_buffer *view) except -1:
    """The memory of a scratchpad that is no tensor."""
    try:
        PyObject_GetBuffer(scratchpad, view, PyBUF_SIMPLE)
    except (BufferError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            explain("scratchpad", accepted="a Tensor or a contiguous writable buffer", got=type(scratchpad).__name__)
        ) from error
    return 0
