"""MatMul: its implementations in order of preference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...._kernels.gemm.matmul import matmul
from ....typing import DataType
from ..choices import forced
from ..lower.integers import operands
from ..lower.region import Region
from ..match.integers import exact_depth
from ..support import rule
from .choice import Choice, lower_first
from .compressed import find_compressed
from .int8_matmul import find_int8
from .matmul_packed import find_given, find_packed
from .matmul_problem import MatmulSite, Product

if TYPE_CHECKING:
    from ....graph.op import Op
    from ..lower.lowering import Lowering
    from ..lower.values import Value
    from ..match.groups import AnchorGroup


@rule("MatMul", is_anchor=True)
def lower_matmul(lowering: Lowering, group: AnchorGroup) -> None:
    """One product with the bias and the post-ops behind it."""
    lower_first(MatmulSite(lowering, group), IMPLEMENTATIONS)


@rule("MatMul")
def lower_wide_matmul(lowering: Lowering, op: Op) -> None:
    """One product of f64; a bias is added by a step of its own."""
    result = op.outputs[0].id
    a, b = (lowering.value(tensor.id) for tensor in op.inputs[:2])
    place, product = lowering.target(result, dtype=DataType.F64), Product.of(op, a, b)
    lowering.emit(matmul(product.problem(), product.b_strides, impl=forced("MatMul")), [a, b, place])
    if len(op.inputs) > 2:
        region = Region(lowering, place.shape, register="f64")
        bias = region.load_along(lowering.value(op.inputs[2].id), len(place.shape) - 1)
        region.write(place, region.binary("add", region.load(place), bias))
        region.emit("eltwise(bias)")
    lowering.finish(result, place)


def find_plain(site: MatmulSite) -> Choice:
    """The product of operands as they lie, in f32, exact where they are integers."""
    return Choice(lambda _: _emit_plain(site), site.epilogue.place)


def _emit_plain(site: MatmulSite) -> Value:
    lowering, group, epilogue = site.lowering, site.group, site.epilogue
    a, b = operands(lowering, group)
    product = Product.of(site.op, a, b)
    own = epilogue.strides_in(product.shape)
    tail = epilogue.tail(needs_scratch=own is None)
    call = matmul(
        product.problem(own),
        product.b_strides,
        tail.post_ops,
        impl=forced("MatMul"),
        exact_depth=exact_depth(group.dequantized),
    )
    lowering.emit(call, [a, b, *tail.args], tail.name)
    return epilogue.place


IMPLEMENTATIONS = (find_int8, find_compressed, find_given, find_packed, find_plain)
