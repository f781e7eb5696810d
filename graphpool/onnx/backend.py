"""ONNX's backend interface, so that tools which drive backends, ``onnx.backend.test`` first, can drive graphpool.

``import graphpool.onnx.backend`` needs the extra ``graphpool[onnx]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool.errors import InvalidArgumentError, UnsupportedError, explain

try:
    import onnx
    from onnx.backend.base import Backend, BackendRep, namedtupledict
except ImportError as error:
    raise UnsupportedError(
        explain("graphpool.onnx.backend needs the package onnx", hint="install the extra graphpool[onnx]")
    ) from error

from .loader import load

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphpool.runtime import Model

__all__ = [
    "GraphpoolBackend",
    "GraphpoolBackendRep",
    "is_compatible",
    "prepare",
    "run_model",
    "run_node",
    "supports_device",
]


class GraphpoolBackendRep(BackendRep):
    """A prepared model.

    Parameters
    ----------
    model : Model
        Closed together with this object.

    Notes
    -----
    Ownership: owns the model. Threads: safe, as `Model` is. Source: ``onnx.backend.base.BackendRep``.
    """

    def __init__(self, model: Model) -> None:
        self.model = model

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Compute the outputs.

        Parameters
        ----------
        inputs : mapping of str to array, sequence of arrays, or array
            By name, or in the order of the model's inputs; one array for a model of one input.
        **kwargs : object
            Accepted for the interface's sake and not used.

        Returns
        -------
        outputs : tuple
            A named tuple where the names allow it, in the order of the model's outputs.

        Raises
        ------
        InvalidArgumentError
            The inputs do not fit.
        """
        results = self.model.run(self._by_name(inputs))
        return namedtupledict("Outputs", list(results))(*results.values())

    def _by_name(self, inputs: Any) -> dict[str, Any]:
        names = [port.name for port in self.model.inputs]
        if hasattr(inputs, "keys"):
            return dict(inputs)
        values = [inputs] if isinstance(inputs, np.ndarray) and len(names) == 1 else list(inputs)
        if len(values) > len(names):
            raise InvalidArgumentError(explain("inputs", accepted=f"at most {len(names)}", got=len(values)))
        arrays = [np.asarray(v) if isinstance(v, np.generic) else v for v in values]
        return dict(zip(names, arrays, strict=False))

    def close(self) -> None:
        """Give the model's memory back. Idempotent."""
        self.model.close()

    def __enter__(self) -> GraphpoolBackendRep:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        # the interface knows no closing: whoever drives it just drops what it prepared
        self.close()


class GraphpoolBackend(Backend):
    """graphpool behind ONNX's interface; all methods are class methods.

    Notes
    -----
    Threads: safe. Source: ``onnx.backend.base.Backend``.
    """

    @classmethod
    def is_compatible(cls, model: Any, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether the model can be prepared: every valid model can, on the CPU, since the host runs what we lack."""
        return cls.supports_device(device)

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> GraphpoolBackendRep:
        """Check and load a model.

        Parameters
        ----------
        model : onnx.ModelProto
        device : str, default="CPU"
        **kwargs : object
            Passed to `graphpool.onnx.load`: engine, threads, memory_limit, fallback.

        Returns
        -------
        rep : GraphpoolBackendRep

        Raises
        ------
        InvalidArgumentError
            The model is not valid.
        UnsupportedError
            The device is no CPU.
        """
        if not cls.supports_device(device):
            raise UnsupportedError(explain(f"device {device}", accepted="CPU"), device=device)
        return GraphpoolBackendRep(load(model, **kwargs))

    @classmethod
    def run_model(cls, model: Any, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """Load a model, run it once, close it; see `prepare` and `GraphpoolBackendRep.run`."""
        with cls.prepare(model, device, **kwargs) as prepared:
            return prepared.run(inputs)

    @classmethod
    def run_node(
        cls,
        node: Any,
        inputs: Sequence[Any] | Mapping[str, Any],
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one node.

        Parameters
        ----------
        node : onnx.NodeProto
        inputs : sequence or mapping of arrays
            One for each input that the node names.
        device : str, default="CPU"
        outputs_info : sequence of (dtype, shape), optional
            Accepted for the interface's sake; types and shapes are inferred.
        **kwargs : object
            ``opset_imports`` for `onnx.helper.make_model`; everything else as for `prepare`.
        """
        names = [name for name in node.input if name]
        given = dict(inputs) if hasattr(inputs, "keys") else dict(zip(names, inputs, strict=True))
        arrays = {name: np.asarray(value) for name, value in given.items()}
        ports = [
            onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for name, a in arrays.items()
        ]
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        graph = onnx.helper.make_graph([node], "node", ports, outputs)
        opsets = {key: kwargs.pop(key) for key in ("opset_imports",) if key in kwargs}
        model = onnx.shape_inference.infer_shapes(onnx.helper.make_model(graph, **opsets))
        return cls.run_model(model, arrays, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether the device is the CPU."""
        return device.split(":")[0].upper() == "CPU"


is_compatible = GraphpoolBackend.is_compatible
prepare = GraphpoolBackend.prepare
run_model = GraphpoolBackend.run_model
run_node = GraphpoolBackend.run_node
supports_device = GraphpoolBackend.supports_device
