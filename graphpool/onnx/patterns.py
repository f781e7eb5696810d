"""Spelt-out functions and the one op that each of them is, as data.

A rule's pattern is an expression: names are tensors (constants where `number` says so), ``x / y``, powers and ``sqrt``
are products of powers, capitalised calls are nodes, and `Mean` is a mean over the last axis. Factors and terms match in
any order and grouping, which is how exporters differ. Adding a rule is one entry here and one test. SiLU has no rule:
``x * Sigmoid(x)`` is how our graph spells it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .expression import parse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .expression import Pattern

__all__ = ["RULES", "Rule"]


@dataclass(frozen=True)
class Rule:
    """One spelling of an op.

    Attributes
    ----------
    kind : str
        ONNX op that takes the place of the expression.
    pattern : str
    inputs : tuple of str
        Names of the pattern that are inputs of the op.
    attributes : mapping of str to value
        Constant ones, and by a name of the pattern those that are read off.
    vectors : tuple of str
        Names that are constants of one dimension.
    tree : Pattern
        The pattern, parsed.
    """

    kind: str
    pattern: str
    inputs: tuple[str, ...] = ("x",)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    vectors: tuple[str, ...] = ()
    tree: Pattern = field(init=False)

    def __post_init__(self) -> None:
        variables = [value for value in self.attributes.values() if not value.startswith('"')]
        object.__setattr__(self, "tree", parse(self.pattern, variables))


_NORM = "(x - Mean(x)) / sqrt(Mean((x - Mean(x)) ** 2) + epsilon)"
_RMS = "x / sqrt(Mean(x ** 2) + epsilon)"
_EPSILON = {"epsilon": "epsilon"}

RULES = (
    # Hendrycks and Gimpel, 2016
    Rule("Gelu", "x * 0.5 * (1 + Erf(x / sqrt(2)))", attributes={"approximate": '"none"'}),
    Rule("Gelu", "x * 0.5 * (1 + Tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))", attributes={"approximate": '"tanh"'}),
    Rule("Gelu", "x * 0.5 * (1 + Tanh(sqrt(2 / pi) * x * (1 + 0.044715 * x ** 2)))",
         attributes={"approximate": '"tanh"'}),
    # Howard et al., 2019
    Rule("HardSwish", "x * Clip(x + 3, 0, 6) / 6"),
    Rule("HardSwish", "x * HardSigmoid(x, 1 / 6, 0.5)"),
    Rule("Mish", "x * Tanh(Softplus(x))"),
    # Ba, Kiros and Hinton, 2016
    Rule("LayerNormalization", f"{_NORM} * gamma + beta", ("x", "gamma", "beta"), _EPSILON, ("gamma", "beta")),
    Rule("LayerNormalization", f"{_NORM} * gamma", ("x", "gamma"), _EPSILON, ("gamma",)),
    # Zhang and Sennrich, 2019
    Rule("RMSNormalization", f"{_RMS} * gamma", ("x", "gamma"), _EPSILON, ("gamma",)),
)  # fmt: skip
"""Larger patterns come before those that are parts of them; the root of each is a product or a sum."""
