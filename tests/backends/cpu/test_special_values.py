"""NaN, infinities, denormals, zeros and the largest numbers give what the reference gives.

What is promised stands in docs/concepts/numerics.md; what is left out here is what that page leaves open.
"""

import numpy as np
import pytest

from graphpool.typing import DataType
from tests.cases.graphs import GraphBuilder
from tests.cases.workloads import CASES, CONV
from tests.helpers.kinds import BINARY as PAIRS
from tests.helpers.kinds import UNARY as FUNCTIONS
from tests.helpers.kinds import accepted, fixed_result, required
from tests.helpers.special_values import FLOATS, HUGE, NOT_FINITE, SMALL, check_special, special_array

TYPES = ("f32", "f64", "bf16", "f16")
SHAPES = ((7,), (3, 5, 71), (1100,))
EVERYTHING = SMALL + NOT_FINITE + HUGE

UNARY = {kind: [required(kind)] for kind in FUNCTIONS if "f32" in accepted(kind)} | {
    "GELU": [{"mode": "gelu_erf"}, {"mode": "gelu_tanh"}],
    "SoftPlus": [{"beta": beta} for beta in (1.0, 2.0, 0.5, -1.5)],
    "Pow": [{"beta": beta} for beta in (0.0, 0.5, 1.0, 2.0, 3.0, -1.0, -0.5, 1.5, 1e9)],
    "Clamp": [{"min": -1.0, "max": 1.0}, {"min": 0.0, "max": 6.0}],
    "HardSigmoid": [{"alpha": alpha, "beta": 0.5} for alpha in (0.2, -3.0, 0.0)],
    "Elu": [{"alpha": alpha} for alpha in (1.0, 0.0, -0.5)],
    "LeakyReLU": [{"alpha": alpha} for alpha in (0.1, 0.0, -0.5)],
}  # fmt: skip
BINARY = {kind: [required(kind)] for kind in PAIRS if "f32" in accepted(kind)} | {
    "PReLU": [{"per_channel_broadcast": False}], "Mod": [{"fmod": False}, {"fmod": True}],
}  # fmt: skip
TAILS = {"GELU": 1000.0, "SoftPlus": 40.0}
"""Units of the last place: results near 0 whose arguments have rounding errors."""
SIGNED = ("Abs", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Erf", "Floor", "Neg", "Reciprocal", "Round", "Sign", "Sin",
          "Sinh", "Sqrt", "Tan", "Tanh", "Add", "Subtract", "Multiply", "Divide")  # fmt: skip
"""Kinds whose zeros have the sign of IEEE arithmetic."""


def elementwise(kind, dtype, shape, attrs):
    builder = GraphBuilder()
    inputs = [builder.input(shape, dtype) for _ in range(1 if kind in UNARY else 2)]
    builder.op(kind, *inputs, dtype=fixed_result(kind) or dtype, **attrs)
    return builder


@pytest.mark.parametrize("kind", [*UNARY, *BINARY])
def test_elementwise(engine, kind):
    for dtype in filter(lambda dtype: dtype in accepted(kind), TYPES):
        for attrs in (UNARY | BINARY)[kind]:
            for seed, shape in enumerate(SHAPES):
                builder, rng = elementwise(kind, dtype, shape, attrs), np.random.default_rng(seed)
                values = {lt.id: special_array(rng, lt, EVERYTHING, 0.6, low=-13, high=13) for lt in builder.inputs}
                wide = 4.0 if kind == "HardSigmoid" else 0.0
                floor = 2.0**-120 if kind == "GELU" else 0.0
                check_special(builder, engine, values, ulps=TAILS.get(kind, 4.0), wide=wide, floor=floor)


@pytest.mark.parametrize("kind", SIGNED)
def test_signs_of_zeros(engine, kind):
    for dtype in filter(lambda dtype: dtype in accepted(kind), ("f32", "f64")):
        builder, rng = elementwise(kind, dtype, (70,), {}), np.random.default_rng(0)
        inverse = builder.op("Reciprocal", builder.tensors[-1])
        assert inverse.dtype is DataType(dtype)
        values = {lt.id: special_array(rng, lt, ("0", "-0", "inf", "-inf"), 0.9) for lt in builder.inputs}
        check_special(builder, engine, values, ulps=8.0)


def conversions():
    for a in TYPES:
        for b in ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64", "boolean", *TYPES):
            if a != b:
                yield f"TypeCast_{a}_{b}", lambda g, a=a, b=b: g.op("TypeCast", g.input((3, 71), a), dtype=b)
    for dtype in ("u8", "s8"):
        for rounds_first in (False, True):
            own = {"scales": [0.5], "zps": [3], "rounds_first": rounds_first}
            yield (
                f"Quantize_{dtype}_{rounds_first}",
                lambda g, dtype=dtype, own=own: g.op("Quantize", g.input((3, 71)), dtype=dtype, **own),
            )
    yield (
        "DynamicQuantizeLinear",
        lambda g: g.op("DynamicQuantizeLinear", g.input((3, 71)), n=3, dtype=["u8", "f32", "u8"]),
    )


def scans():
    for shape, axes in (((5, 3), [1]), ((70, 3), [0]), ((2, 600), [1]), ((33, 67), [0]), ((40, 3, 17), [0, 2])):
        for kind in ("L1", "L2", "Max", "Mean", "Min", "Prod", "Sum"):
            yield (
                f"Reduce{kind}_{shape}",
                lambda g, t, kind=kind, shape=shape, axes=axes: g.op(f"Reduce{kind}", g.input(shape, t), axes=axes),
            )
    for shape, axis in (((9, 5), 1), ((6, 100), 1), ((40, 70), 0)):
        for mode in ("none", "inf_as_zero"):
            yield (
                f"SoftMax_{mode}_{shape}",
                lambda g, t, shape=shape, axis=axis, mode=mode: g.op(
                    "SoftMax", g.input(shape, t), axis=axis, mode=mode, n=2, dtype=[t, "f32"]
                ),
            )
        yield (
            f"LogSoftmax_{shape}",
            lambda g, t, shape=shape, axis=axis: g.op("LogSoftmax", g.input(shape, t), axis=axis),
        )
    for kind in ("CumSum", "CumProd"):
        yield kind, lambda g, t, kind=kind: g.op(kind, g.input((5, 9), t), axis=1, reverse=True)
    for kind in ("ArgMax", "ArgMin"):
        for last in (False, True):
            yield (
                f"{kind}_{last}",
                lambda g, t, kind=kind, last=last: g.op(
                    kind, g.input((8, 9), t), axis=1, select_last_index=last, dtype="s64"
                ),
            )
    for largest in (False, True):
        yield (
            f"TopK_{largest}",
            lambda g, t, largest=largest: g.op(
                "TopK", g.input((8, 30), t), axis=1, k=7, largest=largest, n=2, dtype=[t, "s64"]
            ),
        )


def norms():
    for shape in ((12, 5), (9, 33), (3, 4100)):
        yield (
            f"LayerNorm_{shape}",
            lambda g, t, shape=shape: g.op(
                "LayerNorm", g.input(shape, t), g.input(shape[-1:]), g.input(shape[-1:]), n=3, dtype=[t, "f32", "f32"]
            ),
        )
        yield f"RMSNorm_{shape}", lambda g, t, shape=shape: g.op("RMSNorm", g.input(shape, t), g.input(shape[-1:]))
    for form, shape, channels in (("NCX", (4, 6, 3, 5), 6), ("NXC", (4, 3, 5, 6), 6), ("NXC", (2, 9, 9, 70), 70),
                                  ("NCX", (2, 6, 40, 41), 6)):  # fmt: skip
        for groups in (1, 2, channels):
            yield f"GroupNorm_{form}_{shape}_{groups}", lambda g, t, form=form, shape=shape, c=channels, n=groups: g.op(
                "GroupNorm", g.input(shape, t), g.input((c,)), g.input((c,)), n=3, dtype=[t, "f32", "f32"], groups=n,
                data_format=form,
            )  # fmt: skip
        yield f"BatchNormForwardTraining_{form}_{shape}", lambda g, t, form=form, shape=shape, c=channels: g.op(
            "BatchNormForwardTraining", g.input(shape, t), *[g.input((c,)) for _ in range(4)], n=5,
            dtype=[t, *["f32"] * 4], epsilon=1e-5, data_format=form,
        )  # fmt: skip


def windows():
    for form, shape in (("NCX", (4, 6, 5, 7)), ("NXC", (4, 5, 7, 6)), ("NXC", (1, 9, 9, 70)), ("NCX", (1, 3, 30, 40))):
        own = {"kernel": [3, 2], "strides": [2, 1], "pads_begin": [1, 1], "pads_end": [1, 0], "data_format": form}
        yield f"MaxPool_{shape}", lambda g, t, shape=shape, own=own: g.op("MaxPool", g.input(shape, t), **own)
        for exclude in (False, True):
            yield (
                f"AvgPool_{shape}_{exclude}",
                lambda g, t, shape=shape, own=own, exclude=exclude: g.op(
                    "AvgPool", g.input(shape, t), exclude_pad=exclude, **own
                ),
            )
        for mode in ("nearest", "bilinear"):
            for corners in ("half_pixel", "align_corners"):
                given = {"mode": mode, "coordinate_transformation_mode": corners, "data_format": form}
                yield (
                    f"Interpolate_{shape}_{mode}_{corners}",
                    lambda g, t, shape=shape, given=given: g.op(
                        "Interpolate", g.input(shape, t), sizes=[7, 4], **given
                    ),
                )


CONTENTS = (
    (NOT_FINITE, 0.08), (("inf", "0"), 0.2), (("nan",), 0.03), (("-inf",), 0.6), (SMALL, 1.1), (HUGE, 0.3),
    (("max", "-max"), 1.1),
)  # fmt: skip
"""Numbers and their share."""


def check_one(engine, build, contents, **tolerance):
    """The op that `build` adds, the first input of which holds special numbers."""
    for seed, (names, share) in enumerate(contents):
        builder, rng = GraphBuilder(), np.random.default_rng(seed)
        build(builder)
        first, *others = builder.inputs
        values = {lt.id: special_array(rng, lt, (), 0) for lt in others}
        values[first.id] = special_array(rng, first, names, share)
        check_special(builder, engine, values, **tolerance)


@pytest.mark.parametrize(("name", "build"), [pytest.param(*case, id=case[0]) for case in conversions()])
def test_conversions(engine, name, build):
    check_one(engine, build, [(EVERYTHING, 0.5), (SMALL, 1.1), (("nan",), 0.1)])


@pytest.mark.parametrize(("name", "build"), [pytest.param(*case, id=case[0]) for case in (*scans(), *norms())])
def test_rows(engine, name, build):
    for dtype, contents in (("f32", CONTENTS), ("bf16", CONTENTS[:1]), ("f16", CONTENTS[-3:])):
        check_one(engine, lambda g, dtype=dtype: build(g, dtype), contents, wide=8.0)


@pytest.mark.parametrize(("name", "build"), [pytest.param(*case, id=case[0]) for case in windows()])
def test_windows(engine, name, build):
    contents = [(names, share) for names, share in CONTENTS if "max" not in names or not name.startswith("AvgPool")]
    for dtype, some in (("f32", contents), ("bf16", contents[:1]), ("f16", contents[:2])):
        check_one(engine, lambda g, dtype=dtype: build(g, dtype), some, wide=8.0)


def stay_finite(builder):
    """Ids of inputs whose infinities count differently from kernel to kernel."""
    found = {lt.id for lt in builder.inputs if np.prod(lt.shape) == 1}  # scales of attention
    for op in builder.graph.ops:
        ids = [tensor.id for tensor in op.inputs]
        if op.kind in PADDED and any((*op.attrs["pads_begin"], *op.attrs["pads_end"], "auto_pad" in op.attrs)):
            found.add(ids[1])
        elif op.kind == "ConvTranspose":
            found |= {lt.id for lt in builder.inputs if lt.id == ids[1] and lt.property.value == "constant"}
        elif op.kind in ("BatchNormInference", "DynamicDequantize"):
            found |= set(ids[1:])
        elif op.kind == "Square":
            found |= set(ids)  # the variance of a BatchNorm
    return found


PADDED = {"Convolution", "ConvolutionBackwardWeights"}
"""Kinds of which padding meets the second operand."""

SPECIAL_CASES = {
    case.name: case
    for case in CASES
    if case.name not in ("Conv_winograd", "RotaryEmbedding", "Attention_backward")
    and case.name.split("_")[0] not in UNARY | BINARY
}


def content_of(case, builder, names, share, seed):
    """Content of the inputs; infinities stand where they count alike in all kernels."""
    rng, finite = np.random.default_rng(seed), stay_finite(builder)
    is_bf16 = any(lt.dtype is DataType.BF16 for lt in builder.inputs) and case.name.startswith(("MatMul", "Conv"))
    most = tuple(name for name in names if name in NOT_FINITE or "0" in name) if is_bf16 and "inf" in names else names
    values = {}
    for lt in builder.inputs:
        own = most if lt.id not in finite else () if is_bf16 or np.prod(lt.shape) == 1 else SMALL
        values[lt.id] = special_array(rng, lt, own, share, **case.bounds)
    return values


@pytest.mark.parametrize("name", SPECIAL_CASES)
def test_workloads(engine, name):
    case = SPECIAL_CASES[name]
    for seed, (names, share) in enumerate(((NOT_FINITE + SMALL, 0.02), (NOT_FINITE + SMALL, 0.3), (SMALL, 0.5))):
        builder = case.builder()
        if not any(lt.dtype in FLOATS for lt in builder.inputs):
            return
        check_special(
            builder, engine, content_of(case, builder, names, share, seed), ulps=64 * case.scale, wide=64 * case.scale
        )


ANCHORS = {
    "MatMul": lambda g, c: g.op("MatMul", g.input((9, 33)), g.input((33, c), property="constant")),
    "MatMul_plain": lambda g, c: g.op("MatMul", g.input((9, 33)), g.input((33, c))),
    "Convolution": lambda g, c: g.op(
        "Convolution", g.input((1, 7, 6, 5)), g.input((c, 5, 3, 3), property="constant"), data_format="NXC",
        weights_format="OIX", **CONV | {"pads_begin": [0, 0], "pads_end": [0, 0]},
    ),
    "ConvTranspose": lambda g, c: g.op(
        "ConvTranspose", g.input((1, 4, 5, 5)), g.input((5, c, 3, 3)), data_format="NXC", weights_format="IOX",
        **CONV | {"strides": [2, 2]},
    ),
    "MaxPool": lambda g, c: g.op("MaxPool", g.input((1, 7, 6, c)), kernel=[2, 2], strides=[1, 1], pads_begin=[0, 0],
                                 pads_end=[1, 1], data_format="NXC"),
    "LayerNorm": lambda g, c: g.op("LayerNorm", g.input((9, c)), g.input((c,)), g.input((c,)), keep_stats=False),
    "SoftMax": lambda g, c: g.op("SoftMax", g.input((9, c)), axis=-1),
    "ReduceMean": lambda g, c: g.op("ReduceMean", g.input((9, 5, c)), axes=[1]),
}  # fmt: skip


@pytest.mark.parametrize("anchor", ANCHORS)
def test_post_ops(engine, anchor):
    kinds = ("Abs", "Clamp", "Elu", "Exp", "GELU", "HardSwish", "LeakyReLU", "Log", "Mish", "ReLU", "Reciprocal",
             "Round", "Sigmoid", "SoftPlus", "Sqrt", "Square", "Tanh", "Add", "Multiply",
             "Maximum", "Minimum")  # fmt: skip
    for seed in range(12):
        rng, builder = np.random.default_rng(seed), GraphBuilder()
        columns = int(rng.choice([1, 5, 16, 33, 70]))
        x = ANCHORS[anchor](builder, columns)
        for kind in rng.choice(kinds, rng.integers(1, 4)):
            others = [builder.input((columns,))] if kind in BINARY else []
            x = builder.op(str(kind), x, *others, **UNARY.get(str(kind), [{}])[0])
        values = {lt.id: special_array(rng, lt, NOT_FINITE + SMALL, 0.02) for lt in builder.inputs}
        check_special(builder, engine, values, ulps=2000.0, wide=2000.0)
