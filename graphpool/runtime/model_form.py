"""A model with all shapes known: what an importer hands to the runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from graphpool._dataclasses import dataclass, field

from .inner_models import InnerModels

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from graphpool.graph.graph import Graph

    from ._host_call import HostBudget

__all__ = ["Fallback", "HostFunction", "ModelForm"]


@dataclass(frozen=True)
class Fallback:
    """What a host function stands for.

    Attributes
    ----------
    node, op_type : str
        As the model calls them.
    reason : str
        Why no backend runs it.
    """

    node: str
    op_type: str
    reason: str


class HostFunction(Protocol):
    """Runs an op that no backend runs. Called from any thread.

    It gets the values of the op's inputs (arrays, or other objects for tensors of type ``undef``) and, for each output,
    an array to write to, or None where the shape is not known before. It returns the output values; one that it wrote
    in place is returned itself, and any other one is copied to where it belongs. Inputs must not be written or kept.

    A function that takes more than its results may have a method ``bound``. It is given a `ValueBound` of each input,
    and of each output, None where the shape is not known, and returns a `HostNeed`, or None where only a run tells. One
    whose results are never views of its inputs may say so by an attribute ``gives_fresh``; others are given copies
    where a result has no place. One that makes texts says so by ``makes_texts``, so that they are counted, and one that
    holds tables tells their size in bytes by ``nbytes``.
    """

    def __call__(self, inputs: list[Any], outputs: list[Any]) -> Sequence[Any]:
        """The values of the outputs."""
        ...


@dataclass(frozen=True)
class ModelForm:
    """A model specialised to given shapes.

    Attributes
    ----------
    graph : Graph
        Finalised. Shapes and types of all tensors are known, except of those that only host functions touch.
    constants : mapping of int to value
        Tensor id -> content; arrays are bound without a copy.
    inputs, outputs : mapping of str to int
        Name -> tensor id. An output may be an input or a constant, and two outputs may be one tensor.
    host_functions : mapping of int to HostFunction
        Op id -> what runs a ``Wildcard``. `inner` are those that run models of their own, closed with the form.
    precomputed : tuple of str
        Names of the importer's nodes that it computed itself from the contents of inputs.
    weights : mapping of str to int
        Name that the importer has for a constant -> tensor id.
    forget : callable, optional
        Takes a constant and the `PackedWeight` that stands for it from now on, which the importer then keeps instead.
    host_budget : HostBudget, optional
        What the host functions of one run may take.
    fallbacks : mapping of int to Fallback
        Op id -> what its host function stands for.
    names : mapping of int to str
        Tensor id -> name that the importer has for it, as far as it has one.
    """

    graph: Graph
    constants: Mapping[int, Any]
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    host_functions: Mapping[int, HostFunction]
    precomputed: tuple[str, ...] = ()
    weights: Mapping[str, int] = field(default_factory=dict)
    forget: Callable[[Any, Any], None] | None = None
    host_budget: HostBudget | None = None
    fallbacks: Mapping[int, Fallback] = field(default_factory=dict)
    names: Mapping[int, str] = field(default_factory=dict)

    @property
    def inner(self) -> tuple[InnerModels, ...]:
        """The host functions that run models of their own."""
        return tuple([found for found in self.host_functions.values() if isinstance(found, InnerModels)])
