"""Applies benchdnn's knobs to the ops of a file, with everything that follows from the changes inferred anew.

The ops need not satisfy their schemas, nor agree about their tensors, as long as the knobs mend them. Scales of
Quantize and Dequantize are rounded up to powers of two, as benchdnn does, so that they cost no accuracy.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from graphpool._dataclasses import dataclass

from ...errors import InvalidArgumentError, InvalidGraphError, InvalidOpError, InvalidShapeError, brief, explain
from ...typing import DataType
from ..completion import complete_shapes
from ..logical_tensor import LogicalTensor
from ..op import Op
from ..schema import get_schema
from ..schemas.model import closest, format_counts
from ..view import GraphView

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ..schema import OpSchema
    from .knobs import Knobs, Shape

FLOATS = frozenset({DataType.F32, DataType.BF16, DataType.F16})
NORMS = frozenset({"BatchNormInference", "BatchNormForwardTraining", "BatchNormTrainingBackward", "LayerNorm",
                   "LayerNormBackward", "GroupNorm", "RMSNorm"})  # fmt: skip
"""Kinds of which a data type for all changes only the data, not parameters and statistics."""

CONVERSIONS = frozenset({"TypeCast", "Quantize", "Dequantize", "DynamicQuantize", "DynamicDequantize", "Reorder"})
WITH_PARAMETERS = frozenset({"Convolution", "ConvTranspose", "ConvolutionBackwardData", "ConvTransposeBackwardData",
                             "BiasAdd", "PReLU", "Dropout", "Interpolate", *CONVERSIONS})  # fmt: skip
"""Kinds of which every port but the first takes a parameter."""

MOST_SCALES = 2**20
"""Scales, one a channel, that a changed shape may ask for."""

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
    value: float | None


def apply_knobs(ops: Sequence[Op], knobs: Knobs) -> list[Op]:
    """Ops, given in any order, with knobs applied, in topological order; their tensors are strided.

    Shapes of computed tensors are inferred from the inputs. Ids that the ops do not have are passed over, as benchdnn
    does: `unknown_ids` names them. Raises InvalidArgumentError for an attribute, a kind or a value that an op cannot
    have, InvalidGraphError for a cycle or ops that contradict one another about a tensor where no knob settles it, and
    what a changed op raises that breaks a rule. Cost: linear in the number of ops. Source: benchdnn's graph driver, its
    documented options.
    """
    drafts = [
        _Op(op.id, op.kind, op.name, dict(op.attrs), [t.id for t in op.inputs], [t.id for t in op.outputs])
        for op in GraphView(ops).ops
    ]
    tensors = _tensors(ops, knobs)
    before = {number: tensor.shape for number, tensor in tensors.items()}
    _change_kinds(drafts, knobs)
    _change_attrs(drafts, knobs)
    _change_shapes(drafts, tensors, knobs)
    _change_types(drafts, tensors, knobs)
    for number in knobs.properties.keys() & tensors.keys():
        tensors[number].property, tensors[number].value = knobs.properties[number], None
    _infer(drafts, tensors, before)
    return _assemble(drafts, tensors)


def unknown_ids(ops: Sequence[Op], knobs: Knobs) -> list[str]:
    """What knobs name that ops do not have, and that `apply_knobs` passes over: "tensor 7", "op 3"."""
    tensors = {*knobs.shapes, *knobs.dtypes, *knobs.properties} - {tensor.id for tensor in _mentions(ops)}
    numbers = {*knobs.attrs, *knobs.kinds} - {op.id for op in ops}
    return [f"tensor {number}" for number in sorted(tensors)] + [f"op {number}" for number in sorted(numbers)]


def _mentions(ops: Iterable[Op]) -> Iterator[LogicalTensor]:
    return (tensor for op in ops for tensor in (*op.inputs, *op.outputs))


def _tensors(ops: Sequence[Op], knobs: Knobs) -> dict[int, _Tensor]:
    """The tensors by id, where knobs or inference settle what the mentions of one say differently."""
    written = {tensor.id for op in ops for tensor in op.outputs}
    first: dict[int, LogicalTensor] = {}
    tensors: dict[int, _Tensor] = {}
    for lt in _mentions(ops):
        known = first.setdefault(lt.id, lt)
        if known is lt:
            tensors[lt.id] = _Tensor(lt.dtype, lt.shape, lt.strides, lt.property.value, lt.value)
        elif known != lt:
            if not _is_settled(known, lt, knobs, is_computed=lt.id in written):
                what = f"tensor id {lt.id} means two tensors"
                raise InvalidGraphError(explain(what, accepted=known, got=lt), tensor_id=lt.id)
            tensors[lt.id].strides = None
    return tensors


def _is_settled(a: LogicalTensor, b: LogicalTensor, knobs: Knobs, *, is_computed: bool) -> bool:
    """Whether knobs, or the inference of shapes, replace all in which two mentions of a tensor differ."""
    shape = knobs.shapes.get(a.id)
    is_shaped = shape is not None and shape.dims is not None
    is_float = a.dtype in FLOATS and b.dtype in FLOATS
    return (
        (is_computed or a.shape == b.shape or is_shaped)
        and (is_computed or a.strides == b.strides or shape is not None)
        and (a.dtype is b.dtype or a.id in knobs.dtypes or (knobs.dtype is not None and is_float))
        and (a.property is b.property or a.id in knobs.properties)
        and (a.value == b.value or a.id in knobs.properties or is_shaped)
    )


def _change_kinds(ops: list[_Op], knobs: Knobs) -> None:
    for op in [op for op in ops if op.id in knobs.kinds]:
        kind = knobs.kinds[op.id]
        if kind is None:
            _delete(op, ops)
            continue
        schema = get_schema(kind)
        op.kind, op.attrs = kind, {name: value for name, value in op.attrs.items() if name in schema.attributes}
    for op in ops:
        schema = get_schema(op.kind)
        for side, counts, ports in (
            ("inputs", schema.input_counts, op.inputs), ("outputs", schema.output_counts, op.outputs),
        ):  # fmt: skip
            if len(ports) not in counts:
                what = f"{side} of {op.label}"
                accepted = f"{format_counts(counts)}, or another --op-kind"
                raise InvalidOpError(explain(what, accepted=accepted, got=len(ports)), op_id=op.id)


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
            tensor.shape, tensor.strides, tensor.value = shape.dims, None, None
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
    parameters = _parameters(ops, tensors)
    return [
        number for number, shape in shapes.items()
        if shape[:1] == first[:1] != () and (len(shape) > 1 or len(first) == 1)
        and tensors[number].property != "constant" and number not in parameters
    ]  # fmt: skip


def _parameters(ops: list[_Op], tensors: dict[int, _Tensor]) -> set[int]:
    """Tensors that their first reader, perhaps behind conversions, takes at a port that no batch arrives at."""
    parameters: set[int] = set()
    reader: dict[int, tuple[_Op, int]] = {}
    for op in ops:
        for port, number in enumerate(op.inputs):
            reader.setdefault(number, (op, port))
    for number, (op, port) in reversed(reader.items()):  # readers of what is computed come before
        if op.kind in CONVERSIONS and port == 0:
            is_parameter = op.outputs[0] in parameters
        elif op.kind == "MatMul":
            is_parameter = port == 2 or (port == 1 and len(tensors[number].shape or ()) < 3)
        else:
            is_parameter = port > ("Backward" in op.kind) and (op.kind in WITH_PARAMETERS or op.kind in NORMS)
        if is_parameter:
            parameters.add(number)
    return parameters


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
        op.attrs = get_schema(op.kind).complete(op.label, op.attrs)


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
        raise InvalidArgumentError(explain(what, accepted=known[name].accepted, got=brief(text))) from error


def _parse(kind: str, text: str) -> Any:
    if kind.endswith("[]"):
        return tuple(_parse(kind[:-2], item) for item in text.split("x") if item not in ("", "-"))
    if kind == "bool":
        return {"1": True, "true": True, "0": False, "false": False}[text]
    if kind == "s64":
        return int(text.partition(".")[0])  # as C reads an integer: up to the first character that is none
    return float(text) if kind == "f32" else text


def _infer(ops: list[_Op], tensors: dict[int, _Tensor], before: dict[int, tuple[int, ...] | None]) -> None:
    """Shapes of everything that is computed; strides stay where the shape does."""
    shapes: dict[int, tuple[int, ...] | None] = {number: tensors[number].shape for number in _graph_inputs(ops)}
    for op in ops:
        _fit_scales(op, shapes.get(op.inputs[0]) if op.inputs else None, before)
        lts = {n: LogicalTensor(n, tensors[n].dtype, shapes.get(n)) for n in (*op.inputs, *op.outputs)}
        made = Op(op.id, op.kind, [lts[n] for n in op.inputs], [lts[n] for n in op.outputs], op.name)
        shapes |= complete_shapes([made.with_attrs(op.attrs).checked()], trust_ops=False)
    for number, shape in shapes.items():
        if shape is not None and shape != tensors[number].shape:
            tensors[number].shape, tensors[number].strides = shape, None


def _fit_scales(op: _Op, shape: tuple[int, ...] | None, before: dict[int, tuple[int, ...] | None]) -> None:
    """Scales as powers of two, and one a channel where the shape has changed."""
    if op.kind not in ("Quantize", "Dequantize") or not op.attrs["scales"]:
        return
    scales, zps = op.attrs["scales"], op.attrs.get("zps") or ()
    count = len(scales)
    if op.attrs["qtype"] == "per_channel" and shape and shape != before[op.inputs[0]]:
        count = shape[op.attrs["axis"] % len(shape)]
    if count > MOST_SCALES:
        raise InvalidShapeError(explain(f"channels of {op.label}", accepted=f"at most {MOST_SCALES}", got=count))
    fitted = [_power_of_two(scale) for scale in scales]
    op.attrs["scales"] = tuple(fitted[k % len(fitted)] for k in range(count))
    if zps:
        op.attrs["zps"] = tuple(zps[k % len(zps)] for k in range(count))


def _power_of_two(scale: float) -> float:
    """The least one that is no smaller; anything that has none stays."""
    return 2.0 ** math.ceil(math.log2(scale)) if 0 < scale <= 2.0**1023 else scale


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


def _assemble(ops: list[_Op], tensors: dict[int, _Tensor]) -> list[Op]:
    used = {number for op in ops for number in (*op.inputs, *op.outputs)}
    lts = {
        number: LogicalTensor(
            number, tensor.dtype, tensor.shape, strides=tensor.strides, property=tensor.property, value=tensor.value
        )
        for number, tensor in tensors.items()
        if number in used
    }
    return [
        Op(op.id, op.kind, [lts[n] for n in op.inputs], [lts[n] for n in op.outputs], op.name).with_attrs(op.attrs)
        for op in ops
    ]
