"""Stand-ins for tensors and ops, and one minimal valid op for each kind of the table."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from graphpool.graph.schema import get_schema
from graphpool.typing import UNKNOWN_DIM, DataType, PropertyType
from tests.helpers.kinds import BINARY, GRADIENTS, UNARY, accepted, fixed_result, required


@dataclass(frozen=True)
class FakeTensor:
    """What a schema reads of a logical tensor."""

    id: int
    dtype: DataType
    shape: tuple[int, ...] | None
    property: PropertyType = PropertyType.UNDEF


@dataclass(frozen=True)
class FakeOp:
    """What a schema reads of an op."""

    kind: str
    inputs: tuple[FakeTensor, ...]
    outputs: tuple[FakeTensor, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    id: int = 3
    name: str = "n"

    @property
    def label(self) -> str:
        """How messages name the op."""
        return f'op {self.id} "{self.name}" ({self.kind})'

    def infer(self, values: dict[int, Any] | None = None) -> list[tuple[int, ...] | None]:
        """Shapes of the outputs, when the op gives none for them."""
        blank = replace(self, outputs=tuple(replace(tensor, shape=None) for tensor in self.outputs))
        return get_schema(self.kind).infer_shapes(blank, [tensor.shape for tensor in self.inputs], values)

    def agrees_with(self, shapes: list[tuple[int, ...] | None]) -> bool:
        """Whether the op's outputs have these shapes, as far as both are known."""
        pairs = [(a, b.shape) for a, b in zip(shapes, self.outputs, strict=True) if None not in (a, b.shape)]
        return all(
            len(a) == len(b) and all(UNKNOWN_DIM in (x, y) or x == y for x, y in zip(a, b, strict=True))
            for a, b in pairs
        )

    def validate(self) -> None:
        """Run the schema's validation."""
        get_schema(self.kind).validate(self)


def tensor(text: str, index: int) -> FakeTensor:
    """A tensor from text such as ``f32 2,3``, ``bf16 2,?``, ``s32`` (0-D), ``f32 *`` (unknown rank)."""
    dtype, _, dims = text.partition(" ")
    shape = None if dims == "*" else tuple(UNKNOWN_DIM if dim == "?" else int(dim) for dim in dims.split(",") if dim)
    return FakeTensor(index, DataType(dtype), shape)


def make_op(kind: str, inputs: list[str], outputs: list[str], **attrs: Any) -> FakeOp:
    """An op with completed attributes; inputs have ids from 10 on, outputs from 20 on."""
    ins = tuple(tensor(text, 10 + i) for i, text in enumerate(inputs))
    outs = tuple(tensor(text, 20 + i) for i, text in enumerate(outputs))
    return FakeOp(kind, ins, outs, get_schema(kind).complete(f'op 3 "n" ({kind})', attrs))


CONV = {"strides": (1, 1), "pads_begin": (0, 0), "pads_end": (0, 0), "dilations": (1, 1)}
POOL = {"strides": (2, 2), "pads_begin": (0, 0), "pads_end": (0, 0), "kernel": (2, 2)}
X, XX = ["f32 2,3"], ["f32 2,3", "f32 2,3"]
BROADCAST = ["f32 2,1", "f32 3"]
IMAGE, PARAM = "f32 2,8,8,4", "f32 4"

Given = tuple[dict[str, Any], list[str], list[str]]
"""Attributes, inputs, outputs."""


def _elementwise(kind: str, *shapes: str) -> Given:
    """Inputs of these shapes, in f32 where the kind takes it."""
    dtype = "f32" if "f32" in accepted(kind) else accepted(kind)[0]
    return required(kind), [f"{dtype} {shape}" for shape in shapes], [f"{fixed_result(kind) or dtype} 2,3"]


CASES: dict[str, Given] = {
    **{kind: _elementwise(kind, "2,3") for kind in UNARY},
    **{kind: _elementwise(kind, "2,3", "2,3") for kind in GRADIENTS},
    **{kind: _elementwise(kind, "2,1", "3") for kind in BINARY},
    "Select": ({}, ["boolean 3", *BROADCAST], X),
    "BiasAdd": ({}, [IMAGE, PARAM], [IMAGE]),
    "BiasAddBackward": ({}, [IMAGE], [PARAM]),
    "PReLU": ({}, [IMAGE, PARAM], [IMAGE]),
    "PReLUBackward": ({}, [IMAGE, PARAM, IMAGE], [IMAGE, PARAM]),
    "Dropout": ({}, ["f32 2,3", "s64", "s64", "f32"], ["f32 2,3", "u8 2,3"]),
    "MatMul": ({}, ["f32 2,5,3", "f32 3,4", PARAM], ["f32 2,5,4"]),
    "Convolution": (CONV, [IMAGE, "f32 3,3,4,6", "f32 6"], ["f32 2,6,6,6"]),
    "ConvolutionBackwardData": (CONV | {"dst_shape": (2, 8, 8, 4)}, ["f32 2,6,6,6", "f32 3,3,4,6"], [IMAGE]),
    "ConvolutionBackwardWeights":
        (CONV | {"weights_shape": (3, 3, 4, 6)}, [IMAGE, "f32 2,6,6,6"], ["f32 3,3,4,6"]),
    "ConvTranspose": (CONV, [IMAGE, "f32 3,3,6,4", "f32 6"], ["f32 2,10,10,6"]),
    "ConvTransposeBackwardData": (CONV, ["f32 2,10,10,6", "f32 3,3,6,4"], [IMAGE]),
    "ConvTransposeBackwardWeights":
        (CONV | {"weights_shape": (3, 3, 6, 4)}, [IMAGE, "f32 2,10,10,6"], ["f32 3,3,6,4"]),
    "AvgPool": (POOL | {"exclude_pad": False}, [IMAGE], ["f32 2,4,4,4"]),
    "AvgPoolBackward": (POOL | {"exclude_pad": False, "src_shape": (2, 8, 8, 4)}, ["f32 2,4,4,4"], [IMAGE]),
    "MaxPool": (POOL, [IMAGE], ["f32 2,4,4,4"]),
    "MaxPoolBackward": (POOL, [IMAGE, "f32 2,4,4,4"], [IMAGE]),
    "Interpolate": ({"mode": "nearest", "scales": (2, 0.5)}, [IMAGE], ["f32 2,16,4,4"]),
    "InterpolateBackward": ({"mode": "linear", "sizes": (5, 7)}, [IMAGE, "f32 2,5,7,4"], [IMAGE]),
    "BatchNormInference": ({"epsilon": 1e-5}, [IMAGE, *[PARAM] * 4], [IMAGE]),
    "BatchNormForwardTraining": ({"epsilon": 1e-5}, [IMAGE, *[PARAM] * 4], [IMAGE, *[PARAM] * 4]),
    "BatchNormTrainingBackward": ({"epsilon": 1e-5}, [IMAGE, IMAGE, *[PARAM] * 3], [IMAGE, PARAM, PARAM]),
    "LayerNorm": ({}, ["f32 2,5,3", "f32 3", "f32 3"], ["f32 2,5,3", "f32 2,5", "f32 2,5"]),
    "LayerNormBackward":
        ({}, ["f32 2,5,3", "f32 2,5,3", "f32 2,5", "f32 2,5", "f32 3", "f32 3"], ["f32 2,5,3", "f32 3", "f32 3"]),
    "GroupNorm": ({"groups": 2}, [IMAGE, PARAM, PARAM], [IMAGE, "f32 2,2", "f32 2,2"]),
    "RMSNorm": ({"begin_norm_axis": 1}, ["f32 2,5,3", "f32 5,3"], ["f32 2,5,3"]),
    "SoftMax": ({}, X, ["f32 2,3", "f32 2,1"]),
    "SoftMaxBackward": ({}, XX, X),
    "LogSoftmax": ({}, X, X),
    "LogSoftmaxBackward": ({}, XX, X),
    **{f"Reduce{name}": ({"axes": (-1,)}, ["f32 2,5,3"], ["f32 2,5"])
       for name in ("L1", "L2", "Max", "Mean", "Min", "Prod", "Sum")},
    "Reorder": ({}, X, X),
    "Concat": ({"axis": 1}, ["f32 2,3", "f32 2,4", "f32 2,1"], ["f32 2,8"]),
    "StaticReshape": ({"shape": (0, -1), "special_zero": True}, ["f32 2,5,3"], ["f32 2,15"]),
    "StaticTranspose": ({"order": (2, 0, 1)}, ["f32 2,5,3"], ["f32 3,2,5"]),
    "TypeCast": ({}, X, ["bf16 2,3"]),
    "GenIndex": ({"axis": -1}, X, ["s32 2,3"]),
    "Quantize": ({"scales": (0.5,), "zps": (3,)}, X, ["u8 2,3"]),
    "Dequantize": ({"scales": (0.5, 1, 2), "zps": (3, 0, 0), "qtype": "per_channel"}, ["s8 2,3"], X),
    "DynamicQuantize": ({"qtype": "per_channel"}, ["f32 2,3", "f32 3"], ["s8 2,3"]),
    "DynamicDequantize":
        ({"qtype": "per_group", "group_shape": (1, 4)}, ["u4 2,8", "bf16 2,2", "u4 2,2"], ["bf16 2,8"]),
    "Expand": ({"shape": (4, 1, 3)}, ["f32 2,1"], ["f32 4,2,3"]),
    "Gather": ({"axis": 1}, ["f32 2,5,3", "s64 4,6"], ["f32 2,4,6,3"]),
    "GatherElements": ({"axis": 1}, ["f32 2,5,3", "s64 2,4,3"], ["f32 2,4,3"]),
    "GatherND": ({"batch_dims": 1}, ["f32 2,5,3,4", "s64 2,7,2"], ["f32 2,7,4"]),
    "OneHot": ({"depth": 5}, ["s64 2,3", "f32 2"], ["f32 2,3,5"]),
    "Pad": ({"pads_begin": (1, 0), "pads_end": (-1, 2)}, X, ["f32 2,5"]),
    "ReverseSequence": ({}, ["f32 5,2,3", "s64 2"], ["f32 5,2,3"]),
    "RotaryEmbedding": ({}, ["f32 2,4,3,8", "f32 9,4", "f32 9,4", "s64 2,3"], ["f32 2,4,3,8"]),
    "ScatterElements": ({"reduction": "add"}, ["f32 5,3", "s64 2,2", "f32 2,2"], ["f32 5,3"]),
    "ScatterND": ({}, ["f32 5,3", "s64 2,1", "f32 2,3"], ["f32 5,3"]),
    "Slice": ({"starts": (3, 0), "ends": (-9, 2), "axes": (1, -1), "steps": (-2, 1)}, ["f32 2,5,3"], ["f32 2,2,2"]),
    "Split": ({"axis": 1}, ["f32 2,5"], ["f32 2,2", "f32 2,2", "f32 2,1"]),
    "Tile": ({"repeats": (2, 3)}, X, ["f32 4,9"]),
    "Trilu": ({"k": -1}, X, X),
    **dict.fromkeys(("ArgMax", "ArgMin"), ({"axis": 1, "keep_dims": False}, ["f32 2,5,3"], ["s64 2,3"])),
    **dict.fromkeys(("CumProd", "CumSum"), ({"axis": 1}, X, X)),
    "TopK": ({"k": 2}, ["f32 2,5"], ["f32 2,2", "s64 2,2"]),
    "FindNonZero": ({}, ["f32 2,3"], ["s64 12", "s64 1"]),
    "SelectBoxes": ({"max_boxes": 4, "iou_threshold": 0.3}, ["f32 2,5,4", "f32 2,3,5"], ["s64 72", "s64 1"]),
    "RoiAlign": ({"output_height": 2, "output_width": 3, "sampling_ratio": 2},
                 ["f32 2,3,5,7", "f32 4,4", "s64 4"], ["f32 4,3,2,3"]),
    "Recurrent": (
        {"cell": "lstm", "direction": "bidirectional"},
        ["f32 5,2,24", "f32 2,3,12", "f32 2,24", "s32 2", "f32 2,2,3", "f32 2,1,3", "f32 2,9"],
        ["f32 5,2,2,3", "f32 2,2,3", "f32 2,2,3"]),
    "DynamicQuantizeLinear": ({}, X, ["u8 2,3", "f32", "u8"]),
    "TreeEnsemble":
        ({}, ["f32 7,3", "f32 5", "s32 5,3", "s32 2", "f32 4", "s32 4", "f32 2"], ["f32 7,2"]),
    "CouplePairs": ({}, ["f32 7,3"], ["f32 7,3"]),
    "End": ({}, X, []),
    "Wildcard": ({}, ["f32 2,3", "s64"], ["boolean 4"]),
}  # fmt: skip


def case(kind: str, **attrs: Any) -> FakeOp:
    """The minimal valid op of a kind, with other attributes where given."""
    given, inputs, outputs = CASES[kind]
    return make_op(kind, inputs, outputs, **(given | attrs))
