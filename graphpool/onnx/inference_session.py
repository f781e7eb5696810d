"""ONNX Runtime's Python interface on graphpool, for programs and packages that were written for it.

``import graphpool.onnx as onnxruntime`` is the change that they need. The names, arguments and results are those of
ONNX Runtime's documentation (https://onnxruntime.ai/docs/api/python/api_summary.html); what graphpool has no use for is
accepted where results do not depend on it, and refused where they do.
"""

from __future__ import annotations

import warnings
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto, TypeProto

from graphpool._dataclasses import dataclass
from graphpool.errors import InvalidArgumentError, StateError, UnsupportedError, brief, explain
from graphpool.runtime.model_port import check_is_mapping
from graphpool.typing import DataType

from .loader import load
from .session_options import (
    PROVIDER,
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    RunOptions,
    SessionOptions,
    disable_telemetry_events,
    enable_telemetry_events,
    get_all_providers,
    get_available_providers,
    get_device,
    set_default_logger_severity,
)
from .types import data_type, describe_type, make_type

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from graphpool.runtime import Model
    from graphpool.runtime.model_metadata import ModelMetadata


__all__ = [
    "ExecutionMode", "ExecutionOrder", "GraphOptimizationLevel", "IOBinding", "InferenceSession", "NodeArg", "OrtValue",
    "RunOptions", "SessionOptions", "disable_telemetry_events", "enable_telemetry_events", "get_all_providers",
    "get_available_providers", "get_device", "set_default_logger_severity",
]  # fmt: skip


@dataclass(frozen=True)
class NodeArg:
    """An input or output of a session.

    Attributes
    ----------
    name : str
    type : str
        As ONNX Runtime writes it: ``tensor(float)``, ``seq(map(int64,tensor(float)))``.
    shape : list of int, str or None
        A text names a dimension, None is one that is not known; empty also where the rank is not known.
    """

    name: str
    type: str
    shape: list[int | str | None]


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
        _check_device(device_type, device_id)
        return OrtValue(np.array(numpy_obj, order="C"))

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
        _check_device(device_type, device_id)
        return OrtValue(np.zeros(tuple(shape), _numpy_type(element_type)))

    def numpy(self) -> Any:
        """The array itself; it is shared with the value."""
        return self._value

    def shape(self) -> list[int]:
        """Sizes of its dimensions."""
        return list(np.shape(self._value))

    def data_type(self) -> str:
        """Its type as ONNX Runtime writes it, such as ``tensor(float)``."""
        if not self.is_tensor():
            return "seq(?)"
        return describe_type(_type_of(self._value))

    def element_type(self) -> int:
        """ONNX's number of the type of its elements.

        Raises
        ------
        InvalidArgumentError
            The value is no tensor.
        """
        if not self.is_tensor():
            raise InvalidArgumentError(explain("element_type", accepted="a tensor", got=type(self._value).__name__))
        return int(_type_of(self._value).tensor_type.elem_type)

    def is_tensor(self) -> bool:
        """Whether it is an array."""
        return isinstance(self._value, np.ndarray)

    def is_sparse_tensor(self) -> bool:
        """Never."""
        return False

    def is_tensor_sequence(self) -> bool:
        """Whether it is a list."""
        return isinstance(self._value, list)

    def has_value(self) -> bool:
        """Whether it is more than an optional without content."""
        return self._value is not None

    def device_name(self) -> str:
        """``"cpu"``."""
        return "cpu"

    def data_ptr(self) -> int:
        """Address of its first element."""
        return int(self._value.ctypes.data)

    def tensor_size_in_bytes(self) -> int:
        """Bytes of its elements."""
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


class IOBinding:
    """Inputs and outputs of a session that are bound to arrays ahead of `InferenceSession.run_with_iobinding`.

    Parameters
    ----------
    session : InferenceSession

    Notes
    -----
    Ownership: arrays that are bound are kept, not copied; memory bound by address is the caller's and must stay. Warm
    runs into bound outputs allocate nothing for them. Threads: not safe; a binding for each thread.
    """

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        self._wanted: dict[str, Any] = {}  # output -> the array for it, or None
        self._results: dict[str, Any] = {}

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Bind an input to an array.

        Parameters
        ----------
        name : str
        arr_on_cpu : array
            Read when the session runs, so it must not change until then.

        Raises
        ------
        InvalidArgumentError
            The model has no such input.
        """
        self._inputs[self._session._input(name)] = arr_on_cpu

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an input to a value.

        Parameters
        ----------
        name : str
        ortvalue : OrtValue

        Raises
        ------
        InvalidArgumentError
            The model has no such input.
        """
        self.bind_cpu_input(name, ortvalue.numpy())

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Bind an input to the caller's memory of this type and shape.

        Parameters
        ----------
        name : str
        device_type : str
            ``"cpu"``.
        device_id : int
            0.
        element_type : dtype or int
            A NumPy type, or ONNX's number of one.
        shape : sequence of int
        buffer_ptr : int
            Address of the elements in row-major order, which must stay until the run has ended.

        Raises
        ------
        InvalidArgumentError
            The model has no such input, or there is no such type.
        UnsupportedError
            There is no such device.
        """
        _check_device(device_type, device_id)
        self.bind_cpu_input(name, _array_at(buffer_ptr, shape, element_type))

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Want an output: in a fresh array, or in the caller's memory of this type and shape.

        Parameters
        ----------
        name : str
        device_type : str, default="cpu"
        device_id : int, default=0
        element_type : dtype or int, optional
            A NumPy type, or ONNX's number of one.
        shape : sequence of int, optional
        buffer_ptr : int, optional
            Address of the caller's memory; by default the output is a fresh array.

        Raises
        ------
        InvalidArgumentError
            The model has no such output, there is no such type, or an address comes without type and shape.
        UnsupportedError
            There is no such device.
        """
        _check_device(device_type, device_id)
        if (element_type is None or shape is None) and buffer_ptr is not None:
            raise InvalidArgumentError(explain(f"bind_output {name!r}", accepted="an address with a type and a shape"))
        array = None if buffer_ptr is None or shape is None else _array_at(buffer_ptr, shape, element_type)
        self._wanted[self._session._output(name)] = array

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Want an output in the array of a value.

        Parameters
        ----------
        name : str
        ortvalue : OrtValue

        Raises
        ------
        InvalidArgumentError
            The model has no such output.
        """
        self._wanted[self._session._output(name)] = ortvalue.numpy()

    def clear_binding_inputs(self) -> None:
        """Bind no inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Want no outputs, and let go of the results."""
        self._wanted.clear()
        self._results.clear()

    def synchronize_inputs(self) -> None:
        """Nothing to wait for on the CPU."""

    def synchronize_outputs(self) -> None:
        """Nothing to wait for on the CPU."""

    def get_outputs(self) -> list[OrtValue]:
        """Results of the last run, in the order in which outputs were bound."""
        return [OrtValue(value) for value in self._results.values()]

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Results of the last run as arrays, not copied: they are on the CPU."""
        return list(self._results.values())

    def _run(self, model: Model) -> None:
        bound = {name: array for name, array in self._wanted.items() if array is not None}
        results = model.run(self._inputs, bound or None)
        self._results = {name: results[name] for name in self._wanted}


class InferenceSession:
    """A model behind ONNX Runtime's interface.

    Parameters
    ----------
    path_or_bytes : path or bytes
        As for `graphpool.onnx.load`.
    sess_options : SessionOptions, optional
    providers : sequence of str or (str, dict), optional
        In order of preference; those that there are not are left out, with a warning, as in ONNX Runtime.
    provider_options : sequence of dict, optional
        Without effect.
    **options
        Arguments of `graphpool.onnx.load`, which ONNX Runtime does not have, such as ``memory_limit`` and ``weights``.
        They come before what `sess_options` say.

    Attributes
    ----------
    model : Model
        What runs, for all that this interface does not have: prediction, statistics, sessions with states.

    Raises
    ------
    Otherwise as `graphpool.onnx.load`
        graphpool's errors, not ONNX Runtime's.
    UnsupportedError
        `sess_options` ask for profiling or a written model.

    Notes
    -----
    Ownership: owns its model and, unless one is given, its engine; both are closed with the session: when it is no
    longer referred to, at ``close``, or at the end of a ``with`` block. Threads: `run` is safe. Inputs that have an
    initializer are constants and cannot be overridden. All outputs are computed, whichever are asked for.

    Examples
    --------
    >>> session = gp.onnx.InferenceSession("model.onnx", memory_limit="512MiB")   # doctest: +SKIP
    >>> [scores] = session.run(None, {session.get_inputs()[0].name: image})       # doctest: +SKIP
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> None:
        if sess_options is not None and not isinstance(sess_options, SessionOptions):
            raise InvalidArgumentError(
                explain("sess_options", accepted="a SessionOptions, or None", got=type(sess_options).__name__)
            )
        self._options = SessionOptions() if sess_options is None else sess_options
        _check_providers(providers)
        given = {name: value for name, value in self._options._arguments().items() if value is not None}
        if options.get("engine") is not None:
            given.pop("threads", None)
        self.model = load(path_or_bytes, **given | options)
        self._names = [port.name for port in self.model.outputs]
        self._finalizer = weakref.finalize(self, self.model.close)

    # ---- running

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """Compute outputs.

        Parameters
        ----------
        output_names : sequence of str or None
            Which, in this order; None or none of them: all, in the file's order.
        input_feed : mapping of str to array, OrtValue or list
            Lists of numbers, nested or not, become arrays of the input's type.
        run_options : RunOptions, optional

        Returns
        -------
        outputs : list
            Arrays; lists and dicts for sequences and maps.

        Raises
        ------
        InvalidArgumentError, InvalidDataTypeError, InvalidShapeError, OutOfMemoryError, StateError
            As `Model.run`; or no such output.
        """
        if isinstance(output_names, str):
            raise InvalidArgumentError(
                explain("output_names", accepted="a list of names, or None", got=brief(output_names))
            )
        names = [self._output(name) for name in output_names] if output_names else self._names
        check_is_mapping("input_feed", input_feed, "names of inputs as keys, and arrays for them")
        _check_may_run(run_options)
        results = self.model.run({name: self._as_value(name, value) for name, value in input_feed.items()})
        return [results[name] for name in names]

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """Compute outputs from values, as values: otherwise `run`.

        Parameters
        ----------
        output_names : sequence of str or None
            None for all.
        input_dict_ort_values : mapping
            Name -> OrtValue.
        run_options : RunOptions, optional

        Returns
        -------
        outputs : list of OrtValue

        Raises
        ------
        GraphpoolError
            As `run`.
        """
        return [OrtValue(value) for value in self.run(output_names, input_dict_ort_values, run_options)]

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Compute the outputs that a binding wants from the inputs that it has: otherwise `run`.

        Parameters
        ----------
        iobinding : IOBinding
        run_options : RunOptions, optional

        Raises
        ------
        GraphpoolError
            As `run`.
        """
        _check_may_run(run_options)
        iobinding._run(self.model)

    def io_binding(self) -> IOBinding:
        """A binding without inputs and outputs."""
        return IOBinding(self)

    # ---- what is known of it

    def get_inputs(self) -> list[NodeArg]:
        """The inputs, in the file's order."""
        return self._describe(self.model.inputs)

    def get_outputs(self) -> list[NodeArg]:
        """The outputs, in the file's order."""
        return self._describe(self.model.outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """None: they are constants."""
        return []

    def get_modelmeta(self) -> ModelMetadata:
        """What the file says of itself."""
        return self.model.metadata  # type: ignore[no-any-return]

    def get_session_options(self) -> SessionOptions:
        """The options that the session was made with."""
        return self._options

    def get_providers(self) -> list[str]:
        """The providers that run it: the CPU's."""
        return [PROVIDER]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Options of each provider: none."""
        return {PROVIDER: {}}

    def set_providers(
        self, providers: Sequence[Any] | None = None, provider_options: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """Check the names of providers; the CPU's runs the session.

        Parameters
        ----------
        providers : sequence of str or (str, dict), optional
            A warning tells which of them there are not.
        provider_options : sequence of dict, optional
            Without effect.

        Raises
        ------
        InvalidArgumentError
            What stands there is no name.
        """
        _check_providers(providers)

    def disable_fallback(self) -> None:
        """Nothing to do: there is one provider."""

    def enable_fallback(self) -> None:
        """Nothing to do: there is one provider."""

    def _as_value(self, name: str, value: Any) -> Any:
        if isinstance(value, OrtValue):
            return value.numpy()
        dtype = next((port.dtype for port in self.model.inputs if port.name == name), None)
        if dtype is None or not isinstance(value, list):
            return value
        try:
            return np.array(value, dtype.numpy)
        except (TypeError, ValueError, OverflowError) as error:
            accepted = f"numbers of type {dtype}, in lists of one length"
            raise InvalidArgumentError(explain(f"input {name!r}", accepted=accepted, got=brief(value))) from error

    def _describe(self, ports: Sequence[Any]) -> list[NodeArg]:
        types = self.model.metadata.types
        return [NodeArg(port.name, types[port.name], list(port.shape or ())) for port in ports]

    def _input(self, name: str) -> str:
        return _known(name, [port.name for port in self.model.inputs], "input")

    def _output(self, name: str) -> str:
        return _known(name, self._names, "output")

    # ---- life

    def close(self) -> None:
        """Give all memory back. Idempotent."""
        self._finalizer()

    def __enter__(self) -> InferenceSession:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"InferenceSession({self.model!r})"


def _known(name: str, names: Sequence[str], what: str) -> str:
    if name not in names:
        raise InvalidArgumentError(explain(f"unknown {what} {name!r}", accepted=f"{what}s {list(names)}"))
    return name


def _check_may_run(options: RunOptions | None) -> None:
    if options is not None and options.terminate:
        raise StateError(explain("the run options say terminate", hint="set terminate to False"))


def _check_providers(providers: Sequence[Any] | None) -> None:
    """Warn of providers that there are not, and raise for what is no name of one."""
    for provider in providers or ():
        name = provider[0] if isinstance(provider, (tuple, list)) and provider else provider
        if not isinstance(name, str):
            accepted = "names, or pairs of a name and a dict"
            raise InvalidArgumentError(explain("providers", accepted=accepted, got=repr(provider)))
        if name != PROVIDER:
            warnings.warn(f"provider {name!r} is not available; {PROVIDER} runs the model", UserWarning, stacklevel=3)


def _check_device(device_type: str, device_id: int) -> None:
    if device_type.lower() not in ("cpu", "cpu_pinned") or device_id:
        got = f"{device_type}:{device_id}"
        raise UnsupportedError(explain("device", accepted="cpu:0", got=got))


def _type_of(array: np.ndarray[Any, Any]) -> TypeProto:
    """ONNX's type of an array, of texts too."""
    if array.dtype.kind in "OU":
        return TypeProto(tensor_type=TypeProto.Tensor(elem_type=TensorProto.STRING))
    return make_type(DataType.parse(array.dtype), None)


def _numpy_type(element_type: Any) -> np.dtype[Any]:
    """NumPy's type, from itself or from ONNX's number of it."""
    if isinstance(element_type, int):
        found = data_type(element_type)
        if found is None:
            raise InvalidArgumentError(explain("element type", accepted="a type of tensors", got=element_type))
    else:
        found = DataType.parse(element_type)
    dtype: np.dtype[Any] = found.numpy
    return dtype


def _array_at(address: int, shape: Sequence[int], element_type: Any) -> np.ndarray[Any, Any]:
    """An array over memory of the caller."""
    dtype = _numpy_type(element_type)
    view = {"data": (address, False), "shape": tuple(shape), "typestr": dtype.str, "version": 3}
    holder = type("Memory", (), {"__array_interface__": view})()
    return np.asarray(holder)
