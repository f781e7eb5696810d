"""Graphs of our own for the families of fusions (`spec` 2.2), in the forms that exporters give them.

Each is one partition, whatever the data type; the benchdnn cases hold other members of the same families.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.benchdnn.families.attention import attentions
from tests.benchdnn.families.convolutions import convolutions, quantized_convolutions
from tests.benchdnn.families.images import images, residual_stages
from tests.benchdnn.families.parts import FLOATS, Build
from tests.benchdnn.families.pointwise import elementwise, moves, norms, softmaxes
from tests.benchdnn.families.products import compressed, gated_mlps, products, quantized_products

__all__ = ["FAMILIES", "FLOATS"]

FAMILIES: dict[str, Callable[[str], Iterator[tuple[str, Build]]]] = {
    "convolution": convolutions, "int8 convolution": quantized_convolutions, "product": products,
    "int8 product": quantized_products, "compressed weights": compressed, "elementwise": elementwise, "norm": norms,
    "softmax": softmaxes, "image": images, "move": moves, "attention": attentions, "gated MLP": gated_mlps,
    "residual stage": residual_stages,
}  # fmt: skip
"""Family -> (data type -> pairs of a name and what builds the graph)."""
