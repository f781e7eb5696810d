"""ONNX Runtime's Python interface on graphpool, for programs and packages that were written for it.

``import graphpool.onnx as onnxruntime`` is the change that they need. The names, arguments and results are those of
ONNX Runtime's documentation (https://onnxruntime.ai/docs/api/python/api_summary.html); what graphpool has no use for is
accepted where results do not depend on it, and refused where they do.
"""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool._dataclasses import dataclass
from graphpool.errors import InvalidArgumentError, StateError, brief, explain
from graphpool.runtime.model_port import check_is_mapping

from .loader import load
from .ort_value import OrtValue, check_device, numpy_type
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
    get_version_string,
    preload_dlls,
    set_default_logger_severity,
    set_default_logger_verbosity,
    set_seed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from graphpool.runtime import Model
    from graphpool.runtime.model_metadata import ModelMetadata


__all__ = [
    "ExecutionMode", "ExecutionOrder", "GraphOptimizationLevel", "IOBinding", "InferenceSession", "NodeArg", "OrtValue",
    "RunOptions", "SessionOptions", "disable_telemetry_events", "enable_telemetry_events", "get_all_providers",
    "get_available_providers", "get_device", "get_version_string", "preload_dlls", "set_default_logger_severity",
    "set_default_logger_verbosity", "set_seed",
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
        check_device(device_type, device_id)
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
        check_device(device_type, device_id)
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
        """Results of the last run, in the order in which outputs were bound.

        Returns
        -------
        list of OrtValue
        """
        return [OrtValue(value) for value in self._results.values()]

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Results of the last run as arrays, not copied: they are on the CPU.

        Returns
        -------
        list of ndarray, or of what else an output is
        """
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
        They come before what `sess_options` say. ONNX Runtime's ``disabled_optimizers``, ``enable_fallback`` and
        ``read_config_from_model`` are without effect.

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
    longer referred to, at ``close``, or at the end of a ``with`` block. Threads: `run` is safe. All outputs are
    computed, whichever are asked for. Inputs that have an initializer are constants; a run that gives some (see
    `get_overridable_initializers`) is one of a second model, which is loaded for these names when they are first given,
    and kept.

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
        for name in ("disabled_optimizers", "enable_fallback", "read_config_from_model"):
            options.pop(name, None)
        is_path = isinstance(path_or_bytes, (str, os.PathLike))
        self._model_path = os.fspath(path_or_bytes) if is_path else None  # Optimum asks for it
        arguments = given | options
        self.model = load(path_or_bytes, **arguments)
        self._names = [port.name for port in self.model.outputs]
        self._overriding: dict[frozenset[str], Model] = {}
        self._lock = threading.Lock()
        own = {name: value for name, value in arguments.items() if name not in ("engine", "threads", "memory_limit")}
        self._load = partial(load, path_or_bytes, engine=self.model.engine, **own)
        self._finalizer = weakref.finalize(self, _close, self.model, self._overriding)

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
        model, names, values = self._prepare(output_names, input_feed, run_options)
        results = model.run(values)
        return [results[name] for name in names]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], object],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Begin to compute outputs in a thread of its own: otherwise `run`.

        Parameters
        ----------
        output_names : sequence of str or None
        input_feed : mapping of str to array, OrtValue or list
            As for `run`; arrays must not change until the callback is called.
        callback : callable
            Called in that thread with the outputs, `user_data`, and a text that is empty unless the run failed; the
            outputs are an empty list then.
        user_data : object
        run_options : RunOptions, optional

        Raises
        ------
        InvalidArgumentError, StateError
            No such output, or no mapping; the options say terminate. What else is wrong is told to the callback.
        """
        model, names, values = self._prepare(output_names, input_feed, run_options)

        def work() -> None:
            try:
                found, error = model.run(values), ""
                results = [found[name] for name in names]
            except Exception as failure:
                results, error = [], f"{type(failure).__name__}: {failure}"
            callback(results, user_data, error)

        threading.Thread(target=work, name="graphpool run_async", daemon=True).start()

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
        iobinding._run(self._model_for(iobinding._inputs))

    def io_binding(self) -> IOBinding:
        """A binding without inputs and outputs.

        Returns
        -------
        IOBinding
        """
        return IOBinding(self)

    # ---- what is known of it

    def get_inputs(self) -> list[NodeArg]:
        """The inputs, in the file's order.

        Returns
        -------
        list of NodeArg
        """
        return self._describe(self.model.inputs)

    def get_outputs(self) -> list[NodeArg]:
        """The outputs, in the file's order.

        Returns
        -------
        list of NodeArg
        """
        return self._describe(self.model.outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Initializers that the file lists as inputs too, so that a run may give others.

        Returns
        -------
        list of NodeArg
            None for files before version 4 of ONNX's format, in which all of them are listed.
        """
        return self._describe(self.model.metadata.overridable)

    def get_modelmeta(self) -> ModelMetadata:
        """What the file says of itself.

        Returns
        -------
        ModelMetadata
        """
        return self.model.metadata  # type: ignore[no-any-return]

    def get_session_options(self) -> SessionOptions:
        """The options that the session was made with.

        Returns
        -------
        SessionOptions
        """
        return self._options

    def get_providers(self) -> list[str]:
        """The providers that run it: the CPU's.

        Returns
        -------
        list of str
        """
        return [PROVIDER]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Options of each provider: none.

        Returns
        -------
        dict of str to dict of str to str
        """
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

    def _prepare(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: RunOptions | None
    ) -> tuple[Model, list[str], dict[str, Any]]:
        """The model that takes these inputs, the outputs that are asked for, and the inputs as arrays."""
        if isinstance(output_names, str):
            raise InvalidArgumentError(
                explain("output_names", accepted="a list of names, or None", got=brief(output_names))
            )
        names = [self._output(name) for name in output_names] if output_names else self._names
        check_is_mapping("input_feed", input_feed, "names of inputs as keys, and arrays for them")
        _check_may_run(run_options)
        model = self._model_for(input_feed)
        return model, names, {name: self._as_value(model, name, value) for name, value in input_feed.items()}

    def _model_for(self, feed: Mapping[str, Any]) -> Model:
        """The model whose inputs are these: that of the file, or one in which some initializers are inputs."""
        given = frozenset(port.name for port in self.model.metadata.overridable if port.name in feed)
        if not given:
            return self.model
        with self._lock:
            if given not in self._overriding:
                self._overriding[given] = self._load(as_inputs=sorted(given))
            return self._overriding[given]

    @staticmethod
    def _as_value(model: Model, name: str, value: Any) -> Any:
        if isinstance(value, OrtValue):
            return value.numpy()
        dtype = next((port.dtype for port in model.inputs if port.name == name), None)
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
        ports = *self.model.inputs, *self.model.metadata.overridable
        return _known(name, [port.name for port in ports], "input")

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


def _close(model: Model, others: Mapping[frozenset[str], Model]) -> None:
    """Close all models of a session, the one that may own the engine last."""
    for other in others.values():
        other.close()
    model.close()


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
            raise InvalidArgumentError(explain("providers", accepted=accepted, got=brief(provider)))
        if name != PROVIDER:
            warnings.warn(f"provider {name!r} is not available; {PROVIDER} runs the model", UserWarning, stacklevel=3)


def _array_at(address: int, shape: Sequence[int], element_type: Any) -> np.ndarray[Any, Any]:
    """An array over memory of the caller."""
    dtype = numpy_type(element_type)
    view = {"data": (address, False), "shape": tuple(shape), "typestr": dtype.str, "version": 3}
    holder = type("Memory", (), {"__array_interface__": view})()
    return np.asarray(holder)
