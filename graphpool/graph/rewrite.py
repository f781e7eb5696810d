"""Applies benchdnn's knobs to a graph: a new graph, with everything that follows from the changes inferred anew.

Scales of Quantize and Dequantize are rounded up to powers of two, as benchdnn does, so that they cost no accuracy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgumentError, explain
from ..typing import DataType
from .completion import complete_shapes
from .logical_tensor import LogicalTensor
from .op import Op
from .schema import get_schema
from .schemas.model import closest
from .view import GraphView

if TYPE_CHECKING:
    from .graph import Graph
    from .knobs import Knobs, Shape
    from .schema import OpSchema

__all__ = ["rewrite_graph", "unknown_ids"]

FLOATS = frozenset({DataType.F32, DataType.BF16, DataType.F16})
NORMS = frozenset({"BatchNormInference", "BatchNormForwardTraining", "BatchNormTrainingBackward", "LayerNorm",
                   "LayerNormBackward", "GroupNorm", "RMSNorm"})  # fmt: skip
"""Kinds of which a data type for all changes only the data, not parameters and statistics."""

CONVERSIONS = frozenset({"TypeCast", "Quantize", "Dequantize", "DynamicQuantize", "DynamicDequantize", "Reorder"})
WITH_PARAMETERS = frozenset({"Convolution", "ConvTranspose", "ConvolutionBackwardData", "ConvTransposeBackwardData",
                             "BiasAdd", "PReLU", "Dropout", "Interpolate", *CONVERSIONS})  # fmt: skip
"""Kinds of which every port but the first takes a parameter."""

RIVALS = {"Interpolate": {"sizes": "scales", "scales": "sizes"},
          "InterpolateBackward": {"sizes": "scales", "scales": "sizes"}}  # fmt: skip
"""Kind -> attribute that a knob sets -> attribute that it excludes."""


@dataclass
class _Op:
    """An op while it is rewritten: ids instead of tensors."""

    id: int
    kind: str
    name: str | None
    attrs: dict[str, Any]
    inputs: list[int]
    outputs: list[int]

    @property
    def label(self) -> str:
        """How messages name it."""
        return f"op {self.id} ({self.kind})"


@dataclass
class _Tensor:
    """A tensor while it is rewritten."""

    dtype: DataType
    shape: tuple[int, ...] | None
    strides: tuple[int, ...] | None
    property: str


def rewrite_graph(graph: Graph, knobs: Knobs) -> Graph:
    """A copy of a graph with knobs applied.

    Parameters
    ----------
    graph : Graph
        Unchanged.
    knobs : Knobs

    Returns
    -------
    graph : Graph
        Not finalised. Its tensors are strided; shapes of computed tensors are inferred from the inputs. Ids that are
        not in the graph are passed over, as benchdnn does: `unknown_ids` names them.

    Raises
    ------
    InvalidArgumentError
        A knob names an attribute or a kind that an op cannot have, or gives a value that does not fit.
    InvalidShapeError, InvalidOpError, InvalidDataTypeError
        The changed graph breaks a rule.

    Notes
    -----
    Cost: linear in the number of ops. Source: benchdnn's graph driver, its documented options.
    """
    tensors = {
        number: _Tensor(lt.dtype, lt.shape, lt.strides, lt.property.value) for number, lt in graph.tensors.items()
    }
    ops = [
        _Op(op.id, op.kind, op.name, dict(op.attrs), [t.id for t in op.inputs], [t.id for t in op.outputs])
        for op in GraphView(graph.ops).ops
    ]
    before = {number: tensor.shape for number, tensor in tensors.items()}
    _change_kinds(ops, knobs)
    _change_shapes(ops, tensors, knobs)
    _change_attrs(ops, knobs)
    _infer(ops, tensors)
    _fit_scales(ops, tensors, before)
    _change_types(ops, tensors, knobs)
    for number in knobs.properties.keys() & tensors.keys():
        tensors[number].property = knobs.properties[number]
    mode, to_int = knobs.fpmath or (graph.fpmath, graph.fpmath_apply_to_int)
    return _assemble(
        ops, tensors, type(graph)(graph.engine_kind, fpmath=mode, apply_to_int=to_int, prefer=graph.prefer)
    )


def unknown_ids(graph: Graph, knobs: Knobs) -> list[str]:
    """What knobs name that a graph does not have, and that `rewrite_graph` passes over: "tensor 7", "op 3"."""
    tensors = {*knobs.shapes, *knobs.dtypes, *knobs.properties} - set(graph.tensors)
    ops = {*knobs.attrs, *knobs.kinds} - {op.id for op in graph.ops}
    return [f"tensor {number}" for number in sorted(tensors)] + [f"op {number}" for number in sorted(ops)]


def _change_kinds(ops: list[_Op], knobs: Knobs) -> None:
    for op in [op for op in ops if op.id in knobs.kinds]:
        kind = knobs.kinds[op.id]
        if kind is None:
            _delete(op, ops)
            continue
        schema = get_schema(kind)
        for side, counts, ports in (
            ("inputs", schema.input_counts, op.inputs), ("outputs", schema.output_counts, op.outputs),
        ):  # fmt: skip
            if len(ports) not in counts:
                what = f"--op-kind: {side} of {op.label}"
                raise InvalidArgumentError(
                    explain(what, accepted=f"a kind with {len(ports)}", got=kind), knob="op-kind"
                )
        op.kind, op.attrs = kind, {name: value for name, value in op.attrs.items() if name in schema.attributes}


def _delete(op: _Op, ops: list[_Op]) -> None:
    """Take an op out: whoever read its result reads its first input."""
    if not op.inputs:
        raise InvalidArgumentError(explain(f"--op-kind: {op.label} cannot be taken out", accepted="an op with inputs"))
    ops.remove(op)
    for other in ops:
        other.inputs = [op.inputs[0] if number in op.outputs else number for number in other.inputs]


def _graph_inputs(ops: list[_Op]) -> set[int]:
    """Ids that no op writes."""
    written = {number for op in ops for number in op.outputs}
    return {number for op in ops for number in op.inputs} - written


def _change_shapes(ops: list[_Op], tensors: dict[int, _Tensor], knobs: Knobs) -> None:
    for number in knobs.shapes.keys() & tensors.keys():
        tensor, shape = tensors[number], knobs.shapes[number]
        if shape.dims is not None:
            tensor.shape, tensor.strides = shape.dims, None
        if shape.layout is not None:
            tensor.strides = _strides(number, tensor.shape, shape)
    if knobs.batch is not None:
        for number in _batched(ops, tensors):
            tensor = tensors[number]
            tensor.shape, tensor.strides = (knobs.batch, *(tensor.shape or ())[1:]), None


def _batched(ops: list[_Op], tensors: dict[int, _Tensor]) -> list[int]:
    """Inputs of the graph that have its batch for a first dimension: neither constants nor parameters of an op."""
    inputs = _graph_inputs(ops)
    shapes = {number: tensors[number].shape or () for number in inputs}
    first = next((shapes[n] for op in ops for n in op.inputs[:1] if n in inputs and shapes[n]), ())
    return [
        number for number, shape in shapes.items()
        if shape[:1] == first[:1] != () and (len(shape) > 1 or len(first) == 1)
        and tensors[number].property != "constant" and not _is_parameter(number, ops, tensors)
    ]  # fmt: skip


def _is_parameter(number: int, ops: list[_Op], tensors: dict[int, _Tensor]) -> bool:
    """Whether an op, perhaps behind a conversion, reads the tensor at a port that no batch arrives at."""
    for op in ops:
        for port, source in enumerate(op.inputs):
            if source != number:
                continue
            if op.kind in CONVERSIONS and port == 0:
                return _is_parameter(op.outputs[0], ops, tensors)
            if op.kind == "MatMul":
                return port == 2 or (port == 1 and len(tensors[number].shape or ()) < 3)
            return port > ("Backward" in op.kind) and (op.kind in WITH_PARAMETERS or op.kind in NORMS)
    return False


def _strides(number: int, dims: tuple[int, ...] | None, shape: Shape) -> tuple[int, ...]:
    """From numbers, or from a tag: the axes as letters, outermost first."""
    layout = shape.layout
    if dims is not None and isinstance(layout, tuple) and len(layout) == len(dims):
        return layout
    letters = "abcdefghijkl"[: len(dims or ())]
    if dims is None or not isinstance(layout, str) or sorted(layout) != list(letters):
        accepted = f"{len(dims)} strides, or the letters {letters}" if dims is not None else "a tensor of known rank"
        raise InvalidArgumentError(explain(f"--in-shapes: layout of tensor {number}", accepted=accepted, got=layout))
    strides, step = [1] * len(dims), 1
    for letter in reversed(layout):
        axis = letters.index(letter)
        strides[axis] = step
        step *= max(dims[axis], 1)
    return tuple(strides)


def _change_attrs(ops: list[_Op], knobs: Knobs) -> None:
    for op in ops:
        for name, text in knobs.attrs.get(op.id, {}).items():
            op.attrs[name] = _value(op, name, text)
            op.attrs.pop(RIVALS.get(op.kind, {}).get(name, ""), None)


def _value(op: _Op, name: str, text: str) -> Any:
    """The value of an attribute as its schema wants it."""
    known = get_schema(op.kind).attributes
    if name not in known:
        accepted = ", ".join(known) or "no attributes"
        what = f"--op-attrs: {op.label} has no attribute {name!r}"
        raise InvalidArgumentError(explain(what, accepted=accepted, hint=closest(name, tuple(known))))
    try:
        return _parse(known[name].kind, text)
    except (ValueError, KeyError) as error:
        what = f"--op-attrs: {name} of {op.label}"
        raise InvalidArgumentError(explain(what, accepted=known[name].accepted, got=repr(text))) from error


def _parse(kind: str, text: str) -> Any:
    if kind.endswith("[]"):
        return tuple(_parse(kind[:-2], item) for item in text.split("x") if item not in ("", "-"))
    if kind == "bool":
        return {"1": True, "true": True, "0": False, "false": False}[text]
    if kind == "s64":
        return int(text.partition(".")[0])  # as C reads an integer: up to the first character that is none
    return float(text) if kind == "f32" else text


def _infer(ops: list[_Op], tensors: dict[int, _Tensor]) -> None:
    """Shapes of everything that is computed; strides stay where the shape does."""
    inputs = _graph_inputs(ops)
    lts = {
        number: LogicalTensor(number, tensor.dtype, tensor.shape if number in inputs else None)
        for number, tensor in tensors.items()
    }
    shapes = complete_shapes(GraphView([_build(op, lts) for op in ops]).ops, trust_ops=False)
    for number, shape in shapes.items():
        if shape is not None and shape != tensors[number].shape:
            tensors[number].shape, tensors[number].strides = shape, None


def _build(op: _Op, lts: dict[int, LogicalTensor]) -> Op:
    made = Op(op.id, op.kind, [lts[n] for n in op.inputs], [lts[n] for n in op.outputs], name=op.name)
    return made.with_attrs(get_schema(op.kind).complete(made.label, op.attrs))


def _fit_scales(ops: list[_Op], tensors: dict[int, _Tensor], before: dict[int, tuple[int, ...] | None]) -> None:
    """Scales as powers of two, and one a channel where the shape has changed."""
    for op in ops:
        if op.kind not in ("Quantize", "Dequantize"):
            continue
        scales, zps = op.attrs["scales"], op.attrs.get("zps") or ()
        count, shape = len(scales), tensors[op.inputs[0]].shape
        if op.attrs.get("qtype") == "per_channel" and shape and shape != before[op.inputs[0]]:
            count = shape[op.attrs.get("axis", 1) % len(shape)]
        op.attrs["scales"] = tuple(_power_of_two(scales[k % len(scales)]) for k in range(count))
        if zps:
            op.attrs["zps"] = tuple(zps[k % len(zps)] for k in range(count))


def _power_of_two(scale: float) -> float:
    """The least one that is no smaller; anything that has none stays."""
    return 2.0 ** math.ceil(math.log2(scale)) if 0 < scale < math.inf else scale


def _change_types(ops: list[_Op], tensors: dict[int, _Tensor], knobs: Knobs) -> None:
    if knobs.dtype is not None:
        kept = _kept_types(ops, knobs.dtype)
        for number, tensor in tensors.items():
            if tensor.dtype in FLOATS and number not in kept:
                tensor.dtype = knobs.dtype
    for number in knobs.dtypes.keys() & tensors.keys():
        tensors[number].dtype = knobs.dtypes[number]


def _kept_types(ops: list[_Op], dtype: DataType) -> set[int]:
    """Tensors that a data type for all leaves alone: at ports that do not take it, and parameters of norms."""
    kept = set()
    for op in ops:
        schema = get_schema(op.kind)
        for numbers, is_input in ((op.inputs, True), (op.outputs, False)):
            kept |= {
                number for k, number in enumerate(numbers) if _keeps_type(schema, op.kind, dtype, k, is_input=is_input)
            }
    return kept


def _keeps_type(schema: OpSchema, kind: str, dtype: DataType, index: int, *, is_input: bool) -> bool:
    variable = (schema.input_port if is_input else schema.output_port)(index).type
    accepted = schema.types[variable]
    return bool(accepted and dtype not in accepted) or (kind in NORMS and variable != schema.inputs[0].type)


def _assemble(ops: list[_Op], tensors: dict[int, _Tensor], graph: Graph) -> Graph:
    used = {number for op in ops for number in (*op.inputs, *op.outputs)}
    lts = {
        number: LogicalTensor(number, tensor.dtype, tensor.shape, strides=tensor.strides, property=tensor.property)
        for number, tensor in tensors.items()
        if number in used
    }
    for op in ops:
        made = Op(op.id, op.kind, [lts[n] for n in op.inputs], [lts[n] for n in op.outputs], name=op.name)
        graph.add_op(made.with_attrs(op.attrs))
    return graph
