"""A logical tensor bound to data."""

from libc.stdint cimport int64_t, uintptr_t
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_FillInfo, Py_buffer

from graphpool._finalizing cimport gp_is_finalizing
from graphpool._atomic cimport gp_add, gp_load, gp_store

from ._ndarray cimport GP_WRITEABLE, fields_of, gp_array, span_nbytes

import sys
import threading
from functools import partial
from weakref import ref

import numpy as np

from graphpool.errors import InvalidArgumentError, InvalidDataTypeError, InvalidShapeError, StateError, brief, explain
from graphpool.typing import LayoutType, PropertyType

cdef dict _signatures = {}      # (data type, shape, layout) -> weak reference to the Signature
cdef object _signatures_lock = threading.RLock()    # the garbage collector may come in between
cdef int64_t _last_signature = 0
cdef int64_t _last_version = 0
cdef char _nothing = 0   # where tensors without bytes point to


cdef class Signature:
    """What tensors must have in common to stand for one another; known for as long as one of them lives."""


cdef Signature signature_of(object lt):
    """The signature of a data type, shape and layout, whose numbers are never used again."""
    global _last_signature
    key = (lt.dtype, lt.shape, lt.layout, lt.strides, lt.layout_id)
    reference = _signatures.get(key)
    found = None if reference is None else reference()
    if found is not None:
        return <Signature>found
    with _signatures_lock:
        reference = _signatures.get(key)
        found = None if reference is None else reference()
        if found is None:
            found = Signature.__new__(Signature)
            _last_signature += 1
            (<Signature>found).number = _last_signature
            _signatures[key] = ref(found, partial(_forget, key))
    return <Signature>found


def _forget(key, reference):
    """Forget a signature that is gone, unless it was made anew meanwhile."""
    with _signatures_lock:
        if _signatures.get(key) is reference:
            del _signatures[key]


cdef class Content:
    """What tensors of one explicit id hold: a version that all of them have, so that a change of one is one of all."""

    def __cinit__(self):
        self.version = gp_add(&_last_version, 1)


cdef class Tensor:
    """A logical tensor bound to a buffer.

    Parameters
    ----------
    lt : LogicalTensor
        With a settled layout (``strided`` or ``opaque``).
    engine : Engine
        Device on which the data lies.
    data : array, optional
        A NumPy array, an object with DLPack or with the buffer protocol, of the data type, shape and strides of `lt`;
        read-only is fine for inputs. For an opaque layout, and for 4-bit types, the raw bytes are taken too. A number
        for a host scalar. On a GPU: an object with DLPack or ``__cuda_array_interface__`` on that device. None
        allocates from the engine, at once if the size is known, else when an execution fills the tensor.
    id : hashable, optional
        Names the content across tensors and logical tensors of the engine; the key under which caches know a constant.

    Attributes
    ----------
    lt, engine
        As given.
    nbytes : int
        Size of the buffer. Unit: bytes.
    is_readonly : bool
        Whether the buffer must not be written.
    owner : object
        What was bound, which keeps the buffer alive; None for memory of the engine.

    Raises
    ------
    InvalidDataTypeError, InvalidShapeError, InvalidArgumentError
        `data` does not fit `lt`; the message names the tensor and the dimension.

    Notes
    -----
    Ownership: keeps `data` alive, never copies it but for unpacked 4-bit arrays and host scalars; memory allocated for
    ``data=None`` goes back to the engine when the tensor dies or is closed.
    Threads: reading from many threads is safe; writing is the user's to order. Cost: a few microseconds.
    Source: oneDNN Graph's programming model, Tensor; RFC "constant block weight", option 4, for the id.
    """

    def __init__(self, lt, engine, data=None, *, id=None):
        if not hasattr(lt, "layout") or not hasattr(engine, "is_closed"):
            raise InvalidArgumentError(explain("tensor", accepted="a LogicalTensor and an Engine",
                                               got=f"{brief(lt)}, {brief(engine)}"))
        if lt.layout not in (LayoutType.STRIDED, LayoutType.OPAQUE):
            raise InvalidArgumentError(
                explain(f"tensor {lt.id}: layout", accepted="strided or opaque", got=lt.layout.value,
                        hint="use the tensor that compiled.query_logical_tensor gives"),
                tensor_id=lt.id,
            )
        if engine.is_closed:
            raise StateError(explain(f"{engine!r} is closed", hint="create another engine"))
        self._describe(lt, engine)
        if id is not None:
            self._share_content(id)
        if data is not None:
            self._bind(data)
        elif lt.is_shape_known:
            self._allocate()

    cdef int _describe(self, object lt, object engine) except -1:
        self.lt = lt
        self.engine = engine
        self.lt_id = lt.id
        self._sign(lt)
        self.own_version = gp_add(&_last_version, 1)
        self.version_at = &self.own_version
        return 0

    cdef int _sign(self, object lt) except -1:
        self.described = signature_of(lt)
        self.signature = self.described.number
        return 0

    cdef int _share_content(self, object id) except -1:
        try:
            self.content = self.engine.contents.setdefault(id, Content())
        except TypeError:
            raise InvalidArgumentError(explain("id of a tensor", accepted="a hashable name", got=repr(id))) from None
        self.user_id = id
        self.version_at = &self.content.version
        return 0

    @staticmethod
    def at(lt, engine, uintptr_t address=0, owner=None):
        """A tensor on memory that is there already.

        Parameters
        ----------
        lt : LogicalTensor
            Shape known, layout settled.
        engine : Engine
        address : int, default=0
            Of `lt.nbytes` writable bytes; 0 leaves the tensor without data until `rebind`.
        owner : object, optional
            Kept alive with the tensor.

        Notes
        -----
        For the runtime: the address is not checked, and the memory must outlive every use of the tensor.
        """
        cdef Tensor tensor = Tensor.__new__(Tensor)
        tensor._describe(lt, engine)
        tensor.nbytes = lt.nbytes
        tensor.owner = owner
        if address:
            tensor.data = <char *>address if tensor.nbytes else &_nothing
        return tensor

    def rebind(self, data):
        """Put other data of the same description in place of the user's; None leaves the tensor without data.

        Parameters
        ----------
        data : array or None
            As for the constructor.

        Raises
        ------
        StateError
            The tensor allocated its memory itself.
        InvalidDataTypeError, InvalidShapeError, InvalidArgumentError
            As for the constructor; the tensor keeps its old data.

        Notes
        -----
        Threads: no execution may be using the tensor. The content counts as new (`invalidate`). Cost: 2 microseconds.
        """
        if self.resource is not None:
            raise StateError(explain(f"tensor {self.lt_id} owns its memory", hint="make a tensor with data=array"))
        if data is None:
            self.data, self.owner = NULL, None
        else:
            self._bind(data)
            self.invalidate()

    cdef int _allocate(self) except -1:
        self.nbytes = self.lt.nbytes
        if self.nbytes == 0:
            self.data = &_nothing
            return 0
        self.resource = self.engine.resource
        self.data = <char *><uintptr_t>self.resource.allocate(self.nbytes, 64)
        return 0

    def _bind(self, data):
        """Take the address of the user's data after checking that it is what the logical tensor says."""
        cdef uintptr_t address
        lt, device = self.lt, self.engine.device
        is_usual = device.is_host and type(data) is np.ndarray and data.dtype is lt.dtype.numpy
        if is_usual and self._bind_strided(data):
            return
        address, self.is_readonly, self.owner = device.bind(data, lt)
        self.nbytes = lt.nbytes
        self.data = <char *>address if self.nbytes else &_nothing

    cdef bint _bind_strided(self, object array) except -1:
        """Take an array of the right type if it has shape and strides of the logical tensor: the usual case."""
        cdef gp_array *fields = fields_of(array)
        cdef int64_t nbytes
        lt = self.lt
        if lt.layout is not LayoutType.STRIDED or lt.strides is None or lt.dtype.bits == 4:
            return False
        nbytes = span_nbytes(fields, lt.dtype.numpy.itemsize, lt.shape, lt.strides)
        if nbytes >= 0:
            self.is_readonly, self.nbytes, self.owner = not fields.flags & GP_WRITEABLE, nbytes, array
            self.data = fields.data if nbytes else &_nothing
        return nbytes >= 0

    @property
    def id(self):
        """The id given at construction, else the id of the logical tensor."""
        return self.lt_id if self.user_id is None else self.user_id

    @property
    def has_explicit_id(self):
        """Whether an id was given at construction."""
        return self.user_id is not None

    @property
    def version(self):
        """Number of the present content: unique in the process, new after `invalidate`."""
        return gp_load(self.version_at)

    @property
    def is_allocated(self):
        """Whether the tensor has a buffer; False until an execution fills a tensor of unknown size."""
        return self.data != NULL

    @property
    def data_ptr(self):
        """Address of the buffer.

        Raises
        ------
        StateError
            There is no buffer yet.
        """
        self._check_allocated()
        return <uintptr_t>self.data

    def invalidate(self):
        """Say that the content has changed: what was packed of the old content is not used for this tensor again.

        Nor for any other tensor of the engine with the same explicit id, whether it is there already or made later.
        """
        gp_store(self.version_at, gp_add(&_last_version, 1))

    def fill(self, array):
        """Take over the content of an array; a tensor of unknown size gets its buffer now.

        Parameters
        ----------
        array : ndarray
            Of the logical tensor's type and, where that is known, shape.

        Raises
        ------
        InvalidArgumentError
            It does not fit, or the tensor is read-only.
        """
        check_unmasked(array, f"tensor {self.lt_id}: content")
        try:
            array = np.asarray(array)
        except (ValueError, RecursionError) as error:
            raise InvalidArgumentError(explain(f"tensor {self.lt_id}: content", accepted="an array")) from error
        if array.dtype != self.lt.dtype.numpy or (self.lt.is_shape_known and array.shape != self.lt.shape):
            raise InvalidArgumentError(
                explain(f"tensor {self.lt_id}: content", accepted=f"{self.lt.dtype.numpy} {self.lt.shape}",
                        got=f"{array.dtype} {array.shape}"),
                tensor_id=self.lt_id,
            )
        if self.data == NULL:
            self.lt = self.lt.replace(shape=array.shape)
            self._sign(self.lt)
            self._allocate()
        self._check_writable()
        self.engine.device.fill(self, array)

    def numpy(self):
        """The data as an array, without a copy where the layout allows it and the host can follow addresses.

        Returns
        -------
        array : ndarray
            Of the shape, strides and type of the logical tensor; the raw bytes of an opaque one; a fresh unpacked
            array for 4-bit types. It keeps the buffer alive.
        """
        lt, raw = self.lt, self.raw()
        if lt.layout is LayoutType.OPAQUE:
            return raw
        dtype = lt.dtype.numpy
        if lt.dtype.bits == 4:
            return unpack(raw, lt)
        if lt.size == 0:
            return np.empty(lt.shape, dtype)
        strides = [stride * dtype.itemsize for stride in lt.strides]
        array = np.ndarray(lt.shape, dtype, raw, strides=strides)  # as_strided does not know 8-bit floats
        array.setflags(write=not self.is_readonly)
        return array

    def raw(self):
        """The bytes of the buffer as an array: without a copy, and keeping the buffer alive, on the host."""
        self._check_allocated()
        return self.engine.device.read(self) if self.nbytes else np.empty(0, np.uint8)

    def __array__(self, dtype=None, copy=None):
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack__(self, **options):
        self._check_allocated()
        return self.engine.device.view(self).__dlpack__(**options)

    def __dlpack_device__(self):
        return self.engine.device.dlpack_device

    @property
    def __cuda_array_interface__(self):
        return self.engine.device.array_interface(self)     # AttributeError: the device has none

    def _check_allocated(self):
        if self.data == NULL:
            raise StateError(
                explain(f"tensor {self.lt_id} has no data yet", hint="execute a compiled partition that writes it")
            )

    def _check_writable(self):
        if self.is_readonly:
            raise InvalidArgumentError(
                explain(f"output tensor {self.lt_id} is read-only", hint="pass a writable array"),
                tensor_id=self.lt_id,
            )

    def __del__(self):
        # a finaliser: __dealloc__ may come when the collector has taken the resource apart, in a cycle with its engine
        cdef void *data = self.data
        self.data = NULL
        if self.resource is not None and data != NULL and not gp_is_finalizing():
            self.resource.deallocate(<uintptr_t>data, self.nbytes, 64)

    def __copy__(self):
        return self

    def __reduce__(self):
        raise TypeError("a Tensor is bound to memory and does not pickle; pickle tensor.numpy() instead")

    def __repr__(self):
        return f"Tensor({self.lt!r}, {self.engine!r})"


cdef class _Memory:
    """The bytes of a tensor for NumPy; a Tensor itself offers `__array__`, which keeps its type and shape."""

    cdef Tensor tensor

    def __cinit__(self, Tensor tensor not None):
        self.tensor = tensor

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        if self.tensor.is_readonly and (flags & PyBUF_WRITABLE) == PyBUF_WRITABLE:
            raise BufferError("the tensor is read-only")
        PyBuffer_FillInfo(buffer, self, self.tensor.data, self.tensor.nbytes, self.tensor.is_readonly, flags)


def bind_array(data, lt):
    """Address of the user's data, whether it is read-only, and what keeps it alive, after checking that it fits."""
    array = _as_array(data, lt)
    if lt.layout is LayoutType.OPAQUE or lt.dtype.bits == 4:
        array = _as_bytes(array, lt)
    else:
        check_array(array.dtype, array.shape, array.strides, lt)
    return *array.__array_interface__["data"], array


def as_tensors(given):
    """What was given for the tensors of a side, as a tuple."""
    try:
        return tuple(given)
    except TypeError:
        raise InvalidArgumentError(explain("tensors", accepted="a sequence of Tensors", got=brief(given))) from None


def fill_array(Tensor tensor, array):
    """Write an array to the buffer, which lies in memory of the host."""
    if tensor.lt.dtype.bits == 4:
        raw_array(tensor)[:] = pack(array, tensor.lt)
    else:
        tensor.numpy()[...] = array


def raw_array(Tensor tensor):
    """The bytes of the buffer, which lies in memory of the host."""
    return np.frombuffer(_Memory(tensor), np.uint8)


def check_unmasked(data, what):
    """Raise InvalidArgumentError for an array with masked elements: NumPy would read what lies behind the mask."""
    masked = sys.modules.get("numpy.ma")  # which those who have such arrays have imported
    if masked is not None and masked.is_masked(data):
        raise InvalidArgumentError(
            explain(what, accepted="an array without masked elements", got=type(data).__name__,
                    hint="say what they are with .filled(value)")
        )


def _as_array(data, lt):
    """The user's object as an array that shares its memory."""
    if isinstance(data, (np.ndarray, np.generic)):
        if type(data) is not np.ndarray:
            check_unmasked(data, f"tensor {lt.id}: data")
        return np.asarray(data)
    try:
        if lt.property is PropertyType.HOST_SCALAR and isinstance(data, (bool, int, float)):
            return np.array(data, lt.dtype.numpy)
        if hasattr(data, "__dlpack__"):
            return np.from_dlpack(data)
        return np.asarray(memoryview(data))
    except (TypeError, BufferError, ValueError, RuntimeError, OverflowError) as error:
        raise InvalidArgumentError(
            explain(f"tensor {lt.id}: data", got=type(data).__name__,
                    accepted="an array, an object with DLPack or the buffer protocol, or None"),
            tensor_id=lt.id,
        ) from error


def check_array(dtype, shape, strides, lt):
    """Raise unless an array of this type, shape and strides (in bytes) is what the logical tensor says."""
    if dtype != lt.dtype.numpy:
        raise InvalidDataTypeError(
            explain(f"tensor {lt.id}: data type", accepted=f"{lt.dtype.value} ({lt.dtype.numpy})", got=dtype,
                    hint=f"convert with .astype({str(lt.dtype.numpy)!r})"),
            tensor_id=lt.id,
        )
    if shape != lt.shape:
        if len(shape) != lt.ndim:
            where, dim = "rank", None
        else:
            dim = next(i for i in range(lt.ndim) if shape[i] != lt.shape[i])
            where = f"dimension {dim}"
        raise InvalidShapeError(
            explain(f"tensor {lt.id}: {where} of the data", accepted=f"shape {lt.shape}", got=f"shape {shape}"),
            tensor_id=lt.id, dim=dim,
        )
    wanted = tuple(s * dtype.itemsize for s in lt.strides)
    if 0 not in shape and any(d > 1 and a != b for d, a, b in zip(shape, strides, wanted)):
        raise InvalidShapeError(
            explain(f"tensor {lt.id}: strides of the data", accepted=f"{wanted} bytes", got=f"{strides} bytes",
                    hint="pass numpy.ascontiguousarray(data), or give the logical tensor these strides"),
            tensor_id=lt.id,
        )


def _as_bytes(array, lt):
    """The raw bytes of an opaque or packed tensor; unpacked 4-bit arrays are packed into a copy."""
    if lt.dtype.bits == 4 and array.dtype == lt.dtype.numpy and array.shape == lt.shape:
        return pack(array, lt)
    if array.dtype != np.uint8 or not array.flags.c_contiguous or array.nbytes < lt.nbytes:
        raise InvalidArgumentError(
            explain(f"tensor {lt.id}: data", accepted=f"a contiguous uint8 array of at least {lt.nbytes} bytes",
                    got=f"{array.dtype} {array.shape}"),
            tensor_id=lt.id,
        )
    return array.reshape(-1)


def pack(array, lt):
    """Two 4-bit elements to a byte, low nibble first, each where the strides say."""
    nibbles = np.zeros(lt.nbytes * 2, np.uint8)
    np.ndarray(lt.shape, np.uint8, nibbles, strides=lt.strides)[...] = array.astype(np.int8).view(np.uint8) & 15
    return nibbles[0::2] | (nibbles[1::2] << 4)


def unpack(raw, lt):
    """One array item for each 4-bit element, as NumPy's types of them have it: in the low bits."""
    nibbles = np.empty(raw.size * 2, np.uint8)
    np.bitwise_and(raw, 15, out=nibbles[0::2])
    np.right_shift(raw, 4, out=nibbles[1::2])
    return np.asarray(np.ndarray(lt.shape, np.uint8, nibbles, strides=lt.strides).view(lt.dtype.numpy), order="C")
