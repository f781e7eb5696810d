"""The gradient of attention among the ops of a partition, as training spells it out from the log-sum-exp.

P = Exp(scores - stats);  dP = [Dropout](dO v^T);  dS = P * (dP - ReduceSum(O * dO));
dQ = (dS [* or / scale]) k;  dK = [ReduceSum]((dS [* or / scale])^T q);  dV = [ReduceSum](([Dropout] P)^T dO)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphpool._dataclasses import dataclass, field

from ..support import FLOATS
from .attention import BATCH_AXES, Finder, Scores

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ....graph.op import Op
    from ....graph.view import GraphView

__all__ = ["AttentionGradient", "find_gradient"]


@dataclass(frozen=True)
class AttentionGradient:
    """The five products of the gradient of attention; tensors by id.

    Attributes
    ----------
    members : tuple of int
        Numbers, in the view, of all its ops.
    stats, result, d_result : int
        The log-sum-exp of the forward pass, its result, and the gradient of that.
    values : Op
        The product of the gradient of the result with the values.
    d_q, d_k, d_v : int
        The gradients.
    d_scores : int, optional
        That of scores which are scaled and masked, where it is read elsewhere.
    d_scale : int, optional
        The factor of that on its way to queries and keys, or its divisor.
    is_grouped : bool
        Whether the gradients of keys and values are added up over the heads that share these.
    """

    scores: Scores
    members: tuple[int, ...]
    stats: int
    result: int
    d_result: int
    values: Op
    d_q: int
    d_k: int
    d_v: int
    d_scores: int | None
    d_scale: int | None
    is_d_divisor: bool
    is_grouped: bool
    dropout: Op | None


def find_gradient(
    view: GraphView, number: int, shapes: Mapping[int, tuple[int, ...]], outputs: set[int]
) -> AttentionGradient | None:
    """The gradient of attention around the Exp of this number; None where there is none, or none that kernels compute.

    Tensors among `outputs` are needed elsewhere.
    """
    finder = Finder(view, shapes, outputs)
    shift = finder.producer_of(view.ops[number].inputs[0].id, "Subtract")
    if shift is None:
        return None
    before, stats = (tensor.id for tensor in view.ops[shift].inputs)
    found = finder.find_scores(before)
    if found is None or shapes[stats] != (*shapes[before][:-1], 1) or view.ops[shift].inputs[1].dtype not in FLOATS:
        return None
    scores, inside = found
    return _Reader(finder, view.ops[number].outputs[0].id, {number, shift, *inside}).read(scores, stats)


@dataclass(frozen=True)
class _End:
    """A product of exponentials (`d_v`) or of gradients of scores (`source`), perhaps times a number."""

    name: str
    source: int
    scale: int | None = None
    is_divisor: bool = False
    dropout: Op | None = None


@dataclass
class _Reader:
    """Walks from the products that end a gradient back to the exponentials; `members` are the ops that it passed."""

    finder: Finder
    weights: int
    members: set[int] = field(default_factory=set)

    def read(self, scores: Scores, stats: int) -> AttentionGradient | None:
        """The gradient, if all products that it takes are there and nothing else reads what lies between."""
        ops, found = self.finder.view.ops, {}
        for number, op in enumerate(ops):
            passed = set(self.members)
            end = self._read_end(op) if op.kind == "MatMul" and len(op.inputs) == 2 else None
            if end is None:
                self.members = passed
            elif end.name in found:
                return None
            else:
                self.members.add(number)
                found[end.name] = op, end
        if len(found) != 3:
            return None
        (to_q, front), (to_k, other), (to_v, behind) = (found[name] for name in ("d_q", "d_k", "d_v"))
        body = self._read_scores(front.source)
        if body is None or (front.source, front.scale) != (other.source, other.scale):
            return None
        values, result, dropout = body
        if not _are_alike(dropout, behind.dropout) or not self._fit(scores.product, values, to_q, to_k, to_v):
            return None
        own_k, own_v = to_k.outputs[0].id, to_v.outputs[0].id
        sums = self._find_sums((own_k, own_v), scores.product.inputs[1].id)
        d_k, d_v = sums or (own_k, own_v)
        results = to_q.outputs[0].id, d_k, d_v
        gradient = AttentionGradient(
            scores, tuple(sorted(self.members)), stats, result, values.inputs[0].id, values, *results,
            front.source if self._is_read_outside(front.source) else None, front.scale, front.is_divisor,
            sums is not None, dropout,
        )  # fmt: skip
        return gradient if self.finder.is_closed(self.members, {*results, front.source}) else None

    def _read_end(self, op: Op) -> _End | None:
        """What a product ends, if it is of this gradient."""
        left, is_turned = op.inputs[0].id, op.attrs["transpose_a"]
        dropout = self._up(left, "Dropout")
        if self._is_weights(left if dropout is None else dropout.inputs[0].id):
            return _End("d_v", self.weights, dropout=dropout) if is_turned else None
        name, factor = "d_k" if is_turned else "d_q", self._up(left, "Multiply", "Divide")
        if dropout is not None or factor is None:
            return None
        if self._are_d_scores(factor):
            return _End(name, factor.outputs[0].id)
        sides = [tensor.id for tensor in factor.inputs]
        if factor.kind == "Multiply" and self.finder.is_number(sides[0]):
            sides.reverse()
        inner = self._up(sides[0], "Multiply")
        if inner is None or not self._are_d_scores(inner) or not self.finder.is_number(sides[1]):
            return None
        return _End(name, inner.outputs[0].id, sides[1], factor.kind == "Divide")

    def _is_weights(self, tensor_id: int) -> bool:
        op = self._up(tensor_id, "Exp")
        return op is not None and op.outputs[0].id == self.weights

    def _are_d_scores(self, op: Op) -> bool:
        return op.kind == "Multiply" and any(self._is_weights(tensor.id) for tensor in op.inputs)

    def _read_scores(self, tensor_id: int) -> tuple[Op, int, Op | None] | None:
        """The product with the values, the result of the forward pass, and Dropout, of the gradient of scores."""
        gradient = self._up(tensor_id, "Multiply")
        assert gradient is not None
        others = [tensor.id for tensor in gradient.inputs if not self._is_weights(tensor.id)]
        shifted = self._up(others[0], "Subtract") if len(others) == 1 else None
        if shifted is None:
            return None
        dropped, mean = (tensor.id for tensor in shifted.inputs)
        dropout = self._up(dropped, "Dropout")
        values = self._up(dropped if dropout is None else dropout.inputs[0].id, "MatMul")
        total = self._up(mean, "ReduceSum")
        shapes = self.finder.shapes
        if values is None or total is None or not total.attrs["keep_dims"]:
            return None
        terms, rank = self._up(total.inputs[0].id, "Multiply"), len(shapes[total.inputs[0].id])
        if terms is None or [axis % rank for axis in total.attrs["axes"]] != [rank - 1]:
            return None
        factors = list(terms.inputs)
        d_result = [n for n, tensor in enumerate(factors) if tensor.id == values.inputs[0].id]
        if not d_result:
            return None
        result = factors[1 - d_result[0]]
        is_alike = result.dtype in FLOATS and shapes[result.id] == shapes[values.inputs[0].id]
        return (values, result.id, dropout) if is_alike else None

    def _fit(self, scores: Op, values: Op, to_q: Op, to_k: Op, to_v: Op) -> bool:
        """Whether the products read the operands that they should, the right way round."""
        (q, k), (d_result, v) = scores.inputs, values.inputs
        wanted = (
            (to_q, k.id, not scores.attrs["transpose_b"]), (to_k, q.id, scores.attrs["transpose_a"]),
            (to_v, d_result.id, False),
        )  # fmt: skip
        are_read = all(op.inputs[1].id == right and op.attrs["transpose_b"] == turned for op, right, turned in wanted)
        is_plain = not values.attrs["transpose_a"] and d_result.dtype in FLOATS
        return are_read and is_plain and self.finder.are_matrices((q, k, v), self.finder.shapes[d_result.id])

    def _find_sums(self, tensors: tuple[int, int], k: int) -> tuple[int, int] | None:
        """The sums of both tensors over the heads that share keys, if both are there and nothing else reads them."""
        view, shapes = self.finder.view, self.finder.shapes
        found = []
        for tensor_id in tensors:
            users, shape = view.users(tensor_id), shapes[tensor_id]
            if len(users) != 1 or tensor_id in self.finder.outputs or shape[:BATCH_AXES] != shapes[k][:BATCH_AXES]:
                return None
            op = view.ops[users[0]]
            wanted = (*shapes[k][:-2], *shape[-2:])
            if op.kind != "ReduceSum" or not op.attrs["keep_dims"] or shapes[op.outputs[0].id] != wanted:
                return None
            found.append((users[0], op.outputs[0].id))
        self.members |= {number for number, _ in found}
        return found[0][1], found[1][1]

    def _is_read_outside(self, tensor_id: int) -> bool:
        users = self.finder.view.users(tensor_id)
        return tensor_id in self.finder.outputs or not self.members.issuperset(users)

    def _up(self, tensor_id: int, *kinds: str) -> Op | None:
        """The op of such a kind that computes a tensor, with nothing but casts behind it."""
        passed = []
        while (number := self.finder.view.producer.get(tensor_id)) is not None:
            op = self.finder.view.ops[number]
            passed.append(number)
            if op.kind in kinds:
                self.members.update(passed)
                return op
            if op.kind != "TypeCast" or op.inputs[0].dtype not in FLOATS:
                return None
            tensor_id = op.inputs[0].id
        return None


def _are_alike(dropout: Op | None, other: Op | None) -> bool:
    """Whether both are the same Dropout of two tensors, whose mask nobody reads."""
    if dropout is None or other is None:
        return dropout is other
    draws = [[tensor.id for tensor in op.inputs[1:]] for op in (dropout, other)]
    return draws[0] == draws[1] and len(dropout.outputs) == len(other.outputs) == 1
