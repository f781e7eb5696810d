"""Host functions in plain NumPy, for ops that only move data, compute indices, find elements or draw random numbers.

Any other way would dominate the time of those that move; ONNX's evaluator fails on searches whose inputs are left out.

Each entry takes the node, the number of the call's argument for each input (None: known), the known contents by name
and the opsets, and returns a function, or None where the case is left to others. Functions for nodes of which all is
known are called without arrays to write to.
"""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool.runtime.constant_memory import filled
from graphpool.runtime.host_room import HostNeed, ValueBound

from .arrays import numpy_type, to_array
from .host_sequences import SEQUENCES
from .proto import TensorProto
from .shape_values import measure
from .types import data_type

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from graphpool.runtime.model_form import HostFunction

    from .node import Node


def getter(node: Node, places: Sequence[int | None], known: Mapping[str, Any]) -> Callable[[list[Any]], list[Any]]:
    """A function from a call's arguments to the node's inputs in order, None for those that are left out."""
    fixed = [
        None if place is not None or not name else known[name] for place, name in zip(places, node.input, strict=True)
    ]

    def get(inputs: list[Any]) -> list[Any]:
        return [value if place is None else inputs[place] for place, value in zip(places, fixed, strict=True)]

    return get


def _gather(node: Node, places: Any, known: Mapping[str, Any], opsets: Any) -> HostFunction:
    get, axis = getter(node, places, known), node.attrs.get("axis", 0)

    def gather(inputs: list[Any], outputs: list[Any]) -> Sequence[Any]:
        data, indices = get(inputs)
        # mode "raise" with out= would buffer the whole result
        if indices.size and not -data.shape[axis] <= indices.min() <= indices.max() < data.shape[axis]:
            return [np.take(data, indices, axis)]
        return [np.take(data, indices, axis, out=outputs[0], mode="wrap")]

    return gather


def _known_ints(node: Node, index: int, known: Mapping[str, Any]) -> list[int] | None:
    name = node.input[index] if index < len(node.input) else ""
    return [int(item) for item in np.reshape(known[name], -1)] if name in known else None


def _slice(node: Node, places: Any, known: Mapping[str, Any], opsets: Any) -> HostFunction | None:
    starts, ends = _known_ints(node, 1, known), _known_ints(node, 2, known)
    if starts is None or ends is None or any(place is not None for place in places[1:]):
        return None
    if places[0] is None and not _are_arrays(node, known):
        return None
    get = getter(node, places, known)
    axes = _known_ints(node, 3, known) or range(len(starts))
    steps = _known_ints(node, 4, known) or [1] * len(starts)
    if any(step < 0 for step in steps):
        return None
    cuts = list(zip(axes, starts, ends, steps, strict=True))

    def cut(inputs: list[Any], outputs: list[Any]) -> Sequence[Any]:
        data = get(inputs)[0]
        places_ = [slice(None)] * data.ndim
        for axis, start, end, step in cuts:
            places_[axis] = slice(start, end, step)
        return [data[tuple(places_)]]

    return cut


def _split(node: Node, places: Any, known: Mapping[str, Any], opsets: Any) -> HostFunction | None:
    attrs = node.attrs
    sizes = attrs.get("split") or _known_ints(node, 1, known)
    if places[0] is None or (len(places) > 1 and places[1] is not None):
        return None
    axis, count = attrs.get("axis", 0), attrs.get("num_outputs", len(node.output))

    def split(inputs: list[Any], outputs: list[Any]) -> Sequence[Any]:
        data = inputs[places[0]]
        # without sizes all parts but the last are equal, and that one may be smaller
        step = -(-data.shape[axis] // count)
        ends = list(accumulate(sizes))[:-1] if sizes else range(step, step * count, step)
        return list(np.split(data, ends, axis))

    return split


def _expand(node: Node, places: Any, known: Mapping[str, Any], opsets: Any) -> HostFunction:
    get = getter(node, places, known)

    def expand(inputs: list[Any], outputs: list[Any]) -> Sequence[Any]:
        data, shape = get(inputs)
        return [np.broadcast_to(data, np.broadcast_shapes(data.shape, tuple(shape.tolist())))]

    return expand


def _view(node: Node, places: Any, known: Mapping[str, Any], opsets: Any) -> HostFunction | None:
    """Ops that keep the elements and their order; the output says the shape, of what is known the node."""
    if any(place is not None for place in places[1:]):
        return None
    if places[0] is None:
        return (lambda inputs, outputs: [_viewed(node, known)]) if _are_arrays(node, known) else None

    def view(inputs: list[Any], outputs: list[Any]) -> Sequence[Any]:
        return [inputs[places[0]].reshape(outputs[0].shape)]

    return view


def _viewed(node: Node, known: Mapping[str, Any]) -> Any:
    """A known array in another shape."""
    data, attrs, dims = known[node.input[0]], node.attrs, _known_ints(node, 1, known)
    match node.op_type:
        case "Identity":
            return data
        case "Flatten":
            axis = attrs.get("axis", 1)
            return data.reshape(prod(data.shape[:axis]), prod(data.shape[axis:]))
        case "Reshape":
            dims = attrs["shape"] if dims is None else dims
            kept = not attrs.get("allowzero", 0)
            return data.reshape([data.shape[axis] if kept and dim == 0 else dim for axis, dim in enumerate(dims)])
    axes: Any = attrs.get("axes") if dims is None else dims
    if node.op_type == "Unsqueeze":
        return np.expand_dims(data, tuple(axes))
    return np.squeeze(data, None if axes is None else tuple(axes))


def _are_arrays(node: Node, known: Mapping[str, Any]) -> bool:
    """Whether all inputs are known, and are arrays: elements of 4 bits are not."""
    return all(isinstance(known.get(name), np.ndarray) for name in node.input if name)


def _cast(node: Node, places: Any, known: Mapping[str, Any], opsets: Any) -> HostFunction | None:
    """Of known integers and truth values: others are rounded or saturate."""
    data, own = known.get(node.input[0]), data_type(node.attrs["to"])
    if not isinstance(data, np.ndarray) or data.dtype.kind not in "biu" or own is None or own.bits < 8:
        return None
    to = own.numpy
    is_exact = to.kind in "biu" or to in (np.float32, np.float64)
    return (lambda inputs, outputs: [data.astype(to)]) if is_exact else None


def _where(node: Node, places: Any, known: Mapping[str, Any], opsets: Any) -> HostFunction | None:
    """Of known numbers."""
    if not _are_arrays(node, known):
        return None
    return lambda inputs, outputs: [np.where(*[known[name] for name in node.input])]


def _range(node: Node, places: Any, known: Mapping[str, Any], opsets: Any) -> HostFunction | None:
    """Of known integers: those of others are sums of rounded steps."""
    if not _are_arrays(node, known) or known[node.input[0]].dtype.kind != "i" or not known[node.input[2]].any():
        return None
    dtype, bounds = known[node.input[0]].dtype, [int(known[name].reshape(())) for name in node.input]
    return lambda inputs, outputs: [np.arange(*bounds, dtype=dtype)]


def _transpose(node: Node, places: Any, known: Mapping[str, Any], opsets: Any) -> HostFunction:
    get, order = getter(node, places, known), node.attrs.get("perm")
    return lambda inputs, outputs: [np.transpose(get(inputs)[0], order)]


def _concat(node: Node, places: Any, known: Mapping[str, Any], opsets: Any) -> HostFunction:
    get, axis = getter(node, places, known), node.attrs.get("axis", 1)
    return lambda inputs, outputs: [np.concatenate(get(inputs), axis, out=outputs[0])]


def _elementwise(function: Callable[..., Any]) -> Callable[..., HostFunction | None]:
    def make(node: Node, places: Any, known: Mapping[str, Any], opsets: Any) -> HostFunction | None:
        if node.attrs or opsets.get("", 99) < 7:  # before opset 7 an attribute says how to broadcast
            return None
        get = getter(node, places, known)
        return lambda inputs, outputs: [function(*get(inputs), out=outputs[0])]

    return make


def _constant(node: Node, places: Any, known: Any, opsets: Any) -> HostFunction | None:
    """Not of texts and sparse tensors."""
    [(name, value)] = node.attrs.items()
    if name == "value" and value.data_type != TensorProto.STRING:
        array = to_array(value)
    elif name in _LITERALS:
        array = np.array(value, _LITERALS[name])
    else:
        return None
    return lambda inputs, outputs: [array]


_LITERALS = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
"""Attribute of a Constant -> type."""


def _filled(node: Node, places: Any, known: Any, opsets: Any) -> HostFunction:
    get = getter(node, places, known)
    value = to_array(node.attrs["value"]) if "value" in node.attrs else np.zeros(1, np.float32)

    def fill(inputs: list[Any], outputs: list[Any]) -> Sequence[Any]:
        [shape] = get(inputs)
        return [(np.full if inputs else filled)(shape.tolist(), value.reshape(()))]  # known now: one number

    return fill


def _measure(node: Node, places: Any, known: Any, opsets: Any) -> HostFunction:
    """The evaluator would do it, and takes 12 MB and a third of a second."""
    get = getter(node, places, known)
    return lambda inputs, outputs: [measure(node, get(inputs)[0].shape)]


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Equal": np.equal, "Greater": np.greater, "Less": np.less,
    "GreaterOrEqual": np.greater_equal, "LessOrEqual": np.less_equal, "And": np.logical_and, "Or": np.logical_or,
    "Xor": np.logical_xor, "Not": np.logical_not, "Floor": np.floor, "Ceil": np.ceil,
    "Sin": np.sin, "Cos": np.cos, "Neg": np.negative, "Abs": np.absolute, "Sign": np.sign,
}  # fmt: skip

MOVES: dict[str, Any] = {
    "Gather": _gather, "Slice": _slice, "Split": _split, "Expand": _expand, "Transpose": _transpose, "Concat": _concat,
    **{kind: _elementwise(function) for kind, function in _FUNCTIONS.items()},
}  # fmt: skip

VIEWS: dict[str, Any] = dict.fromkeys(("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"), _view)
"""Those that need the outputs' shapes."""


# ---- ops that find elements, so that contents decide the shapes of their results


class _Unique:
    """The elements, or slices along an axis, that differ, in order or by first appearance, and where they come."""

    gives_fresh = True

    def __init__(self, node: Node, places: Sequence[int | None], known: Mapping[str, Any], opsets: Any) -> None:
        self._node, self._place = node, places[0]
        self._get = getter(node, places, known)
        self._axis, self._is_sorted = node.attrs.get("axis"), node.attrs.get("sorted", 1)

    def __call__(self, inputs: list[Any], outputs: list[Any]) -> Sequence[Any]:
        """The results that have names."""
        [data] = self._get(inputs)
        axis = self._axis
        rows = data.reshape(-1) if axis is None else np.moveaxis(data, axis, 0)
        order, starts, inverse = _groups(rows.reshape(len(rows), -1) if rows.size else rows.reshape(len(rows), 0))
        first, counts = order[starts], np.diff(starts, append=len(rows))
        if not self._is_sorted:  # by first appearance
            turned = np.argsort(first)
            first, counts = first[turned], counts[turned]
            place = np.empty_like(turned)
            place[turned] = np.arange(len(turned))
            inverse = place[inverse]
        values = np.take(data.reshape(-1) if axis is None else data, first, axis or 0)
        return [part for name, part in zip(self._node.output, (values, first, inverse, counts), strict=False) if name]

    def bound(self, inputs: Sequence[ValueBound | None], outputs: Any) -> HostNeed | None:
        """As `HostFunction.bound`, where all differ: `_groups` has them twice, marks for each, and six orders."""
        assert self._place is not None  # what is known is not passed
        source = inputs[self._place]
        shape = None if source is None else source.shape
        if source is None or shape is None:
            return None
        count = prod(shape) if self._axis is None else shape[self._axis]
        orders = [ValueBound.of_array((count,), 8)] * 3
        values = [source._replace(shape=(count,) if self._axis is None else shape), *orders]
        named = [found for name, found in zip(self._node.output, values, strict=False) if name]
        return HostNeed(named, 2 * source.nbytes + 6 * prod(shape) + 7 * 8 * count + 2**12)


def _groups(rows: Any) -> tuple[Any, Any, Any]:
    """The order of rows, the places in it where another row begins, and for each row the number of its kind.

    Of elements the NaNs are alike, as NumPy has it; of rows with several they are not. `np.unique` would make a type
    with a field for each column, and `np.lexsort` an iterator, of 400 and 2,800 bytes.
    """
    if rows.dtype.kind == "V":  # floats of 16 and 8 bits
        rows = rows.astype(np.float32)
    order = np.arange(len(rows))
    for column in rows.T[::-1]:
        order = order[np.argsort(column[order], kind="stable")]
    ranked = rows[order]
    is_new = np.ones(len(rows), bool)
    np.any(ranked[1:] != ranked[:-1], axis=1, out=is_new[1:])
    if rows.shape[1] == 1 and rows.dtype.kind == "f":
        is_new[1:] &= (ranked == ranked)[:-1, 0]  # NaNs are last
    del ranked
    inverse = np.empty_like(order)
    inverse[order] = np.cumsum(is_new) - 1
    return order, np.flatnonzero(is_new), inverse


# ---- random numbers

RANDOM = frozenset({"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
                    "RandomUniformLike"})  # fmt: skip
"""Ops that draw numbers, other ones at each run."""


class _Random:
    """Numbers of a generator of the node's own, from its seed if it has one; PCG64 (O'Neill, 2014), by NumPy.

    `draw` makes doubles, and at most so many again in between.
    """

    gives_fresh = True

    def __init__(
        self, draw: Callable[..., Any], node: Node, places: Sequence[int | None], known: Mapping[str, Any], opsets: Any
    ) -> None:
        attrs, seed = node.attrs, node.attrs.get("seed")
        self._draw, self._attrs, self._get = draw, attrs, getter(node, places, known)
        self._generator = np.random.default_rng(None if seed is None else int(np.float32(seed).view(np.uint32)))
        self._wanted = numpy_type(attrs["dtype"]) if attrs.get("dtype") else None

    def __call__(self, inputs: list[Any], outputs: list[Any]) -> Sequence[Any]:
        """The numbers."""
        [like] = self._get(inputs) or [np.broadcast_to(np.float32(0), tuple(self._attrs.get("shape", ())))]
        found = self._draw(self._generator, self._attrs, like)
        return [found.astype(self._wanted or like.dtype, copy=False)]

    def bound(self, inputs: Sequence[ValueBound | None], outputs: Any) -> HostNeed | None:
        """As `HostFunction.bound`."""
        shape = getattr(inputs[0], "shape", None) if inputs else tuple(self._attrs.get("shape", ()))
        return None if shape is None else HostNeed([ValueBound.of_array(shape, 8)], 16 * prod(shape) + _SMALL_NBYTES)


_SMALL_NBYTES = 2**10
"""For single numbers beside what is drawn."""


def _normal(generator: np.random.Generator, attrs: Mapping[str, Any], like: Any) -> Any:
    found = np.asarray(generator.standard_normal(like.shape))
    found *= attrs.get("scale", 1.0)
    found += attrs.get("mean", 0.0)
    return found


def _uniform(generator: np.random.Generator, attrs: Mapping[str, Any], like: Any) -> Any:
    return np.asarray(generator.uniform(attrs.get("low", 0.0), attrs.get("high", 1.0), like.shape))


def _bernoulli(generator: np.random.Generator, attrs: Mapping[str, Any], like: Any) -> Any:
    return np.asarray(generator.random(like.shape) < like)


class _Multinomial(_Random):
    """Numbers of classes, drawn by logarithms of their weights; one row is worked on at a time."""

    def __call__(self, inputs: list[Any], outputs: list[Any]) -> Sequence[Any]:
        """The numbers."""
        [like] = self._get(inputs)
        return [_classes(self._generator, self._attrs, like, self._wanted or np.dtype(np.int32))]

    def bound(self, inputs: Sequence[ValueBound | None], outputs: Any) -> HostNeed | None:
        """As `HostFunction.bound`."""
        shape, count = getattr(inputs[0], "shape", None), self._attrs.get("sample_size", 1)
        if shape is None:
            return None
        drawn = ValueBound.of_array((shape[0], count), np.dtype(self._wanted or np.int32).itemsize)
        return HostNeed([drawn], drawn.nbytes + 8 * (4 * shape[1] + 4 * count) + _SMALL_NBYTES)


def _classes(generator: np.random.Generator, attrs: Mapping[str, Any], like: Any, dtype: Any) -> Any:
    found = np.empty((len(like), attrs.get("sample_size", 1)), dtype)
    for row, logarithms in zip(found, like, strict=True):
        weights = logarithms.astype(np.float64)
        weights -= weights.max()
        ends = np.exp(weights, out=weights).cumsum()
        if not ends[-1] > 0:  # a weight that is no number, or none above 0
            raise ValueError("weights of classes that are no numbers, or all zero")
        places = ends.searchsorted(generator.random(row.size) * ends[-1], "right")
        last = np.flatnonzero(weights)[-1]  # to which belongs what is rounded to the end
        np.minimum(places, last, out=row, casting="same_kind")
    return found


def _multinomial(node: Node, places: Sequence[int | None], known: Mapping[str, Any], opsets: Any) -> Any:
    return _Multinomial(_classes, node, places, known, opsets) if node.attrs.get("sample_size", 1) > 0 else None


SEARCHES: dict[str, Any] = {
    **SEQUENCES,
    "Constant": _constant,
    "ConstantOfShape": _filled,
    **dict.fromkeys(("Shape", "Size"), _measure),
    "Unique": _Unique,
    "Bernoulli": partial(_Random, _bernoulli),
    "Multinomial": _multinomial,
    **dict.fromkeys(("RandomNormal", "RandomNormalLike"), partial(_Random, _normal)),
    **dict.fromkeys(("RandomUniform", "RandomUniformLike"), partial(_Random, _uniform)),
}
"""As `host_ops.MOVES`; nothing need be known of the outputs."""

ALL = {**SEARCHES, **MOVES, **VIEWS, "Cast": _cast, "Range": _range, "Where": _where}
"""All of them, where the outputs are known."""
