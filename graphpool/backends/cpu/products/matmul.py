"""MatMul: its implementations in order of preference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...._kernels.gemm.matmul import matmul
from ..choices import forced
from ..lower.integers import operands
from ..match.integers import exact_depth
from ..support import rule
from .choice import Choice, lower_first
from .compressed import find_compressed
from .int8_matmul import find_int8
from .matmul_packed import find_given, find_packed
from .matmul_problem import MatmulSite, Product

if TYPE_CHECKING:
    from ..lower.lowering import Lowering
    from ..lower.values import Value
    from ..match.groups import AnchorGroup


@rule("MatMul", is_anchor=True)
def lower_matmul(lowering: Lowering, group: AnchorGroup) -> None:
    """One product with the bias and the post-ops behind it."""
    lower_first(MatmulSite(lowering, group), IMPLEMENTATIONS)


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
