"""The metadata of a tensor."""

from __future__ import annotations

from builtins import property as accessor  # the class has an attribute of that name
from functools import partial
from math import isfinite, nan, prod
from operator import index
from sys import float_info
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from .._sizes import as_size, is_variable
from ..errors import InvalidArgumentError, InvalidShapeError, brief, explain
from ..typing import MAX_NDIM, UNKNOWN_DIM, DataType, LayoutType, PropertyType, dense_strides
from ._dense import dense_layout
from .backend import opaque_nbytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._size_bounds import SizeBounds
    from .._size_program import SizeValues

MAX_ID = 2**64 - 1
"""Largest id of a tensor, an op or a layout: oneDNN's are of C's size_t."""

_LIMIT = 2**60
"""Elements, and steps between them, stay below: so every size in bytes fits 64 bits."""

_LAYOUTS = {member.value: member for member in LayoutType}
_PROPERTIES = {member.value: member for member in PropertyType}
_LARGEST = {
    DataType.F64: float_info.max, DataType.F32: (2 - 2**-23) * 2.0**127, DataType.BF16: (2 - 2**-7) * 2.0**127,
    DataType.F16: 65504.0, DataType.F8_E5M2: 57344.0, DataType.F8_E4M3: 448.0,
}  # fmt: skip
"""Largest finite numbers."""

_HOST_SCALAR_TYPES = frozenset({DataType.S32, DataType.F32, DataType.S64})


class LogicalTensor:
    """What a tensor is, without its data: id, data type, shape, layout and property.

    Immutable and hashable. A tensor about which more becomes known is described by a new LogicalTensor with the same
    id (`replace`).

    Parameters
    ----------
    id : int
        Identifies the tensor within its graph; from 0 to 2**64 - 1.
    dtype : DataType or str or numpy.dtype
        Element type.
    shape : sequence of int, optional
        Dimensions; `graphpool.UNKNOWN_DIM` where one is not known yet; None when not even the rank is known.
    strides : sequence of int, optional
        Unit: elements, at least 0. Only with the strided layout; dense row-major when left out.
    layout : {"strided", "any", "opaque", "undef"}, default="strided"
        ``any`` lets the compiler choose; ``opaque`` is a layout that it has chosen, named by `layout_id`.
    layout_id : int, optional
        Only, and always, with the opaque layout, whose size follows from it.
    property : {"undef", "variable", "constant", "host_scalar"}, default="undef"
        A constant keeps its content between executions; a host scalar has rank 0 and is passed by value.
    value : float, optional
        What a constant of one element holds, where that is known: the 0.5 of a spelt-out GELU, say; a number within the
        range of `dtype`, or an array of it in the shape of the tensor. Partitions are then made, and compiled, for this
        number; executions still get a tensor, which must hold it.

    Raises
    ------
    InvalidArgumentError, InvalidDataTypeError, InvalidShapeError
        Something is outside the accepted set; the message names the tensor.

    Notes
    -----
    Ownership: holds no memory. Threads: immutable, safe. Cost: a few microseconds.
    Source: oneDNN Graph's programming model, section Logical Tensor.
    """

    __slots__ = ("_signature", "dtype", "id", "layout", "layout_id", "property", "shape", "strides", "value")

    id: int
    dtype: DataType
    shape: tuple[int, ...] | None
    strides: tuple[int, ...] | None
    layout: LayoutType
    layout_id: int | None
    property: PropertyType
    value: float | None
    _signature: tuple[Any, ...]

    def __init__(
        self,
        id: int,
        dtype: DataType | str | Any,
        shape: Sequence[int] | None = None,
        *,
        strides: Sequence[int] | None = None,
        layout: LayoutType | str = LayoutType.STRIDED,
        layout_id: int | None = None,
        property: PropertyType | str = PropertyType.UNDEF,
        value: float | None = None,
    ) -> None:
        put = object.__setattr__
        put(self, "id", check_id(id, "tensor id"))
        put(self, "dtype", dtype if type(dtype) is DataType else DataType.parse(dtype))
        kind = layout if type(layout) is LayoutType else _member(_LAYOUTS, layout, "layout", id)
        put(self, "layout", kind)
        prop = property if type(property) is PropertyType else _member(_PROPERTIES, property, "property", id)
        put(self, "property", prop)
        dims, steps = _checked_layout(id, shape, kind, strides)
        put(self, "shape", dims)
        put(self, "strides", steps)
        if (kind is LayoutType.OPAQUE) != (layout_id is not None):
            raise InvalidArgumentError(
                explain(
                    f"tensor {id}: layout_id belongs to the opaque layout",
                    accepted='layout="opaque" with a layout_id, or neither',
                    got=f"layout={kind.value!r}, layout_id={brief(layout_id)}",
                ),
                tensor_id=id,
            )
        put(self, "layout_id", layout_id if layout_id is None else check_id(layout_id, f"tensor {id}: layout id"))
        put(self, "value", value if value is None else _check_value(self, value))
        put(self, "_signature", (self.dtype, dims, kind, self.strides, layout_id, prop, self.value))
        if prop is PropertyType.HOST_SCALAR and (dims != () or self.dtype not in _HOST_SCALAR_TYPES):
            raise InvalidShapeError(
                explain(
                    f"tensor {id} is a host scalar", accepted="shape () and s32, s64 or f32", got=f"{dtype} {dims}"
                ),
                tensor_id=id,
            )

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"LogicalTensor is immutable; make another one: tensor.replace({name}=...)")

    def __reduce__(self) -> tuple[Any, ...]:
        options = {name: getattr(self, name) for name in ("layout", "layout_id", "property", "value")}
        if self.layout is LayoutType.STRIDED and not self.is_dense:
            options["strides"] = self.strides
        return partial(LogicalTensor, **options), (self.id, self.dtype, self.shape)

    def replace(self, **changes: Any) -> LogicalTensor:
        """The same tensor with some fields changed.

        Without being given, strides do not outlast a shape, and a value no other type, shape or property.

        Parameters
        ----------
        **changes
            Any arguments of the constructor.

        Returns
        -------
        tensor : LogicalTensor

        Raises
        ------
        InvalidArgumentError
            As the constructor, its subclasses for shapes and data types included.
        """
        fields: dict[str, Any] = {name: getattr(self, name) for name in LogicalTensor.__slots__ if name != "_signature"}
        if "shape" in changes or "layout" in changes:
            fields["strides"] = None
        layout = changes.get("layout", LayoutType.OPAQUE)
        if not (isinstance(layout, str) and layout == LayoutType.OPAQUE):
            fields["layout_id"] = None
        changed = LogicalTensor(**fields | {"value": None} | changes)
        if self.value is None or "value" in changes:
            return changed
        is_same = all(getattr(changed, name) == fields[name] for name in ("dtype", "shape", "property"))
        return LogicalTensor(**fields | changes) if is_same else changed

    def with_shape(self, shape: tuple[int, ...] | None) -> LogicalTensor:
        """As ``replace(shape=shape)``, faster for a tensor without a value.

        Parameters
        ----------
        shape : tuple of int or None

        Returns
        -------
        tensor : LogicalTensor

        Raises
        ------
        InvalidShapeError
            As the constructor.
        """
        if self.value is not None or self.property is PropertyType.HOST_SCALAR:
            return self.replace(shape=shape)
        put, other = object.__setattr__, object.__new__(LogicalTensor)
        dims, strides = _checked_layout(self.id, shape, self.layout, None)
        put(other, "id", self.id)
        put(other, "dtype", self.dtype)
        put(other, "layout", self.layout)
        put(other, "property", self.property)
        put(other, "shape", dims)
        put(other, "strides", strides)
        put(other, "layout_id", self.layout_id)
        put(other, "value", None)
        put(other, "_signature", (self.dtype, dims, self.layout, strides, self.layout_id, self.property, None))
        return other

    @accessor
    def varies(self) -> bool:
        """Whether one of its sizes may vary."""
        return any(map(is_variable, (*(self.shape or ()), *(self.strides or ()))))

    def with_sizes(self, values: SizeValues | SizeBounds | None) -> LogicalTensor:
        """The tensor with its sizes as they are for other values, or at most.

        Parameters
        ----------
        values : SizeValues, SizeBounds or None
            Values that the checks of a compilation allow, or their bounds; None changes nothing.

        Returns
        -------
        tensor : LogicalTensor
        """
        if values is None or not self.varies:
            return self
        shape, strides = (None if side is None else values.shape(side) for side in (self.shape, self.strides))
        return checked_tensor(self.id, self.dtype, shape, strides, self.layout, self.layout_id, self.property, None)

    @accessor
    def ndim(self) -> int | None:
        """Rank, or None when it is not known."""
        return None if self.shape is None else len(self.shape)

    @accessor
    def is_shape_known(self) -> bool:
        """Whether rank and all dimensions are known."""
        return self.shape is not None and UNKNOWN_DIM not in self.shape

    @accessor
    def is_dense(self) -> bool:
        """Whether the elements lie row-major without gaps (strided layout, shape known)."""
        return (
            self.layout is LayoutType.STRIDED
            and self.is_shape_known
            and self.strides == dense_strides(self.shape or ())
        )

    @accessor
    def size(self) -> int:
        """Number of elements.

        Raises
        ------
        InvalidShapeError
            The shape is not known.
        """
        if self.shape is None or UNKNOWN_DIM in self.shape:
            hint = "compile the partition and query it"
            raise InvalidShapeError(explain(f"tensor {self.id} has no known shape", hint=hint), tensor_id=self.id)
        return prod(self.shape)

    @accessor
    def nbytes(self) -> int:
        """Bytes that the data takes, gaps of a strided layout included.

        Raises
        ------
        InvalidShapeError
            The shape is not known, or the layout is not settled (``any``, ``undef``).
        InvalidArgumentError
            The opaque layout is none of a backend for such a tensor on this processor.
        """
        size = self.size
        if self.layout is LayoutType.OPAQUE:
            return opaque_nbytes(self)
        if self.layout is not LayoutType.STRIDED or self.strides is None:
            hint = "query the compiled partition for the settled tensor"
            raise InvalidShapeError(
                explain(f"tensor {self.id} with layout {self.layout.value} has no size yet", hint=hint),
                tensor_id=self.id,
            )
        if size == 0:
            return 0
        span = sum((d - 1) * s for d, s in zip(self.shape or (), self.strides, strict=True)) + 1
        return self.dtype.nbytes(span)

    def is_equal(self, other: LogicalTensor) -> bool:
        """Whether both describe the same tensor in the same way (id included).

        Parameters
        ----------
        other : LogicalTensor

        Returns
        -------
        is_equal : bool
        """
        return self == other

    def has_same_content_type(self, other: LogicalTensor) -> bool:
        """Whether both have equal data type, shape and layout, whatever their ids and properties.

        Parameters
        ----------
        other : LogicalTensor

        Returns
        -------
        is_same : bool
            False for what is no LogicalTensor.
        """
        return isinstance(other, LogicalTensor) and self._signature[:5] == other._signature[:5]

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(other) is not LogicalTensor:
            return NotImplemented
        return self.id == other.id and self._signature == other._signature

    def __hash__(self) -> int:
        return hash((self.id, self._signature))

    def __repr__(self) -> str:
        extra = ""
        if self.layout is not LayoutType.STRIDED:
            extra += f", layout={self.layout.value!r}"
        elif self.strides is not None and not self.is_dense:
            extra += f", strides={self.strides}"
        if self.layout_id is not None:
            extra += f", layout_id={self.layout_id}"
        if self.property is not PropertyType.UNDEF:
            extra += f", property={self.property.value!r}"
        if self.value is not None:
            extra += f", value={self.value!r}"
        return f"LogicalTensor({self.id}, {self.dtype.value!r}, {describe_shape(self.shape)}{extra})"


def checked_tensor(
    id: int,
    dtype: DataType,
    shape: tuple[int, ...] | None,
    strides: tuple[int, ...] | None,
    layout: LayoutType,
    layout_id: int | None,
    property: PropertyType,
    value: float | None,
) -> LogicalTensor:
    """A tensor of what was checked before: nothing is asked of sizes that may vary."""
    put, made = object.__setattr__, object.__new__(LogicalTensor)
    put(made, "id", id)
    put(made, "dtype", dtype)
    put(made, "layout", layout)
    put(made, "property", property)
    put(made, "shape", shape)
    put(made, "strides", strides)
    put(made, "layout_id", layout_id)
    put(made, "value", value)
    put(made, "_signature", (dtype, shape, layout, strides, layout_id, property, value))
    return made


def shapeless_tensor(id: int, dtype: DataType) -> LogicalTensor:
    """``LogicalTensor(id, dtype)`` of what was checked before."""
    return checked_tensor(id, dtype, None, None, LayoutType.STRIDED, None, PropertyType.UNDEF, None)


def describe_shape(shape: Sequence[int] | None) -> str:
    """A shape for people: ``?`` for what is unknown."""
    if shape is None:
        return "?"
    dims = ["?" if d == UNKNOWN_DIM else str(d) for d in shape]
    return f"({', '.join(dims)}{',' if len(dims) == 1 else ''})"


def check_id(value: object, what: str) -> int:
    """The id of a tensor, op or layout as an int; InvalidArgumentError, which names `what`, for anything else."""
    if type(value) is int and 0 <= value <= MAX_ID:
        return value
    try:
        number = -1 if isinstance(value, bool) else index(value)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if not 0 <= number <= MAX_ID:
        raise InvalidArgumentError(explain(what, accepted="an int from 0 to 2**64 - 1", got=brief(value)))
    return number


def _member(table: dict[str, Any], value: object, what: str, tensor_id: int) -> Any:
    member = table.get(value) if isinstance(value, str) else None
    if member is None:
        message = explain(f"tensor {tensor_id}: unknown {what}", accepted=", ".join(table), got=brief(value))
        raise InvalidArgumentError(message, tensor_id=tensor_id)
    return member


def _checked_layout(
    tensor_id: int, shape: Sequence[int] | None, layout: LayoutType, strides: Sequence[int] | None
) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """The shape and the strides of a tensor; raises for those that no tensor has."""
    if layout is LayoutType.STRIDED and strides is None:
        found = dense_layout(shape, _LIMIT)
        if found is not None and len(found) <= MAX_NDIM:
            return shape, found  # type: ignore[return-value]  # a tuple
    dims = None if shape is None else _check_shape(shape, tensor_id)
    return dims, _complete_strides(tensor_id, dims, layout, strides)


def _check_shape(shape: Sequence[int], tensor_id: int) -> tuple[int, ...]:
    try:
        dims = tuple(map(as_size, shape))
    except TypeError:
        message = explain(f"tensor {tensor_id}: shape", accepted="a sequence of ints, or None", got=brief(shape))
        raise InvalidShapeError(message, tensor_id=tensor_id) from None
    if len(dims) > MAX_NDIM:
        message = explain(f"tensor {tensor_id}: rank", accepted=f"at most {MAX_NDIM}", got=len(dims))
        raise InvalidShapeError(message, tensor_id=tensor_id)
    for axis, dim in enumerate(dims):
        if dim < 0 and dim != UNKNOWN_DIM:
            what = f"tensor {tensor_id}: dimension {axis}"
            message = explain(what, accepted="at least 0, or graphpool.UNKNOWN_DIM", got=brief(dim))
            raise InvalidShapeError(message, tensor_id=tensor_id, dim=axis)
    if UNKNOWN_DIM not in dims and prod(filter(None, dims)) >= _LIMIT:  # an array of (0, 2**60) cannot be had either
        message = explain(f"tensor {tensor_id}: number of elements", accepted="below 2**60", got=brief(dims))
        raise InvalidShapeError(message, tensor_id=tensor_id)
    return dims


def _check_value(tensor: LogicalTensor, value: object) -> float:
    """The value of a constant of one element as a finite float."""
    shape, dtype = tensor.shape, tensor.dtype
    try:
        array = np.asarray(value)
        number = nan if array.dtype.kind in "USO" or array.size != 1 else float(array.reshape(()))
    except (TypeError, ValueError, OverflowError):
        array, number = np.empty(0), nan
    is_one = tensor.property is PropertyType.CONSTANT and shape is not None and set(shape) <= {1}
    if not is_one or array.shape not in ((), shape) or not _holds(dtype, number) or number != array.item():
        message = explain(
            f"tensor {tensor.id}: value",
            accepted=f"a finite number that {dtype} holds, of a constant of one element",
            got=f"{brief(value)}, property {tensor.property.value}, shape {describe_shape(shape)}",
        )
        raise InvalidArgumentError(message, tensor_id=tensor.id)
    return number


def _holds(dtype: DataType, number: float) -> bool:
    """Whether a number lies within the range of a type, and is whole where its elements are."""
    if dtype in _LARGEST:
        return abs(number) <= _LARGEST[dtype]
    if dtype.bits == 0:
        return isfinite(number)
    nbits = 1 if dtype is DataType.BOOLEAN else dtype.bits
    low, high = (-(2 ** (nbits - 1)), 2 ** (nbits - 1)) if dtype.value[0] == "s" else (0, 2**nbits)
    return low <= number < high and number.is_integer()


def _complete_strides(
    tensor_id: int, shape: tuple[int, ...] | None, layout: LayoutType, strides: Sequence[int] | None
) -> tuple[int, ...] | None:
    if strides is None:
        is_settled = layout is LayoutType.STRIDED and shape is not None and all(dim >= 0 for dim in shape)
        return dense_strides(shape) if is_settled and shape is not None else None
    try:
        steps: tuple[int, ...] | None = tuple(map(as_size, strides))
    except TypeError:
        steps = None
    is_settled = layout is LayoutType.STRIDED and shape is not None and steps is not None and len(steps) == len(shape)
    if not is_settled or any(step < 0 for step in steps or ()) or not _is_addressable(shape or (), steps or ()):
        message = explain(
            f"tensor {tensor_id}: strides",
            accepted="one stride of at least 0 for each dimension, with the strided layout, the elements less than "
            "2**60 apart",
            got=f"strides {brief(strides)}, shape {describe_shape(shape)}, layout {layout.value}",
        )
        raise InvalidShapeError(message, tensor_id=tensor_id)
    return steps


def _is_addressable(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether strides, and the distance from the first element to the last, are below 2**60."""
    spans = [max(dim - 1, 0) * stride for dim, stride in zip(shape, strides, strict=True)]
    return max(strides, default=0) < _LIMIT and sum(spans) < _LIMIT - 1
