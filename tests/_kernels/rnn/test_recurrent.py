"""Recurrent layers against plain NumPy: cells, directions, lengths, activations, weights of floats and bytes."""

import numpy as np
import pytest

from graphpool._kernels.core._dispatch import isas
from graphpool._kernels.rnn.recurrent import ACTIVATIONS, GATES, RecurrentWeights, recurrent
from graphpool.errors import InvalidArgumentError, InvalidShapeError
from tests.helpers.guard_pages import guarded_copy
from tests.helpers.kernel_runs import assert_guards, guarded, run_in_steps
from tests.oracle.recurrence import DEFAULTS
from tests.oracle.recurrence import recurrent as expect

ATTRS = {
    "direction": "forward", "activations": "", "alpha": (), "beta": (), "linear_before_reset": False, "scales": (),
    "zps": (), "input_forget": False, "transpose_b": False,
}  # fmt: skip


def packed(weights, r):
    """The weights in panels."""
    whole, part = guarded(weights.nbytes, np.uint8)
    strides = [stride // r.itemsize for stride in r.strides]
    for call, begin, offset in weights.pack(strides):
        run_in_steps(call, max(call.ntasks, 1), r.reshape(-1)[begin:], part[offset:])
    assert_guards(whole, part)
    return part


def check(cell, isa, steps=5, batch=3, hidden=9, *, lengths=None, peepholes=False, shared=False, dtype="f32", **attrs):
    """Compare the kernel with the oracle; the same bits for every division of the tasks."""
    rng = np.random.default_rng([steps, batch, hidden])
    attrs = ATTRS | {"cell": cell} | attrs
    directions = 2 if attrs["direction"] == "bidirectional" else 1
    gates = GATES[cell]

    def floats(*shape):
        return (rng.standard_normal(shape) / 2).astype(np.float32)

    r = floats(directions, hidden, gates * hidden) / np.float32(np.sqrt(max(hidden, 1)))
    numbers = []
    if dtype == "s8":
        r = rng.integers(-128, 128, r.shape, np.int8)
        shape = directions, gates * hidden
        numbers = [(0.01 * rng.random(shape)).astype(np.float32), rng.integers(-9, 9, shape, np.int32)]
        attrs |= {"scales": tuple(numbers[0].reshape(-1)), "zps": tuple(numbers[1].reshape(-1))}
    rows = 1 if shared else batch
    lengths = np.array([2**31 - 1] if lengths is None else lengths, np.int32)
    states = [floats(directions, rows, hidden) for _ in range(2 if cell == "lstm" else 1)]
    if peepholes:
        states.append(floats(directions, 3 * hidden))
    src, biases = floats(steps, batch, directions * gates * hidden), floats(directions, 2 * gates * hidden)
    wanted = expect(attrs, src, r, biases, lengths.clip(0, steps), *states)

    weights = RecurrentWeights(cell, hidden, directions, dtype, attrs["linear_before_reset"], isa)
    names = attrs["activations"].split()
    numbers_of = [attrs[name] or (0.0,) * len(names) for name in ("alpha", "beta")]
    call = recurrent(
        weights, steps, batch, list(zip(names, *numbers_of, strict=True)),
        is_reverse=attrs["direction"] == "reverse", clip=attrs.get("clip", np.inf), is_coupled=attrs["input_forget"],
        has_peepholes=peepholes, nlengths=len(lengths), state_rows=(rows, rows),
    )  # fmt: skip
    args = [src, packed(weights, r), biases, lengths, *states, *numbers]
    args = [guarded_copy(array) if array.size else array for array in args]
    found = []
    for step in (max(call.ntasks, 1), 1):
        results = [guarded(max(array.size, 1)) for array in wanted]
        run_in_steps(call, step, *args, *(part for _, part in results))
        for whole, part in results:
            assert_guards(whole, part)
        found.append([part[: array.size] for (_, part), array in zip(results, wanted, strict=True)])
    inside = (lengths >= 0) & ((lengths <= steps) | (lengths == 2**31 - 1))
    assert call(*args, *(np.zeros(array.shape, np.float32) for array in wanted)) == (not inside.all())
    for ours, others, array in zip(*found, wanted, strict=True):
        np.testing.assert_array_equal(ours, others)
        if call.ntasks:
            np.testing.assert_allclose(ours.reshape(array.shape), array, rtol=2e-5, atol=2e-5)
    return call


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("cell", GATES)
def test_sizes_around_vectors_and_tiles(cell, isa):
    for steps, batch, hidden in ((0, 2, 3), (1, 0, 4), (1, 1, 1), (3, 1, 16), (2, 6, 15), (2, 7, 17), (4, 13, 33),
                                 (2, 2, 67), (3, 1, 0)):  # fmt: skip
        check(cell, isa, steps, batch, hidden, direction="bidirectional")


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("cell", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_sequences_end_early(cell, direction, isa):
    check(cell, isa, 6, 8, 5, lengths=[6, 0, 3, -4, 1, 900, 5, 2], direction=direction)
    check(cell, isa, 6, 3, 5, lengths=[4], direction=direction, shared=True)
    check(cell, isa, 6, 2, 5, lengths=[6, 0], direction=direction)


@pytest.mark.parametrize("isa", isas())
def test_what_lstm_alone_has(isa):
    for options in ({"peepholes": True}, {"input_forget": True}, {"peepholes": True, "input_forget": True}):
        check("lstm", isa, direction="bidirectional", clip=0.4, **options)


@pytest.mark.parametrize("isa", isas())
def test_reset_behind_the_product(isa):
    for clip in (0.3, np.inf):
        check("gru", isa, direction="bidirectional", linear_before_reset=True, clip=clip)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name, isa):
    for cell, count in ((cell, len(names)) for cell, names in DEFAULTS.items()):
        numbers = {"alpha": (0.25,) * count, "beta": (0.5,) * count}
        check(cell, isa, activations=" ".join([name] * count), clip=3.0, **numbers)
    check("rnn", isa, activations=f"tanh {name}", direction="bidirectional", alpha=(0, 0.5), beta=(0, -0.25))


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
def test_weights_of_bytes(direction, isa):
    for steps, batch, hidden in ((1, 1, 1), (4, 1, 64), (3, 3, 17), (2, 7, 37), (2, 5, 40), (2, 0, 4)):
        check("lstm", isa, steps, batch, hidden, dtype="s8", direction=direction)
    check("lstm", isa, 4, 3, 16, dtype="s8", lengths=[4, 0, 2], peepholes=True, direction=direction)


def test_a_long_sequence():
    check("lstm", None, 700, 1, 4)


def test_tasks_are_blocks_of_sequences_of_a_direction():
    assert check("gru", None, 2, 13, 4, direction="bidirectional").ntasks == 6
    assert check("lstm", None, 2, 13, 4, direction="bidirectional", dtype="s8").ntasks == 2


def test_packed_weights_come_back():
    for cell, isa in ((cell, isa) for cell in GATES for isa in isas()):
        weights = RecurrentWeights(cell, 19, 2, isa=isa)
        r = np.random.default_rng(0).standard_normal((2, weights.gates * 19, 19)).astype(np.float32)
        strides = r.strides[0] // 4, 1, 19
        panels, back = np.zeros(weights.nbytes, np.uint8), np.zeros_like(r).reshape(-1)
        for call, begin, offset in weights.pack(strides):
            call(r.reshape(-1)[begin:], panels[offset:])
        for call, begin, offset in weights.pack(strides, inverse=True):
            call(panels[offset:], back[begin:])
        np.testing.assert_array_equal(back.reshape(r.shape), r)


def test_wrong_arguments():
    with pytest.raises(InvalidArgumentError, match="activations of gru"):
        recurrent(RecurrentWeights("gru", 4), 1, 1, [("tanh", 0, 0)])
    with pytest.raises(InvalidArgumentError, match="activations of rnn"):
        recurrent(RecurrentWeights("rnn", 4), 1, 1, [("tan", 0, 0)])
    with pytest.raises(InvalidArgumentError, match="weights of 8 bits"):
        recurrent(RecurrentWeights("gru", 4, dtype="s8"), 1, 1)
    with pytest.raises(InvalidShapeError, match="negative"):
        recurrent(RecurrentWeights("gru", 4), -1, 1)
