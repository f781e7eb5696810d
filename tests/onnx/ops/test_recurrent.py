import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphpool as gp
from tests.helpers.onnx_models import ContributedCase, random_array

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


def test_states_with_the_batch_in_front():
    values = arrays("LSTM", 2)
    wanted = expected("LSTM", values, "bidirectional")
    swapped = [value.transpose(1, 0, 2) if k in (0, 5, 6) else value for k, value in enumerate(values)]
    results = run("LSTM", swapped, 3, layout=1, direction="bidirectional")
    np.testing.assert_allclose(results[0], wanted[0].transpose(2, 0, 1, 3), rtol=1e-4, atol=1e-5)
    for result, value in zip(results[1:], wanted[1:], strict=True):
        np.testing.assert_allclose(result, value.transpose(1, 0, 2), rtol=1e-4, atol=1e-5)


NAMES = ["Affine", "Relu", "Elu", "ScaledTanh", "Sigmoid", "Affine"]
OWN = [
    lambda x: 0.5 * x + 0.125, lambda x: np.maximum(x, 0), lambda x: np.where(x < 0, 0.25 * np.expm1(x), x),
    lambda x: 0.75 * np.tanh(0.5 * x), sigmoid, lambda x: x,
]  # fmt: skip
"""What NAMES are with alpha 0.5, 0.25, 0.75 and beta 0.125, 0.5, given out in turn; for the last ONNX's are left."""


def test_activations_take_their_numbers_in_turn():
    values = arrays("LSTM", 2)
    given = {"activation_alpha": [0.5, 0.25, 0.75], "activation_beta": [0.125, 0.5]}
    found = run("LSTM", values[:3], 1, direction="bidirectional", activations=NAMES, **given)[0]
    x, w, r = (value.astype("float64") for value in values[:3])
    for d, (f, g, h) in enumerate((OWN[:3], OWN[3:])):
        hs, cs = np.zeros((BATCH, HIDDEN)), np.zeros((BATCH, HIDDEN))
        for t in range(STEPS)[:: -1 if d else 1]:
            i, o, forget, content = np.split(x[t] @ w[d].T + hs @ r[d].T, 4, 1)
            cs = f(forget) * cs + f(i) * g(content)
            hs = f(o) * h(cs)
            np.testing.assert_allclose(found[t, d], hs, rtol=1e-4, atol=1e-5)


def test_clip_limits_what_activations_read():
    x, w, r = (4 * value for value in arrays("RNN", 1)[:3])
    found = run("RNN", [x, w, r], 1, clip=0.5, activations=["Affine"])[0]
    h = np.zeros((BATCH, HIDDEN))
    for t in range(STEPS):
        h = np.clip(x[t] @ w[0].T + h @ r[0].T, -0.5, 0.5)
        np.testing.assert_allclose(found[t, 0], h, rtol=1e-4, atol=1e-5)


def layer(kind, directions, *, steps, batch, hidden=16, width=8):
    """A model of one layer whose weights are known and whose states and lengths are inputs; a function of inputs."""
    rng, gates = np.random.default_rng(0), GATES[kind]
    shapes = {"w": (directions, gates * hidden, width), "r": (directions, gates * hidden, hidden)}
    weights = [
        numpy_helper.from_array(rng.uniform(-0.3, 0.3, shape).astype("float32"), key) for key, shape in shapes.items()
    ]
    names = ["x", "w", "r", "", "lengths", "h"]
    infos = [
        helper.make_tensor_value_info("x", 1, [steps, batch, width]),
        helper.make_tensor_value_info("lengths", 6, [batch]),
        helper.make_tensor_value_info("h", 1, [directions, batch, hidden]),
    ]
    outputs = [helper.make_tensor_value_info("y", 1, [None] * 4), helper.make_tensor_value_info("last", 1, [None] * 3)]
    direction = "bidirectional" if directions == 2 else "forward"
    node = helper.make_node(kind, names, ["y", "last"], hidden_size=hidden, direction=direction)
    graph = helper.make_graph([node], "g", infos, outputs, weights)

    def inputs(t, b):
        own = np.random.default_rng([t, b])
        return {
            "x": own.standard_normal((t, b, width)).astype("float32"),
            "lengths": own.integers(0, t + 1, b).astype("int32"),
            "h": own.standard_normal((directions, b, hidden)).astype("float32"),
        }

    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), inputs


@pytest.mark.parametrize("kind", GATES)
def test_states_of_another_batch_are_refused_before_the_run(kind):
    model, inputs = layer(kind, 1, steps="t", batch=None)
    given = inputs(4, 3)
    with gp.onnx.load(model) as loaded:
        for rows in (0, 1, 2):
            got = rf"(got: \(1, {rows}, 16\)|\]={rows} is refused)"
            text = rf"\({kind}\): initial_h; accepted: shape \(1, 3, 16\), .*{got}"
            with pytest.raises(gp.InvalidArgumentError, match=text):
                loaded.run(given | {"h": given["h"][:, :rows]})
        assert loaded.run(given)["last"].shape == (1, 3, 16)


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("directions", [1, 2])
def test_lengths_and_batches_share_compilations(kind, directions):
    model, inputs = layer(kind, directions, steps="t", batch="b")
    sizes = [(40, 4), (41, 4), (52, 3), (45, 5), (64, 4), (70, 3), (58, 5), (61, 4), (50, 4)]
    with gp.onnx.load(model, fallback=False) as loaded:
        for t, b in sizes:
            given = inputs(t, b)
            with gp.onnx.load(model, fallback=False) as fresh:
                wanted = fresh.run(given)
            for name, result in loaded.run(given).items():
                np.testing.assert_array_equal(result, wanted[name])
        assert loaded.stats().compilations <= 3


def test_a_layer_is_one_kernel_however_long_it_is():
    model, inputs = layer("LSTM", 2, steps="t", batch="b")
    with gp.onnx.load(model, fallback=False) as loaded:
        counts = []
        for steps in (40, 900):
            names = [name for kernels in loaded.specialise(inputs(steps, 2)).implementations for name in kernels]
            counts.append(len(names))
            assert any("f32_recurrent" in name for name in names)
        assert max(counts) <= 7


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("directions", [1, 2])
def test_packed_weights_come_back_and_may_be_declined(kind, directions):
    model, inputs = layer(kind, directions, steps="t", batch="b")
    given = inputs(9, 3)
    with gp.onnx.load(model.SerializeToString(), fallback=False, weights="packed") as loaded:
        wanted = loaded.run(given)
        for tensor in model.graph.initializer:
            np.testing.assert_array_equal(loaded.read_weight(tensor.name), numpy_helper.to_array(tensor))
        assert loaded.stats().constants_nbytes < sum(len(tensor.raw_data) for tensor in model.graph.initializer) / 2
    gp.set_constant_tensor_cache_capacity("cpu", 0)
    try:
        with gp.onnx.load(model, fallback=False) as loaded:
            found = loaded.run(given)
    finally:
        gp.set_constant_tensor_cache_capacity("cpu", None)
    for name in wanted:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5, atol=1e-6)


def test_results_do_not_depend_on_the_number_of_threads():
    model, inputs = layer("GRU", 2, steps="t", batch="b")
    given, found = inputs(30, 20), []
    for threads in (1, 4):
        with gp.Engine("cpu", threads=threads) as engine, gp.onnx.load(model, engine=engine) as loaded:
            found.append(loaded.run(given))
    for name in found[0]:
        np.testing.assert_array_equal(found[0][name], found[1][name])


@pytest.mark.parametrize("kind", GATES)
def test_f16(kind):
    values = [value.astype("float16") if value.dtype == np.float32 else value for value in arrays(kind, 2)]
    wanted = expected(kind, values, "bidirectional")
    names = [f"x{k}" for k in range(8 if kind == "LSTM" else 6)]
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in zip(names, values, strict=False)
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT16, [None] * 4)]
    node = helper.make_node(kind, names, ["y"], hidden_size=HIDDEN, direction="bidirectional")
    graph = helper.make_graph([node], "g", infos, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with gp.onnx.load(model, fallback=False) as loaded:
        [found] = loaded.run(dict(zip(names, values, strict=False))).values()
    np.testing.assert_allclose(found, wanted[0], rtol=1e-2, atol=1e-2)


# ---- weights of 8 bits


def by_range(x):
    """What bytes over the range of an array stand for, as DynamicQuantizeLinear has them."""
    low, high = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
    scale = np.float32((high - low) / 255) or np.float32(1)
    point = np.clip(np.rint(-low / scale), 0, 255)
    return (np.clip(np.rint(x / scale) + point, 0, 255) - point) * np.float64(scale)


def quantised_direction(x, w, r, bias, h, c, peepholes, length):
    """Outputs of all steps and the last states of one direction; the sequences end at `length`."""
    hidden, outputs = h.shape[1], np.zeros((len(x), *h.shape))
    given = by_range(x[:length].astype(np.float32)) @ w + bias[: 4 * hidden]
    for t in range(length):
        sums = given[t] + by_range(h.astype(np.float32)) @ r + bias[4 * hidden :]
        into, out, forget, content = np.split(sums, 4, 1)
        seen = np.split(peepholes, 3)
        c_new = sigmoid(forget + seen[2] * c) * c + sigmoid(into + seen[0] * c) * np.tanh(content)
        h = sigmoid(out + seen[1] * c_new) * np.tanh(c_new)
        c, outputs[t] = c_new, h
    return outputs, h, c


def quantised_lstm(directions="forward", *, dtype="int8", shift=0, by_column=False, states=False, peepholes=False,
                   biases=True, length=None, steps=5, batch=1, inputs=12, hidden=8):  # fmt: skip
    """A case of DynamicQuantizeLSTM; `shift` moves the zero points off the middle.

    The states of a batch have one range, which ONNX Runtime splits among its threads.
    """
    rng, count = np.random.default_rng(0), 2 if directions == "bidirectional" else 1
    low, middle = (-128, 0) if dtype == "int8" else (0, 128)
    x = rng.standard_normal((steps, batch, inputs)).astype("float32")
    shape = (count, 4 * hidden) if by_column else (count,)
    weights = [rng.integers(low, low + 256, (count, rows, 4 * hidden)).astype(dtype) for rows in (inputs, hidden)]
    scales = [(0.002 + 0.004 * rng.random(shape)).astype("float32") for _ in range(2)]
    points = [np.full(shape, middle + shift, dtype) for _ in range(2)]
    bias = rng.standard_normal((count, 8 * hidden)).astype("float32") if biases else None
    h, c = (rng.standard_normal((count, batch, hidden)).astype("float32") / 2 if states else None for _ in range(2))
    seen = rng.standard_normal((count, 3 * hidden)).astype("float32") if peepholes else None
    lengths = None if length is None else np.full(batch, length, "int32")
    given = [x, weights[0], weights[1], bias, lengths, h, c, seen, scales[0], points[0], scales[1], points[1]]
    found = []
    for d, is_reverse in enumerate({"forward": [0], "reverse": [1], "bidirectional": [0, 1]}[directions]):
        end = steps if length is None else length
        dense = [(v[d].astype(float) - p[d]) * s[d] for v, p, s in zip(weights, points, scales, strict=True)]
        zeros = np.zeros((batch, hidden))
        start = [zeros if state is None else state[d] for state in (h, c)]
        outputs, *last = quantised_direction(
            np.concatenate([x[:end][::-1], x[end:]]) if is_reverse else x, *dense,
            np.zeros(8 * hidden) if bias is None else bias[d], *start,
            np.zeros(3 * hidden) if seen is None else seen[d], end,
        )  # fmt: skip
        found.append((np.concatenate([outputs[:end][::-1], outputs[end:]]) if is_reverse else outputs, *last))
    rows, *finals = zip(*found, strict=True)
    expected = [np.stack(rows, 1), *(np.stack(final) for final in finals)]
    constants = tuple(k for k, value in enumerate(given) if value is not None and k not in (0, 4, 5, 6))
    attributes = {"hidden_size": hidden, "direction": directions}
    return ContributedCase(
        "DynamicQuantizeLSTM", given, [part.astype("float32") for part in expected], constants, attributes
    )


QUANTISED = {
    "forward": {}, "reverse": {"directions": "reverse"}, "both-ways": {"directions": "bidirectional"},
    "u8": {"dtype": "uint8"}, "zero-points": {"shift": 5}, "by-column": {"by_column": True},
    "states": {"states": True, "directions": "bidirectional"}, "peepholes": {"peepholes": True},
    "no-bias": {"biases": False}, "short": {"length": 3}, "short-reverse": {"length": 3, "directions": "reverse"},
    "one-step": {"steps": 1},
}  # fmt: skip


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", QUANTISED)
def test_quantised_lstm(name, batch):
    quantised_lstm(**QUANTISED[name], batch=batch).check()


@pytest.mark.parametrize("name", QUANTISED)
def test_onnx_runtime_expects_the_same_of_a_quantised_lstm(name):
    pytest.importorskip("onnxruntime")
    quantised_lstm(**QUANTISED[name]).check_onnxruntime(rtol=1e-5, atol=1e-6)


def test_a_quantised_lstm_multiplies_bytes():
    model, inputs = quantised_lstm(inputs=64, hidden=64).model()
    with gp.onnx.load(model, fallback=False) as loaded:
        names = [name for kernels in loaded.specialise(inputs).implementations for name in kernels]
    assert any("s8_matmul" in name for name in names)
    assert any("f32_recurrent" in name for name in names)


def test_scales_of_a_quantised_lstm_that_are_not_known_are_refused():
    case = quantised_lstm()
    case.constants = tuple(k for k in case.constants if k != 8)
    with pytest.raises(gp.UnsupportedError, match="input 8"):
        gp.onnx.load(case.model()[0])
