"""Content for the inputs of a model whose results nobody will look at."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InvalidArgumentError, brief, explain
from ..runtime.model import Model
from ..runtime.model_port import check_is_mapping, describe_port, shape_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def random_inputs(model: Model, shapes: Mapping[str, Sequence[int]] | None = None) -> dict[str, np.ndarray[Any, Any]]:
    """Content for every input: normally distributed floats, zeros for integers, which may be indices, empty texts.

    Parameters
    ----------
    model : Model
    shapes : mapping of str to sequence of int, optional
        For every input that is not static.

    Returns
    -------
    inputs : dict of str to ndarray
        The same at every call.

    Raises
    ------
    InvalidArgumentError
        The shape of an input is not known, or is no shape (field ``input_name``).

    Notes
    -----
    Ownership: the caller owns the arrays. Threads: safe.
    """
    given: Mapping[str, Any] = {} if shapes is None else shapes
    check_is_mapping("shapes", given, "names of inputs as keys, and shapes for them")
    rng = np.random.default_rng(0)
    inputs = {}
    for port in model.inputs:
        shape = given.get(port.name)
        if shape is None and port.is_static:
            shape = port.shape
        if shape is None or (port.dtype is None and not port.is_text):
            message = explain(
                f"input {port.name!r} has no fixed shape",
                accepted=f"{shape_options(port)}, or an entry in shapes",
                got=describe_port(port),
            )
            raise InvalidArgumentError(message, input_name=port.name)
        dims = _dims(port.name, shape)
        if port.dtype is None:
            inputs[port.name] = np.full(dims, "", np.object_)
            continue
        dtype = port.dtype.numpy
        is_float = np.issubdtype(dtype, np.floating) or dtype.name == "bfloat16"
        inputs[port.name] = rng.standard_normal(dims).astype(dtype) if is_float else np.zeros(dims, dtype)
    return inputs


def _dims(name: str, shape: Any) -> list[int]:
    """The sizes of an input's shape; InvalidArgumentError for what are none."""
    try:
        dims = [index(dim) for dim in shape if dim is not None]
    except TypeError:
        dims = [-1]
    if min(dims, default=0) < 0:
        message = explain(f"shapes: input {name!r}", accepted="a sequence of ints of at least 0", got=brief(shape))
        raise InvalidArgumentError(message, input_name=name)
    return dims


def inputs_or_random(model: Model, inputs: Mapping[str, Any] | None) -> dict[str, Any]:
    """The inputs, or random ones where there are none; InvalidArgumentError for what is no model."""
    if not isinstance(model, Model):
        raise InvalidArgumentError(explain("model", accepted="a graphpool.Model", got=type(model).__name__))
    if inputs is None:
        return random_inputs(model)
    check_is_mapping("inputs", inputs, "names of inputs as keys, and arrays for them")
    return dict(inputs)
