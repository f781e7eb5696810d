"""Builds a random case op by op, with the oracle's values at hand: an op whose result is not finite is not taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool.typing import MAX_NDIM
from tests.oracle import DISCONTINUOUS, EXACT
from tests.oracle.numbers import FLOATS, INTEGERS, NUMPY, exact

from .cases import Case, Node, Source, content
from .expect import QUANTISING, evaluate_node
from .thresholds import around

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

__all__ = ["Maker", "Refused"]

LARGEST = {"f16": 2e3, "f8_e5m2": 2e3, "f8_e4m3": 100.0}
"""Values beyond these, or beyond 1e6, end in overflow soon."""


class Refused(Exception):  # noqa: N818
    """What was drawn does not go: another draw will."""


class Maker:
    """A case in the making.

    Parameters
    ----------
    seed : int
    elements : int
        Most elements of a tensor.
    reuse : float
        Probability that an op reads what another one wrote, where that fits.
    """

    def __init__(self, seed: int, elements: int = 3000, reuse: float = 0.7) -> None:
        self.rng = np.random.default_rng([seed, 1])
        self.case = Case(seed)
        self.values: dict[int, Any] = {}
        self.exact: dict[int, bool] = {}
        self.dtypes: dict[int, str] = {}
        self.elements, self.reuse, self.has_shape_inputs = elements, reuse, False
        self.dtype = self.choose(["f32", "f32", "f32", "bf16", "f16", "f64", "s32", "u8", "s8", "s64"])

    # ---- draws

    def choose(self, items: Sequence[Any]) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def integer(self, low: int, high: int) -> int:
        """Of low..high, both included."""
        return int(self.rng.integers(low, high + 1))

    def number(self, low: float, high: float) -> float:
        """A real number that f32 holds."""
        return float(np.float32(self.rng.uniform(low, high)))

    def dim(self, most: int = 2**17, zero: bool = True) -> int:
        """A size: small, or near a threshold, or rarely 0."""
        most = max(1, min(most, self.elements))
        draw = self.rng.random()
        if zero and draw < 0.01:
            return 0
        if draw < 0.75:
            return self.integer(1, min(9, most))
        return int(self.choose(around(min(most, 300) if draw < 0.95 else most, self.choose([1, 2, 4, 8]))))

    def shape(self, low: int = 0, high: int = 5, zero: bool = True) -> tuple[int, ...]:
        """Of low..high dimensions, within the budget of elements; rarely of up to 8, or as large as a threshold."""
        ndim = self.integer(low, max(low, 8 if self.chance(0.05) else high))
        dims = [1] * ndim
        if ndim and self.elements > 2000 and self.chance(0.2):
            return self.spread(self.threshold(), ndim)
        left = self.elements
        for axis in self.rng.permutation(ndim):
            dims[axis] = self.dim(left if ndim <= 4 else min(left, 4), zero)
            left //= max(dims[axis], 1)
        return tuple(dims)

    def threshold(self) -> int:
        """A number of elements at a threshold, for items of some size."""
        return int(self.choose([n for n in around(self.elements, self.choose([1, 2, 4, 8])) if n > 300]))

    def spread(self, count: int, ndim: int) -> tuple[int, ...]:
        """A shape with this many elements."""
        dims = [1] * ndim
        for axis in range(ndim - 1):
            dims[axis] = int(self.choose([n for n in range(1, 20) if count % n == 0]))
            count //= dims[axis]
        dims[-1] = count
        return tuple(dims[int(axis)] for axis in self.rng.permutation(ndim))

    def allowed(self, dtypes: Collection[str]) -> str:
        """The graph's type if it is among `dtypes`, mostly, else any of them."""
        if self.dtype in dtypes and self.chance(0.8):
            return self.dtype
        return str(self.choose(sorted(dtypes)))

    # ---- tensors

    def fresh(self, dtype: str, shape: Sequence[int], constant: bool = False, **fill: Any) -> int:
        """A new input; integers are small numbers, floats lie in -2..2 unless `fill` says otherwise."""
        fill = fill or self.usual_fill(dtype)
        if np.prod(shape, dtype=float) > 4 * self.elements + 100:
            raise Refused(f"shape {shape}")
        tensor_id = len(self.values)
        source = Source(dtype, [int(dim) for dim in shape], fill, constant)
        self.case.sources[tensor_id] = source
        self.values[tensor_id] = content(source, np.random.default_rng([self.case.seed, tensor_id]))
        self.exact[tensor_id], self.dtypes[tensor_id] = True, dtype
        return tensor_id

    def numbers(self, values: Sequence[int]) -> int:
        """A new input that holds axes, sizes or a shape."""
        self.has_shape_inputs = True
        return self.fresh("s32", (len(values),), how="values", values=[int(value) for value in values])

    def usual_fill(self, dtype: str) -> dict[str, Any]:
        """Moderate numbers; now and then eighths, which give ties, or integers of the whole range."""
        if dtype in INTEGERS:
            return {"low": -(2**62), "high": 2**62} if self.chance(0.1) else {"low": -50, "high": 100}
        return {"how": "lattice" if self.chance(0.2) else "uniform", "low": -2, "high": 2}

    def shape_of(self, tensor_id: int) -> tuple[int, ...]:
        return tuple(np.shape(self.values[tensor_id]))

    def live(
        self, dtypes: Collection[str], shape: Sequence[int] | None = None, low: int = 0, high: int = 12
    ) -> list[int]:
        """Results of ops that have one of the types and the shape, or a rank from low to high; the last ones first."""
        found = []
        for node in self.case.nodes:
            for i, dtype in node.outputs if node.kind != "Dropout" else ():
                own = self.shape_of(i)
                if dtype in dtypes and (low <= len(own) <= high if shape is None else own == tuple(shape)):
                    found.append(i)
        return found[::-1]

    def source(self, dtypes: Collection[str], low: int = 0, high: int = 5, zero: bool = True) -> int:
        """What an op is applied to: a result, or a new input of any shape."""
        found = self.live(dtypes, low=low, high=max(high, 8))
        if found and self.chance(self.reuse):
            picked = found[0] if self.chance(0.6) else self.choose(found)
            if zero or 0 not in self.shape_of(picked):
                return int(picked)
        return self.fresh(self.allowed(dtypes), self.shape(low, high, zero))

    def operand(self, dtype: str, shape: Sequence[int], constant: bool = False, **fill: Any) -> int:
        """A tensor of this type and shape: a result, or a new input."""
        found = [] if fill else self.live({dtype}, shape)
        if found and self.chance(self.reuse / 2):
            return int(self.choose(found))
        return self.fresh(dtype, shape, constant, **fill)

    # ---- ops

    def add(self, kind: str, inputs: Sequence[int], dtypes: Sequence[str] | str | None = None, **attrs: Any) -> int:
        """Add an op; returns the id of its first output, others follow.

        Raises
        ------
        Refused
            A result is not finite, too large, or depends on rounding: a discontinuous kind reads only what is exact.
        """
        types = list(dtypes or ()) if not isinstance(dtypes, str) else [dtypes]
        types = [self.dtypes[inputs[0]]] if dtypes is None else types
        is_exact = all(self.exact[i] for i in inputs)
        if kind in DISCONTINUOUS and not is_exact and not (kind == "TypeCast" and types[0] in FLOATS):
            raise Refused(kind)
        first = len(self.values)
        node = Node(kind, list(inputs), [[first + n, dtype] for n, dtype in enumerate(types)], attrs)
        results = evaluate_node(node, self.values, self.dtypes)
        for dtype, result in zip(types, results, strict=True):
            self.vet(kind, dtype, result)
        every = {self.dtypes[i] for i in inputs} | set(types)
        rounds_nothing = kind in EXACT or (not every & set(FLOATS) and kind not in QUANTISING)
        for (tensor_id, dtype), result in zip(node.outputs, results, strict=True):
            self.values[tensor_id], self.dtypes[tensor_id] = result, dtype
            self.exact[tensor_id] = is_exact and rounds_nothing
        self.case.nodes.append(node)
        return first

    def vet(self, kind: str, dtype: str, result: Any) -> None:
        """Refuse results with which no further op makes sense."""
        if result.size > 8 * self.elements + 100 or result.ndim > MAX_NDIM:
            raise Refused(f"{kind}: shape {result.shape}")
        if dtype in FLOATS:
            content = exact(result, dtype)
            if not np.isfinite(content).all() or np.abs(content).max(initial=0) > LARGEST.get(dtype, 1e6):
                raise Refused(f"{kind}: values")

    def bound(self, tensor_id: int, low: float, high: float) -> bool:
        """Whether all elements lie in low..high."""
        x = exact(self.values[tensor_id], self.dtypes[tensor_id]).astype(np.float64)
        return bool(((x >= low) & (x <= high)).all())

    def itemsize(self, dtype: str) -> int:
        return NUMPY[dtype].itemsize
