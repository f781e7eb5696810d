"""The extension table: kinds that oneDNN Graph does not have, named and defined as in ONNX (operator sets 18 to 26).

What ONNX takes as small input tensors (axes, starts, pads, k, depth) are attributes here, since shapes follow from it;
`onnx_input` says which input one attribute is.
`Power` is ONNX's Pow; oneDNN's Pow has a fixed exponent. An execution that meets an index outside its axis raises when
it has ended: kernels take another element of the axis, and never read or write elsewhere.
"""

from __future__ import annotations

from functools import partial

from graphpool.graph import checks as c

from . import rules_basic as b
from . import rules_data as d
from . import rules_recurrent as r
from .attributes import Attribute
from .onednn import AUTO_BROADCAST, BYTES, FLOAT, FLOATS, NUMBERS, row

INTEGERS = "s8 s16 s32 s64 u8 u16 u32 u64"
SIGNED = f"{FLOATS} s8 s16 s32 s64"
INDEX = "s32 s64"

AXIS_0, AXIS_LAST = Attribute("axis", "s64", default=0), Attribute("axis", "s64", default=-1)
AXIS_INPUT = Attribute("axis", "s64", default=0, onnx_input=1)
EXCLUSIVE, REVERSE = Attribute("exclusive", "bool", default=False), Attribute("reverse", "bool", default=False)
REDUCTION = Attribute("reduction", "str", default="none", choices=("none", "add", "mul", "max", "min"))
ARG = (AXIS_0, Attribute("keep_dims", "bool", default=True), Attribute("select_last_index", "bool", default=False))

unary = partial(row, category="Extensions: element-wise", inputs="src:T", outputs="dst:T", infer=b.identity)
real = partial(unary, types={"T": FLOATS})
test = partial(unary, inputs="src:T1", outputs="dst:T2", types={"T1": FLOATS, "T2": "boolean"})
UNARY = (
    real("Acos", "Arc cosine, in radians."),
    real("Acosh", "Inverse of the hyperbolic cosine."),
    real("Asin", "Arc sine, in radians."),
    real("Asinh", "Inverse of the hyperbolic sine."),
    real("Atan", "Arc tangent, in radians."),
    real("Atanh", "Inverse of the hyperbolic tangent."),
    unary("BitwiseNot", "Every bit turned.", types={"T": INTEGERS}),
    real("Ceil", "The least integer not below x."),
    real("Cos", "Cosine of x radians."),
    real("Cosh", "Hyperbolic cosine."),
    real("Erf", "Error function."),
    real("Floor", "The largest integer not above x."),
    test("IsInf", "Whether x is infinite.", Attribute("detect_negative", "bool", default=True),
         Attribute("detect_positive", "bool", default=True)),
    test("IsNaN", "Whether x is not a number."),
    unary("Neg", "-x; the least integer of a type is its own negative.", types={"T": SIGNED}),
    unary("Not", "Whether x is false.", types={"T": "boolean"}),
    unary("Sign", "-1, 0 or 1, as x is below, equal to or above 0; NaN stays.", types={"T": NUMBERS}),
    real("Sin", "Sine of x radians."),
    real("Sinh", "Hyperbolic sine."),
    real("Tan", "Tangent of x radians."),
)  # fmt: skip

binary = partial(
    row, category="Extensions: element-wise", inputs="src_0:T src_1:T", outputs="dst:T", infer=b.binary,
)  # fmt: skip
SWAP = ((0, 1),)
compare = partial(binary, inputs="src_0:T1 src_1:T1", outputs="dst:T2", types={"T1": NUMBERS, "T2": "boolean"})
logic = partial(binary, types={"T": "boolean"}, commutative=SWAP)
bits = partial(binary, types={"T": INTEGERS})
BINARY = (
    logic("And", "Whether both are true.", AUTO_BROADCAST),
    bits("BitShift", "src_0 with its bits moved by src_1 places; to the right copies of the sign bit come in.",
         AUTO_BROADCAST, Attribute("direction", "str", True, choices=("LEFT", "RIGHT"))),
    bits("BitwiseAnd", "The bits that both have.", AUTO_BROADCAST, commutative=SWAP),
    bits("BitwiseOr", "The bits that one of them has.", AUTO_BROADCAST, commutative=SWAP),
    bits("BitwiseXor", "The bits that just one of them has.", AUTO_BROADCAST, commutative=SWAP),
    compare("Equal", "Whether both are equal.", AUTO_BROADCAST, commutative=SWAP,
            types={"T1": f"{NUMBERS} boolean", "T2": "boolean"}),
    compare("Greater", "Whether src_0 > src_1.", AUTO_BROADCAST),
    compare("Less", "Whether src_0 < src_1.", AUTO_BROADCAST),
    compare("LessEqual", "Whether src_0 <= src_1.", AUTO_BROADCAST),
    binary("Mod", "Remainder of src_0 / src_1: with the sign of src_1 or, with fmod, of src_0; of integers by 0, 0.",
           AUTO_BROADCAST, Attribute("fmod", "bool", default=False), types={"T": NUMBERS}),
    logic("Or", "Whether one of them is true.", AUTO_BROADCAST),
    binary("Power", "src_0 to the power src_1, cut to an integer where src_0 is one.",
           AUTO_BROADCAST, inputs="src_0:T1 src_1:T2", outputs="dst:T1", types={"T1": NUMBERS, "T2": NUMBERS}),
    logic("Xor", "Whether just one of them is true.", AUTO_BROADCAST),
)  # fmt: skip

move = partial(row, category="Extensions: data movement", inputs="src:T", outputs="dst:T", types={"T": BYTES})
by_index = partial(move, inputs="src:T1 indices:T2", outputs="dst:T1", types={"T1": BYTES, "T2": INDEX})
scatter = partial(by_index, inputs="src:T1 indices:T2 updates:T1", checks=(c.scatter_types,))
MOVEMENT = (
    move("Expand", "Repeats dimensions of 1.", Attribute("shape", "s64[]", True), infer=d.expand),
    by_index("Gather", "Slices of src along axis, picked by indices; negative ones count from the end.", AXIS_0,
             infer=d.gather),
    by_index("GatherElements", "Elements of src at the place of each index, but for its position along axis.", AXIS_0,
             infer=d.gather_elements),
    by_index("GatherND", "Slices of src, picked by tuples of indices.", Attribute("batch_dims", "s64", default=0),
             infer=d.gather_nd),
    move("OneHot", "The second of values where the position along axis is the index, else the first.",
         Attribute("depth", "s64", True, onnx_input=1), AXIS_LAST, inputs="indices:T1 values:T2", outputs="dst:T2",
         types={"T1": NUMBERS, "T2": BYTES}, infer=d.one_hot),
    move("Pad", "Adds elements around src: value, or a reflection, the edge or the other side of it.",
         Attribute("pads_begin", "s64[]", True), Attribute("pads_end", "s64[]", True),
         Attribute("mode", "str", default="constant", choices=("constant", "reflect", "edge", "wrap")),
         Attribute("value", "f32", default=0.0), infer=d.pad),
    move("RotaryEmbedding", "Rotates pairs of elements of each head by the angles of the caches.",
         Attribute("interleaved", "bool", default=False), Attribute("num_heads", "s64", default=0),
         Attribute("rotary_embedding_dim", "s64", default=0),
         inputs="src:T cos_cache:T sin_cache:T position_ids:T_ids", outputs="dst:T", input_counts=(3, 4),
         types={"T": FLOAT, "T_ids": INDEX}, infer=d.rotary),
    scatter("ScatterElements", "src, with updates put at, or reduced into, the places of their indices along axis.",
            AXIS_0, REDUCTION, infer=d.scatter_elements),
    scatter("ScatterND", "src, with slices of updates put at, or reduced into, the places of tuples of indices.",
            REDUCTION, infer=d.scatter_nd),
    by_index("ReverseSequence", "The first elements of each sequence, as many as lengths says, in reverse order.",
             Attribute("batch_axis", "s64", default=1), Attribute("time_axis", "s64", default=0),
             inputs="src:T1 lengths:T2", infer=d.reverse_sequence),
    move("Slice", "A part of src: along each axis the elements from start to before end, by steps.",
         Attribute("starts", "s64[]", True), Attribute("ends", "s64[]", True), Attribute("axes", "s64[]", default=()),
         Attribute("steps", "s64[]", default=()), infer=d.slice_),
    move("Split", "Parts of src along axis.", AXIS_0, Attribute("split", "s64[]", default=()), outputs="dst_i:T",
         output_counts=range(1, 65), infer=d.split),
    move("Tile", "src repeated along each dimension.", Attribute("repeats", "s64[]", True, onnx_input=1), infer=d.tile),
    move("Trilu", "The triangle on and above (upper) or below the k-th diagonal of matrices; zeros elsewhere.",
         Attribute("upper", "bool", default=True), Attribute("k", "s64", default=0, onnx_input=1), infer=d.trilu),
)  # fmt: skip

scan = partial(row, category="Extensions: search and scan", inputs="src:T1", types={"T1": NUMBERS, "T2": "s64"})
running = partial(scan, inputs="src:T", outputs="dst:T", types={"T": NUMBERS}, infer=b.along_axis)
SCANS = (
    scan("ArgMax", "Index of the largest element along axis, the first of equals; a NaN counts as the largest.", *ARG,
         outputs="dst:T2", infer=d.arg_extreme),
    scan("ArgMin", "Index of the smallest element along axis, the first of equals; a NaN counts as the smallest.",
         *ARG, outputs="dst:T2", infer=d.arg_extreme),
    running("CumProd", "Running product along axis.", AXIS_INPUT, EXCLUSIVE, REVERSE),
    running("CumSum", "Running sum along axis.", AXIS_INPUT, EXCLUSIVE, REVERSE),
    scan("TopK", "The k largest (or smallest) elements along axis in order, equal ones by index, and their indices.",
         Attribute("k", "s64", True, onnx_input=1), AXIS_LAST, Attribute("largest", "bool", default=True),
         Attribute("sorted", "bool", default=True), outputs="values:T1 indices:T2", infer=d.top_k),
    scan("FindNonZero", "Places of the elements that are not zero: count of them for each dimension, one row behind "
         "another, then zeros.", outputs="places:T2 count:T2", types={"T1": f"{NUMBERS} boolean", "T2": "s64"},
         infer=d.find_non_zero),
    scan("SelectBoxes", "The best boxes of each class without those that overlap a better one: count rows of batch, "
         "class and box, then zeros. Corners are y, x; a centre and its size x, y. NaN is the least score.",
         Attribute("max_boxes", "s64", True), Attribute("iou_threshold", "f32", default=0.0),
         Attribute("score_threshold", "f32"), Attribute("center_point_box", "bool", default=False),
         inputs="boxes:T1 scores:T1", outputs="places:T2 count:T2", types={"T1": "f32", "T2": "s64"},
         infer=d.select_boxes),
    scan("RoiAlign", "Bilinear samples of regions x0, y0, x1, y1 of images, sampling_ratio for each bin and axis or "
         "one a pixel: their mean, or the largest of their weighted corners.",
         Attribute("coordinate_transformation_mode", "str", default="half_pixel",
                   choices=("half_pixel", "output_half_pixel")),
         Attribute("mode", "str", default="avg", choices=("avg", "max")), Attribute("output_height", "s64", default=1),
         Attribute("output_width", "s64", default=1), Attribute("sampling_ratio", "s64", default=0),
         Attribute("spatial_scale", "f32", default=1.0), inputs="src:T1 rois:T1 batch_indices:T2", outputs="dst:T1",
         types={"T1": "f32", "T2": "s64"}, infer=d.roi_align),
)  # fmt: skip

QUANTISATION = (
    row("DynamicQuantizeLinear", "src as bytes, round(x / scale) + zero point, and the scale and zero point that its "
        "range, 0 included, asks for.", category="Extensions: quantisation", inputs="src:T1",
        outputs="dst:T2 scales:T1 zps:T2", types={"T1": "f32", "T2": "u8"}, infer=d.dynamic_quantize),
)  # fmt: skip

RECURRENT = (
    row("Recurrent", "The steps of ONNX's RNN, GRU or LSTM: src is x W^T of all steps. Weights of 8 bits multiply "
        "states that are quantised at each step, as DynamicQuantizeLinear does.",
        Attribute("cell", "str", True, choices=("rnn", "gru", "lstm")),
        Attribute("direction", "str", default="forward", choices=("forward", "reverse", "bidirectional")),
        Attribute("transpose_b", "bool", default=False), Attribute("clip", "f32"),
        Attribute("activations", "str", default=""), Attribute("alpha", "f32[]", default=()),
        Attribute("beta", "f32[]", default=()), Attribute("linear_before_reset", "bool", default=False),
        Attribute("input_forget", "bool", default=False), Attribute("scales", "f32[]", default=()),
        Attribute("zps", "s64[]", default=()), category="Extensions: recurrent layers",
        inputs="src:T1 weights:T2 biases:T1 lengths:T3 h:T1 c:T1 peepholes:T1", input_counts=(5, 6, 7),
        outputs="dst:T1 last_h:T1 last_c:T1", output_counts=(2, 3),
        types={"T1": FLOAT, "T2": f"{FLOAT} s8 u8", "T3": "s32"}, infer=r.recurrent, checks=(c.recurrent,)),
)  # fmt: skip

TREES = (
    row("TreeEnsemble", "Scores of rows by decision trees. A node is three numbers: a feature, its first child, and "
        "whether a NaN goes to the second child, the node behind the first; there a feature above the threshold goes, "
        "all else to the first. A node whose children do not come behind it is a leaf: its numbers are its first "
        "entry, anything, and how many entries it has. An entry adds its weight to its target; what the trees in roots "
        "find is aggregated, 0 for a target without weights, and base is added. Indices outside their range are taken "
        "for the nearest number inside.",
        Attribute("aggregate", "str", default="sum", choices=("sum", "average", "min", "max")),
        category="Extensions: decision trees",
        inputs="src:T1 thresholds:T1 nodes:T_index roots:T_index weights:T2 targets:T_index base:T2", outputs="dst:T2",
        types={"T1": "f32 f64", "T2": "f32 f64", "T_index": "s32"}, infer=d.tree_ensemble),
)  # fmt: skip

CLASSES = (
    row("CouplePairs", "Probabilities of k classes from those of the first class of each pair, in the order of the "
        "pairs (0, 1), (0, 2) and so on: the sum of the squares of p_i s_ji - p_j s_ij over all pairs is made small, "
        "by steps that end where no class is farther than 0.005 / k from it.",
        category="Extensions: classifiers", inputs="src:T", outputs="dst:T", types={"T": "f32"}, infer=d.couple_pairs),
)  # fmt: skip

TABLE = (*UNARY, *BINARY, *MOVEMENT, *SCANS, *QUANTISATION, *RECURRENT, *TREES, *CLASSES)
