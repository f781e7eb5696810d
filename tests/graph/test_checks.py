"""Every extra check of the table has an op that it refuses and one, close to it, that it accepts."""

from __future__ import annotations

from typing import Any

import pytest

from graphpool.errors import InvalidDataTypeError, InvalidOpError, InvalidShapeError
from graphpool.graph import checks
from graphpool.graph.schema import SCHEMAS
from tests.helpers.schema_cases import CONV, POOL, case, make_op

IMAGE, PARAM = "f32 2,8,8,4", "f32 4"
NORM_3 = ["f32 2,3", "f32 2", "f32 2"]


def test_every_check_is_used_by_a_row() -> None:
    used = {check.__name__ for schema in SCHEMAS.values() for check in schema.checks}
    public = {name for name, value in vars(checks).items() if getattr(value, "__module__", "") == checks.__name__}
    assert used == {name for name in public if not name.startswith("_")}


@pytest.mark.parametrize(
    ("kind", "inputs", "outputs", "attrs"),
    [
        ("MatMul", ["bf16 2,3", "bf16 3,4"], ["f32 2,4"], {}),
        ("MatMul", ["f16 2,3", "f16 3,4"], ["f16 2,4"], {}),
        ("SoftMax", ["bf16 2,3"], ["f32 2,3"], {}),
        ("SoftMax", ["f32 2,3"], ["f16 2,3"], {}),
        ("SoftMaxBackward", ["bf16 2,3", "bf16 2,3"], ["f32 2,3"], {}),
        ("TypeCast", ["bf16 2,3"], ["f16 2,3"], {}),
        ("TypeCast", ["f64 2,3"], ["boolean 2,3"], {}),
        ("Add", ["s32 2", "f32 2"], ["bf16 2"], {}),
        ("Divide", ["u64 2", "u64 2"], ["u64 2"], {}),
        ("ScatterND", ["boolean 3", "s32 2,1", "boolean 2"], ["boolean 3"], {}),
        ("LayerNorm", ["bf16 2,3", "bf16 3", "bf16 3"], ["bf16 2,3", "bf16 2", "bf16 2"], {}),
        ("LayerNorm", ["f16 2,3", "f32 3", "f32 3"], ["f16 2,3"], {"keep_stats": False}),
        ("LayerNorm", ["f32 2,3"], NORM_3, {}),
        ("RMSNorm", ["f16 2,3", "f16 3"], ["f16 2,3"], {}),
        ("BatchNormForwardTraining", [IMAGE, PARAM, PARAM], [IMAGE, *[PARAM] * 4], {"epsilon": 1.0}),
        ("LayerNormBackward", ["f32 2,3", "f32 2,3", "f32 2", "f32 2"], ["f32 2,3"], {"use_affine": False}),
        ("ReduceSum", ["f32 2,3", "s32 1"], ["f32 2"], {}),
        ("Interpolate", [IMAGE, "s32 2"], ["f32 2,?,?,4"], {"mode": "nearest"}),
        ("Interpolate", [IMAGE], ["f32 2,4,4,4"], {"mode": "nearest", "sizes": (4, 4), "scales": ()}),
        ("ConvolutionBackwardData", ["f32 2,6,6,6", "f32 3,3,4,6", "s32 4"], [IMAGE], CONV),
        ("AvgPoolBackward", ["f32 2,4,4,4", "s32 4"], [IMAGE], POOL | {"exclude_pad": True}),
        ("Convolution", [IMAGE, "f32 3,3,4,6"], ["f32 *"], CONV | {"auto_pad": "VALID", "pads_begin": ()}),
        ("MaxPool", ["f32 *"], ["f32 *"], POOL),
        ("Quantize", ["f32 2,3"], ["f8_e4m3 2,3"], {"scales": (1.0,), "zps": (0,)}),
        ("Quantize", ["f32 *"], ["u8 *"], {"scales": (1.0, 2.0), "qtype": "per_channel"}),
        ("Dequantize", ["s8 16,2,3"], ["f32 16,2,3"], {"scales": (1.0,) * 8, "qtype": "per_channel"}),
        ("DynamicQuantize", ["f32 2,3", "f32", "s32 1"], ["u8 2,3"], {}),
        ("DynamicQuantize", ["f32 2,3", "f32 3", "s32 1"], ["u8 2,3"], {"qtype": "per_channel"}),
        ("DynamicDequantize", ["s8 2,3", "f32 3", "s32"], ["f32 2,3"], {"qtype": "per_channel"}),
        ("DynamicDequantize", ["s4 *", "f16 2,2"], ["f16 *"], {"qtype": "per_group", "group_shape": (1, 4)}),
        (
            "DynamicDequantize",
            ["s4 2,8", "f16 2,2", "s8 1,1"],
            ["f16 *"],
            {"qtype": "per_group", "group_shape": (1, 4)},
        ),
    ],
)
def test_accepts(kind: str, inputs: list[str], outputs: list[str], attrs: dict[str, Any]) -> None:
    make_op(kind, inputs, outputs, **attrs).validate()


@pytest.mark.parametrize(
    ("kind", "inputs", "outputs", "message"),
    [
        ("MatMul", ["f32 2,3", "f32 3,4"], ["bf16 2,4"], '"dst" .* accepted: f32 or f32, as src is f32'),
        ("MatMul", ["bf16 2,3", "bf16 3,4"], ["f16 2,4"], "accepted: bf16 or f32.*got: f16"),
        ("SoftMax", ["bf16 2,3"], ["f16 2,3"], "accepted: bf16 or f32"),
        ("SoftMaxBackward", ["f32 2,3", "f32 2,3"], ["bf16 2,3"], '"diff_src"'),
        ("TypeCast", ["f32 2"], ["f32 2"], "accepted: another type than f32, that of src; got: f32; leave the op out"),
        ("Add", ["s64 2", "f32 2"], ["f32 2"], "accepted: s64, the type of src_0, or both of f32, bf16, f16, s32"),
        ("Multiply", ["f32 2", "f32 2"], ["s32 2"], "accepted: f32, the type of src_0, or both of f32, bf16, f16;"),
        ("RMSNorm", ["f32 2,3", "bf16 3"], ["f32 2,3"], "accepted: f32"),
        ("RMSNorm", ["bf16 2,3", "f16 3"], ["bf16 2,3"], "accepted: f32 or bf16, as src is bf16; got: f16"),
        ("LayerNorm", ["f32 2,3", "bf16 3", "bf16 3"], ["f32 2,3", "bf16 2", "bf16 2"], "parameters"),
        ("LayerNormBackward", ["f32 2,3", "f32 2,3", "bf16 2", "bf16 2"], ["f32 2,3"], "parameters"),
    ],
)
def test_types_that_do_not_go_together(kind: str, inputs: list[str], outputs: list[str], message: str) -> None:
    with pytest.raises(InvalidDataTypeError, match=message) as info:
        make_op(kind, inputs, outputs).validate()
    assert (info.value.op_id, info.value.op_kind) == (3, kind)
    assert info.value.tensor_id >= 10


@pytest.mark.parametrize(
    ("kind", "attrs", "message"),
    [
        ("LayerNorm", {"keep_stats": False}, "accepted: 1, as keep_stats=False; got: 3"),
        ("GroupNorm", {"keep_stats": False}, "accepted: 1, as keep_stats=False"),
        ("GroupNorm", {"groups": 0}, '"groups" is too small'),
        ("LayerNormBackward", {"use_affine": False}, "accepted: 1, as use_affine=False"),
        ("ReduceMax", {"axes": ()}, "exactly one of them; got: neither"),
        ("Interpolate", {"sizes": (3, 3)}, "got: attribute sizes and attribute scales"),
        ("Interpolate", {"scales": ()}, "got: none"),
        ("Interpolate", {"scales": (0.0, 1.0)}, "finite numbers above 0"),
        ("Interpolate", {"scales": (float("inf"), 1.0)}, "finite numbers above 0"),
        ("ConvolutionBackwardData", {"dst_shape": (0, 0, 0, 0)}, '"dst_shape" is required'),
        ("ConvolutionBackwardWeights", {"weights_shape": ()}, '"weights_shape" is required'),
        ("ConvTransposeBackwardWeights", {"weights_shape": ()}, '"weights_shape" is required'),
        ("AvgPoolBackward", {"src_shape": ()}, '"src_shape" is required'),
        ("Convolution", {"pads_begin": (0, -1)}, '"pads_begin" has a value that is too small; accepted: 0 or more'),
        ("Convolution", {"strides": (0, 1)}, '"strides" has a value that is too small; accepted: 1 or more'),
        ("Convolution", {"dilations": (1, 0)}, '"dilations" has a value'),
        ("Convolution", {"groups": 0}, '"groups" is too small; accepted: 1 or more; got: 0'),
        ("Convolution", {"strides": ()}, '"strides" has the wrong length; .* got: an empty list'),
        ("ConvTranspose", {"output_padding": (-1, 0)}, '"output_padding" has a value'),
        ("MaxPool", {"kernel": (2, 0)}, '"kernel" has a value'),
        ("MaxPool", {"kernel": ()}, '"kernel" is empty'),
        ("Quantize", {"scales": (1.0, 2.0)}, "accepted: 1 for qtype per_tensor; got: 2"),
        ("Quantize", {"scales": (float("nan"),)}, "finite numbers"),
        ("Quantize", {"zps": (1, 2)}, '"zps" has the wrong length; accepted: 1, as scales has; got: 2'),
        ("Dequantize", {"axis": 2}, '"axis" is out of range'),
        ("Dequantize", {"scales": (1.0, 2.0)}, "accepted: 3 for qtype per_channel; got: 2"),
        ("DynamicDequantize", {"group_shape": ()}, "required for qtype per_group"),
        ("DynamicDequantize", {"group_shape": (1, 3)}, "does not divide src"),
        ("DynamicDequantize", {"group_shape": (8,)}, "does not divide src"),
    ],
)
def test_attributes_that_contradict(kind: str, attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOpError, match=message) as info:
        case(kind, **attrs).validate()
    assert (info.value.op_id, info.value.op_kind) == (3, kind)


@pytest.mark.parametrize(
    ("kind", "inputs", "outputs", "attrs", "message"),
    [
        ("ReduceSum", ["f32 2,3", "s32 1"], ["f32 2"], {"axes": (1,)}, "got: both"),
        ("Interpolate", [IMAGE, "s32 2"], ["f32 *"], {"mode": "nearest", "sizes": (2, 2)}, "and input sizes"),
        ("AvgPoolBackward", ["f32 2,4,4,4", "s32 4"], [IMAGE],
         POOL | {"exclude_pad": True, "src_shape": (2, 8, 8, 4)}, "got: both"),
        ("LayerNorm", ["f32 2,3"], ["f32 2,3"], {}, "accepted: 3, as keep_stats=True; got: 1; set keep_stats=False"),
        ("LayerNormBackward", ["f32 2,3", "f32 2,3", "f32 2", "f32 2"], ["f32 2,3"], {}, "set use_affine=False"),
        ("Quantize", ["f32 2"], ["f8_e5m2 2"], {"scales": (1.0,), "zps": (1,)}, "does not go with f8_e5m2 data"),
        ("Dequantize", ["f8_e4m3 2"], ["f32 2"], {"scales": (1.0,), "zps": (1,)}, "does not go with f8_e4m3 data"),
    ],
)  # fmt: skip
def test_inputs_that_contradict_attributes(
    kind: str, inputs: list[str], outputs: list[str], attrs: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidOpError, match=message):
        make_op(kind, inputs, outputs, **attrs).validate()


@pytest.mark.parametrize(
    ("kind", "inputs", "attrs", "message"),
    [
        ("Convolution", [IMAGE, "f32 3,3,4,6"], CONV | {"strides": (1,)}, '"strides" has the wrong length'),
        ("MaxPool", [IMAGE], POOL | {"dilations": (1, 1, 1)}, '"dilations" has the wrong length; accepted: 2'),
        ("DynamicQuantize", ["f32 2,3", "f32 2"], {"qtype": "per_channel"}, r'"scales" .* accepted: \(3,\)'),
        ("DynamicQuantize", ["f32 2,3", "f32", "s32 2"], {}, r'"zps" .* accepted: \(1,\) for qtype per_tensor'),
        ("DynamicQuantize", ["f32 2,3", "f32 1"], {"qtype": "per_channel"}, r'"scales" .* accepted: \(3,\)'),
        ("DynamicQuantize", ["f32 2,3", "f32 3", "s32 2"], {"qtype": "per_channel"}, r'"zps" .* accepted: \(3,\)'),
        ("DynamicDequantize", ["u4 2,8", "f32 2,4"], {"qtype": "per_group", "group_shape": (1, 4)},
         r"accepted: \(2, 2\) for qtype per_group; got: \(2, 4\)"),
        ("DynamicDequantize", ["u4 2,8", "f32 2,2", "u8 1"], {"qtype": "per_group", "group_shape": (1, 4)},
         r'"zps" .* accepted: \(2, 2\) for qtype per_group; got: \(1,\)'),
    ],
)  # fmt: skip
def test_shapes_that_contradict_attributes(kind: str, inputs: list[str], attrs: dict[str, Any], message: str) -> None:
    dst = "s8" if kind == "DynamicQuantize" else "f32"
    with pytest.raises(InvalidShapeError, match=message):
        make_op(kind, inputs, [f"{dst} *"], **attrs).validate()
