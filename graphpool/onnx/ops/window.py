"""Convolution and pooling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphpool.onnx.build import NodeView, Value

__all__ = ["CONVERTERS"]


def _window(n: NodeView, spatial: int) -> dict[str, Any]:
    """Strides and pads in our spelling."""
    pads = list(n.attr("pads") or [0] * (2 * spatial))
    auto_pad = n.attr("auto_pad", "NOTSET")
    return {
        "strides": n.attr("strides") or [1] * spatial,
        "pads_begin": pads[:spatial],
        "pads_end": pads[spatial:],
        "data_format": "NCX",
        "auto_pad": "None" if auto_pad == "NOTSET" else auto_pad,
    }


def _dilations(n: NodeView, spatial: int) -> list[int]:
    return list(n.attr("dilations") or [1] * spatial)


def _conv(n: NodeView) -> Value:
    spatial = len(n[0].shape) - 2
    inputs = [n[k] for k in range(3) if n.has(k)]
    return n.emit(
        "Convolution", *inputs, **_window(n, spatial), dilations=_dilations(n, spatial), groups=n.attr("group", 1),
        weights_format="OIX",
    )  # fmt: skip


def _conv_transpose(n: NodeView) -> Value:
    spatial = len(n[0].shape) - 2
    window, dilations = _window(n, spatial), _dilations(n, spatial)
    padding = list(n.attr("output_padding") or [0] * spatial)
    if n.attr("output_shape") is not None:
        window |= _pads_for(n, list(n.attr("output_shape"))[-spatial:], window["strides"], dilations, padding)
    inputs = [n[k] for k in range(3) if n.has(k)]
    return n.emit(
        "ConvTranspose", *inputs, **window, dilations=dilations, groups=n.attr("group", 1), weights_format="IOX",
        output_padding=padding,
    )  # fmt: skip


def _pads_for(
    n: NodeView, wanted: list[int], strides: list[int], dilations: list[int], padding: list[int]
) -> dict[str, Any]:
    """Pads with which a transposed convolution gives the wanted shape (ONNX specification of ConvTranspose)."""
    begin, end = [], []
    for k, size in enumerate(wanted):
        reach = (n[1].shape[2 + k] - 1) * dilations[k] + 1
        total = strides[k] * (n[0].shape[2 + k] - 1) + padding[k] + reach - size
        n.require(total >= 0, "output_shape is larger than the full result")
        small, large = total // 2, total - total // 2
        is_upper = n.attr("auto_pad", "NOTSET") == "SAME_UPPER"
        begin.append(small if is_upper else large)
        end.append(large if is_upper else small)
    return {"pads_begin": begin, "pads_end": end, "auto_pad": "None"}


def _pool(kind: str) -> Callable[[NodeView], Value]:
    def convert(n: NodeView) -> Value:
        n.require(n.used_outputs < 2, "the indices are read")
        kernel = list(n.attr("kernel_shape"))
        dilations = _dilations(n, len(kernel))
        options: dict[str, Any] = {"dilations": dilations}
        if kind == "AvgPool":
            n.require(set(dilations) <= {1}, "dilated mean")
            options = {"exclude_pad": not n.attr("count_include_pad", 0)}
        rounding = _rounding(n, kernel, dilations) if n.attr("ceil_mode", 0) else "floor"
        return n.emit(kind, n[0], kernel=kernel, rounding_type=rounding, **_window(n, len(kernel)), **options)

    return convert


def _rounding(n: NodeView, kernel: list[int], dilations: list[int]) -> str:
    """How our op has to round: ONNX rounds up, but leaves out a window that would start behind the input."""
    window, needed = _window(n, len(kernel)), set()
    for k, size in enumerate(n[0].shape[2:]):
        begin, end, stride = window["pads_begin"][k], window["pads_end"][k], window["strides"][k]
        last, rest = divmod(size + begin + end - dilations[k] * (kernel[k] - 1) - 1, stride)
        if rest:
            needed.add("ceil" if (last + 1) * stride < size + begin else "floor")
    n.require(len(needed) < 2, "one dimension rounds up and another one down")
    return needed.pop() if needed else "floor"


def _global(kind: str) -> Callable[[NodeView], Value]:
    return lambda n: n.emit(kind, n[0], axes=list(range(2, len(n[0].shape))), keep_dims=True)


def _global_lp(n: NodeView) -> Value:
    n.require(n.attr("p", 2) in (1, 2), "p is neither 1 nor 2")
    return _global(f"ReduceL{n.attr('p', 2)}")(n)


CONVERTERS = {
    "Conv": _conv, "ConvTranspose": _conv_transpose, "MaxPool": _pool("MaxPool"), "AveragePool": _pool("AvgPool"),
    "GlobalAveragePool": _global("ReduceMean"), "GlobalMaxPool": _global("ReduceMax"), "GlobalLpPool": _global_lp,
}  # fmt: skip
