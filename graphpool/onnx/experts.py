"""Mixtures of experts as branches: an expert runs where a row has chosen it, and no other one is read.

Few rows go through an expert together, since its weights take the time there; of many, it gets a part with its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from graphpool._dataclasses import dataclass
from graphpool.errors import UnsupportedError, explain

from .arrays import make_message, unpacked
from .node import Node
from .proto import GraphProto, TensorProto, ValueInfoProto
from .two_bits import widened

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphpool.limits import Limits

__all__ = ["EXPERT_OPS", "with_branches"]

Array = np.ndarray[Any, Any]

_CONTRIBUTED = "com.microsoft"

_PLACES = {
    "MoE": ((2, None, 3, None), (6, None, 7, None), (4, None, 5, None)),
    "QMoE": ((2, 3, 4, 11), (8, 9, 10, 13), (5, 6, 7, 12)),
}
"""Op -> for the first product, the one beside it and the last, the inputs that are its weights, their scales, its bias
and their zero points."""

EXPERT_OPS = frozenset(_PLACES)
"""Of domain com.microsoft."""

_ROUTER_WEIGHTS = 14

_ACTIVATIONS = (b"relu", b"gelu", b"silu", b"swiglu", b"identity")

_ACCEPTED = {"use_sparse_mixer": (0,), "quant_type": (b"int",), "weights_prepacked": (-1, 0)}
"""Attribute -> the values that have an expression, the default first."""

_NODES_OF_EXPERT = 100

_FEW_ROWS = 8
"""Fewer rows than these go through an expert together."""

_DIVISORS = (2, 4, 8)
"""An expert gets a half of many rows, a quarter or an eighth, where that is enough."""


def with_branches(node: Node, constants: dict[str, Any], limits: Limits) -> list[Node]:
    """An `If` for each expert in place of a MoE or QMoE; `constants` is extended by its weights, which are views.

    Raises UnsupportedError for what has no expression, LimitError for more experts than `limits` has nodes for.
    Source: the operators of domain com.microsoft, as ONNX Runtime documents them, and what it computes.
    """
    names = [*node.input, *[""] * (_ROUTER_WEIGHTS + 1 - len(node.input))]
    if names[_ROUTER_WEIGHTS]:
        _refuse(node, "input router_weights is given")
    _check_attributes(node)
    first, beside, last = (
        _product(node, [names[k] if k else "" for k in places], constants, number)
        for number, places in zip((1, 3, 2), _PLACES[node.op_type], strict=True)
    )
    if first is None or last is None:
        _refuse(node, "no weights of the first or second product")
    if len({len(product.weights) for product in (first, beside, last) if product}) > 1 or node.attrs.get("k", 1) < 1:
        _refuse(node, "other numbers of experts, or none that a row chooses")
    what = f"node {node.label!r}: nodes for {len(first.weights)} experts"
    limits.check("nodes", _NODES_OF_EXPERT * len(first.weights), what, node.label)
    if fusion := node.attrs.get("swiglu_fusion", 0):
        first, beside = _halves(first, fusion)
    return _written(node, names[0], names[1], [first, *([beside] if beside else []), last], constants)


def _refuse(node: Node, reason: str) -> NoReturn:
    what = f"node {node.label!r} ({node.op_type}) is not supported"
    raise UnsupportedError(explain(what, got=reason), node=node.label, op_type=node.op_type)


def _check_attributes(node: Node) -> None:
    """Refuse attributes that have no expression."""
    attrs = node.attrs
    kind, fusion = attrs.get("activation_type", b"relu"), attrs.get("swiglu_fusion", 0)
    if kind not in _ACTIVATIONS or fusion not in (0, 1, 2) or (fusion and kind != b"swiglu"):
        _refuse(node, f"activation_type {kind.decode()!r} with swiglu_fusion {fusion}")
    for name, accepted in _ACCEPTED.items():
        if attrs.get(name, accepted[0]) not in accepted:
            _refuse(node, f"attribute {name} is {attrs[name]!r}")


@dataclass(frozen=True)
class _Product:
    """One product of all experts: weights (experts, rows, columns), or of numbers of `bits` in blocks of a row.

    Scales and zero points are (experts, rows, blocks).
    """

    weights: Array
    bias: Array | None
    scale: Array | None = None
    points: Array | None = None
    bits: int = 0

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of the matrix."""
        _, rows, columns = self.weights.shape
        return rows, columns * 8 // self.bits if self.bits else columns

    def part(self, rows: slice) -> _Product:
        """The same of some of the rows."""
        bias, scale, points = (None if x is None else x[:, rows] for x in (self.bias, self.scale, self.points))
        return _Product(self.weights[:, rows], bias, scale, points, self.bits)

    def of(self, number: int, name: str, nodes: _Nodes) -> _Expert:
        """That of one expert, whose weights become constants."""
        rows, columns = self.size
        weights, bias = (
            self.weights[number],
            "" if self.bias is None else nodes.constant(f"{name}/b", self.bias[number]),
        )
        if self.scale is None or self.points is None:
            return _Expert([nodes.constant(f"{name}/w", weights)], bias, {})
        scale, points, bits = self.scale[number], self.points[number], self.bits
        blocks = scale.shape[1]
        weights = weights.reshape(rows, blocks, -1)
        if bits == 2:
            weights, bits = widened(weights), 4
        if bits == 4:
            points = np.pad(points, ((0, 0), (0, blocks % 2)))
            points = points[:, ::2] | points[:, 1::2] << 4
        given = {"w": weights, "s": scale, "z": points}
        names = [nodes.constant(f"{name}/{key}", content) for key, content in given.items()]
        return _Expert(names, bias, {"N": rows, "K": columns, "block_size": columns // blocks, "bits": bits})


@dataclass(frozen=True)
class _Expert:
    """A product of one expert: names of its weights, with scales and zero points or alone, of its bias, attributes."""

    names: list[str]
    bias: str
    attrs: Mapping[str, int]

    def product(self, node: Node, nodes: _Nodes, x: str) -> str:
        """X times the transpose of the weights."""
        if len(self.names) == 1:
            return str(nodes.add("Gemm", x, *self.names, *([self.bias] if self.bias else []), transB=1))
        attrs: dict[str, Any] = {"accuracy_level": node.attrs.get("accuracy_level", 0), **self.attrs}
        return str(nodes.add("MatMulNBits", x, *self.names, "", self.bias, domain=_CONTRIBUTED, **attrs))


def _product(node: Node, names: list[str], constants: Mapping[str, Any], number: int) -> _Product | None:
    """A product of a node; None where it has none."""
    unknown = [name for name in names if name and name not in constants]
    if unknown:
        _refuse(node, f"input {unknown[0]!r} is no constant")
    weights, scale, bias, points = (np.asarray(constants[name]) if name else None for name in names)
    if weights is None:
        return None
    if weights.ndim != 3 or 0 in weights.shape or (bias is not None and bias.shape != weights.shape[:2]):
        _refuse(node, f"weights of shape {weights.shape}, or a bias of another shape")
    if node.op_type == "MoE":
        return _Product(weights, bias)
    bits = node.attrs.get(f"fc{number}_expert_weight_bits", node.attrs.get("expert_weight_bits", 4))
    if scale is None or bits not in (2, 4, 8) or weights.dtype != np.uint8:
        _refuse(node, f"weights of {bits} bits, or without scales")
    count, rows, width = weights.shape
    if not scale.size or scale.size % (count * rows) or (points is not None and points.dtype != np.uint8):
        _refuse(node, f"scales of shape {scale.shape}, or zero points that are no bytes")
    scale = scale.reshape(count, rows, -1)
    if points is None:
        points = np.full(scale.shape, 1 << (bits - 1), np.uint8)
    elif node.attrs.get("block_size", 0) > 0:
        points = unpacked(points, bits)[..., : scale.shape[2]]
    else:  # side by side along the rows
        points = unpacked(points, bits)[..., :rows, None]
    if points.shape != scale.shape or width * 8 % (bits * scale.shape[2]):
        _refuse(node, f"scales of shape {scale.shape} and zero points of shape {points.shape}")
    return _Product(weights, bias, scale, points, bits)


def _halves(product: _Product, fusion: int) -> tuple[_Product, _Product]:
    """The gate and the other factor: rows in turns, or one behind the other."""
    rows, _ = product.size
    if fusion == 1:
        return product.part(slice(0, rows, 2)), product.part(slice(1, rows, 2))
    return product.part(slice(0, rows // 2)), product.part(slice(rows // 2, rows))


class _Nodes:
    """Nodes under construction, and constants for them, which are entered in `constants`."""

    def __init__(self, prefix: str, constants: dict[str, Any]) -> None:
        self.prefix, self.constants, self.protos = prefix, constants, list[Any]()

    def add(self, kind: str, *names: str, domain: str = "", outputs: int = 1, **attrs: Any) -> Any:
        """The result of a further node, or its results."""
        results = [f"{self.prefix}/{len(self.protos)}.{k}" for k in range(outputs)]
        made = make_message(kind, names, results, results[0], **attrs)
        made.domain = domain
        self.protos.append(made)
        return results if outputs > 1 else results[0]

    def constant(self, name: str, content: Any) -> str:
        """The name of a constant."""
        name = f"{self.prefix}/{name}"
        self.constants[name] = np.asarray(content)
        return name

    def number(self, name: str, content: float, like: str) -> str:
        """A number of the type of a value."""
        return str(self.add("CastLike", self.constant(name, np.float32(content)), like))

    def inner(self, name: str) -> _Nodes:
        """Those of a branch."""
        return _Nodes(f"{self.prefix}/{name}", self.constants)

    def graph(self, result: str) -> Any:
        """All of them as a graph without inputs."""
        return GraphProto(name=self.prefix, node=self.protos, output=[ValueInfoProto(name=result)])


def _written(node: Node, x: str, router: str, products: list[_Product], constants: dict[str, Any]) -> list[Node]:
    """What each row has chosen, then expert by expert what is added to the rows that did."""
    top = _Nodes(node.output[0], constants)
    flat = top.add("Reshape", x, top.constant("flat", [-1, products[-1].size[0]]))
    shares = top.add("Softmax", router, axis=-1)
    best, chosen = top.add("TopK", shares, top.constant("k", [node.attrs.get("k", 1)]), outputs=2, axis=-1)
    if node.op_type == "QMoE" or node.attrs.get("normalize_routing_weights"):
        best = top.add("LpNormalization", best, axis=-1, p=1)
    gates = top.add("ScatterElements", top.add("Sub", shares, shares), chosen, best, axis=1)
    total = top.add("Sub", flat, flat)
    for number in range(len(products[0].weights)):
        gate = top.add("Gather", gates, top.constant(f"{number}", [number]), axis=1)
        is_chosen = top.add("Cast", top.add("ReduceMax", gate, keepdims=0), to=TensorProto.BOOL)
        own = [product.of(number, f"{number}/{k}", top) for k, product in enumerate(products)]
        then, other = top.inner(f"{number}/then"), top.inner(f"{number}/else")
        unchanged = other.graph(other.add("Identity", total))
        total = top.add("If", is_chosen, then_branch=_added(node, then, own, flat, gate, total), else_branch=unchanged)
    top.add("Reshape", total, top.add("Shape", x))
    top.protos[-1].output[:] = node.output
    return [Node(proto) for proto in top.protos]


def _added(node: Node, then: _Nodes, own: list[_Expert], flat: str, gate: str, total: str) -> Any:
    """The branch of an expert: the rows that have chosen it, filled up to a share of all, or all where they are few.

    What is filled up has no weight. Sizes are those of shares, since what many experts have found would vary in too
    many ways.
    """
    rows = then.add("Gather", then.add("Shape", gate), then.constant("first", [0]))
    chosen = then.add("Cast", then.add("Cast", gate, to=TensorProto.BOOL), to=TensorProto.FLOAT)
    count = then.add("ReduceSum", chosen, keepdims=0)
    every = then.inner("all")
    branch = every.graph(every.add("Add", total, every.add("Mul", _through(node, every, own, flat), gate)))
    for divisor in _DIVISORS:
        some, outer = then.inner(f"{divisor}"), then.inner(f"{divisor}?")
        room = outer.add("Div", rows, outer.constant("divisor", [divisor]))
        column = some.add("Reshape", gate, some.constant("row", [-1]))
        weights, places = some.add("TopK", column, room, outputs=2, axis=0)
        columns = some.constant("column", [-1, 1])
        found = _through(node, some, own, some.add("Gather", flat, places, axis=0))
        found = some.add("Mul", found, some.add("Reshape", weights, columns))
        found = some.add("Add", some.add("Gather", total, places, axis=0), found)
        scattered = some.add("ScatterND", total, some.add("Reshape", places, columns), found)
        fits = outer.add("LessOrEqual", count, outer.add("Cast", room, to=TensorProto.FLOAT))
        branch = outer.graph(outer.add("If", fits, then_branch=some.graph(scattered), else_branch=branch))
    few = then.inner("few")
    together = few.graph(few.add("Add", total, few.add("Mul", _through(node, few, own, flat), gate)))
    is_few = then.add("Less", then.add("Size", gate), then.constant("some", np.int64(_FEW_ROWS)))
    return then.graph(then.add("If", is_few, then_branch=together, else_branch=branch))


def _through(node: Node, nodes: _Nodes, own: list[_Expert], x: str) -> str:
    """Rows after an expert."""
    first, *others, last = own
    kind, attrs = node.attrs.get("activation_type", b"relu"), node.attrs
    y = first.product(node, nodes, x)
    factor = others[0].product(node, nodes, x) if others else ""
    if kind == b"swiglu":
        if "swiglu_limit" in attrs:
            most, least = (nodes.number(f"{sign}limit", sign * attrs["swiglu_limit"], y) for sign in (1, -1))
            y, factor = nodes.add("Min", y, most), nodes.add("Max", nodes.add("Min", factor, most), least)
        factor = nodes.add("Add", factor, nodes.number("beta", attrs.get("activation_beta", 0.0), y))
    if kind in (b"swiglu", b"silu"):
        alpha = attrs.get("activation_alpha", 1.0) if kind == b"swiglu" else 1.0
        y = nodes.add("QuickGelu", y, domain=_CONTRIBUTED, alpha=float(alpha))
    elif kind == b"gelu":
        y = nodes.add("FastGelu", y, domain=_CONTRIBUTED)
    elif kind == b"relu":
        y = nodes.add("Relu", y)
    return last.product(node, nodes, nodes.add("Mul", y, factor) if factor else y)
