"""The constants of a compiled partition: which cached buffer stands for which tensors, asked at every execution.

A part whose tensors are those of the last execution is found by comparing version numbers, and its handle says with one
atomic instruction whether the buffer is still cached; tensors that take turns, and keys of executions, are found in a
dict of names. Everything else, a look-up, a fingerprint, the making of the buffer, happens only when a tensor is new or
an entry has left. A part that the cache does not keep has no pointer, and the program then runs the steps that use the
plain tensors; the cache is asked again when something has left it, and otherwise ever more rarely, because asking a
full cache can cost as much as a small product.
"""

cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport calloc, free

from graphpool.cache._handle cimport ConstantBuffer, ConstantHandle
from graphpool.cache._lookup cimport gpc_look_up

from graphpool._kernels.core._team cimport Team

from ._program cimport Program, check_run
from ._tensor cimport Tensor

import threading
from weakref import WeakKeyDictionary

from graphpool import config
from graphpool.cache import PackedKey, constant_tensor_cache, packed_store
from graphpool.cache._entry import Outcome
from graphpool.cache.identity import Fingerprint, QuickFingerprint, join_fingerprints, quick_fingerprint
from graphpool.cache.process import find_packed, has_packed
from graphpool.fork import reset_in_child
from graphpool.errors import OutOfMemoryError, StateError, explain

from .constant_part import (
    check_files, content_of, drop_pages, identity_of, known_fingerprint, lasting_fingerprint, name_of,
)

cdef enum:
    MAX_BINDINGS = 1024
    MAX_REST = 64   # executions without asking, at most: asking takes 7 us, and 90 us where weights fill the caches

ALIGNMENT = 64
BACKEND_ID = "cpu"
_digests = WeakKeyDictionary()     # in the checking mode: form -> digests of what it was made from


@cython.final
cdef class Binding:
    """One content of one part: the handle of its cache entry, and whether to ask the cache for it."""

    def __cinit__(self, ConstantHandle handle not None):
        self.handle = handle

    cdef void rest(self, int64_t changes) noexcept:
        """Do without asking for a while, and for longer than last time if the cache is as it was then."""
        self.rests = min(2 * self.rests, MAX_REST) if self.rests and changes == self.changes else 1
        self.changes = changes
        self.skipped = 0

    cdef bint is_resting(self, int64_t changes) noexcept:
        """Whether this execution should do without, now that the cache has changed so often."""
        if self.skipped >= self.rests or changes != self.changes:
            return False
        self.skipped += 1
        return True


cdef void _let_go(PyObject *held):
    """End one use of what an acquisition has filled in."""
    if held != NULL:
        item = <object>held
        if type(item) is ConstantHandle:
            (<ConstantHandle>item).release()
        Py_DECREF(item)


cdef ConstantBuffer _buffer_of(object item):
    """The buffer of what an acquisition has filled in."""
    return (<ConstantHandle>item).buffer if type(item) is ConstantHandle else item


cdef list _digests_of(part, tuple tensors):
    """The digests of what a part is made from."""
    sources = [tensors[position] for position in part.sources]
    return [name_of(content_of(source), quick_fingerprint, source.lt.dtype).digest for source in sources]


cdef bint is_valid(Binding binding):
    return binding.handle.is_valid


cdef int _run_once(Program program, char **bases, object resource, Team team) except -1:
    """Run a program on these external bases, its temporaries in memory for this run; without a team in this thread."""
    cdef uintptr_t arena = resource.allocate(program.arena_nbytes, ALIGNMENT) if program.arena_nbytes else 0
    cdef int64_t status
    bases[0] = <char *>arena
    try:
        with nogil:
            status = program.run(bases, team)
        return check_run(status, program, None)
    finally:
        if arena:
            resource.deallocate(arena, program.arena_nbytes, ALIGNMENT)


def run_restore(part, ConstantBuffer buffer not None, unsigned char[::1] source not None, resource):
    """Write the source of a part from its form.

    Parameters
    ----------
    part : ConstantPart
        One that can be restored.
    buffer : ConstantBuffer
        Its form.
    source : writable buffer
        The bytes of the source.
    resource : MemoryResource
        For temporaries.

    Notes
    -----
    Threads: safe.
    """
    cdef char *bases[4]
    if source.shape[0]:
        bases[2], bases[3] = buffer.data, <char *>&source[0]
        _run_once(part.restore, bases, resource, None)


def packed_key(part, sources):
    """What a part's form of these tensors is known by in every process; see `lasting_fingerprint` for the cost."""
    return PackedKey(join_fingerprints([lasting_fingerprint(source) for source in sources]), part.layout, part.isa)


@cython.final
cdef class Constants:
    """The constant parts of one compiled partition.

    Parameters
    ----------
    parts : sequence of ConstantPart
    engine : Engine
        Gives the memory of the buffers that are made here, and the context that separates entries.
    first_base : int
        Base pointer of the first part in the program.

    Notes
    -----
    Ownership: keeps handles, not buffers; an execution co-owns the buffers that it uses until it ends. Threads: safe.
    Cost: about 7 ns for one part when warm, 5 for each further one; ``bench/bench_constants.py`` measures it.
    """

    def __cinit__(self, parts, engine, int64_t first_base):
        cdef int64_t k, nsources = 0
        self.parts = tuple(parts)
        self.nparts = len(self.parts)
        self.sources = [part.sources for part in self.parts]
        self.current = [None] * self.nparts
        self.warm = <WarmPart *>calloc(self.nparts + 1, sizeof(WarmPart))
        self.named = <Named *>calloc(sum([len(sources) for sources in self.sources]) + 1, sizeof(Named))
        if self.warm == NULL or self.named == NULL:
            raise MemoryError()
        for k in range(self.nparts):
            for position in self.sources[k]:
                self.named[nsources].position = position
                nsources += 1
            self.warm[k].end = nsources

    def __dealloc__(self):
        free(self.warm)
        free(self.named)

    def __init__(self, parts, engine, int64_t first_base):
        self.engine = engine
        self.first_base = first_base
        self.cache = constant_tensor_cache(engine.kind, engine.index)
        self.names = [{} for _ in self.parts]
        self.bindings = {}
        self.contents = [WeakKeyDictionary() for _ in self.parts]
        self.known = [None] * self.nparts
        self.checks = config.get("check_constants")
        self._reset_in_child()
        reset_in_child(self)

    def _reset_in_child(self):
        """A fresh lock: in a forked child nobody is left who would release the old one."""
        self.lock = threading.Lock()

    cdef int acquire_from(self, int64_t k, tuple tensors, object key, char **bases, PyObject **held) except -1:
        """Acquire the parts from `k` on, making them if need be: base pointers, NULL for what is not kept."""
        cdef Binding binding
        cdef tuple name
        cdef void *address
        cdef int64_t i
        if self.checks and key is None:
            self._check(tensors)
        for i in range(k, self.nparts):
            held[i] = NULL
        try:
            for i in range(k, self.nparts):
                name = self._name(i, tensors, key)
                binding = self._find(i, name)
                if key is None and binding is not None:
                    self._make_current(i, binding, name)
                address = NULL
                if binding is not None:
                    address = binding.handle.acquire()
                    if address != NULL:
                        Py_INCREF(binding.handle)
                        held[i] = <PyObject *>binding.handle
                if address == NULL and (binding is None or not binding.is_resting(self.cache.changes)):
                    address = self._resolve(i, tensors, key, &held[i])
                bases[self.first_base + i] = <char *>address
                if self.checks and key is not None and address != NULL:
                    self._check_key(i, tensors, key, _buffer_of(<object>held[i]))
        except BaseException:
            release(self, held)
            raise
        return 0

    cdef tuple _name(self, int64_t k, tuple tensors, object key):
        """What the content of a part is known by here: the execution's key, else the versions of its tensors."""
        cdef tuple sources
        if key is not None:
            return "key", key
        sources = <tuple>self.sources[k]
        if len(sources) == 1:
            return ((<Tensor>tensors[<int64_t>sources[0]]).version_at[0],)
        return tuple([(<Tensor>tensors[<int64_t>position]).version_at[0] for position in sources])

    cdef int _make_current(self, int64_t k, Binding binding, tuple versions) except -1:
        """Let the next execution with tensors of these versions find the binding at once."""
        cdef int64_t i, first = self.warm[k - 1].end if k else 0
        with cython.critical_section(self):
            for i in range(first, self.warm[k].end):
                self.named[i].version = versions[i - first]
            self.warm[k].handle = <PyObject *>binding.handle
            self.current[k] = binding.handle    # last: the one before may die of it, and call its resource
        return 0

    cdef Binding _find(self, int64_t k, tuple name):
        """The binding that is known by this name, or None."""
        cdef dict names
        with cython.critical_section(self):
            names = <dict>self.names[k]
        return <Binding>gpc_look_up(names, name)

    cdef void *_resolve(self, int64_t k, tuple tensors, object key, PyObject **held) except? NULL:
        """Ask the cache, which may make this the thread that makes the constant; NULL if it would not be kept."""
        cdef Binding binding
        cdef void *address
        cdef ConstantBuffer buffer
        cdef bint is_read = True
        if self.cache.capacity_nbytes == 0:
            return NULL
        part = self.parts[k]
        check_files([(<Tensor>tensors[<int64_t>position]).owner for position in part.sources])
        binding = self._bind(k, part, tensors, key)
        full = binding.handle.key
        uses, changes = 1 + binding.skipped, self.cache.changes
        try:
            with self.cache.lookup_or_reserve(
                full[0], full[1], part.nbytes, handle=binding.handle, uses=uses
            ) as reservation:
                if reservation.outcome is Outcome.DECLINED:
                    binding.rest(changes)
                    return NULL
                if reservation.outcome is Outcome.PRODUCE:
                    buffer, is_read = self._produce(part, tensors, full[1][-1], self.known[k])
                    if self.checks:
                        _digests[buffer] = _digests_of(part, tensors)
                    reservation.fulfil(buffer)
                buffer = reservation.buffer
                if is_read:
                    for position in part.sources:
                        drop_pages((<Tensor>tensors[<int64_t>position]).owner)
        except OutOfMemoryError:
            binding.rest(changes)
            return NULL     # without room for the constant the plain kernel runs, as if the cache had declined
        # whoever closed meanwhile has let go of all constants, and this one came after
        if self.engine.is_closed:
            self.engine.constants.close()
        elif self.is_released:
            self.cache.remove_if_unused(full[0], full[1], last=binding.handle)
        address = binding.handle.acquire()
        if address != NULL:
            Py_INCREF(binding.handle)
            held[0] = <PyObject *>binding.handle
            return address
        Py_INCREF(buffer)   # evicted already, or the handle's last buffer is still in use elsewhere
        held[0] = <PyObject *>buffer
        return buffer.data

    def _bind(self, int64_t k, part, tuple tensors, key):
        """The binding of the part to the content of these tensors."""
        cdef Binding binding
        cdef tuple name = self._name(k, tensors, key)   # first: a version that is outdated by now comes never again
        if key is None and self.known[k] is not None:   # a stored form tells it, and nothing need be read
            identity = (self.known[k].content,)
        else:
            identity = tuple([identity_of(tensors[position], position, key) for position in part.sources])
        full = BACKEND_ID, (self.engine.context, part.name, part.key, identity)
        with self.lock:
            binding = self.bindings.pop((k, full), None) or Binding(self._handle(full))
            self.bindings[k, full] = binding        # the newest is last
            if len(self.bindings) > MAX_BINDINGS + self.nparts:
                self._forget(*next(iter(self.bindings)))
            if len(self.names[k]) > MAX_BINDINGS:
                self.names[k] = {}
            self.names[k][name] = binding
        if key is None:
            self._make_current(k, binding, name)
            self._replace(k, tensors[part.sources[0]], full)
        return binding

    def _handle(self, full):
        return ConstantHandle(full, self.engine.constants.resource)

    def _replace(self, int64_t k, tensor, full):
        """Note what the tensor holds now; what it held before leaves the cache unless another user has it."""
        holder = (<Tensor>tensor).content or tensor
        with self.lock:
            contents = self.contents[k]
            old = contents.get(holder, full)
            contents[holder] = full
            is_left = old != full and old not in contents.values()
            if is_left:
                self._forget(k, old)
        if is_left:
            self.cache.remove_if_unused(*old)

    def _forget(self, int64_t k, full):
        """Drop a binding and its names. Under the lock."""
        gone = self.bindings.pop((k, full), None)
        self.names[k] = {name: binding for name, binding in self.names[k].items() if binding is not gone}

    def _produce(self, part, tuple tensors, tuple identities, known):
        """The part's buffer: mapped from where packed weights are kept, if anywhere, else made.

        `known` is its key there, or None. Returns whether its sources were read, too.
        """
        if not has_packed() or not all([isinstance(name, (QuickFingerprint, Fingerprint)) for name in identities]):
            return self._make(part, tensors), True
        key = known or packed_key(part, [tensors[position] for position in part.sources])
        buffer = find_packed(key, self.engine.constants.resource)
        if buffer is not None:
            return buffer, known is None
        buffer = self._make(part, tensors)
        store = packed_store()
        if store is not None and store.put(key, buffer) and store.mapping == "map":
            buffer = store.get(key) or buffer
        return buffer, True

    def _make(self, part, tuple tensors):
        """The part's buffer, in memory of the engine that nothing else needs."""
        resource = self.engine.constants.resource
        cdef Program program = part.program
        if program.arena_nbytes:    # of which nothing is taken for a moment where there is too little for both
            self.engine.constants.check_room(part.nbytes + program.arena_nbytes)
        cdef ConstantBuffer buffer = ConstantBuffer.allocate(resource, part.nbytes, ALIGNMENT)
        cdef int64_t i, n = len(part.sources)
        room = bytearray(program.nbases * sizeof(void *))  # sibling convolutions bring any number of constants
        cdef char **bases = <char **><char *>room
        for i in range(n):
            bases[2 + i] = (<Tensor>tensors[<int64_t>part.sources[i]]).data
        bases[2 + n] = buffer.data
        _run_once(part.program, bases, resource, self.team)
        return buffer

    def bring(self, tuple tensors, key, Team team=None):
        """Make what is missing in a cache without a bound, the largest part first, with the help of a team.

        While a weight of a mapped file is packed its pages are in memory too: so the peak is that of all packed
        weights, or of the largest in both forms. Within a bound the order is that of the parts, as `predict_peak` says.
        """
        cdef Binding binding
        cdef PyObject *held
        if self.cache.capacity_nbytes is not None:
            return
        self.team = team
        try:
            for k in sorted(range(self.nparts), key=lambda k: -self.parts[k].nbytes):
                binding = self._find(k, self._name(k, tensors, key))
                if binding is None or not binding.handle.is_valid:
                    held = NULL
                    self._resolve(k, tensors, key, &held)
                    _let_go(held)
        finally:
            self.team = None

    def own(self, int64_t k, tuple tensors, Team team=None):
        """The entry of a part and its buffer, made if need be, for who keeps it whatever becomes of the entry.

        Returns
        -------
        key : tuple
            Of the entry.
        buffer : ConstantBuffer or None
            None, and so is the key, if the cache declines it or has evicted it again.
        """
        cdef PyObject *held = NULL
        self.team = team
        try:
            if self._resolve(k, tensors, None, &held) == NULL:
                return None, None
        finally:
            self.team = None
        item = <object>held
        found = (item.key, _buffer_of(item)) if type(item) is ConstantHandle else (None, None)
        _let_go(held)
        return found

    def stand_in(self, int64_t k, tuple full, ConstantBuffer buffer, tuple tensors):
        """Use this buffer for these tensors from now on, through a handle of which the cache knows nothing."""
        cdef Binding binding = Binding(self._handle(full))
        cdef tuple name = self._name(k, tensors, None)
        binding.handle.bind(buffer)
        with self.lock:
            self._forget(k, full)
            self.bindings[k, full] = binding
            self.names[k][name] = binding
        self._make_current(k, binding, name)

    def _check(self, tuple tensors):
        """Raise if a constant's content is not what it was when this version of it was first seen."""
        for position in sorted({position for part in self.parts for position in part.sources}):
            tensor = tensors[position]
            content, dtype = content_of(tensor), tensor.lt.dtype
            known = known_fingerprint(tensor.version, content, dtype)
            if known.digest == name_of(content, quick_fingerprint, dtype).digest:
                continue
            what = "was changed without notice"
            hint = "call tensor.invalidate() after writing to the memory of a constant"
            if tensor.has_explicit_id:
                what = f"has another content than its id {tensor.id!r}"
                hint += ", and give each content an id of its own"
            raise StateError(explain(f"constant tensor {tensor.lt.id} {what}", hint=hint), tensor_id=tensor.lt.id)

    def _check_key(self, int64_t k, tuple tensors, key, ConstantBuffer buffer):
        """Raise if a form that is known by a key was not made from these contents."""
        part = self.parts[k]
        for position, digest, old in zip(part.sources, _digests_of(part, tensors), _digests.get(buffer, ())):
            if digest != old:
                id = tensors[position].lt.id
                raise StateError(
                    explain(f"constant tensor {id} has another content than key {key!r} stands for",
                            hint="give each content a key of its own"),
                    tensor_id=id,
                )

    def kept(self):
        """The entries that are cached now: their full key -> size in bytes."""
        return {full: self.parts[k].nbytes for k, full in self._valid()}

    def has_all(self):
        """Whether each part has an entry that is cached now; parts of equal contents share one."""
        return len({k for k, _ in self._valid()}) == self.nparts

    def _valid(self):
        """The parts that have an entry now, with its full key."""
        with self.lock:
            bound = list(self.bindings.items())
        return [place for place, binding in bound if is_valid(binding)]

    def predict_peak(self, int64_t arenas_nbytes):
        """Memory of the parts that the cache has room for, with arenas of this size beside them. Unit: bytes."""
        kept, making, capacity = 0, 0, self.cache.capacity_nbytes
        for part in self.parts:
            if capacity is None or kept + part.nbytes <= capacity:
                making = max(making, kept + part.nbytes + part.program.arena_nbytes)
                kept += part.nbytes
        return max(making, kept + arenas_nbytes)

    def close(self, *, bint release):
        """Let go of all entries; with `release`, those that no other compiled partition uses leave the cache."""
        cdef int64_t k
        self.is_released = release      # first: what is made from now on is let go of by its maker
        with self.lock:
            handles = {full: (<Binding>binding).handle for (_, full), binding in self.bindings.items()}
            self.bindings.clear()
            self.contents = [WeakKeyDictionary() for _ in self.parts]
        with cython.critical_section(self):
            for k in range(self.nparts):
                self.warm[k].handle = NULL
            self.current = [None] * self.nparts
        for k in range(self.nparts):
            self.names[k] = {}
        if release:
            for (backend_id, key), handle in handles.items():
                self.cache.remove_if_unused(backend_id, key, last=handle)
