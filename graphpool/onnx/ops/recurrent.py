"""Recurrent layers, unrolled: the inputs' part of all steps is one product, and each step adds its state's part.

Gates and formulas are those of ONNX's RNN, GRU and LSTM. Where sequences have lengths of their own, a state stays as it
is outside of its sequence, and outputs there are zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from graphpool.typing import DataType

from . import direct
from .quantization import dequantize, scaling

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphpool.onnx.build import NodeView, Value

_MOST_STEPS = 512
"""Steps that are unrolled; each takes about a millisecond to compile."""
_ACTIVATIONS = {"sigmoid": "Sigmoid", "tanh": "Tanh", "relu": "ReLU"}
_X, _W, _R, _B, _LENGTHS, _H, _C, _P, _SCALES = range(9)
_QUANTISED_OPSET = 11


class _Layer:
    """One direction of a node: its inputs, and what its steps share."""

    def __init__(self, n: NodeView, number: int, gates: int, activations: list[str]) -> None:
        self.n = n
        self.activations = activations
        self.hidden: int = n[_R].shape[self._hidden_axis]
        self._number = number
        self._biases = self.own(_B) if n.has(_B) else None
        self._gates = gates
        self.weights = self.own(_R)
        self._blocks: dict[tuple[int, int], Value] = {}

    _hidden_axis = 2
    """Of the weights of the state."""

    def own(self, index: int) -> Value:
        """The part of an input for the direction, without the axis of the directions."""
        value = self.n[index]
        if value.shape[0] > 1:
            value = self.n.emit("Slice", value, starts=[self._number], ends=[self._number + 1], axes=[0])
        return self.n.reshape(value, value.shape[1:])

    def state(self, index: int, batch: int) -> Value:
        """The initial state, zero where it is left out."""
        if self.n.has(index):
            return self.own(index)
        return self.n.literal(np.zeros((batch, self.hidden)), self.n[_X])

    def gates(self, value: Value, first: int, count: int = 1, axis: int = 1) -> Value:
        """The part of an axis that belongs to some of the gates."""
        size = self.hidden
        return self.n.emit("Slice", value, starts=[first * size], ends=[(first + count) * size], axes=[axis])

    def of_inputs(self, x: Value) -> Value:
        """The inputs' part of all gates at all steps: (steps, batch, gates)."""
        length, batch, width = x.shape
        weights = self.own(_W)
        bias = [] if self._biases is None else [self.gates(self._biases, 0, self._gates, axis=0)]
        rows = self.n.reshape(x, (length * batch, width))
        return self.n.reshape(
            self.n.emit("MatMul", rows, weights, *bias, transpose_b=True), (length, batch, weights.shape[0])
        )

    def of_state(self, state: Value, first: int, count: int) -> Value:
        """The state's part of some of the gates."""
        inputs = [state, self._block(first, count)]
        if self._biases is not None:
            inputs.append(self._block(self._gates + first, count))
        return self.n.emit("MatMul", *inputs, transpose_b=True)

    def _block(self, first: int, count: int) -> Value:
        """Rows of the weights, or behind them of the biases, that are cut out once for all steps."""
        if (first, count) not in self._blocks:
            if first >= self._gates:
                assert self._biases is not None  # asked for only then
                self._blocks[first, count] = self.gates(self._biases, first, count, axis=0)
            elif count == self._gates:
                self._blocks[first, count] = self.weights
            else:
                self._blocks[first, count] = self.gates(self.weights, first, count, axis=0)
        return self._blocks[first, count]

    def act(self, value: Value, which: int) -> Value:
        """Clip and apply an activation function."""
        limit = self.n.attr("clip")
        if limit is not None:
            value = self.n.emit("Clamp", value, min=-limit, max=limit)
        return self.n.emit(self.activations[which], value)


class _QuantisedLayer(_Layer):
    """The same with weights of 8 bits as (inputs, gates), by which inputs and states are multiplied as bytes too.

    Inputs are quantised by the range of all steps, states by that of each step. Source: DynamicQuantizeLSTM of domain
    com.microsoft, as ONNX Runtime documents it.
    """

    _hidden_axis = 1

    def of_inputs(self, x: Value) -> Value:
        """The inputs' part of all gates at all steps: (steps, batch, gates)."""
        n, (length, batch, width) = self.n, x.shape
        if n.has(_LENGTHS):  # what lies behind all sequences does not widen the range
            [longest] = n.emit_several(
                "ReduceMax", [DataType.S32], n.cast(n[_LENGTHS], DataType.S32), axes=[0], keep_dims=True
            )
            steps = n.literal(np.arange(length).reshape(length, 1, 1), longest)
            [inside] = n.emit_several("Less", [DataType.BOOLEAN], steps, n.reshape(longest, (1, 1, 1)))
            x = _choose(n, inside, x, n.literal(np.zeros(x.shape), x))
        product = self._product(n.reshape(x, (length * batch, width)), self.own(_W), _SCALES)
        if self._biases is not None:
            product = n.emit("Add", product, self.gates(self._biases, 0, self._gates, axis=0))
        return n.reshape(product, (length, batch, product.shape[1]))

    def of_state(self, state: Value, first: int, count: int) -> Value:
        """The state's part of some of the gates."""
        assert (first, count) == (0, self._gates)  # an LSTM asks for all at once
        product = self._product(state, self.weights, _SCALES + 2)
        return product if self._biases is None else self.n.emit("Add", product, self._block(self._gates, count))

    def _product(self, a: Value, weights: Value, scales: int) -> Value:
        """The product of a, quantised by its range, and weights by scales and zero points at two inputs."""
        n = self.n
        numbers, scale, point = direct.CONVERTERS["DynamicQuantizeLinear"](n.as_op([a], _QUANTISED_OPSET))
        own = n.as_op([self._own_scale(scales), self._own_scale(scales + 1)], _QUANTISED_OPSET)
        a = dequantize(n, numbers, scaling(n.as_op([scale, point], _QUANTISED_OPSET), 0, 1))
        return n.emit("MatMul", a, dequantize(n, weights, scaling(own, 0, 1)))

    def _own_scale(self, index: int) -> Value:
        """Scales or zero points of the direction: a number, or one for each column."""
        return self.n.builder.literal(self.n.known(index)[self._number], self.n[index].dtype)


class _Step(Protocol):
    """Computes new states from the inputs' part of the gates and the old ones; the first is the output."""

    def __call__(self, layer: _Layer, given: Value, states: tuple[Value, ...]) -> tuple[Value, ...]: ...


def _convert(
    gates: int, nstates: int, functions: list[str], step: _Step, make_layer: type[_Layer] = _Layer
) -> Callable[[NodeView], list[Value]]:
    def convert(n: NodeView) -> list[Value]:
        x = n.emit("StaticTranspose", n[_X], order=(1, 0, 2)) if n.attr("layout", 0) else n[_X]
        n.require(not n.attr("layout", 0) or not (n.has(_H) or n.has(_C)), "initial states with the batch in front")
        directions = {"forward": [0], "reverse": [1], "bidirectional": [0, 1]}[n.attr("direction", "forward")]
        n.require(0 < x.shape[0] * len(directions) <= _MOST_STEPS, "a long sequence")
        names = n.attr("activations")
        named = [name.decode().lower() for name in names] if names else functions * len(directions)
        n.require(n.attr("activation_alpha") is None and set(named) <= set(_ACTIVATIONS), "another activation")
        n.require(len(named) == len(functions) * len(directions), "another number of activations")
        rows, finals = [], []
        for number, is_reverse in enumerate(directions):
            own = [_ACTIVATIONS[name] for name in named[number * len(functions) :][: len(functions)]]
            outputs, states = _run(make_layer(n, number, gates, own), x, bool(is_reverse), nstates, step)
            rows.append(outputs)
            finals.append(states)
        return _outputs(n, rows, finals)

    return convert


def _run(layer: _Layer, x: Value, is_reverse: bool, nstates: int, step: _Step) -> tuple[list[Value], tuple[Value, ...]]:
    """States after each step, and the last ones, of one direction."""
    n, (length, batch, _) = layer.n, x.shape
    product = layer.of_inputs(x)
    states = tuple(layer.state(index, batch) for index in (_H, _C)[:nstates])
    lengths = n.reshape(n.cast(n[_LENGTHS], DataType.S32), (batch, 1)) if n.has(_LENGTHS) else None
    outputs: list[Value] = []
    for t in range(length)[:: -1 if is_reverse else 1]:
        given = n.reshape(n.emit("Slice", product, starts=[t], ends=[t + 1], axes=[0]), (batch, product.shape[2]))
        fresh = step(layer, given, states)
        shown = fresh[0]
        if lengths is not None:
            inside = n.emit_several("GreaterEqual", [DataType.BOOLEAN], lengths, n.literal(t + 1, lengths))[0]
            fresh = tuple(_choose(n, inside, new, old) for new, old in zip(fresh, states, strict=True))
            shown = _choose(n, inside, shown, n.literal(np.zeros(shown.shape), shown))
        states = fresh
        outputs.append(shown)
    return outputs[:: -1 if is_reverse else 1], states


def _choose(n: NodeView, condition: Value, a: Value, b: Value) -> Value:
    return n.emit_several("Select", [a.dtype], condition, a, b)[0]


def _outputs(n: NodeView, rows: list[list[Value]], finals: list[tuple[Value, ...]]) -> list[Value]:
    """Y as (steps, directions, batch, hidden), and the last states as (directions, batch, hidden)."""
    batch, hidden = rows[0][0].shape
    steps = [n.reshape(value, (1, 1, batch, hidden)) for pair in zip(*rows, strict=True) for value in pair]
    results = [n.reshape(n.join(steps, 0), (len(rows[0]), len(rows), batch, hidden))]
    columns = list(zip(*finals, strict=True))
    results += [n.join([n.reshape(state, (1, batch, hidden)) for state in column], 0) for column in columns]
    if n.attr("layout", 0):
        results[0] = n.emit("StaticTranspose", results[0], order=(2, 0, 1, 3))
        results[1:] = [n.emit("StaticTranspose", state, order=(1, 0, 2)) for state in results[1:]]
    return results


# ---- steps


def _rnn_step(layer: _Layer, given: Value, states: tuple[Value, ...]) -> tuple[Value, ...]:
    return (layer.act(layer.n.emit("Add", given, layer.of_state(states[0], 0, 1)), 0),)


def _gru_step(layer: _Layer, given: Value, states: tuple[Value, ...]) -> tuple[Value, ...]:
    n, [state] = layer.n, states
    both = layer.act(n.emit("Add", layer.gates(given, 0, 2), layer.of_state(state, 0, 2)), 0)
    update, reset = (layer.gates(both, k) for k in (0, 1))
    if n.attr("linear_before_reset", 0):
        candidate = n.emit("Multiply", reset, layer.of_state(state, 2, 1))
    else:
        candidate = layer.of_state(n.emit("Multiply", reset, state), 2, 1)
    candidate = layer.act(n.emit("Add", layer.gates(given, 2), candidate), 1)
    # (1 - z) h' + z h = h' + z (h - h')
    return (n.emit("Add", candidate, n.emit("Multiply", update, n.emit("Subtract", state, candidate))),)


def _lstm_step(layer: _Layer, given: Value, states: tuple[Value, ...]) -> tuple[Value, ...]:
    n, (state, cell) = layer.n, states
    sums = n.emit("Add", given, layer.of_state(state, 0, 4))
    into, out, forget, content = (layer.gates(sums, k) for k in range(4))
    peepholes = layer.own(_P) if n.has(_P) else None

    def gate(value: Value, number: int, seen: Value) -> Value:
        if peepholes is not None:
            value = n.emit("Add", value, n.emit("Multiply", layer.gates(peepholes, number, axis=0), seen))
        return layer.act(value, 0)

    taken = gate(into, 0, cell)
    is_coupled = bool(n.attr("input_forget", 0))
    left = n.emit("Subtract", n.literal(1, taken), taken) if is_coupled else gate(forget, 2, cell)
    fresh = n.emit("Add", n.emit("Multiply", left, cell), n.emit("Multiply", taken, layer.act(content, 1)))
    return n.emit("Multiply", gate(out, 1, fresh), n.emit(layer.activations[2], fresh)), fresh


_LSTM = (4, 2, ["sigmoid", "tanh", "tanh"], _lstm_step)

CONVERTERS = {
    "RNN": _convert(1, 1, ["tanh"], _rnn_step), "GRU": _convert(3, 1, ["sigmoid", "tanh"], _gru_step),
    "LSTM": _convert(*_LSTM),
}  # fmt: skip

CONTRIBUTED = {"DynamicQuantizeLSTM": _convert(*_LSTM, _QuantisedLayer)}
"""Converters of domain com.microsoft."""
