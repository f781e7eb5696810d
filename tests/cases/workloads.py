"""One row for each thing that the CPU backend lowers: tests check it against the reference, `bench_cases.py` times it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import graphpool as gp
from tests.cases.graphs import GraphBuilder
from tests.cases.training import Training

__all__ = ["BY_NAME", "CASES", "Case"]


@dataclass(frozen=True)
class Case:
    """A graph with what is expected of it.

    Attributes
    ----------
    name : str
    build : callable
        Adds the ops to a GraphBuilder.
    partitions : int
        Partitions that the fusion policy makes of it.
    scale : float
        Factor on the tolerance of the output's type.
    bounds : mapping
        ``low`` and ``high`` of the random content.
    """

    name: str
    build: Callable[[GraphBuilder], None]
    partitions: int = 1
    scale: float = 1.0
    bounds: Mapping[str, float] = field(default_factory=dict)

    def builder(self) -> GraphBuilder:
        """The graph, not finalised."""
        builder = GraphBuilder()
        self.build(builder)
        return builder


NCX = {"data_format": "NCX", "weights_format": "OIX"}
CONV = {"pads_begin": [1, 1], "pads_end": [1, 1], "strides": [1, 1], "dilations": [1, 1]}


def _unary(kind: str, attrs: dict[str, Any], dtype: str) -> Callable[[GraphBuilder], None]:
    def build(g: GraphBuilder) -> None:
        g.op(kind, g.input((3, 5, 70), dtype), **attrs)

    return build


def _binary(kind: str, dtype: str, a: Any, b: Any, out: str | None = None) -> Callable[[GraphBuilder], None]:
    def build(g: GraphBuilder) -> None:
        g.op(kind, g.input(a, dtype), g.input(b, dtype), dtype=out)

    return build


def _matmul(a: Any, b: Any, dtype: str = "f32", bias: Any = None, tail: tuple[str, ...] = (), **attrs: Any):
    def build(g: GraphBuilder) -> None:
        extra = [] if bias is None else [g.input(bias, dtype)]
        x = g.op("MatMul", g.input(a, dtype), g.input(b, dtype, property="constant"), *extra, **attrs)
        for kind in tail:
            x = _post_op(g, kind, x)
        return None

    return build


def _compressed(
    m: int, k: int, n: int, dtype: str, group: int = 0, zeros: bool = False, tail: tuple[str, ...] = (), **attrs: Any
):
    """A product with constant weights of 8 or 4 bits, a scale for each column or for groups of its rows."""

    def build(g: GraphBuilder) -> None:
        is_transposed = attrs.get("transpose_b", False)
        shape, group_shape = ((n, k), (1, group)) if is_transposed else ((k, n), (group, 1))
        counts = [dim // size for dim, size in zip(shape, group_shape, strict=True)] if group else [n]
        scheme = {"qtype": "per_group", "group_shape": group_shape} if group else {"qtype": "per_channel"}
        scheme |= {} if group else {"axis": 0 if is_transposed else 1}
        inputs = [g.input(shape, dtype, property="constant"), g.input(counts, property="constant")]
        inputs += [g.input(counts, "s8" if dtype[0] == "s" else "u8", property="constant")] if zeros else []
        x = g.op("MatMul", g.input((m, k)), g.op("DynamicDequantize", *inputs, dtype="f32", **scheme), **attrs)
        for kind in tail:
            x = _post_op(g, kind, x)

    return build


def _post_op(g: GraphBuilder, kind: str, x: Any) -> Any:
    """One of the post-ops that families share."""
    if kind in ("Add", "Multiply", "Maximum"):
        shape = g.graph_shape(x)
        return g.op(kind, x, g.input(shape, x.dtype))
    if kind == "AddRow":
        return g.op("Add", x, g.input(g.graph_shape(x)[-1:], x.dtype))
    if kind == "Swish":
        return g.op("Multiply", x, g.op("Sigmoid", x))
    if kind == "Clamp":
        return g.op("Clamp", x, min=0.0, max=6.0)
    return g.op(kind, x)


def _conv(
    src: Any,
    weights: Any,
    tail: tuple[str, ...] = (),
    bias: bool = False,
    dtype: str = "f32",
    kind="Convolution",
    prefer="memory",
    **attrs: Any,
):
    def build(g: GraphBuilder) -> None:
        g.graph = gp.Graph(prefer=prefer)
        given = CONV | {"data_format": "NCX", "weights_format": "OIX" if kind == "Convolution" else "IOX"} | attrs
        ops = [g.input(src, dtype), g.input(weights, dtype, property="constant")]
        if bias:
            position = 0 if kind == "Convolution" else 1
            axis = {"OIX": 0, "XIO": len(weights) - 1, "IOX": 1, "XOI": len(weights) - 2}[given["weights_format"]]
            count = weights[axis] * (given.get("groups", 1) if position else 1)
            ops.append(g.input((count,), dtype))
        x = g.op(kind, *ops, **given)
        for name in tail:
            x = _batch_norm(g, x, given["data_format"]) if name == "BatchNorm" else _post_op(g, name, x)

    return build


def _batch_norm(g: GraphBuilder, x: Any, data_format: str = "NCX") -> Any:
    shape = g.graph_shape(x)
    channels = (shape[1] if data_format == "NCX" else shape[-1],)
    params = [g.input(channels, property="constant") for _ in range(3)]
    variance = g.op("Square", g.input(channels))
    return g.op("BatchNormInference", x, *params, variance, epsilon=0.1, data_format=data_format)


def _pool(kind: str, src: Any, kernel: Any, tail: tuple[str, ...] = (), **attrs: Any):
    def build(g: GraphBuilder) -> None:
        count = len(kernel)
        given = {"strides": [2] * count, "pads_begin": [0] * count, "pads_end": [1] * count, "kernel": list(kernel)}
        given |= {"data_format": "NCX"} | ({"exclude_pad": False} if kind == "AvgPool" else {}) | attrs
        x = g.op(kind, g.input(src), **given)
        for name in tail:
            x = _post_op(g, name, x)

    return build


def _norm(
    kind: str, shape: Any, params: int, stats: bool, dtype: str = "f32", tail: tuple[str, ...] = (), **attrs: Any
):
    def build(g: GraphBuilder) -> None:
        begin = attrs.get("begin_norm_axis", -1)
        axis = 1 if attrs.get("data_format") == "NCX" else -1
        normal = shape[axis : axis + 1 or None] if kind == "GroupNorm" else shape[begin:]
        extra = [g.input(normal, "f32") for _ in range(params)]
        x = g.input(shape, dtype)
        own = {} if kind == "RMSNorm" else {"keep_stats": stats, "use_affine": params > 0}
        n = 3 if stats else 1
        result = g.op(kind, x, *extra, dtype=[dtype, "f32", "f32"][:n], n=n, **own, **attrs)
        x = result[0] if stats else result
        for name in tail:
            x = _post_op(g, name, x)

    return build


def _attention(g: GraphBuilder) -> None:
    q, k, v = (g.input((2, 3, 9, 16)) for _ in range(3))
    scores = g.op("MatMul", q, k, transpose_b=True)
    scaled = g.op("Divide", scores, g.input((1,)))
    masked = g.op("Add", scaled, g.input((2, 1, 1, 9)))
    g.op("MatMul", g.op("SoftMax", masked, axis=-1), v)


def _quantized_matmul(g: GraphBuilder) -> None:
    a = g.op("Dequantize", g.input((7, 33), "u8"), dtype="f32", scales=[0.05], zps=[20])
    w = g.input((33, 20), "s8", property="constant")
    b = g.op("Dequantize", w, dtype="f32", scales=[0.01 * (i + 1) for i in range(20)], qtype="per_channel", axis=1)
    y = g.op("ReLU", g.op("MatMul", a, b, g.input((20,))))
    g.op("Quantize", y, dtype="u8", scales=[0.5], zps=[3])


def _dequantized(g: GraphBuilder, shape: Any, dtype: str = "s8", cast: str | None = None) -> Any:
    x = g.op("Dequantize", g.input(shape, dtype), dtype="f32", scales=[0.0625], zps=[3])
    return x if cast is None else g.op("TypeCast", x, dtype=cast)


def _quantized_sum(cast: str | None) -> Callable[[GraphBuilder], None]:
    """An int8 product plus an int8 tensor, with casts to another type in between or without."""

    def build(g: GraphBuilder) -> None:
        x = g.op("MatMul", _dequantized(g, (7, 33), "u8", cast), _dequantized(g, (33, 20), cast=cast))
        y = g.op("ReLU", g.op("Add", x, _dequantized(g, (7, 20), cast=cast)))
        g.op("Quantize", y if cast is None else g.op("TypeCast", y, dtype="f32"), dtype="s8", scales=[0.5], zps=[1])

    return build


def _dynamic_matmul(g: GraphBuilder) -> None:
    """A product whose activations are quantised by their range, as dynamic quantisation of a model makes it."""
    x, *numbers = g.op("DynamicQuantizeLinear", g.input((7, 33)), dtype=["u8", "f32", "u8"], n=3)
    a = g.op("DynamicDequantize", x, *numbers, dtype="f32")
    w = g.input((33, 20), "s8", property="constant")
    b = g.op("Dequantize", w, dtype="f32", scales=[0.01 * (i + 1) for i in range(20)], qtype="per_channel", axis=1)
    g.op("ReLU", g.op("Add", g.op("MatMul", a, b), g.input((20,))))


def _quantized_conv(
    ic: int, oc: int, kernel: int = 3, *, groups: int = 1, residual: bool = False, data_format: str = "NCX"
) -> Callable[[GraphBuilder], None]:
    """A convolution of bytes with constant weights, its result in bytes; with a residual of bytes or without."""

    def build(g: GraphBuilder) -> None:
        src, dst = ((1, 9, 8, n) if data_format == "NXC" else (1, n, 9, 8) for n in (ic, oc))
        x = g.op("Dequantize", g.input(src, "u8"), dtype="f32", scales=[0.05], zps=[20])
        weights = g.input((oc, ic // groups, kernel, kernel), "s8", property="constant")
        scales = [0.001 * (n % 5 + 1) for n in range(oc)]
        w = g.op("Dequantize", weights, dtype="f32", scales=scales, qtype="per_channel", axis=0)
        pads = {"pads_begin": [kernel // 2] * 2, "pads_end": [kernel // 2] * 2}
        own = CONV | pads | {"groups": groups, "data_format": data_format, "weights_format": "OIX"}
        y = g.op("Convolution", x, w, g.input((oc,)), **own)
        if residual:
            y = g.op("Add", y, g.op("Dequantize", g.input(dst, "s8"), dtype="f32", scales=[0.0625], zps=[3]))
        g.op("Quantize", g.op("ReLU", y), dtype="u8", scales=[0.05], zps=[3])

    return build


def _quantized_pool(kind: str) -> Callable[[GraphBuilder], None]:
    def build(g: GraphBuilder) -> None:
        x = g.op("Dequantize", g.input((1, 9, 8, 20), "u8"), dtype="f32", scales=[0.05], zps=[20])
        own: dict[str, Any] = {"exclude_pad": True} if kind == "AvgPool" else {}
        window = {"kernel": [3, 3], "strides": [2, 2], "pads_begin": [1, 1], "pads_end": [1, 1], "data_format": "NXC"}
        g.op("Quantize", g.op(kind, x, **window, **own), dtype="u8", scales=[0.05], zps=[20])

    return build


def _function_of_bytes(g: GraphBuilder) -> None:
    x = g.op("Dequantize", g.input((3, 10, 100), "s8"), dtype="f32", scales=[0.05], zps=[3])
    g.op("Quantize", g.op("GELU", x), dtype="u8", scales=[0.03], zps=[5], rounds_first=True)


def _compressed_weights(g: GraphBuilder) -> None:
    w = g.op(
        "DynamicDequantize", g.input((32, 20), "s4"), g.input((8, 20)), g.input((8, 20), "s8"),
        dtype="f32", qtype="per_group", group_shape=[4, 1],
    )  # fmt: skip
    g.op("MatMul", g.input((5, 32)), w)


def _float8(dtype: str) -> Callable[[GraphBuilder], None]:
    def build(g: GraphBuilder) -> None:
        q = g.op("Quantize", g.input((3, 50)), dtype=dtype, scales=[0.5])
        x = g.op("Dequantize", q, dtype="f32", scales=[0.5])
        g.op("Quantize", g.op("Abs", x), dtype=dtype, scales=[0.002])

    return build


def _quantized_concat(g: GraphBuilder) -> None:
    g.op("Quantize", g.op("Concat", *(_dequantized(g, (2, n, 4)) for n in (1, 3)), axis=1), dtype="s8", scales=[0.125])


def _binary_matmul_binary(g: GraphBuilder) -> None:
    a = g.op("Multiply", g.op("Add", g.input((2, 6, 5)), g.input((5,))), g.input((2, 1, 5)))
    g.op("Subtract", g.op("MatMul", a, g.input((2, 5, 7))), g.input((7,)))


def _moved_product(g: GraphBuilder) -> None:
    y = g.op("MatMul", g.input((2, 3, 6, 5)), g.input((2, 3, 5, 7)))
    g.op("StaticReshape", g.op("StaticTranspose", y, order=[0, 2, 1, 3]), shape=[2, 6, 21], special_zero=False)


def _causal_attention(g: GraphBuilder) -> None:
    q, k, v = g.input((2, 2, 3, 9, 16)), g.input((2, 2, 1, 9, 16)), g.input((2, 2, 1, 9, 16))
    scores = g.op("Multiply", g.op("MatMul", q, k, transpose_b=True), g.input((1,)))
    capped = g.op("Multiply", g.op("Tanh", g.op("Divide", scores, g.input((1,)))), g.input((1,)))
    rows, columns = (g.op("GenIndex", capped, dtype="s32", axis=axis) for axis in (-2, -1))
    mask = g.op("GreaterEqual", rows, columns, dtype="boolean")
    p, _ = g.op("SoftMax", g.op("Select", mask, capped, g.input(()), dtype="f32"), axis=-1, n=2, dtype=["f32", "f32"])
    g.op("MatMul", p, v)


def _attention_backward(g: GraphBuilder) -> None:
    q, k, v, o, do = (g.input((2, 3, 9, 16)) for _ in range(5))
    scores = g.op("Multiply", g.op("MatMul", q, k, transpose_b=True), g.input((1,)))
    p = g.op("Exp", g.op("Minimum", g.op("Subtract", scores, g.input((2, 3, 9, 1))), g.input((1,))))
    g.op("MatMul", p, do, transpose_a=True)
    share = g.op("ReduceSum", g.op("Multiply", o, do), axes=[-1], keep_dims=True)
    ds = g.op("Multiply", p, g.op("Subtract", g.op("MatMul", do, v, transpose_b=True), share))
    g.op("MatMul", ds, k)
    g.op("MatMul", ds, q, transpose_a=True)


def _gated_mlp(g: GraphBuilder) -> None:
    x = g.input((5, 24))
    gate, up = (g.op("MatMul", x, g.input((24, 40), property="constant")) for _ in range(2))
    hidden = g.op("Multiply", g.op("Multiply", gate, g.op("Sigmoid", gate)), up)
    g.op("MatMul", hidden, g.input((40, 24), property="constant"))


def _matmul_gradient(g: GraphBuilder) -> None:
    g.op("GELUBackward", g.input((20, 70)), g.op("MatMul", g.input((20, 33)), g.input((33, 70))))


def _gradient_pair(kind: str, a: Any = (3, 5, 70), b: Any = (3, 5, 70), **attrs: Any) -> Callable[[GraphBuilder], None]:
    def build(g: GraphBuilder) -> None:
        g.op(kind, g.input(a), g.input(b), **attrs)

    return build


def _layer_norm_gradient(g: GraphBuilder) -> None:
    rows, statistics, parameter = (4, 9, 70), (4, 9), (70,)
    ports = [g.input(shape) for shape in (rows, rows, statistics, statistics, parameter, parameter)]
    g.op("LayerNormBackward", *ports, n=3, use_affine=True)


def _batch_norm_gradient(g: GraphBuilder) -> None:
    ports = [g.input(shape) for shape in ((3, 20, 7, 9), (3, 20, 7, 9), (20,), (20,), (20,))]
    g.op("BatchNormTrainingBackward", *ports, n=3, epsilon=1e-5, data_format="NCX")


def _shuffle(g: GraphBuilder) -> None:
    x = g.op("StaticReshape", g.input((2, 6, 4)), shape=[2, 2, 3, 4], special_zero=False)
    g.op("StaticReshape", g.op("StaticTranspose", x, order=[0, 2, 1, 3]), shape=[2, 6, 4], special_zero=False)


def _depthwise_block(g: GraphBuilder) -> None:
    pointwise = CONV | {"pads_begin": [0, 0], "pads_end": [0, 0], "data_format": "NCX", "weights_format": "OIX"}
    x = g.op("ReLU", g.op("Convolution", g.input((1, 6, 9, 9)), g.input((12, 6, 1, 1)), **pointwise))
    y = g.op("Convolution", x, g.input((12, 1, 3, 3)), **pointwise | CONV, groups=12)
    g.op("Clamp", y, min=0.0, max=6.0)


def _decomposed_gelu(g: GraphBuilder) -> None:
    x = g.op("MatMul", g.input((9, 32)), g.input((32, 40)))
    half = g.input((1,))
    cube = g.op("Multiply", g.op("Square", x), x)
    inner = g.op("Tanh", g.op("Add", x, g.op("Multiply", cube, g.input((1,)))))
    g.op("Multiply", g.op("Multiply", x, half), g.op("Add", inner, g.input((1,))))


def _residual(g: GraphBuilder) -> None:
    x = g.op("ReLU", g.op("MatMul", g.input((6, 16)), g.input((16, 16))))
    y = g.op("MatMul", x, g.input((16, 16)))
    g.op("ReLU", g.op("Add", y, x))


def _moved(g: GraphBuilder) -> None:
    x = g.input((2, 6, 4))
    y = g.op("StaticTranspose", x, order=[0, 2, 1])
    z = g.op("StaticReshape", y, shape=[0, -1], special_zero=True)
    g.op("Exp", z)


def _integers(g: GraphBuilder) -> None:
    a, b = g.input((3, 4), "s32"), g.input((4,), "s32")
    g.op("GreaterEqual", g.op("Add", a, b), g.op("Subtract", a, b), dtype="boolean")


def _select(g: GraphBuilder) -> None:
    mask = g.input((3, 1, 5), "boolean")
    g.op("Select", mask, g.input((3, 4, 5)), g.input((1,)), dtype="f32")


def _compare_and_choose(g: GraphBuilder) -> None:
    x = g.input((6, 50))
    inside = g.op(
        "And",
        g.op("Less", x, g.input((50,)), dtype="boolean"),
        g.op("Greater", x, g.input(()), dtype="boolean"),
    )
    g.op("Select", inside, x, g.op("Neg", x), dtype="f32")


def _indexed(kind: str, src: Any, picked: Any, dtype: str = "f32", updates: Any = None, **attrs: Any):
    def build(g: GraphBuilder) -> None:
        x, indices = g.input(src, dtype), g.input(picked, "s64")
        g.op(kind, x, indices, *([] if updates is None else [g.input(updates, dtype)]), **attrs)

    return build


def _one_hot(g: GraphBuilder) -> None:
    g.op("OneHot", g.input((4, 5), "s32"), g.input((2,)), dtype="f32", depth=60)


def _rotary(g: GraphBuilder) -> None:
    x, cos, sin = g.input((2, 3, 7, 16)), g.input((60, 6)), g.input((60, 6))
    g.op("RotaryEmbedding", x, cos, sin, g.input((2, 7), "s32"), rotary_embedding_dim=12)


def _wide_region(g: GraphBuilder) -> None:
    """Thirty values that are alive at once."""
    x = g.op("Abs", g.input((5, 30)))
    branches = [g.op("Clamp", x, min=-float(k), max=float(k)) for k in range(30)]
    total = branches[0]
    for branch in branches[1:]:
        total = g.op("Add", total, branch)


def _batch_norm_training(g: GraphBuilder) -> None:
    mean, variance = g.input((5,)), g.op("Square", g.input((5,)))
    gamma, beta = g.input((5,)), g.input((5,))
    g.op(
        "BatchNormForwardTraining", g.input((3, 5, 4, 4)), mean, variance, gamma, beta,
        n=5, epsilon=0.01, momentum=0.3, data_format="NCX",
    )  # fmt: skip


UNARY_ATTRS: dict[str, dict[str, Any]] = {
    "Abs": {}, "Exp": {}, "HardSwish": {}, "Log": {}, "Mish": {}, "Reciprocal": {}, "ReLU": {}, "Round": {},
    "Sigmoid": {}, "Sqrt": {}, "Square": {}, "Tanh": {}, "GELU": {}, "SoftPlus": {"beta": 2.0},
    "Clamp": {"min": 0.25, "max": 1.5}, "Elu": {"alpha": 0.7}, "LeakyReLU": {"alpha": 0.1},
    "HardSigmoid": {"alpha": 0.3, "beta": 0.4}, "Pow": {"beta": 1.5},
}  # fmt: skip
POSITIVE = {"low": 0.1, "high": 2.0}

CASES: list[Case] = [
    *[
        Case(f"{kind}_{dtype}", _unary(kind, attrs, dtype), bounds=POSITIVE)
        for kind, attrs in UNARY_ATTRS.items()
        for dtype in ("f32", "bf16", "f16")
    ],
    Case("GELU_tanh_f32", _unary("GELU", {"mode": "gelu_tanh"}, "f32")),
    *[
        Case(f"{kind}_{dtype}", _binary(kind, dtype, (4, 1, 33), (5, 1)), bounds=POSITIVE)
        for kind in ("Add", "Subtract", "Multiply", "Divide", "Maximum", "Minimum", "SquaredDifference")
        for dtype in ("f32", "bf16", "f16")
    ],
    Case("Add_scalars", _binary("Add", "f32", (), ())),
    Case("Add_empty", _binary("Add", "f32", (0, 3), (3,))),
    Case("Add_rank_6", _binary("Add", "f32", (2, 1, 3, 1, 2, 4), (5, 1, 2, 2, 1))),
    Case("Integers", _integers, partitions=2),
    Case("Select", _select),
    Case("MatMul_2d", _matmul((17, 33), (33, 50)), scale=2),
    Case("MatMul_large", _matmul((150, 70), (70, 600)), scale=4),
    Case("MatMul_bias_relu", _matmul((8, 64), (64, 48), bias=(48,), tail=("ReLU",)), scale=4),
    Case("MatMul_parts_of_k", _matmul((4, 12000), (12000, 24), bias=(24,), tail=("GELU",)), scale=8, bounds={"low": -0.1, "high": 0.1}),
    Case("MatMul_transposed", _matmul((33, 7), (20, 33), transpose_a=True, transpose_b=True), scale=4),
    Case("MatMul_batched", _matmul((2, 1, 5, 9), (3, 9, 4)), scale=2),
    Case("MatMul_vectors", _matmul((9,), (9,)), scale=2),
    Case("MatMul_vector_matrix", _matmul((9,), (2, 9, 4)), scale=2),
    Case("MatMul_matrix_vector", _matmul((5, 9), (9,)), scale=2),
    Case("MatMul_k0", _matmul((4, 0), (0, 3), bias=(3,))),
    Case("MatMul_residual_swish", _matmul((12, 31), (31, 40), tail=("Add", "Swish", "Clamp")), scale=8),
    Case("MatMul_bf16", _matmul((9, 32), (32, 24), "bf16", (24,), ("ReLU",)), scale=2),
    Case("MatMul_f16", _matmul((9, 32), (32, 24), "f16", (24,), ("GELU",)), scale=4),
    Case("MatMul_int8", _quantized_matmul),
    Case("MatMul_dynamic_int8", _dynamic_matmul, partitions=2, scale=8),
    Case("MatMul_decomposed_gelu", _decomposed_gelu, scale=8, bounds={"low": -1.0, "high": 1.0}),
    Case("MatMul_residual_block", _residual, partitions=2, scale=16),
    Case("Conv_ncx", _conv((2, 6, 9, 10), (8, 6, 3, 3), bias=True, tail=("ReLU",)), scale=8),
    Case("Conv_nxc", _conv((2, 9, 10, 6), (3, 3, 6, 8), bias=True, data_format="NXC", weights_format="XIO"), scale=8),
    Case("Conv_batch_norm", _conv((1, 4, 8, 8), (8, 4, 3, 3), tail=("BatchNorm", "ReLU")), partitions=2, scale=16),
    Case("Conv_grouped", _conv((1, 6, 7, 7), (9, 2, 3, 3), groups=3), scale=8),
    Case("Conv_depthwise", _conv((1, 16, 9, 9), (16, 1, 3, 3), groups=16, tail=("Clamp",)), scale=8),
    Case("Conv_depthwise_nxc", _conv((1, 9, 9, 16), (3, 3, 1, 16), groups=16, data_format="NXC", weights_format="XIO"), scale=8),
    Case("Conv_strided_dilated", _conv((1, 5, 17, 15), (4, 5, 3, 3), strides=[2, 2], dilations=[2, 2]), scale=8),
    Case("Conv_1x1_residual", _conv((1, 8, 6, 6), (4, 8, 1, 1), pads_begin=[0, 0], pads_end=[0, 0], tail=("Add", "ReLU")), scale=8),
    Case("Conv_1d", _conv((2, 3, 30), (5, 3, 4), pads_begin=[2], pads_end=[1], strides=[1], dilations=[1]), scale=8),
    Case("Conv_3d", _conv((1, 2, 5, 6, 7), (3, 2, 2, 3, 2), pads_begin=[0, 1, 1], pads_end=[1, 1, 0], strides=[1, 2, 1], dilations=[1, 1, 1]), scale=8),
    Case("Conv_same_upper", _conv((1, 3, 8, 9), (4, 3, 3, 4), auto_pad="SAME_UPPER", strides=[2, 2]), scale=8),
    Case("MatMul_compressed_s8", _compressed(1, 130, 70, "s8"), scale=8),
    Case("MatMul_compressed_u8_zeros", _compressed(3, 96, 33, "u8", 32, True, tail=("AddRow", "ReLU")), scale=64),
    Case("MatMul_compressed_s4_groups", _compressed(9, 128, 40, "s4", 32, tail=("GELU",)), scale=8),
    Case("MatMul_compressed_u4_transposed", _compressed(2, 64, 130, "u4", 16, True, transpose_b=True), scale=16),
    Case("Conv_packed", _conv((2, 24, 9, 10), (40, 24, 3, 3), bias=True, tail=("Add", "ReLU")), scale=16),
    Case("Conv_packed_nxc", _conv((2, 9, 10, 24), (3, 3, 24, 40), tail=("Clamp",), data_format="NXC", weights_format="XIO"), scale=16),
    Case("Conv_packed_grouped", _conv((1, 48, 9, 9), (40, 24, 3, 3), groups=2, tail=("Swish",)), scale=16),
    Case("Conv_packed_strided_dilated", _conv((1, 20, 17, 15), (4, 20, 3, 3), strides=[2, 2], dilations=[2, 2]), scale=16),
    Case("Conv_packed_3d", _conv((1, 20, 5, 6, 7), (3, 20, 2, 3, 2), pads_begin=[0, 1, 1], pads_end=[1, 1, 0], strides=[1, 2, 1], dilations=[1, 1, 1]), scale=16),
    Case("Conv_winograd", _conv((1, 40, 17, 18), (36, 40, 3, 3), bias=True, prefer="latency", tail=("Add", "ReLU")), scale=16, bounds={"low": -0.5, "high": 0.5}),
    Case("Conv_few_channels", _conv((2, 3, 30, 31), (40, 3, 7, 7), strides=[2, 2], pads_begin=[3, 3], pads_end=[3, 3], tail=("ReLU",)), scale=16),
    Case("Conv_depthwise_wide", _conv((2, 40, 9, 30), (40, 1, 5, 3), groups=40, strides=[2, 1], tail=("HardSwish",)), scale=8),
    Case("Conv_depthwise_residual", _conv((1, 9, 9, 24), (3, 3, 1, 24), groups=24, bias=True, tail=("Add",), data_format="NXC", weights_format="XIO"), scale=8),
    Case("Conv_packed_bf16", _conv((1, 24, 8, 8), (20, 24, 3, 3), dtype="bf16", tail=("ReLU",)), scale=4),
    Case("Conv_bf16", _conv((1, 4, 8, 8), (8, 4, 3, 3), dtype="bf16", tail=("ReLU",)), scale=2),
    Case("ConvTranspose", _conv((1, 4, 5, 6), (4, 6, 3, 3), kind="ConvTranspose", strides=[2, 2], bias=True, output_padding=[1, 0]), scale=8),
    Case("ConvTranspose_grouped", _conv((1, 5, 6, 4), (3, 3, 3, 4), kind="ConvTranspose", groups=2, data_format="NXC", weights_format="XOI", tail=("ReLU",)), scale=8),
    Case("MaxPool", _pool("MaxPool", (2, 5, 11, 12), (3, 2))),
    Case("MaxPool_ceil", _pool("MaxPool", (1, 5, 12, 12), (3, 3), rounding_type="ceil", pads_end=[0, 0])),
    Case("AvgPool", _pool("AvgPool", (2, 5, 11, 12), (3, 2), tail=("ReLU",))),
    Case("AvgPool_exclude", _pool("AvgPool", (2, 7, 7, 5), (2, 2), exclude_pad=True, data_format="NXC")),
    Case("Interpolate_nearest", lambda g: g.op("Interpolate", g.input((1, 3, 5, 6)), mode="nearest", sizes=[9, 7], data_format="NCX")),
    Case("Interpolate_linear", lambda g: g.op("Interpolate", g.input((1, 5, 6, 3)), mode="bilinear", scales=[2.0, 1.5])),
    Case("Interpolate_corners", lambda g: g.op("Interpolate", g.input((1, 3, 5, 6)), mode="bilinear", sizes=[9, 11], data_format="NCX", coordinate_transformation_mode="align_corners")),
    Case("LayerNorm", _norm("LayerNorm", (4, 5, 33), 2, False), scale=4),
    Case("LayerNorm_stats", _norm("LayerNorm", (4, 5, 33), 2, True), scale=4),
    Case("LayerNorm_axis_1", _norm("LayerNorm", (4, 5, 33), 0, True, begin_norm_axis=1), scale=4),
    Case("LayerNorm_broadcast", lambda g: g.op("LayerNorm", g.input((3, 4, 5)), g.input((5,)), g.input((4, 1)), begin_norm_axis=1, keep_stats=False), scale=4),
    Case("LayerNorm_unscaled", lambda g: g.op("LayerNorm", g.input((3, 4)), g.input((4,)), g.input((4,)), use_affine=False, keep_stats=False), scale=4),
    Case("LayerNorm_bf16", _norm("LayerNorm", (4, 33), 2, False, "bf16", ("GELU",)), scale=2),
    Case("RMSNorm", _norm("RMSNorm", (4, 5, 64), 1, False, tail=("Multiply",)), scale=4),
    Case("GroupNorm", _norm("GroupNorm", (2, 6, 5, 5), 2, True, groups=3, data_format="NCX"), scale=4),
    Case("GroupNorm_nxc", _norm("GroupNorm", (2, 5, 5, 6), 2, False, groups=2, tail=("ReLU",)), scale=4),
    Case("BatchNormTraining", _batch_norm_training, partitions=2, scale=4),
    Case("SoftMax", lambda g: g.op("SoftMax", g.input((3, 7, 40)), axis=-1)),
    Case("SoftMax_axis_1", lambda g: g.op("SoftMax", g.input((3, 7, 40)), axis=1)),
    Case("SoftMax_stats", lambda g: g.op("SoftMax", g.input((3, 17)), axis=-1, n=2, dtype=["f32", "f32"])),
    Case("SoftMax_bf16", lambda g: g.op("SoftMax", g.input((3, 17), "bf16"), axis=-1)),
    Case("LogSoftmax", lambda g: g.op("ReLU", g.op("LogSoftmax", g.input((3, 17)), axis=0))),
    *[
        Case(f"{kind}", lambda g, kind=kind: g.op("Sqrt", g.op("Abs", g.op(kind, g.input((3, 4, 5, 6)), axes=[1, -1]))), scale=4)
        for kind in ("ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum")
    ],
    Case("ReduceSum_keep", lambda g: g.op("ReduceSum", g.input((3, 40)), axes=[0], keep_dims=True), scale=4),
    *[
        Case(f"{kind}_{dtype}", _unary(kind, {}, dtype), bounds={"low": 0.1, "high": 0.9})
        for kind in ("Acos", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf", "Floor", "Neg", "Sign",
                     "Sin", "Sinh", "Tan")
        for dtype in ("f32", "f64", "bf16")
    ],
    Case("Acosh_f32", _unary("Acosh", {}, "f32"), bounds={"low": 1.1, "high": 9.0}),
    *[
        Case(f"{kind}_{dtype}", _binary(kind, dtype, (4, 1, 33), (5, 1)), scale=4, bounds=POSITIVE)
        for kind in ("Add", "Subtract", "Multiply", "Divide", "Maximum", "Minimum", "Mod", "Power")
        for dtype in ("f64", "s64", "s32", "u8")
    ],
    *[
        Case(f"{kind}_{dtype}", _binary(kind, dtype, (4, 9), (9,), "boolean"))
        for kind in ("Equal", "Greater", "Less", "LessEqual", "GreaterEqual")
        for dtype in ("f32", "s64", "f64")
    ],
    *[Case(kind, _binary(kind, "boolean", (4, 9), (9,))) for kind in ("And", "Or", "Xor")],
    *[Case(kind, _binary(kind, "u16", (4, 9), (9,))) for kind in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")],
    Case("BitShift", lambda g: g.op("BitShift", g.input((50,), "u32"), g.input((), "u32"), direction="RIGHT")),
    Case("BitwiseNot", lambda g: g.op("BitwiseNot", g.input((50,), "s8"))),
    Case("Not", lambda g: g.op("Not", g.input((50,), "boolean"))),
    Case("IsNaN", lambda g: g.op("IsNaN", g.op("Log", g.input((5, 70))), dtype="boolean")),
    Case("IsInf", lambda g: g.op("IsInf", g.op("Exp", g.input((5, 70))), dtype="boolean"), bounds={"low": 50.0, "high": 150.0}),
    Case("Compare_and_choose", _compare_and_choose, partitions=3),
    Case("Wide_region", _wide_region, scale=64),
    *[Case(f"TypeCast_{a}_{b}", lambda g, a=a, b=b: g.op("TypeCast", g.input((3, 50), a), dtype=b))
      for a, b in (("f32", "s32"), ("s64", "f32"), ("u8", "f16"), ("f64", "bf16"), ("s64", "s8"), ("f32", "boolean"))],
    Case("Select_s64", lambda g: g.op("Select", g.input((3, 1), "boolean"), g.input((3, 4), "s64"), g.input((4,), "s64"), dtype="s64")),
    Case("Expand", lambda g: g.op("Expand", g.input((3, 1, 70)), shape=[2, 1, 5, 1])),
    Case("Slice", lambda g: g.op("Slice", g.input((3, 40, 9)), starts=[-1, 1], ends=[3, 8], axes=[1, 2], steps=[-2, 1])),
    Case("Split", lambda g: g.op("Split", g.input((3, 40), "u16"), n=3, axis=1, split=[7, 0, 33])),
    Case("Tile", lambda g: g.op("Tile", g.input((3, 1, 40), "boolean"), repeats=[2, 3, 2])),
    *[Case(f"Pad_{mode}", lambda g, mode=mode: g.op("Pad", g.input((2, 9, 10)), pads_begin=[0, 2, 25], pads_end=[0, 1, 3], mode=mode))
      for mode in ("constant", "reflect", "edge", "wrap")],
    Case("Trilu", lambda g: g.op("Trilu", g.input((2, 30, 40), "s64"), k=-2, upper=False)),
    Case("Gather", _indexed("Gather", (60, 33), (7, 5))),
    Case("GatherElements", _indexed("GatherElements", (50, 9), (70, 8), "u8")),
    Case("GatherND", _indexed("GatherND", (4, 50, 50, 3), (4, 6, 2), "f64", batch_dims=1)),
    *[Case(f"ScatterElements_{reduction}", _indexed("ScatterElements", (50, 9), (70, 8), "s32", (70, 8), reduction=reduction))
      for reduction in ("none", "add", "mul", "max", "min")],
    Case("ScatterND", _indexed("ScatterND", (50, 50, 3), (6, 2), "f16", (6, 3))),
    Case("OneHot", _one_hot),
    Case("RotaryEmbedding", _rotary),
    *[Case(f"{kind}_{dtype}", lambda g, kind=kind, dtype=dtype: g.op(kind, g.input((3, 40, 5), dtype), dtype="s64", axis=1))
      for kind in ("ArgMax", "ArgMin") for dtype in ("f32", "s64", "u8", "f64")],
    *[Case(f"{kind}_{dtype}", lambda g, kind=kind, dtype=dtype: g.op(kind, g.input((3, 40, 5), dtype), axis=1, reverse=True), scale=8, bounds=POSITIVE)
      for kind in ("CumSum", "CumProd") for dtype in ("f32", "s64", "u8", "f64")],
    *[Case(f"TopK_{dtype}", lambda g, dtype=dtype: g.op("TopK", g.input((3, 40, 5), dtype), n=2, dtype=[dtype, "s64"], axis=1, k=7))
      for dtype in ("f32", "s64", "bf16")],
    *[Case(f"{kind}_{dtype}", lambda g, kind=kind, dtype=dtype: g.op(kind, g.input((3, 40, 5), dtype), axes=[0, 2]), bounds=POSITIVE)
      for kind in ("ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum") for dtype in ("f64", "s64", "u8")],
    Case("Attention", _attention, scale=8),
    Case("Attention_causal_grouped", _causal_attention, scale=8),
    Case("Attention_training", lambda g: Training(g, (2, 2, 3), (2, 2, 1), dtype="bf16", select="causal").forward(),
         scale=64, bounds={"low": -1.0, "high": 1.0}),
    Case("Attention_gradient", lambda g: Training(g, (2, 2, 3), (2, 2, 1), 70, 90, mask="keys").backward(), scale=64,
         bounds={"low": -1.0, "high": 1.0}),
    Case("Attention_backward", _attention_backward, scale=64, bounds={"low": -1.0, "high": 1.0}),
    Case("MatMul_gradient_of_gelu", _matmul_gradient, scale=8),
    *[Case(kind, _gradient_pair(kind, axis=-1), bounds=POSITIVE) for kind in ("SoftMaxBackward", "LogSoftmaxBackward")],
    Case("LayerNormBackward", _layer_norm_gradient, scale=16, bounds=POSITIVE),
    Case("BatchNormTrainingBackward", _batch_norm_gradient, scale=16, bounds=POSITIVE),
    Case("ConvBackwardData", _gradient_pair("ConvolutionBackwardData", (2, 24, 9, 9), (24, 16, 3, 3), dst_shape=[2, 16, 9, 9], **CONV, **NCX), scale=16),
    Case("ConvBackwardWeights", _gradient_pair("ConvolutionBackwardWeights", (2, 16, 9, 9), (2, 24, 9, 9), weights_shape=[24, 16, 3, 3], **CONV, **NCX), scale=16),
    Case("Gated_mlp", _gated_mlp, scale=64),
    Case("MatMul_int8_sum", _quantized_sum(None)),
    Case("MatMul_int8_bf16_sum", _quantized_sum("bf16")),
    Case("MatMul_compressed", _compressed_weights, scale=64),
    Case("MatMul_binary", _binary_matmul_binary, scale=8),
    Case("MatMul_moved", _moved_product, scale=2),
    Case("Conv_depthwise_block", _depthwise_block, scale=16),
    Case("Concat_int8", _quantized_concat),
    Case("Conv_int8", _quantized_conv(16, 34)),
    Case("Conv_int8_1x1", _quantized_conv(32, 34, 1, data_format="NXC")),
    Case("Conv_int8_residual", _quantized_conv(16, 34, residual=True)),
    Case("Conv_int8_grouped", _quantized_conv(16, 34, groups=2)),
    Case("Conv_int8_depthwise", _quantized_conv(20, 20, groups=20)),
    Case("MaxPool_int8", _quantized_pool("MaxPool")),
    Case("AvgPool_int8", _quantized_pool("AvgPool")),
    Case("GELU_int8", _function_of_bytes),
    Case("Float8_e4m3", _float8("f8_e4m3"), partitions=2),
    Case("Float8_e5m2", _float8("f8_e5m2"), partitions=2),
    Case("Shuffle", _shuffle),
    Case("Moved", _moved),
    Case("Concat", lambda g: g.op("Concat", g.input((2, 3, 4)), g.input((2, 1, 4)), g.input((2, 5, 4)), axis=1)),
    Case("GenIndex", lambda g: g.op("GenIndex", g.input((3, 4, 5)), dtype="s32", axis=1)),
    Case("TypeCast", lambda g: g.op("TypeCast", g.input((3, 50)), dtype="bf16")),
    Case("Quantize_channels", lambda g: g.op("Quantize", g.input((3, 5)), dtype="s8", scales=[0.1, 0.2, 0.05], axis=0, qtype="per_channel")),
    Case("Dequantize", lambda g: g.op("Dequantize", g.input((3, 5), "s8"), dtype="f32", scales=[0.25], zps=[3])),
    Case("PReLU", lambda g: g.op("PReLU", g.input((2, 5, 4)), g.input((5,)), data_format="NCX")),
    Case("BiasAdd", lambda g: g.op("BiasAdd", g.input((2, 4, 5)), g.input((5,)))),
]  # fmt: skip

BY_NAME = {case.name: case for case in CASES}
