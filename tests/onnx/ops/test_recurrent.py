import numpy as np
import pytest
from onnx import helper

import graphpool as gp
from tests.helpers.onnx_models import random_array

STEPS, BATCH, WIDTH, HIDDEN = 5, 2, 3, 4
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def step_of(kind, x, h, c, w, r, wb, rb, p, option):
    """One step as the ONNX specification writes it, in float64."""
    gates = [x @ w[k].T + wb[k] for k in range(len(w))]
    if kind == "RNN":
        return np.tanh(gates[0] + h @ r[0].T + rb[0]), c
    if kind == "GRU":
        z, reset = (sigmoid(gates[k] + h @ r[k].T + rb[k]) for k in (0, 1))
        inner = reset * (h @ r[2].T + rb[2]) if option else (reset * h) @ r[2].T + rb[2]
        return (1 - z) * np.tanh(gates[2] + inner) + z * h, c
    i, o, f, content = (gates[k] + h @ r[k].T + rb[k] for k in range(4))
    taken = sigmoid(i + p[0] * c)
    left = 1 - taken if option else sigmoid(f + p[2] * c)  # with coupled gates
    cell = left * c + taken * np.tanh(content)
    return sigmoid(o + p[1] * cell) * np.tanh(cell), cell


def expected(kind, inputs, direction, option=0):
    """Y and the last states."""
    x, w, r, b, lengths, h0, c0, p = inputs
    rows, finals = [], []
    for d, is_reverse in enumerate({"forward": [0], "reverse": [1], "bidirectional": [0, 1]}[direction]):
        parts = [np.split(a[d].astype("float64"), GATES[kind]) for a in (w, r)]
        biases = np.split(b[d].astype("float64"), 2 * GATES[kind])
        peepholes = np.split(p[d].astype("float64"), 3)
        y, hs, cs = np.zeros((STEPS, BATCH, HIDDEN)), h0[d].astype("float64"), c0[d].astype("float64")
        for t in range(STEPS)[:: -1 if is_reverse else 1]:
            h, c = step_of(kind, x[t], hs, cs, *parts, biases[: GATES[kind]], biases[GATES[kind] :], peepholes,
                           option)  # fmt: skip
            inside = (t < lengths)[:, None]
            hs, cs = np.where(inside, h, hs), np.where(inside, c, cs)
            y[t] = np.where(inside, h, 0)
        rows.append(y)
        finals.append((hs, cs))
    return np.stack(rows, 1), *(np.stack(states) for states in zip(*finals, strict=True))


def arrays(kind, directions):
    gates = GATES[kind] * HIDDEN
    shapes = [(STEPS, BATCH, WIDTH), (directions, gates, WIDTH), (directions, gates, HIDDEN), (directions, 2 * gates)]
    states = [(directions, BATCH, HIDDEN)] * 2 + [(directions, 3 * HIDDEN)]
    values = [random_array(shape, seed=k) for k, shape in enumerate(shapes + states)]
    return [*values[:4], np.array([5, 3], "int32"), *values[4:]]


def run(kind, values, noutputs, **attributes):
    names = ["" if value is None else f"x{k}" for k, value in enumerate(values)]
    given = {name: value for name, value in zip(names, values, strict=True) if name}
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in given.items()
    ]
    outputs = [helper.make_tensor_value_info(f"y{k}", 1, [None] * (3 if k else 4)) for k in range(noutputs)]
    node = helper.make_node(kind, names, [info.name for info in outputs], hidden_size=HIDDEN, **attributes)
    graph = helper.make_graph([node], "g", infos, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with gp.onnx.load(model, fallback=False) as loaded:
        return list(loaded.run(given).values())


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("option", [0, 1])
def test_all_inputs(kind, direction, option):
    values = arrays(kind, 2 if direction == "bidirectional" else 1)
    attributes = {"GRU": {"linear_before_reset": option}, "LSTM": {"input_forget": option}}.get(kind, {})
    wanted = expected(kind, values, direction, option)
    given = values if kind == "LSTM" else values[:6]
    results = run(kind, given, 3 if kind == "LSTM" else 2, direction=direction, **attributes)
    for result, value in zip(results, wanted, strict=False):
        np.testing.assert_allclose(result, value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", GATES)
def test_only_what_is_required_with_the_batch_in_front(kind):
    values = arrays(kind, 1)
    zeros = [np.zeros_like(value) for value in values[3:]]
    wanted = expected(kind, [*values[:3], zeros[0], np.full(BATCH, STEPS), *zeros[2:]], "forward")
    results = run(kind, [values[0].transpose(1, 0, 2), *values[1:3]], 2, layout=1)
    np.testing.assert_allclose(results[0], wanted[0].transpose(2, 0, 1, 3), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(results[1], wanted[1].transpose(1, 0, 2), rtol=1e-4, atol=1e-5)


def test_an_unknown_activation_is_refused():
    with pytest.raises(gp.UnsupportedError, match="RNN"):
        run("RNN", arrays("RNN", 1)[:3], 1, activations=["ScaledTanh"])
