"""How gradients of elementwise kinds become instructions of a region's program.

Functions that fall to 0 far from it are written so that no difference of nearly equal numbers is taken: 1 - tanh(x)^2
is 4 s(2x) s(-2x) with the logistic function s, and the normal distribution function is GELU(x) / x away from 0. Each
needs at most four registers beside its operands, the result's among them (`match.segments.MOST_HELD`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..support import instruction

if TYPE_CHECKING:
    from collections.abc import Callable

    from ....graph.op import Op
    from .region import Region

_CUBIC = 0.044715
"""The factor of x^3 in the tanh form of GELU. Source: Hendrycks and Gimpel, Gaussian Error Linear Units, 2016."""


_FAR = 20.0
"""From where on the slope of GELU is 0 or 1, so that squares need not grow, which would overflow."""


def _gradient(kind: str) -> Callable[[Callable[[_Terms, Any, Op], tuple[Any, ...]]], Callable[[Region, Op], Any]]:
    """Decorator: the function gives factors of the slope at what the op reads first, which multiply the gradient.

    One after the other: their product may overflow where a gradient of 0 stays 0.
    """

    def register(slope: Callable[[_Terms, Any, Op], tuple[Any, ...]]) -> Callable[[Region, Op], Any]:
        def compute(region: Region, op: Op) -> Any:
            terms = _Terms(region)
            return terms.product(region.operand(op, 1), *slope(terms, region.operand(op), op))

        return instruction(kind)(compute)

    return register


def _choice(kind: str) -> Callable[[Callable[[_Terms, Any, Op], Any]], Callable[[Region, Op], Any]]:
    """Decorator: the function says where the gradient passes; elsewhere it is 0, whatever comes in."""

    def register(where: Callable[[_Terms, Any, Op], Any]) -> Callable[[Region, Op], Any]:
        def compute(region: Region, op: Op) -> Any:
            terms = _Terms(region)
            return terms.select(where(terms, region.operand(op), op), region.operand(op, 1), 0.0)

        return instruction(kind)(compute)

    return register


class _Terms:
    """Arithmetic of a region on registers and plain numbers."""

    def __init__(self, region: Region) -> None:
        self.region = region

    def _register(self, a: Any) -> Any:
        return self.region.builder.const(a) if isinstance(a, (int, float)) else a

    def __call__(self, name: str, a: Any, b: Any = None, *, beta: float = 0.0) -> Any:
        """A unary operation of the engine, or a binary one."""
        if b is None:
            return self.region.unary(name, a, 0.0, beta)
        return self.region.binary(name, self._register(a), self._register(b))

    def product(self, *factors: Any) -> Any:
        """From left to right."""
        result = factors[0]
        for factor in factors[1:]:
            result = self("mul", result, factor)
        return result

    def select(self, condition: Any, a: Any, b: Any) -> Any:
        """One where the condition holds, the other elsewhere."""
        return self.region.builder.ternary("select", condition, self._register(a), self._register(b))

    def between(self, a: Any, low: float, high: float) -> Any:
        """Whether low < a < high."""
        return self("and", self("gt", a, low), self("lt", a, high))


@_choice("ClampBackward")
def _clamp(do: _Terms, x: Any, op: Op) -> Any:
    return do.between(x, op.attrs["min"], op.attrs["max"])


@_choice("ReLUBackward")
def _relu(do: _Terms, x: Any, op: Op) -> Any:
    return do("gt", x, 0.0)


@_gradient("AbsBackward")
def _abs(do: _Terms, x: Any, op: Op) -> tuple[Any, ...]:
    return (do("sign", x),)


@_gradient("EluBackward")
def _elu(do: _Terms, x: Any, op: Op) -> tuple[Any, ...]:
    """1 for x > 0, else alpha e^x, which is the result of Elu plus alpha."""
    alpha = op.attrs["alpha"]
    below = do("add", x, alpha) if op.attrs["use_dst"] else do("mul", do("exp", x), alpha)
    return (do.select(do("gt", x, 0.0), 1.0, below),)


@_gradient("GELUBackward")
def _gelu(do: _Terms, x: Any, op: Op) -> tuple[Any, ...]:
    """P(x) + x p(x) of the normal distribution; or the derivative of x s(2u), u the argument of tanh."""
    if op.attrs["mode"] == "gelu_tanh":
        root = math.sqrt(8.0 / math.pi)
        square = do("square", do.region.unary("clamp", x, -_FAR, _FAR))
        u = do.product(do("add", do("mul", square, root * _CUBIC), root), x)
        inner = do("add", do("mul", square, 3.0 * root * _CUBIC), root)
        rising = do("sigmoid", u)
        bend = do("mul", do("sigmoid", do("neg", u)), rising)
        return (do("add", rising, do.product(bend, inner, x)),)
    density = do("mul", do("exp", do("mul", do("square", x), -0.5)), 1.0 / math.sqrt(2.0 * math.pi))
    term = do("mul", x, density)
    is_near = do("lt", do("abs", x), 1.0)
    near = do("add", do("mul", do("erf", do("mul", x, math.sqrt(0.5))), 0.5), 0.5)
    return (do("add", term, do.select(is_near, near, do("div", do("gelu_erf", x), x))),)


@instruction("HardSigmoidBackward")
def _hard_sigmoid(region: Region, op: Op) -> Any:
    """dy alpha where 0 < alpha x + beta < 1, else 0."""
    do, alpha = _Terms(region), op.attrs["alpha"]
    line = do("add", do("mul", region.operand(op), alpha), op.attrs["beta"])
    return do.select(do.between(line, 0.0, 1.0), do("mul", region.operand(op, 1), alpha), 0.0)


@instruction("HardSwishBackward")
def _hard_swish(region: Region, op: Op) -> Any:
    """dy (2x + 3) / 6 for -3 < x < 3; dy above, 0 below."""
    do, x, gradient = _Terms(region), region.operand(op), region.operand(op, 1)
    outside = do.select(do("ge", x, 3.0), gradient, 0.0)
    line = do("div", do("add", do("mul", x, 2.0), 3.0), 6.0)
    inside = do("mul", gradient, line)
    return do.select(do.between(x, -3.0, 3.0), inside, outside)


@_gradient("MishBackward")
def _mish(do: _Terms, x: Any, op: Op) -> tuple[Any, ...]:
    """t + x (1 - t^2) s(x) with t = tanh(log(1 + e^x))."""
    total = do("softplus", x, beta=1.0)
    rest = _tanh_slope(do, total)
    return (do("add", do("tanh", total), do.product(x, rest, do("sigmoid", x))),)


@_gradient("SigmoidBackward")
def _sigmoid(do: _Terms, x: Any, op: Op) -> tuple[Any, ...]:
    if op.attrs["use_dst"]:
        return x, do("sub", 1.0, x)
    return do("sigmoid", x), do("sigmoid", do("neg", x))


@_gradient("SoftPlusBackward")
def _softplus(do: _Terms, x: Any, op: Op) -> tuple[Any, ...]:
    return (do("sigmoid", do("mul", x, op.attrs["beta"])),)


@_gradient("TanhBackward")
def _tanh(do: _Terms, x: Any, op: Op) -> tuple[Any, ...]:
    if op.attrs["use_dst"]:
        return do("sub", 1.0, x), do("add", x, 1.0)
    return (_tanh_slope(do, x),)


def _tanh_slope(do: _Terms, x: Any) -> Any:
    """1 - tanh(x)^2."""
    twice = do("mul", x, 2.0)
    return do.product(do("sigmoid", twice), do("sigmoid", do("neg", twice)), 4.0)


@instruction("SqrtBackward")
def _sqrt(region: Region, op: Op) -> Any:
    """dy / (2 y)."""
    do, x = _Terms(region), region.operand(op)
    root = x if op.attrs["use_dst"] else do("sqrt", x)
    return do("div", region.operand(op, 1), do("mul", root, 2.0))
