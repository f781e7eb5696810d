"""A case with benchdnn's knobs applied: what of a graph file a run changes before it is built.

    in-shapes        ID:DIMS[*STRIDES | *TAG] + ...     "-" is rank 0, "*TAG" alone changes strides only
    op-attrs         ID:NAME:VALUE*NAME:VALUE + ...     lists are written 1x2x3
    dt, dtm          TYPE for all floats | ID:TYPE + ...
    op-kind          ID:KIND + ...                      "undef" deletes the op
    tensor-property  ID:PROPERTY + ...
    mb               first dimension of every input of the graph
    attr-fpmath      MODE[:APPLY_TO_INT]

Scales of Quantize and Dequantize are rounded up to powers of two, as benchdnn does, so that they cost no accuracy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import graphpool as gp
from graphpool.graph.completion import complete_shapes
from graphpool.graph.schema import get_schema
from graphpool.graph.view import GraphView

FLOATS = ("f32", "bf16", "f16")
NORMS = ("BatchNormInference", "BatchNormForwardTraining", "BatchNormTrainingBackward", "LayerNorm",
         "LayerNormBackward", "GroupNorm", "RMSNorm")  # fmt: skip
"""Kinds of which `dt` changes only the data, not parameters and statistics."""


@dataclass
class Ported:
    """An op while it is rewritten: ids instead of tensors."""

    id: int
    kind: str
    name: str
    attrs: dict[str, Any]
    inputs: list[int]
    outputs: list[int]


@dataclass
class Facts:
    """A tensor while it is rewritten."""

    dtype: str
    shape: tuple[int, ...] | None
    strides: tuple[int, ...] | None
    property: str


def build(path: Path, knobs: dict[str, str]) -> gp.Graph:
    """The graph of a case under knobs, not finalised; tensors are strided and have known shapes."""
    ops, originals, fpmath = _load(path)
    ops = [replace(op, attrs=dict(op.attrs)) for op in ops]
    tensors = {number: replace(facts) for number, facts in originals.items()}
    _change_kinds(ops, tensors, _pairs(knobs.get("op-kind")))
    _change_shapes(ops, tensors, knobs)
    _change_attrs(ops, knobs.get("op-attrs"))
    _infer(ops, tensors)
    _fit_scales(ops, tensors, originals)
    _change_types(ops, tensors, knobs)
    for number, prop in _pairs(knobs.get("tensor-property")).items():
        tensors[number].property = prop
    if "attr-fpmath" in knobs:
        fpmath, _, to_int = knobs["attr-fpmath"].partition(":")
        return _assemble(ops, tensors, gp.Graph("cpu", fpmath=fpmath, apply_to_int=to_int == "true"))
    return _assemble(ops, tensors, gp.Graph("cpu", fpmath=fpmath))


@lru_cache(maxsize=64)
def _load(path: Path) -> tuple[list[Ported], dict[int, Facts], str]:
    graph = gp.Graph.from_json(path, engine_kind="cpu")
    tensors = {
        number: Facts(lt.dtype.value, lt.shape, lt.strides, lt.property.value) for number, lt in graph.tensors.items()
    }
    ops = [
        Ported(op.id, op.kind, op.name, dict(op.attrs), [t.id for t in op.inputs], [t.id for t in op.outputs])
        for op in GraphView(graph.ops).ops
    ]
    return ops, tensors, graph.fpmath


def _pairs(text: str | None) -> dict[int, str]:
    """ID:VALUE + ID:VALUE."""
    items = (part.split(":", 1) for part in (text or "").split("+") if part)
    return {int(number): value for number, value in items}


def _dims(text: str) -> tuple[int, ...]:
    return () if text in ("", "-") else tuple(map(int, text.split("x")))


def _change_kinds(ops: list[Ported], tensors: dict[int, Facts], kinds: dict[int, str]) -> None:
    for op in [op for op in ops if op.id in kinds]:
        if kinds[op.id] == "undef":
            _delete(op, ops)
            continue
        op.kind = kinds[op.id]
        known = get_schema(op.kind).attributes
        op.attrs = {name: value for name, value in op.attrs.items() if name in known}


def _delete(op: Ported, ops: list[Ported]) -> None:
    """Take an op out: whoever read its result reads its first input."""
    ops.remove(op)
    for other in ops:
        other.inputs = [op.inputs[0] if number == op.outputs[0] else number for number in other.inputs]


def graph_inputs(ops: list[Ported]) -> set[int]:
    """Ids that no op writes."""
    written = {number for op in ops for number in op.outputs}
    return {number for op in ops for number in op.inputs} - written


def _change_shapes(ops: list[Ported], tensors: dict[int, Facts], knobs: dict[str, str]) -> None:
    for number, text in _pairs(knobs.get("in-shapes")).items():
        if number not in tensors:
            continue
        dims, _, layout = text.partition("*")
        facts = tensors[number]
        if dims:
            facts.shape, facts.strides = _dims(dims), None
        if layout:
            facts.strides = _strides(facts.shape, layout)
    if "mb" in knobs:
        for number in graph_inputs(ops):
            facts = tensors[number]
            if facts.shape and facts.property != "constant":
                facts.shape, facts.strides = (int(knobs["mb"]), *facts.shape[1:]), None


def _strides(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """From numbers, or from a tag: the axes as letters, outermost first."""
    if layout[0].isdigit():
        return _dims(layout)
    strides, step = [1] * len(shape), 1
    for letter in reversed(layout):
        axis = ord(letter) - ord("a")
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)


def _change_attrs(ops: list[Ported], text: str | None) -> None:
    by_id = {op.id: op for op in ops}
    for number, changes in _pairs(text).items():
        op = by_id[number]
        for change in changes.split("*"):
            name, _, value = change.partition(":")
            op.attrs[name] = _parse(get_schema(op.kind).attributes[name].kind, value)
            for other in _rivals(op, name):
                op.attrs.pop(other, None)


def _rivals(op: Ported, name: str) -> tuple[str, ...]:
    """Attributes that exclude the one that a knob has set."""
    if op.kind.startswith("Interpolate"):
        return {"sizes": ("scales",), "scales": ("sizes",)}.get(name, ())
    return ()


def _parse(kind: str, text: str) -> Any:
    if kind.endswith("[]"):
        return tuple(_parse(kind[:-2], item) for item in text.split("x") if item not in ("", "-"))
    if kind == "s64":
        return int(text.partition(".")[0])  # as C reads an integer: up to the first character that is none
    return {"bool": lambda t: t in ("1", "true"), "f32": float, "str": str}[kind](text)


def _infer(ops: list[Ported], tensors: dict[int, Facts]) -> None:
    """Shapes of everything that is computed; strides stay where the shape does."""
    inputs = graph_inputs(ops)
    given = {number: tensors[number].shape for number in inputs}
    lts = {
        number: gp.LogicalTensor(number, facts.dtype, facts.shape if number in inputs else None)
        for number, facts in tensors.items()
    }
    built = [_op(op, lts) for op in ops]
    for number, shape in complete_shapes(GraphView(built).ops, given, trust_ops=False).items():
        if shape is not None and shape != tensors[number].shape:
            tensors[number].shape, tensors[number].strides = shape, None


def _op(op: Ported, lts: dict[int, gp.LogicalTensor]) -> gp.Op:
    made = gp.Op(op.id, op.kind, [lts[n] for n in op.inputs], [lts[n] for n in op.outputs], op.name)
    return made.with_attrs(get_schema(op.kind).complete(made.label, op.attrs))


def _fit_scales(ops: list[Ported], tensors: dict[int, Facts], originals: dict[int, Facts]) -> None:
    """Scales as powers of two, and one a channel where the shape has changed."""
    for op in ops:
        if op.kind not in ("Quantize", "Dequantize"):
            continue
        scales, zps = op.attrs["scales"], op.attrs.get("zps") or ()
        count, shape = len(scales), tensors[op.inputs[0]].shape
        if op.attrs.get("qtype") == "per_channel" and shape != originals[op.inputs[0]].shape:
            count = shape[op.attrs.get("axis", 1)]
        op.attrs["scales"] = tuple(2.0 ** math.ceil(math.log2(scales[k % len(scales)])) for k in range(count))
        if zps:
            op.attrs["zps"] = tuple(zps[k % len(zps)] for k in range(count))


def _change_types(ops: list[Ported], tensors: dict[int, Facts], knobs: dict[str, str]) -> None:
    if "dt" in knobs and ":" not in knobs["dt"]:
        kept = _kept_types(ops, tensors, knobs["dt"])
        for number, facts in tensors.items():
            if facts.dtype in FLOATS and number not in kept:
                facts.dtype = knobs["dt"]
    for number, dtype in _pairs(knobs.get("dtm") or (knobs["dt"] if ":" in knobs.get("dt", "") else "")).items():
        tensors[number].dtype = dtype


def _kept_types(ops: list[Ported], tensors: dict[int, Facts], dtype: str) -> set[int]:
    """Tensors that a change of the data type leaves alone: ports that do not take it, and parameters of norms."""
    kept = set()
    for op in ops:
        schema = get_schema(op.kind)
        data = schema.inputs[0].type
        for numbers, port in ((op.inputs, schema.input_port), (op.outputs, schema.output_port)):
            for index, number in enumerate(numbers):
                variable = port(index).type
                accepted = schema.types[variable]
                if (accepted and dtype not in accepted) or (op.kind in NORMS and variable != data):
                    kept.add(number)
    return kept


def _assemble(ops: list[Ported], tensors: dict[int, Facts], graph: gp.Graph) -> gp.Graph:
    used = {number for op in ops for number in (*op.inputs, *op.outputs)}
    lts = {
        number: gp.LogicalTensor(number, facts.dtype, facts.shape, strides=facts.strides, property=facts.property)
        for number, facts in tensors.items()
        if number in used
    }
    for op in ops:
        graph.add_op(
            gp.Op(op.id, op.kind, [lts[n] for n in op.inputs], [lts[n] for n in op.outputs], op.name).with_attrs(
                op.attrs
            )
        )
    return graph
