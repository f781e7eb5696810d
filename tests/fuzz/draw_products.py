"""Draws of matrix products and convolutions, plain, quantised and with compressed weights, and of attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .draw_eltwise import post_op
from .maker import Maker, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["DRAWS", "bytes_of", "tail", "window_attrs"]

FLOAT = ("f32", "bf16", "f16")


def tail(m: Maker, x: int) -> int:
    """Up to four fused post-ops."""
    for _ in range(m.choose([0, 0, 1, 1, 2, 4])):
        x = post_op(m, x)
    return x


def product_dims(m: Maker) -> tuple[int, int, int]:
    """Rows, depth and columns within the budget of elements."""
    depth = m.dim(max(m.elements // 4, 4))
    rows = m.dim(max(m.elements // max(depth, 1), 1))
    columns = m.dim(max(m.elements // max(depth, rows, 1), 1))
    return rows, depth, columns


def turned(m: Maker, shape: Sequence[int], is_turned: bool) -> tuple[int, ...]:
    return (*shape[:-2], shape[-1], shape[-2]) if is_turned else tuple(shape)


def matmul(m: Maker) -> int:
    found = [i for i in m.live(FLOAT, low=1, high=6) if 1 <= m.shape_of(i)[-1] <= 600]
    attrs: dict[str, Any] = {}
    rows, depth, columns = product_dims(m)
    batch = tuple(m.integer(1, 3) for _ in range(m.choose([0, 0, 0, 1, 2, 3])))
    if found and m.chance(m.reuse):
        a = m.choose(found)
        batch, depth = m.shape_of(a)[:-2], m.shape_of(a)[-1]
    elif m.chance(0.08):
        a = m.fresh(m.allowed(FLOAT), (depth,))
        batch = ()
    else:
        attrs["transpose_a"] = m.chance(0.3)
        a = m.fresh(m.allowed(FLOAT), turned(m, (*batch, rows, depth), attrs["transpose_a"]))
    dtype = m.dtypes[a]
    constant = m.chance(0.6)
    other = () if m.chance(0.6) else tuple(dim if m.chance(0.7) else 1 for dim in batch)
    if m.chance(0.06):
        b = m.fresh(dtype, (depth,), constant)
    else:
        attrs["transpose_b"] = m.chance(0.3)
        b = m.operand(dtype, turned(m, (*other, depth, columns), attrs["transpose_b"]), constant)
    result = dtype if m.chance(0.85) else "f32"
    probe = np.matmul(np.zeros(_as_used(m, a, attrs.get("transpose_a", False))),
                      np.zeros(_as_used(m, b, attrs.get("transpose_b", False)))).shape  # fmt: skip
    extra = [m.operand(dtype, tuple(dim if m.chance(0.8) else 1 for dim in probe)[-1:], m.chance(0.5))
             ] if m.chance(0.3) and probe else []  # fmt: skip
    return tail(m, m.add("MatMul", [a, b, *extra], result, **attrs))


def _as_used(m: Maker, tensor_id: int, is_turned: bool) -> tuple[int, ...]:
    shape = m.shape_of(tensor_id)
    return turned(m, shape, is_turned and len(shape) > 1)


def window_attrs(m: Maker, sizes: Sequence[int], kernel: Sequence[int], dilated: bool = True) -> dict[str, Any]:
    """Strides, padding and dilations of a window, the kernel fitting into the padded input."""
    count = len(sizes)
    attrs: dict[str, Any] = {
        "strides": [m.choose([1, 1, 1, 2, 3]) for _ in range(count)],
        "dilations": [m.choose([1, 1, 1, 2]) if dilated else 1 for _ in range(count)],
        "pads_begin": [m.choose([0, 1, k // 2, k - 1]) for k in kernel],
        "pads_end": [m.choose([0, 1, k // 2, k - 1]) for k in kernel],
    }
    if m.chance(0.2):
        attrs["auto_pad"] = m.choose(["SAME_UPPER", "SAME_LOWER", "VALID", "None"])
    for n, k, d, a, b in zip(sizes, kernel, attrs["dilations"], attrs["pads_begin"], attrs["pads_end"], strict=True):
        if d * (k - 1) + 1 > n + (a + b if attrs.get("auto_pad", "None") == "None" else 0):
            raise Refused("window")
    return attrs


def laid_out(data_format: str, batch: int, channels: int, sizes: Sequence[int]) -> tuple[int, ...]:
    return (batch, channels, *sizes) if data_format == "NCX" else (batch, *sizes, channels)


def weights_shape(weights_format: str, out: int, inner: int, kernel: Sequence[int]) -> tuple[int, ...]:
    channels = [{"O": out, "I": inner}[letter] for letter in weights_format.replace("X", "")]
    return (*channels, *kernel) if weights_format.endswith("X") else (*kernel, *channels)


def conv_dims(m: Maker) -> tuple[int, int, int, list[int], list[int], int]:
    """Batch, channels in and out, spatial sizes, kernel, groups."""
    count = m.choose([1, 2, 2, 2, 2, 3])
    kernel = [m.choose([1, 1, 3, 3, 2, 5, 7]) if count < 3 else m.integer(1, 3) for _ in range(count)]
    if m.chance(0.3):
        kernel = [m.choose([1, 3])] * count
    groups = m.choose([1, 1, 1, 1, 2, 3, 8])
    inner, outer = m.integer(1, 4), m.integer(1, 4)
    if m.chance(0.35):
        inner, outer = (m.choose([n for n in (8, 15, 16, 17, 31, 32, 33, 48, 64, 65) if n]) for _ in range(2))
    if m.chance(0.15):
        inner, outer, groups = 1, m.choose([1, 1, 1, 2]), m.choose([3, 8, 16, 17, 33, 64])
    largest = {1: 40, 2: 14, 3: 6}[count]
    sizes = [m.integer(1, largest) for _ in range(count)]
    return m.choose([1, 1, 2, 3]), inner * groups, outer * groups, sizes, kernel, groups


def image_like(m: Maker) -> int | None:
    """A result that may be an image for a convolution."""
    found = [
        i for i in m.live(FLOAT, low=3, high=5) if np.size(m.values[i]) <= 4 * m.elements and 0 not in m.shape_of(i)
    ]
    return m.choose(found) if found and m.chance(m.reuse) else None


def convolution(m: Maker) -> int:
    batch, channels, out, sizes, kernel, groups = conv_dims(m)
    data_format = m.choose(["NCX", "NXC"])
    x = image_like(m)
    if x is None:
        x = m.fresh(m.allowed(FLOAT), laid_out(data_format, batch, channels, sizes))
    else:
        shape = m.shape_of(x)
        sizes = list(shape[2:] if data_format == "NCX" else shape[1:-1])
        channels, groups = shape[1 if data_format == "NCX" else -1], 1
        kernel = [m.choose([1, 3]) for _ in sizes]
    attrs = window_attrs(m, sizes, kernel) | {"groups": groups, "data_format": data_format}
    attrs["weights_format"] = m.choose(["OIX", "XIO"])
    dtype = m.dtypes[x]
    w = m.fresh(dtype, weights_shape(attrs["weights_format"], out, channels // groups, kernel), m.chance(0.75))
    extra = [m.fresh(dtype, (out,), m.chance(0.5))] if m.chance(0.4) else []
    y = m.add("Convolution", [x, w, *extra], **attrs)
    if m.chance(0.15):
        params = [m.fresh("f32", (out,), True) for _ in range(3)]
        variance = m.fresh("f32", (out,), True, how="uniform", low=0.3, high=2.0, any_value=False)
        y = m.add("BatchNormInference", [y, *params, variance], epsilon=0.01, data_format=data_format)
    return tail(m, y)


def plain_convolution(m: Maker, x: int, out: int, size: int, data_format: str) -> int:
    """A convolution with constant weights that keeps the sizes of an image, with a bias."""
    channels, count = m.shape_of(x)[1 if data_format == "NCX" else -1], len(m.shape_of(x)) - 2
    dtype = m.dtypes[x]
    w = m.fresh(dtype, (out, channels, *[size] * count), True)
    attrs = {"strides": [1] * count, "dilations": [1] * count, "data_format": data_format, "weights_format": "OIX"}
    attrs |= {"pads_begin": [size // 2] * count, "pads_end": [size // 2] * count}
    return m.add("Convolution", [x, w, m.fresh(dtype, (out,), True)], **attrs)


def wide_image(m: Maker, data_format: str) -> int:
    """A new image with as many channels as Winograd asks for."""
    channels, sizes = m.choose([32, 33, 48]), [m.integer(5, 14) for _ in range(2)]
    return m.fresh(m.choose(["f32", "f32", "bf16"]), laid_out(data_format, 1, channels, sizes))


def wide_convolution(m: Maker) -> int:
    """A chain of convolutions with many channels, perhaps with a residual."""
    data_format = m.choose(["NCX", "NXC"])
    x = wide_image(m, data_format)
    channels = m.shape_of(x)[1 if data_format == "NCX" else -1]
    y = tail(m, plain_convolution(m, x, channels, 3, data_format))
    if m.chance(0.5):
        y = m.add("ReLU", [m.add("Add", [y, x])])
    return plain_convolution(m, y, m.choose([8, 32]), m.choose([1, 3]), data_format) if m.chance(0.5) else y


def branches(m: Maker) -> int:
    """Convolutions of one image side by side, joined."""
    data_format = m.choose(["NCX", "NXC"])
    x = image_like(m)
    x = wide_image(m, data_format) if x is None else x
    size = m.choose([1, 1, 3])
    parts = []
    for _ in range(m.integer(2, 4)):
        y = plain_convolution(m, x, m.choose([4, 8, 16, 17]), size if m.chance(0.8) else 1, data_format)
        parts.append(m.add("ReLU", [y]) if m.chance(0.7) else y)
    return m.add("Concat", parts, axis=1 if data_format == "NCX" else -1)


def conv_transpose(m: Maker) -> int:
    batch, channels, out, sizes, kernel, groups = conv_dims(m)
    sizes = [min(size, 8) for size in sizes]
    data_format, weights_format = m.choose(["NCX", "NXC"]), m.choose(["IOX", "XOI"])
    attrs = {"groups": groups, "data_format": data_format, "weights_format": weights_format}
    attrs |= window_attrs(m, [99] * len(sizes), kernel)
    if m.chance(0.3):
        attrs["output_padding"] = [m.integer(0, stride - 1) for stride in attrs["strides"]]
    _transposed_fits(m, sizes, kernel, attrs)
    dtype = m.allowed(FLOAT)
    x = m.fresh(dtype, laid_out(data_format, batch, channels, sizes))
    w = m.fresh(dtype, weights_shape(weights_format, out // groups, channels, kernel), m.chance(0.7))
    extra = [m.fresh(dtype, (out,), m.chance(0.5))] if m.chance(0.4) else []
    return tail(m, m.add("ConvTranspose", [x, w, *extra], **attrs))


def _transposed_fits(m: Maker, sizes: Sequence[int], kernel: Sequence[int], attrs: dict[str, Any]) -> None:
    """Refuse a transposed window that gives no output."""
    for n, k, s, d, a, b in zip(sizes, kernel, attrs["strides"], attrs["dilations"], attrs["pads_begin"],
                                attrs["pads_end"], strict=True):  # fmt: skip
        if s * (n - 1) + d * (k - 1) + 1 - a - b < 1:
            raise Refused("transposed window")


def conv_gradient(m: Maker) -> int:
    """A gradient of a convolution, or of a transposed one, from shapes of the forward operation."""
    batch, channels, out, sizes, kernel, groups = conv_dims(m)
    sizes = [min(size, 8) for size in sizes]
    transposed, dtype = m.chance(0.4), m.allowed(FLOAT)
    attrs: dict[str, Any] = {"groups": groups, "data_format": m.choose(["NCX", "NXC"])}
    attrs |= {"weights_format": m.choose(["IOX", "XOI"] if transposed else ["OIX", "XIO"])}
    attrs |= window_attrs(m, [99] * len(sizes) if transposed else sizes, kernel)
    if transposed:
        attrs.pop("auto_pad", None)
        _transposed_fits(m, sizes, kernel, attrs)
    pieces = zip(sizes, kernel, attrs["strides"], attrs["dilations"], *_pads(m, sizes, kernel, attrs), strict=True)
    if transposed:
        after = [s * (n - 1) + d * (k - 1) + 1 - a - b for n, k, s, d, a, b in pieces]
        weights = weights_shape(attrs["weights_format"], out // groups, channels, kernel)
    else:
        after = [(n + a + b - d * (k - 1) - 1) // s + 1 for n, k, s, d, a, b in pieces]
        weights = weights_shape(attrs["weights_format"], out, channels // groups, kernel)
    src = laid_out(attrs["data_format"], batch, channels, sizes)
    dst = laid_out(attrs["data_format"], batch, out, after)
    if m.chance(0.5):
        if transposed:
            return m.add("ConvTransposeBackwardData", [m.fresh(dtype, dst), m.fresh(dtype, weights)], **attrs)
        extra = _given_shape(m, attrs, "dst_shape", src)
        return m.add("ConvolutionBackwardData", [m.fresh(dtype, dst), m.fresh(dtype, weights), *extra], **attrs)
    extra = _given_shape(m, attrs, "weights_shape", weights)
    kind = "ConvTransposeBackwardWeights" if transposed else "ConvolutionBackwardWeights"
    return m.add(kind, [m.fresh(dtype, src), m.fresh(dtype, dst), *extra], **attrs)


def _given_shape(m: Maker, attrs: dict[str, Any], name: str, shape: Sequence[int]) -> list[int]:
    """A shape as an attribute, or as an input, which is returned."""
    if m.chance(0.2):
        return [m.numbers(shape)]
    attrs[name] = list(shape)
    return []


def _pads(m: Maker, sizes: Sequence[int], kernel: Sequence[int], attrs: dict[str, Any]) -> tuple[list[int], list[int]]:
    mode = attrs.get("auto_pad", "None")
    if mode == "None":
        return attrs["pads_begin"], attrs["pads_end"]
    if mode == "VALID":
        return [0] * len(sizes), [0] * len(sizes)
    totals = [max((-(-n // s) - 1) * s + d * (k - 1) + 1 - n, 0)
              for n, k, s, d in zip(sizes, kernel, attrs["strides"], attrs["dilations"], strict=True)]  # fmt: skip
    less, more = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return (less, more) if mode == "SAME_UPPER" else (more, less)


# ---- quantised


def scales(m: Maker, count: int, low: float = 0.01, high: float = 0.1) -> list[float]:
    """Scales; powers of two give ties."""
    return [0.0625 if m.chance(0.2) else m.number(low, high) for _ in range(count)]


def bytes_of(m: Maker, shape: Sequence[int], constant: bool = False, axis: int | None = None, zero: bool = True) -> int:
    """A new quantised tensor, dequantised: per tensor, or per channel along `axis`."""
    dtype = m.choose(["u8", "s8"])
    count = 1 if axis is None or not shape[axis] else shape[axis]
    attrs: dict[str, Any] = {"scales": scales(m, count)}
    if axis is not None and shape[axis]:
        attrs |= {"qtype": "per_channel", "axis": axis}
    if zero and m.chance(0.6):
        attrs["zps"] = [m.integer(-5, 20) if dtype == "s8" else m.integer(0, 140) for _ in range(count)]
    x = m.fresh(dtype, shape, constant, low=-128, high=255)
    return m.add("Dequantize", [x], "f32", **attrs)


def quantize_back(m: Maker, x: int) -> int:
    """Bytes of a result of whatever range."""
    dtype = m.choose(["u8", "s8"])
    top = float(np.abs(np.asarray(m.values[x], dtype=np.float64)).max(initial=0.1))
    attrs: dict[str, Any] = {"scales": [float(np.float32(max(top / 100, 1e-3)))], "rounds_first": m.chance(0.3)}
    if m.chance(0.7):
        attrs["zps"] = [m.integer(0, 128) if dtype == "u8" else m.integer(-20, 20)]
    return m.add("Quantize", [x], dtype, **attrs)


def quantised_matmul(m: Maker) -> int:
    rows, depth, columns = product_dims(m)
    batch = tuple(m.integer(1, 3) for _ in range(m.choose([0, 0, 0, 1])))
    attrs = {"transpose_a": m.chance(0.2), "transpose_b": m.chance(0.3)}
    a = bytes_of(m, turned(m, (*batch, rows, depth), attrs["transpose_a"]))
    shape = turned(m, (depth, columns), attrs["transpose_b"])
    axis = (0 if attrs["transpose_b"] else 1) if m.chance(0.6) else None
    b = bytes_of(m, shape, m.chance(0.8), axis, m.chance(0.2))
    extra = [m.fresh("f32", (columns,), m.chance(0.7))] if m.chance(0.4) else []
    y = tail(m, m.add("MatMul", [a, b, *extra], **attrs))
    return quantize_back(m, y) if m.chance(0.7) else y


def quantised_convolution(m: Maker) -> int:
    batch, channels, out, sizes, kernel, groups = conv_dims(m)
    attrs = window_attrs(m, sizes, kernel) | {"groups": groups, "data_format": m.choose(["NCX", "NXC"])}
    attrs["weights_format"] = m.choose(["OIX", "XIO"])
    x = bytes_of(m, laid_out(attrs["data_format"], batch, channels, sizes))
    shape = weights_shape(attrs["weights_format"], out, channels // groups, kernel)
    axis = 0 if attrs["weights_format"] == "OIX" else len(shape) - 1
    w = bytes_of(m, shape, m.chance(0.85), axis if m.chance(0.6) else None, m.chance(0.1))
    extra = [m.fresh("f32", (out,), m.chance(0.7))] if m.chance(0.4) else []
    y = m.add("Convolution", [x, w, *extra], **attrs)
    if m.chance(0.3):
        y = m.add("Add", [y, bytes_of(m, m.shape_of(y))])
    y = tail(m, y)
    return quantize_back(m, y) if m.chance(0.7) else y


def compressed_matmul(m: Maker) -> int:
    """Weights of 8 or 4 bits with scales that are tensors: one, one a column, or one for each group of rows."""
    rows, groups, columns = m.dim(40, False), m.integer(1, 4), m.dim(80, False)
    size = m.choose([1, 4, 8, 16, 32, 33])
    depth = groups * size
    is_turned = m.chance(0.4)
    shape = (columns, depth) if is_turned else (depth, columns)
    attrs: dict[str, Any] = {"qtype": m.choose(["per_tensor", "per_channel", "per_group", "per_group"])}
    if attrs["qtype"] == "per_group":
        attrs["group_shape"] = [1, size] if is_turned else [size, 1]
        counts = tuple(dim // group for dim, group in zip(shape, attrs["group_shape"], strict=True))
    elif attrs["qtype"] == "per_channel":
        attrs["axis"] = 0 if is_turned else 1
        counts = (columns,)
    else:
        counts = (1,)
    dtype = m.choose(["u8", "s8", "u4", "s4"])
    real = m.choose(["f32", "f32", "bf16", "f16"])
    low, high = {"u8": (0, 255), "s8": (-128, 127), "u4": (0, 15), "s4": (-8, 7)}[dtype]
    inputs = [m.fresh(dtype, shape, m.chance(0.85), low=low, high=high)]
    inputs.append(m.fresh(real, counts, m.chance(0.85), how="uniform", low=0.01, high=0.2, any_value=False))
    if m.chance(0.5):
        zps = m.choose([dtype, "s32"])
        inputs.append(m.fresh(zps, counts, m.chance(0.85), low=max(low, -8), high=min(high, 15)))
    w = m.add("DynamicDequantize", inputs, real, **attrs)
    a = m.operand(real, (rows, depth))
    return tail(m, m.add("MatMul", [a, w], transpose_b=is_turned))


def attention(m: Maker) -> int:
    """softmax(q k / s + mask) v, as exporters write it."""
    batch, heads, rows, columns = m.integer(1, 2), m.integer(1, 3), m.dim(70, False), m.dim(70, False)
    size, width = m.choose([4, 8, 16, 17, 64]), m.choose([4, 8, 16, 31, 64])
    dtype = m.allowed(FLOAT)
    q = m.operand(dtype, (batch, heads, rows, size))
    is_turned = m.chance(0.5)
    k = m.operand(dtype, (batch, m.choose([heads, 1]), *((columns, size) if is_turned else (size, columns))))
    v = m.operand(dtype, (batch, heads, columns, width))
    scores = m.add("MatMul", [q, k], transpose_b=is_turned)
    if m.chance(0.7):
        scale = m.fresh(dtype, m.choose([(), (1,)]), how="uniform", low=0.2, high=0.9, any_value=False)
        scores = m.add(m.choose(["Multiply", "Divide"]), [scores, scale])
    if m.chance(0.6):
        scores = m.add("Add", [scores, m.operand(dtype, m.choose([(columns,), (batch, 1, rows, columns), (rows, 1)]))])
    return m.add("MatMul", [m.add("SoftMax", [scores], axis=m.choose([-1, 3])), v])


DRAWS: tuple[tuple[float, Callable[[Maker], int]], ...] = (
    (3, matmul), (2.5, convolution), (0.7, wide_convolution), (0.6, branches),
    (1, conv_transpose), (1, conv_gradient), (1, quantised_matmul),
    (1, quantised_convolution), (0.8, compressed_matmul), (0.4, attention),
)  # fmt: skip
