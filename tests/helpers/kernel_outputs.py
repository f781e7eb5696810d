"""Run a KernelCall with any number of outputs, whole and split: guards stay, splits agree to the bit."""

from dataclasses import dataclass

import numpy as np

from tests.helpers.kernel_runs import run_in_steps

GUARD = 16


@dataclass(frozen=True)
class Out:
    """Stands for an output of `shape`; elements that nobody writes read as 77."""

    shape: tuple
    dtype: str = "f4"

    def allocate(self):
        flat = np.full(int(np.prod(self.shape)) + 2 * GUARD, 77, self.dtype)
        return flat, flat[GUARD : flat.size - GUARD]


def execute(call, *args):
    """The outputs, in order; `args` are arrays, or `Out` where the kernel writes."""
    whole = _run(call, args, max(call.ntasks, 1))
    split = _run(call, args, max(call.ntasks // 7, 1))
    for a, b in zip(whole, split, strict=True):
        np.testing.assert_array_equal(a, b, "tasks depend on their split")
    return whole[0] if len(whole) == 1 else whole


def _run(call, args, step):
    buffers = {k: arg.allocate() for k, arg in enumerate(args) if isinstance(arg, Out)}
    before = [arg.copy() for k, arg in enumerate(args) if k not in buffers]
    real = [buffers[k][1] if k in buffers else arg for k, arg in enumerate(args)]
    run_in_steps(call, step, *real)
    for flat, _ in buffers.values():
        assert (flat[:GUARD] == 77).all()
        assert (flat[-GUARD:] == 77).all()
    inputs = [arg for k, arg in enumerate(real) if k not in buffers]
    for old, new in zip(before, inputs, strict=True):
        np.testing.assert_array_equal(old, new, "an input was written")
    return [view.reshape(args[k].shape) for k, (_, view) in buffers.items()]


def strided(array, order, pad=0):
    """A flat buffer that holds `array` with its axes laid in `order` (outermost first), and the element strides.

    `pad` adds elements between the rows of the innermost axis.
    """
    laid = np.transpose(array, order)
    if not array.ndim:
        return array.reshape(-1), ()
    room = np.full((*laid.shape[:-1], laid.shape[-1] + pad), 99, array.dtype)
    room[..., : laid.shape[-1]] = laid
    strides = np.empty(array.ndim, int)
    strides[list(order)] = [s // array.itemsize for s in room.strides]
    return np.ascontiguousarray(room).reshape(-1), tuple(int(s) for s in strides)


def unstride(flat, shape, strides):
    """The array of `shape` that lies in `flat` with these element strides."""
    return np.lib.stride_tricks.as_strided(flat, shape, [s * flat.itemsize for s in strides]).copy()


def assert_near(got, expected, ulp, atol=0.0):
    """`got` within `ulp` float32 units in the last place, or `atol`, of `expected` (float64); NaN equals NaN."""
    expected = np.asarray(expected, np.float64)
    assert got.shape == expected.shape
    with np.errstate(invalid="ignore", over="ignore"):
        single = expected.astype(np.float32)
        limit = ulp * np.spacing(np.abs(single)).astype(np.float64) + atol
        near = np.abs(got - expected) <= limit
    same = (got == single) | (np.isnan(got) & np.isnan(single)) | near
    assert same.all(), f"{(~same).sum()} differ: got {got[~same][:4]}, expected {expected[~same][:4]}"
