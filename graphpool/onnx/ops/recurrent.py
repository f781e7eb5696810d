"""Recurrent layers: one product of the inputs of all steps, and one op that takes the steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool.graph.shapes import are_equal
from graphpool.typing import DataType

from . import direct
from .quantization import dequantize, scaling

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphpool.onnx.build import NodeView, Value

_X, _W, _R, _B, _LENGTHS, _H, _C, _P, _SCALES = range(9)
_STATES = {_H: "initial_h", _C: "initial_c"}
_QUANTISED_OPSET = 11
_GATES = {"rnn": 1, "gru": 3, "lstm": 4}

_NUMBERS: dict[str, tuple[float, ...]] = {
    "affine": (1.0, 0.0), "leakyrelu": (0.01,), "thresholdedrelu": (1.0,), "scaledtanh": (1.0, 1.0),
    "hardsigmoid": (0.2, 0.5), "elu": (1.0,),
}  # fmt: skip
"""Activation -> alpha and beta by default, as far as it has them."""


def _convert(cell: str, *, is_quantised: bool = False) -> Callable[[NodeView], list[Value]]:
    """A converter of RNN, GRU, LSTM, or of DynamicQuantizeLSTM."""

    def convert(n: NodeView) -> list[Value]:
        is_batch_first = bool(n.attr("layout", 0))
        x = _swapped(n, n[_X]) if is_batch_first else n[_X]
        directions, hidden = n[_R].shape[0], n[_R].shape[1 if is_quantised else 2]
        n.check(n.attr("hidden_size", hidden) == hidden, "attribute 'hidden_size'", hidden, n.attr("hidden_size"))
        start = n.literal(np.zeros((directions, 1, hidden)), x)
        ports = [_H, _C] if cell == "lstm" else [_H]
        for k in filter(n.has, ports):
            batch = n[_X].shape[0 if is_batch_first else 1]
            wanted = (batch, directions, hidden) if is_batch_first else (directions, batch, hidden)
            n.check(are_equal(n[k].shape, wanted), _STATES[k], f"shape {wanted}, a state a sequence", n[k].shape)
        states = [start if not n.has(k) else _swapped(n, n[k]) if is_batch_first else n[k] for k in ports]
        biases = n[_B] if n.has(_B) else n.literal(np.zeros((directions, 2 * _GATES[cell] * hidden)), x)
        given = _quantised_products(n, x) if is_quantised else _product(n, x)
        peepholes = [n[_P]] if cell == "lstm" and n.has(_P) else []
        results = n.emit_several(
            "Recurrent", [x.dtype] * (len(states) + 1), given, n[_R], biases, _lengths(n), *states, *peepholes,
            cell=cell, transpose_b=not is_quantised, **_options(n), **(_scales(n) if is_quantised else {}),
        )  # fmt: skip
        if not is_batch_first:
            return results
        return [n.emit("StaticTranspose", results[0], order=(2, 0, 1, 3)), *(_swapped(n, s) for s in results[1:])]

    return convert


def _swapped(n: NodeView, value: Value) -> Value:
    """The value with its first two axes, batch and steps or directions, in the other order."""
    return n.emit("StaticTranspose", value, order=(1, 0, 2))


def _lengths(n: NodeView) -> Value:
    """Lengths of the sequences, those of all steps where there are none."""
    if not n.has(_LENGTHS):
        return n.builder.literal([2**31 - 1], DataType.S32)
    batch, given = n[_X].shape[0 if n.attr("layout", 0) else 1], n[_LENGTHS].shape
    n.check(are_equal(given, (batch,)), "sequence_lens", f"one for each of {batch} sequences", f"shape {given}")
    return n.cast(n[_LENGTHS], DataType.S32)


def _options(n: NodeView) -> dict[str, Any]:
    """Attributes of the op."""
    options = {name: n.attr(name) for name in ("clip", "direction") if n.attr(name) is not None}
    options |= {name: bool(n.attr(name, 0)) for name in ("linear_before_reset", "input_forget")}
    names = [name.decode().lower() for name in n.attr("activations") or ()]
    # each takes what it has from the lists of numbers, in turn
    numbers = [iter(n.attr(name) or ()) for name in ("activation_alpha", "activation_beta")]
    rows = [
        [next(given, default) for given, default in zip(numbers, _NUMBERS.get(name, ()), strict=False)] + [0.0, 0.0]
        for name in names
    ]
    options |= {name: [row[k] for row in rows] for k, name in enumerate(("alpha", "beta"))}
    return options | {"activations": " ".join(names)}


def _product(n: NodeView, x: Value) -> Value:
    """The inputs' part of all gates, of all directions side by side: (steps, batch, directions * gates)."""
    directions, columns, width = n[_W].shape
    return n.emit("MatMul", x, n.reshape(n[_W], (directions * columns, width)), transpose_b=True)


# ---- weights of 8 bits, DynamicQuantizeLSTM of domain com.microsoft as ONNX Runtime documents it


def _quantised_products(n: NodeView, x: Value) -> Value:
    """The same by weights of 8 bits, (directions, inputs, gates); x is quantised by the range of all steps."""
    if n.has(_LENGTHS):  # what lies behind all sequences does not widen the range
        [longest] = n.emit_several("ReduceMax", [DataType.S32], _lengths(n), axes=[0], keep_dims=True)
        column = n.emit("Slice", x, starts=[0, 0], ends=[1, 1], axes=[1, 2])
        [steps] = n.emit_several("GenIndex", [DataType.S32], column, axis=0)
        [inside] = n.emit_several("Less", [DataType.BOOLEAN], steps, n.reshape(longest, (1, 1, 1)))
        x = n.emit_several("Select", [x.dtype], inside, x, n.literal(np.zeros((1, 1, 1)), x))[0]
    numbers, scale, point = direct.CONVERTERS["DynamicQuantizeLinear"](n.as_op([x], _QUANTISED_OPSET))
    a = dequantize(n, numbers, scaling(n.as_op([scale, point], _QUANTISED_OPSET), 0, 1))
    products = []
    for k in range(n[_W].shape[0]):
        own = [n.builder.literal(n.known(port)[k], n[port].dtype) for port in (_SCALES, _SCALES + 1)]
        weights = n.emit("Slice", n[_W], starts=[k], ends=[k + 1], axes=[0]) if n[_W].shape[0] > 1 else n[_W]
        weights = n.reshape(weights, weights.shape[1:])
        products.append(n.emit("MatMul", a, dequantize(n, weights, scaling(n.as_op(own, _QUANTISED_OPSET), 0, 1))))
    return n.join(products, 2)


def _scales(n: NodeView) -> dict[str, Any]:
    """Those of the weights of the states."""
    return {name: n.known(_SCALES + 2 + k).reshape(-1).tolist() for k, name in enumerate(("scales", "zps"))}


CONVERTERS = {"RNN": _convert("rnn"), "GRU": _convert("gru"), "LSTM": _convert("lstm")}

CONTRIBUTED = {"DynamicQuantizeLSTM": _convert("lstm", is_quantised=True)}
"""Converters of domain com.microsoft."""
