"""A value of ONNX Runtime's interface: an array, or what else a session takes and gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool.errors import InvalidArgumentError, UnsupportedError, explain
from graphpool.runtime._tensor import check_unmasked
from graphpool.typing import DataType

from .proto import TensorProto, TypeProto
from .types import data_type, describe_type, make_type

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["OrtValue", "check_device", "numpy_type"]


class OrtValue:
    """A value of a session in an object of its own.

    Parameters
    ----------
    value : ndarray, or list and dict for sequences and maps
        It is kept, not copied.

    Notes
    -----
    Threads: as an array's.
    """

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value.numpy() if isinstance(value, OrtValue) else value

    @staticmethod
    def ortvalue_from_numpy(numpy_obj: Any, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        """A value of a copy of the array, on the CPU.

        Parameters
        ----------
        numpy_obj : array
        device_type : str, default="cpu"
        device_id : int, default=0

        Returns
        -------
        value : OrtValue

        Raises
        ------
        UnsupportedError
            There is no such device.
        """
        check_device(device_type, device_id)
        check_unmasked(numpy_obj, "numpy_obj")
        return OrtValue(np.array(numpy_obj, order="C"))

    @staticmethod
    def ortvalue_from_numpy_with_onnx_type(data: Any, onnx_element_type: int) -> OrtValue:
        """A value of the bytes of an array, which is shared, as elements of a type that NumPy may not have.

        Parameters
        ----------
        data : array
        onnx_element_type : int
            ONNX's number of a type with elements of the same size.

        Returns
        -------
        value : OrtValue

        Raises
        ------
        InvalidArgumentError
            There is no such type, or its elements have another size.
        """
        check_unmasked(data, "data")
        array, dtype = np.ascontiguousarray(data), numpy_type(int(onnx_element_type))
        if array.dtype.itemsize != dtype.itemsize:
            accepted = f"elements of {dtype.itemsize} bytes, as {dtype} has"
            raise InvalidArgumentError(explain("data", accepted=accepted, got=array.dtype))
        return OrtValue(array.view(dtype))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """A value of zeros.

        Parameters
        ----------
        shape : sequence of int
        element_type : dtype or int
            A NumPy type, or ONNX's number of one.
        device_type : str, default="cpu"
        device_id : int, default=0

        Returns
        -------
        value : OrtValue

        Raises
        ------
        InvalidArgumentError
            There is no such type.
        UnsupportedError
            There is no such device.
        """
        check_device(device_type, device_id)
        return OrtValue(np.zeros(tuple(shape), numpy_type(element_type)))

    def numpy(self) -> Any:
        """The array itself; it is shared with the value.

        Returns
        -------
        ndarray, or what else the value holds
        """
        return self._value

    def shape(self) -> list[int]:
        """Sizes of its dimensions.

        Returns
        -------
        list of int
        """
        return list(np.shape(self._value))

    def data_type(self) -> str:
        """Its type as ONNX Runtime writes it, such as ``tensor(float)``.

        Returns
        -------
        str
        """
        if not self.is_tensor():
            return "seq(?)"
        return describe_type(_type_of(self._value))

    def element_type(self) -> int:
        """ONNX's number of the type of its elements.

        Returns
        -------
        int

        Raises
        ------
        InvalidArgumentError
            The value is no tensor.
        """
        if not self.is_tensor():
            raise InvalidArgumentError(explain("element_type", accepted="a tensor", got=type(self._value).__name__))
        return int(_type_of(self._value).tensor_type.elem_type)

    def is_tensor(self) -> bool:
        """Whether it is an array.

        Returns
        -------
        bool
        """
        return isinstance(self._value, np.ndarray)

    def is_sparse_tensor(self) -> bool:
        """Never.

        Returns
        -------
        bool
        """
        return False

    def is_tensor_sequence(self) -> bool:
        """Whether it is a list.

        Returns
        -------
        bool
        """
        return isinstance(self._value, list)

    def has_value(self) -> bool:
        """Whether it is more than an optional without content.

        Returns
        -------
        bool
        """
        return self._value is not None

    def device_name(self) -> str:
        """``"cpu"``.

        Returns
        -------
        str
        """
        return "cpu"

    def data_ptr(self) -> int:
        """Address of its first element.

        Returns
        -------
        int
        """
        return int(self._value.ctypes.data)

    def tensor_size_in_bytes(self) -> int:
        """Bytes of its elements.

        Returns
        -------
        int
        """
        return int(self._value.nbytes)

    def update_inplace(self, array: Any) -> None:
        """Copy an array of the same type and shape into the value's.

        Parameters
        ----------
        array : array

        Raises
        ------
        InvalidArgumentError
            Type or shape differ.
        """
        check_unmasked(array, "update_inplace")
        array, own = np.asarray(array), self._value
        if array.dtype != own.dtype or array.shape != own.shape:
            accepted, got = (f"{item.dtype} {list(item.shape)}" for item in (own, array))
            raise InvalidArgumentError(explain("update_inplace", accepted=accepted, got=got))
        own[...] = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self._value, dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        return self._value.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._value.__dlpack_device__()  # type: ignore[no-any-return]


def check_device(device_type: str, device_id: int) -> None:
    """UnsupportedError unless values can be on this device."""
    if device_type.lower() not in ("cpu", "cpu_pinned") or device_id:
        got = f"{device_type}:{device_id}"
        raise UnsupportedError(explain("device", accepted="cpu:0", got=got))


def _type_of(array: np.ndarray[Any, Any]) -> TypeProto:
    """ONNX's type of an array, of texts too."""
    if array.dtype.kind in "OU":
        return TypeProto(tensor_type=TypeProto.Tensor(elem_type=TensorProto.STRING))
    return make_type(DataType.parse(array.dtype), None)


def numpy_type(element_type: Any) -> np.dtype[Any]:
    """NumPy's type, from itself or from ONNX's number of it."""
    if isinstance(element_type, int):
        found = data_type(element_type)
        if found is None:
            raise InvalidArgumentError(explain("element type", accepted="a type of tensors", got=element_type))
    else:
        found = DataType.parse(element_type)
    dtype: np.dtype[Any] = found.numpy
    return dtype
