"""Interpolation: by our own op where that has the mode, else axis by axis.

Every mode is separable. Along an axis, nearest elements are picked by Gather, and weighted sums of neighbours are a
product with a matrix that is known (Keys, 1981, for the cubic weights); where sizes vary, elements are picked and
weighted by fractions that the graph computes.
"""

from __future__ import annotations

from functools import reduce
from math import inf, prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from graphpool._dataclasses import dataclass, replace
from graphpool._sizes import is_variable, scaled
from graphpool.typing import DataType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from graphpool.onnx.build import NodeView, Value

_MOST_PARTS = 1 << 6
"""Of the fraction that a scale is, so that sizes times it are exact in f32, too."""

_MOST_PICKED = 1 << 17
"""Pixels of a plane whose places are a table, 8 bytes each; beyond, rows and columns are picked one after the other."""

_FLOATS = (DataType.F32, DataType.F16, DataType.BF16)
_HELD = (DataType.U8, DataType.S8, DataType.U16, DataType.S16)
"""Integers whose values are values of f32."""

_Array: TypeAlias = "np.ndarray[Any, Any]"
_TIE = 1e-6
"""How near to the middle between two elements a place has to be to count as in the middle, as in ONNX Runtime."""

_ROUNDING: dict[str, Callable[[_Array], _Array]] = {
    "round_prefer_floor": lambda x: np.floor(x) + (x - np.floor(x) > 0.5 + _TIE), "floor": np.floor, "ceil": np.ceil,
    "round_prefer_ceil": lambda x: np.floor(x) + (x - np.floor(x) >= 0.5 - _TIE),
}  # fmt: skip


@dataclass(frozen=True)
class _Axis:
    """One axis of the tensor: sizes before and after, and the part of it that is resized.

    `given` is the scale where it is not just the ratio of the sizes.
    """

    number: int
    size: int
    target: int
    given: float | None = None
    start: float = 0.0
    stop: float = 1.0

    @property
    def scale(self) -> float:
        """By what coordinates are divided."""
        return self.target / self.size if self.given is None else self.given

    @property
    def is_resized(self) -> bool:
        """Whether anything changes along the axis."""
        return self.given is not None or (self.start, self.stop) != (0.0, 1.0) or self.target != self.size

    def plain(self) -> _Axis:
        """The axis for tables: its sizes then have their values in the whole compilation."""
        return replace(self, size=int(self.size), target=int(self.target))


@dataclass(frozen=True)
class _Options:
    """How a node interpolates; names and defaults are those of ONNX's Resize."""

    mode: str = "nearest"
    coordinates: str = "half_pixel"
    nearest_mode: str = "round_prefer_floor"
    cubic_coeff_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    extrapolation_value: float = 0.0

    def places(self, axis: _Axis, dtype: type[np.floating[Any]] = np.float64) -> _Array:
        """Where in the input each element of the output lies (ONNX specification, coordinate_transformation_mode)."""
        axis = axis.plain()
        x: _Array = np.arange(axis.target, dtype=dtype)
        length = axis.scale * axis.size
        scale: Any = dtype(axis.target) / dtype(axis.size) if axis.given is None else dtype(axis.given)
        if self.coordinates == "asymmetric":
            return np.asarray(x / scale)
        if self.coordinates == "align_corners":
            return x * (axis.size - 1) / (length - 1) if length != 1 else np.zeros_like(x)
        if self.coordinates == "tf_crop_and_resize":
            span = (axis.stop - axis.start) * (axis.size - 1)
            return axis.start * (axis.size - 1) + (x * span / (length - 1) if length > 1 else span / 2 + 0 * x)
        if self.coordinates == "tf_half_pixel_for_nn":
            return np.asarray((x + dtype(0.5)) / scale)
        if self.coordinates == "pytorch_half_pixel" and axis.target <= 1:
            return np.zeros_like(x)
        offset: Any = dtype(0)
        if self.coordinates == "half_pixel_symmetric":
            offset = dtype(axis.size / 2) * (1 - dtype(axis.target) / (scale * dtype(axis.size)))
        return np.asarray(offset + (x + dtype(0.5)) / scale - dtype(0.5))

    def is_outside(self, axis: _Axis) -> _Array:
        """Which elements of the output are extrapolated."""
        x = self.places(axis)
        crops = self.coordinates == "tf_crop_and_resize"
        return ((x < 0) | (x > axis.size - 1)) if crops else np.zeros(x.shape, bool)

    def indices(self, axis: _Axis) -> _Array:
        """The nearest element of the input for each one of the output; f32 finds its place, as in ONNX Runtime."""
        places = self.places(axis, np.float32)
        return np.clip(_ROUNDING[self.nearest_mode](places), 0, axis.size - 1).astype(np.int64)

    def matrix(self, axis: _Axis) -> _Array:
        """Weights of the input's elements (columns) in the output's (rows); rows of extrapolated ones are 0."""
        axis = axis.plain()
        squeeze, reach = self._reach(axis)
        x = self.places(axis)
        taps = np.floor(x).astype(np.int64)[:, None] + np.arange(1 - reach, reach + 1)
        weights = self._kernel(np.abs(taps - x[:, None]) * squeeze)
        if self.exclude_outside:
            weights[(taps < 0) | (taps >= axis.size)] = 0
        total = weights.sum(axis=1, keepdims=True)
        if self.antialias or self.exclude_outside:
            weights = weights / np.where(total == 0, 1, total)
        weights[self.is_outside(axis)] = 0
        matrix = np.zeros((axis.target, axis.size))
        rows = np.broadcast_to(np.arange(axis.target)[:, None], taps.shape)
        np.add.at(matrix, (rows, np.clip(taps, 0, axis.size - 1)), weights)
        return matrix

    def _reach(self, axis: _Axis) -> tuple[float, int]:
        """How much wider the kernel is than elements of the input lie apart, inverted, and elements on each side."""
        squeeze = min(axis.scale, 1.0) if self.antialias else 1.0
        return squeeze, int(np.ceil((2 if self.mode == "cubic" else 1) / squeeze))

    def matrix_nbytes(self, axis: _Axis) -> int:
        """What `matrix` and its making take. Unit: bytes."""
        return axis.target * (12 * axis.size + 80 * self._reach(axis)[1])

    def _kernel(self, t: _Array) -> _Array:
        """Weight of an element at distance t."""
        if self.mode == "linear":
            return np.asarray(np.maximum(1 - t, 0))
        a = self.cubic_coeff_a
        near = ((a + 2) * t - (a + 3)) * t * t + 1
        far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
        return np.asarray(np.where(t <= 1, near, np.where(t < 2, far, 0.0)))


# ---- nodes


def _resize(n: NodeView) -> Value:
    """Resize; before opset 11 it was Upsample."""
    if n.opset < 11:
        return _upsample(n)
    options = _Options(
        n.attr("mode", "nearest"), n.attr("coordinate_transformation_mode", "half_pixel"),
        n.attr("nearest_mode", "round_prefer_floor"), n.attr("cubic_coeff_a", -0.75),
        bool(n.attr("exclude_outside", 0)), bool(n.attr("antialias", 0)), n.attr("extrapolation_value", 0.0),
    )  # fmt: skip
    scales, sizes = n.known(2).reshape(-1).tolist() if n.has(2) else [], n.ints("", 3)
    rank = len(n[0].shape)
    given = n.attr("axes") or range(rank)
    n.require(all(-rank <= axis < rank for axis in given), "an axis that there is not")
    axes = [axis % rank for axis in given]
    n.require(len(set(axes)) == len(axes), "an axis given twice")
    if sizes:
        resized = _by_sizes(n, axes, sizes)
    else:
        n.require(len(scales) == len(axes), "neither scales nor sizes")
        resized = _by_scales(n, axes, scales)
    if options.coordinates == "tf_crop_and_resize":
        roi = n.known(1).reshape(2, -1).tolist()
        resized = [
            _Axis(axis.number, axis.size, axis.target, axis.given, *ends)
            for axis, *ends in zip(resized, *roi, strict=True)
        ]
    return _interpolate(n, [axis for axis in resized if axis.is_resized], options)


def _upsample(n: NodeView) -> Value:
    """Coordinates without half pixels, floored for the nearest element."""
    scales = n.attr("scales") or n.known(1).tolist()
    options = _Options(n.attr("mode", "nearest"), "asymmetric", "floor")
    resized = _by_scales(n, list(range(len(n[0].shape))), scales)
    return _interpolate(n, [axis for axis in resized if axis.is_resized], options)


def _by_scales(n: NodeView, axes: list[int], scales: list[float]) -> list[_Axis]:
    n.check(all(0 < scale < inf for scale in scales), "scales", "numbers above 0", scales)
    return [_scaled(axis, n[0].shape[axis], scale) for axis, scale in zip(axes, scales, strict=True)]


def _scaled(number: int, size: int, scale: float) -> _Axis:
    """An axis by its scale, a fraction of small numbers as that of the sizes where it divides them.

    The product is one of f32, as in ONNX's inference of shapes.
    """
    above, below = float(scale).as_integer_ratio()
    if below > _MOST_PARTS:
        return _rounded(number, size, scaled(size, scale), scale)
    is_exact = size > 0 and size * above % below == 0
    return _Axis(number, size, size * above // below, None if is_exact else scale)


def _rounded(number: int, size: int, target: int, scale: float) -> _Axis:
    """An axis by its scale, and the size that this makes."""
    return _Axis(number, size, target, None if size > 0 and size * scale == target else scale)


def _by_sizes(n: NodeView, axes: list[int], targets: list[int]) -> list[_Axis]:
    """Sizes as given, or the largest or smallest ones of the input's aspect ratio within or around them."""
    sizes, policy = [n[0].shape[axis] for axis in axes], n.attr("keep_aspect_ratio_policy", "stretch")
    n.check(all(target >= 0 for target in targets), "sizes", "at least 0", targets)
    if policy == "stretch":
        fit = all((target > 0) == (size > 0) for target, size in zip(targets, sizes, strict=True))
        n.check(fit, "sizes", f"0 where those of the input are, {sizes}, and only there", targets)
        return [_Axis(*axis) for axis in zip(axes, sizes, targets, strict=True)]
    n.check(all(sizes), "sizes of the input", "at least 1", sizes)
    scales = [target / size for target, size in zip(targets, sizes, strict=True)]
    scale = min(scales) if policy == "not_larger" else max(scales)
    return [_rounded(axis, size, int(size * scale + 0.5), scale) for axis, size in zip(axes, sizes, strict=True)]


# ---- in our ops


def _interpolate(n: NodeView, axes: list[_Axis], options: _Options) -> Value:
    n.require(options.mode in ("nearest", "linear", "cubic"), f"mode {options.mode}")
    if options.coordinates == "align_corners":  # of scales that enlarge the size counts, as in PyTorch and ONNX Runtime
        axes = [replace(axis, given=None) if (axis.given or 0) > 1 else axis for axis in axes]
    crops = options.coordinates == "tf_crop_and_resize"
    if not crops and all(axis.target == axis.size for axis in axes):
        return n[0]  # whatever the scales, as in ONNX Runtime
    targets = {axis.number: axis.target for axis in axes}
    shape = tuple([targets.get(number, size) for number, size in enumerate(n[0].shape)])
    if not all(shape):
        return n.cast(n.builder.full(0.0, shape), n[0].dtype)
    if n[0].dtype not in _FLOATS and options.mode != "nearest":  # what lies between is cut off, as in ONNX Runtime
        n.require(options.mode == "linear", "integers by a cubic")
        real = n.as_op([n.cast(n[0], DataType.F32), *n.inputs[1:]], n.opset)
        return n.cast(_interpolate(real, axes, options), n[0].dtype)
    n.allow_table(sum(64 * axis.target for axis in axes))
    if n[0].dtype not in _FLOATS and all(_is_repeated(axis, options) for axis in axes):
        return _repeat(n, axes)
    is_held = n[0].dtype in _FLOATS or (options.mode == "nearest" and n[0].dtype in _HELD)
    if is_held and _is_one_op(n, axes, options):
        return _whole(n, axes, options)
    if options.mode == "nearest":
        return _along_axes_nearest(n, axes, options)
    return _along_axes_weighted(n, axes, options)


def _is_one_op(n: NodeView, axes: list[_Axis], options: _Options) -> bool:
    """Whether Interpolate does the same: half pixels or aligned corners of spatial axes, no ties of the nearest."""
    if not 3 <= len(n[0].shape) <= 5 or _data_format(n, axes) is None:
        return False
    if any(axis.given is not None for axis in axes):
        return False
    if options.mode == "nearest":
        return all(_is_half_pixel(axis, options) for axis in axes)
    shrinks = options.antialias and any(axis.scale < 1 for axis in axes)
    is_known = options.coordinates in ("half_pixel", "align_corners")
    return options.mode == "linear" and is_known and not shrinks and not options.exclude_outside


def _is_half_pixel(axis: _Axis, options: _Options) -> bool:
    """Whether the elements are those that Interpolate takes: the nearest ones at half pixels, ties rounded up.

    Each is repeated where the size becomes a multiple of itself, if coordinates are so or floored without half pixels.
    """
    rounds = options.coordinates == "half_pixel" and options.nearest_mode.startswith("round")
    repeats = rounds or (options.coordinates, options.nearest_mode) == ("asymmetric", "floor")
    if repeats and axis.target % axis.size == 0:
        return True
    if _varies(axis):
        return False
    exact = (2 * np.arange(axis.target) + 1) * axis.size // (2 * axis.target)
    return np.array_equal(options.indices(axis), exact)


def _data_format(n: NodeView, axes: list[_Axis]) -> str | None:
    """Where Interpolate finds the channels if these axes are spatial; None: nowhere."""
    numbers = [axis.number for axis in axes]
    if min(numbers) >= 2:
        return "NCX"
    return "NXC" if min(numbers) == 1 and max(numbers) < len(n[0].shape) - 1 else None


def _whole(n: NodeView, axes: list[_Axis], options: _Options) -> Value:
    data_format = _data_format(n, axes)
    first = 2 if data_format == "NCX" else 1
    sizes = list(n[0].shape[first : first + len(n[0].shape) - 2])
    for axis in axes:
        sizes[axis.number - first] = axis.target
    coordinates = "half_pixel" if options.mode == "nearest" else options.coordinates
    is_float = n[0].dtype in _FLOATS
    value = n.emit(
        "Interpolate", n[0] if is_float else n.cast(n[0], DataType.F32), mode=options.mode,
        coordinate_transformation_mode=coordinates, data_format=data_format, sizes=sizes,
    )  # fmt: skip
    return value if is_float else n.cast(value, n[0].dtype)


def _is_repeated(axis: _Axis, options: _Options) -> bool:
    """Whether each element is taken a known number of times, one behind the other."""
    is_nearest = options.mode == "nearest" and axis.given is None and not _varies(axis)
    return is_nearest and axis.target % axis.size == 0 and _is_half_pixel(axis, options)


def _repeat(n: NodeView, axes: Sequence[_Axis]) -> Value:
    """Each element as often as its axis grows, innermost axis first: an axis of 1 behind that one is expanded."""
    value = n[0]
    for axis in sorted(axes, key=lambda axis: -axis.number):
        before, behind = value.shape[: axis.number + 1], value.shape[axis.number + 1 :]
        spread, count = n.reshape(value, (*before, 1, *behind)), axis.target // axis.size
        expanded = n.emit("Expand", spread, shape=(*before, count, *behind))
        value = n.reshape(expanded, (*before[:-1], axis.target, *behind))
    return value


def _along_axes_nearest(n: NodeView, axes: Sequence[_Axis], options: _Options) -> Value:
    n.require(options.coordinates != "tf_crop_and_resize", "extrapolation of the nearest element")
    value, tables = n[0], {axis.number: options.indices(axis) for axis in axes if not _varies(axis)}
    last = len(value.shape) - 1
    are_planes = tables.keys() == {last - 1, last} == {axis.number for axis in axes}
    if are_planes and not all(map(_find_step, tables.values())) and prod(map(len, tables.values())) <= _MOST_PICKED:
        return _pick_pixels(n, tables[last - 1], tables[last])
    for axis in axes:
        step = _find_step(tables[axis.number]) if axis.number in tables else 0
        if step:
            start, end = int(tables[axis.number][0]), int(tables[axis.number][-1]) + 1
            value = n.emit("Slice", value, starts=[start], ends=[end], axes=[axis.number], steps=[step])
        else:
            value = n.emit("Gather", value, _indices(n, axis, options), axis=axis.number)
    return value


def _find_step(indices: _Array) -> int:
    """How far the elements lie apart that are picked, if all do equally; else 0."""
    steps = np.diff(indices)
    if not len(steps):
        return 1
    return int(steps[0]) if steps[0] > 0 and (steps == steps[0]).all() else 0


def _pick_pixels(n: NodeView, rows: _Array, columns: _Array) -> Value:
    """The rows and columns of planes, which are picked at once."""
    *outer, height, width = n[0].shape
    indices = n.builder.literal((rows[:, None] * width + columns).reshape(-1), DataType.S64)
    picked = n.emit("Gather", n.reshape(n[0], (*outer, height * width)), indices, axis=len(outer))
    return n.reshape(picked, (*outer, len(rows), len(columns)))


def _indices(n: NodeView, axis: _Axis, options: _Options) -> Value:
    """The nearest elements, as `_Options.indices`: computed where sizes may vary, else a table."""
    if not _varies(axis) or not _has_places(axis, options):
        return n.builder.literal(options.indices(axis), DataType.S64)
    x, mode = _places(n, axis, options, DataType.F32), options.nearest_mode
    element = n.cast(n.emit("Ceil" if mode == "ceil" else "Floor", x), DataType.S64)
    if mode.startswith("round"):
        rest = n.emit("Subtract", x, n.emit("Floor", x))
        if mode == "round_prefer_ceil":
            [is_next] = n.emit_several("LessEqual", [DataType.BOOLEAN], n.literal(0.5 - _TIE, rest), rest)
        else:
            [is_next] = n.emit_several("Greater", [DataType.BOOLEAN], rest, n.literal(0.5 + _TIE, rest))
        element = n.emit("Add", element, n.cast(is_next, DataType.S64))
    return n.emit("Minimum", n.emit("Maximum", element, n.count(0)), n.count(axis.size - 1))


def _has_places(axis: _Axis, options: _Options) -> bool:
    """Whether `_places` knows the coordinates."""
    if options.coordinates == "pytorch_half_pixel":
        return axis.target > 1
    return options.coordinates in ("asymmetric", "half_pixel")


def _places(n: NodeView, axis: _Axis, options: _Options, dtype: DataType) -> Value:
    """As `_Options.places`, for any sizes."""
    row = n.cast(n.builder.positions(axis.target), dtype)
    sizes = [n.count(size, dtype) for size in (axis.target, axis.size)]
    scale = n.emit("Divide", *sizes) if axis.given is None else n.literal(axis.given, row)
    if options.coordinates == "asymmetric":
        return n.emit("Divide", row, scale)
    half = n.literal(0.5, row)
    return n.emit("Subtract", n.emit("Divide", n.emit("Add", row, half), scale), half)


def _along_axes_weighted(n: NodeView, axes: Sequence[_Axis], options: _Options) -> Value:
    value = n.cast(n[0], DataType.F32)
    outside = np.zeros((), bool)
    for axis in axes:
        if _varies(axis) and _are_fractions(axis, options):
            value = _weigh_neighbours(n, value, axis, options)
            continue
        n.allow_table(options.matrix_nbytes(axis))
        value = _weigh(n, value, axis, options.matrix(axis))
        across = [-1 if k == axis.number else 1 for k in range(len(value.shape))]
        outside = outside | options.is_outside(axis).reshape(across)
    if outside.any() and options.extrapolation_value:
        value = n.emit("Add", value, n.literal(outside * options.extrapolation_value, value))
    return n.cast(value, n[0].dtype)


def _varies(axis: _Axis) -> bool:
    return is_variable(axis.size) or is_variable(axis.target)


def _are_fractions(axis: _Axis, options: _Options) -> bool:
    """Whether places follow from integers or a scale, and weights from how far they lie behind an element."""
    if options.exclude_outside or (options.antialias and (axis.target < axis.size or (axis.given or 1) < 1)):
        return False
    if axis.given is not None:
        return _has_places(axis, options)
    return axis.target > 1 and options.coordinates in ("asymmetric", "align_corners", *_CENTRED)


_CENTRED = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel")
"""The same where the sizes alone are given, and the target is more than 1."""


def _weigh_neighbours(n: NodeView, value: Value, axis: _Axis, options: _Options) -> Value:
    """Weighted sums along an axis, for any sizes: each place is an element and a fraction of the way to the next."""
    element, fraction, shift = _elements(n, axis, options)
    fraction = n.reshape(fraction, (*[1] * axis.number, axis.target, *[1] * (len(value.shape) - axis.number - 1)))
    terms = []
    for tap, weight in _neighbours(n, fraction, options):
        place = n.emit("Maximum", n.emit("Add", element, n.count(tap - shift)), n.count(0))
        place = n.emit("Minimum", place, n.count(axis.size - 1))
        terms.append(n.emit("Multiply", n.emit("Gather", value, place, axis=axis.number), weight))
    return reduce(lambda total, term: n.emit("Add", total, term), terms)


def _elements(n: NodeView, axis: _Axis, options: _Options) -> tuple[Value, Value, int]:
    """An element for each place, the fraction of the way to the next one, of f32, and how far the element is behind."""
    size, target = axis.size, axis.target
    if axis.given is not None:
        x = _places(n, axis, options, DataType.F64)
        element = n.emit("Floor", x)
        return n.cast(element, DataType.S64), n.cast(n.emit("Subtract", x, element), DataType.F32), 0
    row = n.cast(n.builder.positions(target), DataType.S64)
    if options.coordinates == "asymmetric":
        above, below = n.emit("Multiply", row, n.count(size)), target
    elif options.coordinates == "align_corners":
        above, below = n.emit("Multiply", row, n.count(size - 1)), target - 1
    else:  # ((2 row + 1) size - target) / (2 target), one element further to be positive
        above = n.emit("Add", n.emit("Multiply", row, n.count(2 * size)), n.count(size + target))
        below = 2 * target
    element = n.emit("Divide", above, n.count(below))
    rest = n.emit("Subtract", above, n.emit("Multiply", element, n.count(below)))
    fraction = n.emit("Divide", n.cast(rest, DataType.F32), n.count(below, DataType.F32))
    return element, fraction, int(options.coordinates in _CENTRED)


def _neighbours(n: NodeView, t: Value, options: _Options) -> list[tuple[int, Value]]:
    """Elements by distance from that in front of a place, and their weights at a fraction; as `_Options._kernel`."""
    if options.mode == "linear":
        return [(0, _polynomial(n, t, -1, 1)), (1, t)]
    a = options.cubic_coeff_a
    return [
        (-1, _polynomial(n, t, a, -2 * a, a, 0)),
        (0, _polynomial(n, t, a + 2, -(a + 3), 0, 1)),
        (1, _polynomial(n, t, -(a + 2), 2 * a + 3, -a, 0)),
        (2, _polynomial(n, t, -a, a, 0, 0)),
    ]


def _polynomial(n: NodeView, t: Value, *coefficients: float) -> Value:
    """By Horner's rule, highest power first."""
    value = n.literal(coefficients[0], t)
    for number in coefficients[1:]:
        value = n.emit("Multiply", t, value)
        value = n.emit("Add", value, n.literal(number, t)) if number else value
    return value


def _weigh(n: NodeView, value: Value, axis: _Axis, matrix: _Array) -> Value:
    """Weighted sums along an axis: the matrix times the slices (axis, everything behind it)."""
    shape, k = value.shape, axis.number
    before, behind = prod(shape[:k]), prod(shape[k + 1 :])
    if behind == 1:
        rows = n.reshape(value, (before, axis.size))
        result = n.emit("MatMul", rows, n.literal(matrix, value), transpose_b=True)
    else:
        result = n.emit("MatMul", n.literal(matrix, value), n.reshape(value, (before, axis.size, behind)))
    return n.reshape(result, (*shape[:k], axis.target, *shape[k + 1 :]))


CONVERTERS = {"Resize": _resize, "Upsample": _upsample}
