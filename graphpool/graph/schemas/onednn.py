"""The op table: oneDNN Graph's 88 kinds, one row each.

A row is a call of `row`, or of a family that fixes what its rows share. Ports are written ``name:variable``, types
``variable -> types``; counts are given where ports are optional. The sections are the categories of the reference page
that ``docs/generate_ops.py`` writes.

Kinds that only move elements take every type of whole bytes, and arithmetic takes every number, where oneDNN takes
few: `WIDER` says so on the page.
"""

from __future__ import annotations

import sys
from functools import cache, partial
from typing import TYPE_CHECKING

from graphpool.graph import checks as c
from graphpool.typing import DataType

from . import rules_basic as b
from . import rules_norm as n
from . import rules_spatial as s
from .attributes import Attribute
from .model import OpSchema, Port

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from graphpool.graph.op import Op

    from .query import Shape, ShapeQuery


@cache
def _ports(text: str) -> tuple[Port, ...]:
    return tuple(Port(*item.split(":")) for item in text.split())


@cache
def _types(text: str) -> frozenset[DataType]:
    return frozenset(map(DataType, text.split()))


def row(
    kind: str, doc: str, *attributes: Attribute, category: str, inputs: str, outputs: str, types: Mapping[str, str],
    infer: Callable[[ShapeQuery], Sequence[Shape]], checks: tuple[Callable[[Op], None], ...] = (),
    commutative: tuple[tuple[int, int], ...] = (), input_counts: tuple[int, ...] | range | None = None,
    output_counts: tuple[int, ...] | range | None = None, differences: str = "",
) -> OpSchema:  # fmt: skip
    """One row; ports and types are written as text, and counts default to all ports."""
    ins, outs = _ports(inputs), _ports(outputs)
    counts = [given if isinstance(given, range) else frozenset(given or (len(ports),))
              for given, ports in ((input_counts, ins), (output_counts, outs))]  # fmt: skip
    sets = {name: _types(text) for name, text in types.items()}
    return OpSchema(
        kind=kind, category=category, doc=doc, inputs=ins, input_counts=counts[0], outputs=outs,
        output_counts=counts[1], types=sets, attributes={item.name: item for item in attributes}, infer=infer,
        checks=checks, commutative=commutative, differences=differences,
    )  # fmt: skip


FLOAT = "f32 bf16 f16"
FLOATS = f"{FLOAT} f64"
NUMBERS = f"{FLOATS} s8 s16 s32 s64 u8 u16 u32 u64"
BYTES = f"{NUMBERS} boolean f8_e5m2 f8_e4m3"
T = {"T": FLOAT}
T_T1_SAME = {"T1": FLOAT, "T2": "s32"}
NORM = {"T1": FLOAT, "T2": "f32 bf16"}

# Attributes that several kinds share. Lists of 12 are defaults that are cut to the rank at hand.
WIDER = "Types beyond f32, bf16, f16 and s32 are accepted."
ALPHA, BETA = Attribute("alpha", "f32", True), Attribute("beta", "f32", True)
BETA_1 = Attribute("beta", "f32", default=1.0)
MIN, MAX = Attribute("min", "f32", True), Attribute("max", "f32", True)
USE_DST = Attribute("use_dst", "bool", default=True)
GELU_MODE = Attribute("mode", "str", default="gelu_erf", choices=("gelu_erf", "gelu_tanh"))
AUTO_BROADCAST = Attribute("auto_broadcast", "str", default="numpy", choices=("none", "numpy"))
DATA_FORMAT = Attribute("data_format", "str", default="NXC", choices=("NXC", "NCX"))
XIO = Attribute("weights_format", "str", default="XIO", choices=("XIO", "OIX"))
XOI = Attribute("weights_format", "str", default="XOI", choices=("XOI", "IOX"))
STRIDES, KERNEL = Attribute("strides", "s64[]", True), Attribute("kernel", "s64[]", True)
PADS = (Attribute("pads_begin", "s64[]", True), Attribute("pads_end", "s64[]", True),
        Attribute("auto_pad", "str", choices=("None", "SAME_UPPER", "SAME_LOWER", "VALID")))  # fmt: skip
WINDOW = (STRIDES, *PADS, Attribute("dilations", "s64[]", True), Attribute("groups", "s64", default=1), DATA_FORMAT)
POOL = (STRIDES, *PADS, KERNEL, DATA_FORMAT)
DILATIONS_1 = Attribute("dilations", "s64[]", default=(1,) * 12)
OUTPUT_PADDING = Attribute("output_padding", "s64[]", default=(0,) * 12)
DST_SHAPE = Attribute("dst_shape", "s64[]", default=(0,) * 12)
WEIGHTS_SHAPE = Attribute("weights_shape", "s64[]", default=(0,) * 12)
SRC_SHAPE = Attribute("src_shape", "s64[]", default=(0,) * 12)
EXCLUDE_PAD = Attribute("exclude_pad", "bool", True)
ROUNDING = Attribute("rounding_type", "str", default="floor", choices=("floor", "ceil"))
RESAMPLING = (
    Attribute("mode", "str", True, choices=("nearest", "linear", "bilinear", "trilinear")),
    Attribute("sizes", "s64[]"), Attribute("scales", "f32[]"),
    Attribute("coordinate_transformation_mode", "str", default="half_pixel", choices=("half_pixel", "align_corners")),
    DATA_FORMAT,
)  # fmt: skip
EPSILON, EPSILON_5 = Attribute("epsilon", "f32", True), Attribute("epsilon", "f32", default=1e-5)
BEGIN_NORM_AXIS = Attribute("begin_norm_axis", "s64", default=-1)
KEEP_STATS, USE_AFFINE = Attribute("keep_stats", "bool", default=True), Attribute("use_affine", "bool", default=True)
AXIS, AXIS_1 = Attribute("axis", "s64", True), Attribute("axis", "s64", default=1)
AXIS_LAST = Attribute("axis", "s64", default=-1)
PER_TENSOR = Attribute("qtype", "str", default="per_tensor", choices=("per_tensor", "per_channel"))
PER_GROUP = Attribute("qtype", "str", default="per_tensor", choices=("per_tensor", "per_channel", "per_group"))
SCALES, ZPS = Attribute("scales", "f32[]", True), Attribute("zps", "s64[]")

unary = partial(
    row, category="Element-wise, one input", inputs="src:T", outputs="dst:T", types=T, infer=b.identity,
)  # fmt: skip
real = partial(unary, types={"T": FLOATS}, differences=WIDER)
UNARY = (
    unary("Abs", "Absolute value.", types={"T": NUMBERS}, differences=WIDER),
    real("Clamp", "Limits each element to [min, max].", MIN, MAX),
    unary("Elu", "x for x > 0, else alpha (exp(x) - 1).", ALPHA),
    real("Exp", "Exponential function."),
    unary("GELU", "x times the normal distribution function of x, or its tanh form.", GELU_MODE),
    unary("HardSigmoid", "alpha x + beta, limited to [0, 1].", ALPHA, BETA),
    unary("HardSwish", "x times (x + 3) / 6, the factor limited to [0, 1]."),
    unary("LeakyReLU", "x for x > 0, else alpha x.", ALPHA),
    real("Log", "Natural logarithm."),
    unary("Mish", "x tanh(log(1 + exp(x)))."),
    unary("Pow", "x to the power beta, one number for all elements.", BETA),
    unary("ReLU", "max(x, 0)."),
    real("Reciprocal", "1 / x."),
    real("Round", "Nearest integer, halves to the even one."),
    real("Sigmoid", "1 / (1 + exp(-x))."),
    unary("SoftPlus", "log(1 + exp(beta x)) / beta.", BETA_1),
    real("Sqrt", "Square root."),
    real("Square", "x times x."),
    real("Tanh", "Hyperbolic tangent."),
)

unary_backward = partial(
    row, category="Element-wise, gradients", inputs="src:T diff_dst:T", outputs="diff_src:T", types=T,
    infer=b.same_inputs,
)  # fmt: skip
by_src_or_dst = partial(unary_backward, inputs="src_or_dst:T diff_dst:T")
UNARY_BACKWARD = (
    unary_backward("AbsBackward", "Gradient of Abs."),
    by_src_or_dst("ClampBackward", "Gradient of Clamp, from its input or its output.", MIN, MAX, USE_DST),
    by_src_or_dst("EluBackward", "Gradient of Elu, from its input or its output.", ALPHA, USE_DST),
    unary_backward("GELUBackward", "Gradient of GELU.", GELU_MODE),
    unary_backward("HardSigmoidBackward", "Gradient of HardSigmoid.", ALPHA, BETA),
    unary_backward("HardSwishBackward", "Gradient of HardSwish."),
    unary_backward("MishBackward", "Gradient of Mish."),
    by_src_or_dst("ReLUBackward", "Gradient of ReLU, from its input or its output.", USE_DST),
    by_src_or_dst("SigmoidBackward", "Gradient of Sigmoid, from its input or its output.", USE_DST),
    unary_backward("SoftPlusBackward", "Gradient of SoftPlus.", BETA_1),
    by_src_or_dst("SqrtBackward", "Gradient of Sqrt, from its input or its output.", USE_DST),
    by_src_or_dst("TanhBackward", "Gradient of Tanh, from its input or its output.", USE_DST),
)

binary = partial(
    row, category="Element-wise, several inputs", inputs="src_0:T src_1:T", outputs="dst:T", types=T, infer=b.binary,
    differences=WIDER,
)  # fmt: skip
mixed = partial(
    binary, inputs="src_0:T1 src_1:T2", outputs="dst:T3", types=dict.fromkeys(("T1", "T2", "T3"), NUMBERS),
    checks=(c.arithmetic_types,),
)  # fmt: skip
SWAP = ((0, 1),)
several = partial(row, category="Element-wise, several inputs")
BINARY = (
    mixed("Add", "Sum; integers wrap.", AUTO_BROADCAST, commutative=SWAP),
    mixed("Divide", "Quotient; of integers it is cut off, and by 0 it is 0.", AUTO_BROADCAST),
    binary("GreaterEqual", "Whether src_0 >= src_1.", AUTO_BROADCAST, inputs="src_0:T1 src_1:T1", outputs="dst:T2",
           types={"T1": NUMBERS, "T2": "boolean"}),
    binary("Maximum", "The larger of both.", AUTO_BROADCAST, types={"T": NUMBERS}, commutative=SWAP),
    binary("Minimum", "The smaller of both.", AUTO_BROADCAST, types={"T": NUMBERS}, commutative=SWAP),
    mixed("Multiply", "Product; integers wrap.", AUTO_BROADCAST, commutative=SWAP),
    binary("SquaredDifference", "(src_0 - src_1) squared.", AUTO_BROADCAST, differences=""),
    mixed("Subtract", "Difference; integers wrap.", AUTO_BROADCAST),
    several("Select", "src_0 where cond is true, else src_1.", AUTO_BROADCAST, inputs="cond:T1 src_0:T2 src_1:T2",
            outputs="dst:T2", types={"T1": "boolean", "T2": BYTES}, infer=b.select, commutative=((1, 2),),
            differences=WIDER),
    several("BiasAdd", "Adds one number to each channel.", DATA_FORMAT, inputs="src:T bias:T", outputs="dst:T",
            types=T, infer=b.bias_add),
    several("BiasAddBackward", "Gradient of BiasAdd for its bias: the sum over everything but channels.", DATA_FORMAT,
            inputs="diff_dst:T", outputs="diff_bias:T", types=T, infer=b.bias_add_backward,
            differences="diff_dst may have 2 or more dimensions; oneDNN wants at least 4."),
    several("PReLU", "x for x > 0, else slope x.", DATA_FORMAT,
            Attribute("per_channel_broadcast", "bool", default=True), inputs="src:T slope:T", outputs="dst:T", types=T,
            infer=b.prelu),
    several("PReLUBackward", "Gradients of PReLU for its input and its slope.", DATA_FORMAT,
            inputs="src:T slope:T diff_dst:T", outputs="diff_src:T diff_slope:T", types=T, infer=b.prelu_backward),
    several("Dropout", "Zeroes elements at random and scales the others by 1 / (1 - probability).",
            inputs="src:T seed:T_seed offset:T_offset probability:T_p", outputs="dst:T mask:T_mask",
            output_counts=(1, 2), infer=b.dropout,
            types={"T": FLOAT, "T_seed": "s64", "T_offset": "s64", "T_p": "f32", "T_mask": "u8"}),
)  # fmt: skip

conv = partial(row, category="Matrix products and convolutions", infer=s.conv, checks=(c.windows, c.groups))
forward = partial(conv, inputs="src:T weights:T bias:T", outputs="dst:T", input_counts=(2, 3), types=T)
gradient = partial(conv, checks=(c.windows, c.groups, c.shape_source), input_counts=(2, 3), types=T_T1_SAME)
ONE_SOURCE = "Attribute and input must not both give the shape."
CONVOLUTION = (
    row("MatMul", "Matrix product, batched over leading dimensions.", Attribute("transpose_a", "bool", default=False),
        Attribute("transpose_b", "bool", default=False),
        Attribute("accumulation_mode", "str", default="strict",
                  choices=("strict", "relaxed", "any", "f32", "s32", "f16")),
        Attribute("fpmath", "str", choices=("strict", "int8")),
        category="Matrix products and convolutions", inputs="src:T weights:T bias:T", input_counts=(2, 3),
        outputs="dst:T1", types={"T": FLOATS, "T1": FLOATS}, infer=b.matmul, checks=(c.result_types,),
        differences="The attribute fpmath, in place of the graph's, and f64 are extensions."),
    forward("Convolution", "Convolution in 1 to 10 spatial dimensions.", *WINDOW, XIO),
    gradient("ConvolutionBackwardData", "Gradient of Convolution for its input.", OUTPUT_PADDING, DST_SHAPE, *WINDOW,
             XIO, inputs="diff_dst:T1 weights:T1 dst_shape:T2", outputs="diff_src:T1", infer=s.conv_backward_data,
             differences=ONE_SOURCE),
    gradient("ConvolutionBackwardWeights", "Gradient of Convolution for its weights.", WEIGHTS_SHAPE, *WINDOW, XIO,
             inputs="src:T1 diff_dst:T1 weights_shape:T2", outputs="diff_weights:T1", infer=s.conv_backward_weights,
             differences=ONE_SOURCE),
    forward("ConvTranspose", "Transposed convolution in 1 to 10 spatial dimensions.", OUTPUT_PADDING, *WINDOW, XOI,
            infer=s.conv_transpose),
    conv("ConvTransposeBackwardData", "Gradient of ConvTranspose for its input.", *WINDOW, XOI,
         inputs="diff_dst:T weights:T", outputs="diff_src:T", types=T, infer=s.conv_transpose_backward_data),
    gradient("ConvTransposeBackwardWeights", "Gradient of ConvTranspose for its weights.", WEIGHTS_SHAPE, *WINDOW, XOI,
             inputs="src:T1 diff_dst:T1 weights_shape:T2", outputs="diff_weights:T1",
             infer=s.conv_transpose_backward_weights, differences=ONE_SOURCE),
)  # fmt: skip

pool = partial(
    row, category="Pooling and interpolation", inputs="src:T", outputs="dst:T", types=T, infer=s.pool,
    checks=(c.windows, c.pool_kernel),
)  # fmt: skip
resample = partial(pool, types=T_T1_SAME, checks=(c.interpolate_sizes,))
ROUNDED = "An unknown rounding_type is refused."
POOLING = (
    pool("AvgPool", "Mean over windows.", *POOL, EXCLUDE_PAD, ROUNDING, differences=ROUNDED),
    pool("AvgPoolBackward", "Gradient of AvgPool.", *POOL, EXCLUDE_PAD, SRC_SHAPE, inputs="diff_dst:T src_shape:T1",
         outputs="diff_src:T", input_counts=(1, 2), types={"T": FLOAT, "T1": "s32"}, infer=s.pool_backward_src_shape,
         checks=(c.windows, c.pool_kernel, c.shape_source), differences=ONE_SOURCE),
    pool("MaxPool", "Maximum over windows.", *POOL, DILATIONS_1, ROUNDING, differences=ROUNDED),
    pool("MaxPoolBackward", "Gradient of MaxPool.", *POOL, DILATIONS_1, inputs="src:T diff_dst:T",
         outputs="diff_src:T", infer=s.pool_backward_src),
    resample("Interpolate", "Resizes spatial dimensions, by nearest or linear interpolation.", *RESAMPLING,
             inputs="src:T1 sizes:T2", outputs="dst:T1", input_counts=(1, 2), infer=s.interpolate),
    resample("InterpolateBackward", "Gradient of Interpolate.", *RESAMPLING, inputs="src:T1 diff_dst:T1 sizes:T2",
             outputs="diff_src:T1", input_counts=(2, 3), infer=s.interpolate_backward),
)  # fmt: skip

norm = partial(row, category="Normalisation", types=NORM, checks=(c.norm_types,))
ANY_AXIS = "Any begin_norm_axis is computed, not only the last one."
NORMALISATION = (
    norm("BatchNormInference", "Normalises each channel by given statistics.", EPSILON, DATA_FORMAT,
         inputs="src:T1 gamma:T2 beta:T2 mean:T2 variance:T2", outputs="dst:T1", infer=n.batch_norm_inference),
    norm("BatchNormForwardTraining", "Normalises each channel by the batch's statistics, and updates running ones.",
         EPSILON, Attribute("momentum", "f32"), DATA_FORMAT,
         inputs="src:T1 mean:T2 variance:T2 gamma:T2 beta:T2", input_counts=(3, 4, 5),
         outputs="dst:T1 running_mean:T2 running_variance:T2 batch_mean:T2 batch_variance:T2",
         infer=n.batch_norm_training),
    norm("BatchNormTrainingBackward", "Gradients of BatchNormForwardTraining.", EPSILON, DATA_FORMAT,
         inputs="src:T1 diff_dst:T1 mean:T2 variance:T2 gamma:T2", input_counts=(4, 5),
         outputs="diff_src:T1 diff_gamma:T2 diff_beta:T2", output_counts=(1, 2, 3), infer=n.batch_norm_backward,
         differences="src may have 2 or more dimensions; oneDNN wants at least 4."),
    norm("LayerNorm", "Normalises over the dimensions from begin_norm_axis on.", KEEP_STATS, BEGIN_NORM_AXIS,
         USE_AFFINE, EPSILON_5, inputs="src:T1 gamma:T2 beta:T2", input_counts=(1, 3),
         outputs="dst:T1 mean:T2 variance:T2", output_counts=(1, 3), infer=n.layer_norm,
         checks=(c.norm_types, c.norm_outputs),
         differences=f"{ANY_AXIS} The affine part is computed where use_affine is true and its inputs are given. With "
         "keep_stats=false more than one output is refused."),
    norm("LayerNormBackward", "Gradients of LayerNorm.", BEGIN_NORM_AXIS, USE_AFFINE, EPSILON_5,
         inputs="src:T1 diff_dst:T1 mean:T2 variance:T2 gamma:T2 beta:T2", input_counts=(4, 5, 6),
         outputs="diff_src:T1 diff_gamma:T2 diff_beta:T2", output_counts=(1, 3), infer=n.layer_norm_backward,
         checks=(c.norm_types, c.norm_outputs),
         differences="With use_affine=false more than one output is refused."),
    norm("GroupNorm", "Normalises each group of channels.", KEEP_STATS, Attribute("groups", "s64", True), USE_AFFINE,
         EPSILON_5, DATA_FORMAT, inputs="src:T1 gamma:T2 beta:T2", input_counts=(1, 3),
         outputs="dst:T1 mean:T2 variance:T2", output_counts=(1, 3), infer=n.group_norm,
         checks=(c.norm_types, c.norm_outputs, c.groups),
         differences="With keep_stats=false more than one output is refused."),
    norm("RMSNorm", "Divides by the root mean square over the dimensions from begin_norm_axis on.", BEGIN_NORM_AXIS,
         EPSILON_5, inputs="src:T1 gamma:T2", input_counts=(1, 2), outputs="dst:T1",
         types={"T1": FLOAT, "T2": FLOAT}, infer=n.rms_norm, differences=ANY_AXIS),
)  # fmt: skip

soft = partial(row, category="Softmax", types=T)
SOFTMAX = (
    soft("SoftMax", "exp(x), divided by its sum along axis.", AXIS_1,
         Attribute("mode", "str", default="none", choices=("none", "inf_as_zero")), inputs="src:T1",
         outputs="dst:T2 stats:T3", output_counts=(1, 2), types={"T1": FLOAT, "T2": FLOAT, "T3": "f32"},
         infer=n.softmax, checks=(c.softmax_types,)),
    soft("SoftMaxBackward", "Gradient of SoftMax, from its output.", AXIS_1, inputs="diff_dst:T1 dst:T1",
         outputs="diff_src:T2", types={"T1": FLOAT, "T2": FLOAT}, infer=n.softmax_backward,
         checks=(c.result_types,)),
    soft("LogSoftmax", "Logarithm of SoftMax; its axis defaults to the last one.", AXIS_LAST, inputs="src:T",
         outputs="dst:T", infer=n.softmax),
    soft("LogSoftmaxBackward", "Gradient of LogSoftmax, from its output.", AXIS_LAST, inputs="diff_dst:T dst:T",
         outputs="diff_src:T", infer=n.softmax_backward),
)  # fmt: skip

AXES_TENSOR = "Axes may come as a tensor; exactly one of attribute and tensor is accepted."
T_NUMBER = {"T1": NUMBERS, "T2": "s32"}
reduction = partial(
    row, category="Reductions", inputs="src:T1 axes:T2", input_counts=(1, 2), outputs="dst:T1", types=T_T1_SAME,
    infer=b.reduce, checks=(c.reduce_axes,),
    differences=AXES_TENSOR,
)  # fmt: skip
REDUCE = (Attribute("axes", "s64[]", default=()), Attribute("keep_dims", "bool", default=False))
REDUCTION = (
    reduction("ReduceL1", "Sum of absolute values.", *REDUCE),
    reduction("ReduceL2", "Root of the sum of squares.", *REDUCE),
    reduction("ReduceMax", "Maximum.", *REDUCE, types=T_NUMBER, differences=f"{AXES_TENSOR} {WIDER}"),
    reduction("ReduceMean", "Mean.", *REDUCE),
    reduction("ReduceMin", "Minimum.", *REDUCE, types=T_NUMBER, differences=f"{AXES_TENSOR} {WIDER}"),
    reduction("ReduceProd", "Product.", *REDUCE, types=T_NUMBER, differences=f"{AXES_TENSOR} {WIDER}"),
    reduction("ReduceSum", "Sum.", *REDUCE, types=T_NUMBER, differences=f"{AXES_TENSOR} {WIDER}"),
)

move = partial(
    row, category="Data movement", inputs="src:T", outputs="dst:T", types={"T": BYTES}, infer=b.identity,
    differences=WIDER,
)  # fmt: skip
MOVEMENT = (
    move("Concat", "Joins tensors along an axis.", AXIS, inputs="src_i:T", input_counts=range(1, 65), infer=b.concat),
    move("Reorder", "The same tensor in another layout.", types={"T": f"{BYTES} s4 u4"}),
    move("StaticReshape", "The same elements, in order, in another shape.", Attribute("shape", "s64[]", True),
         Attribute("special_zero", "bool", True), infer=b.reshape),
    move("StaticTranspose", "Permutes dimensions.", Attribute("order", "s64[]", True), infer=b.transpose),
    move("TypeCast", "Converts to another type: floats to the nearest (beyond f8 to its limits), to integers cut off "
         "and within range, integers to narrower ones modulo their range, and to boolean whether it differs from 0.",
         Attribute("saturate", "bool"), inputs="src:T1", outputs="dst:T2", types={"T1": BYTES, "T2": BYTES},
         checks=(c.typecast_types,),
         differences="Any two types; oneDNN converts between f32 and 16-bit types. Without saturate, what is beyond "
         "f8_e5m2 is infinite, and what is beyond f8_e4m3 is NaN."),
    move("GenIndex", "Each element's position along an axis.", AXIS, inputs="src:T1", outputs="dst:T2",
         types={"T1": FLOAT, "T2": "s32"}, infer=b.along_axis, differences=""),
)  # fmt: skip

quant = partial(row, category="Quantisation", inputs="src:T1", outputs="dst:T2", infer=b.identity)
dynamic = partial(
    quant, inputs="src:T1 scales:T1 zps:T2", input_counts=(2, 3), outputs="dst:T3", checks=(c.dynamic_quantization,)
)
EIGHT = "u8 s8 f8_e5m2 f8_e4m3"
QUANTISATION = (
    quant("Quantize", "round(x / scale + zero point), saturated; of NaN the least integer.", PER_TENSOR, AXIS_1,
          SCALES, ZPS, Attribute("rounds_first", "bool"), types={"T1": "f32", "T2": EIGHT}, checks=(c.quantization,),
          differences="Zero points for an f8 output are refused; oneDNN looks at the input's type. With rounds_first, "
          "the zero point is added to round(x / scale), as in ONNX."),
    quant("Dequantize", "(x - zero point) times scale.", PER_TENSOR, AXIS_1, SCALES, ZPS,
          types={"T1": EIGHT, "T2": "f32"}, checks=(c.quantization,)),
    dynamic("DynamicQuantize", "Quantize with scales and zero points that are tensors.", PER_TENSOR, AXIS_1,
            types={"T1": "f32", "T2": "u8 s8 s32", "T3": "u8 s8"}),
    dynamic("DynamicDequantize", "Dequantize with scales and zero points that are tensors.", PER_GROUP, AXIS_1,
            Attribute("group_shape", "s64[]"), inputs="src:T1 scales:T2 zps:T3", outputs="dst:T2",
            types={"T1": "u8 s8 s4 u4", "T2": "bf16 f16 f32", "T3": "u4 s4 u8 s8 s32"}),
)  # fmt: skip

marker = partial(row, category="Markers", infer=b.markers)
MARKERS = (
    marker("End", "Marks a tensor as an output of the graph.", inputs="src:T", outputs="",
           types={"T": f"{BYTES} undef"}, output_counts=(0,), differences=WIDER),
    marker("Wildcard", "Stands for an op that graphpool does not know.", inputs="src:any", outputs="dst:any",
           types={"any": ""}, input_counts=range(sys.maxsize), output_counts=range(sys.maxsize)),
)  # fmt: skip

TABLE = (
    *UNARY, *UNARY_BACKWARD, *BINARY, *CONVOLUTION, *POOLING, *NORMALISATION, *SOFTMAX, *REDUCTION, *MOVEMENT,
    *QUANTISATION, *MARKERS,
)  # fmt: skip
