"""Images (n, c, spatial...) stored channels first, channels last, or with a gap behind every element."""

import numpy as np

LAYOUTS = ["NCX", "NXC", "NCX_gap"]


def _order(ndim, layout):
    """Axes of (n, c, spatial...) in the order in which they are stored."""
    return (0, *range(2, ndim), 1) if layout == "NXC" else tuple(range(ndim))


def strides_of(shape, layout):
    """Strides (n, c, spatial...) of a stored image. Unit: elements."""
    strides, step = [0] * len(shape), 2 if layout.endswith("gap") else 1
    for axis in reversed(_order(len(shape), layout)):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)


def gap_of(dtype):
    """What gaps hold."""
    return 99 if np.issubdtype(dtype, np.integer) else np.nan


def lay_out(x, layout):
    """The flat memory of an image; gaps hold NaN, or 99 in integers."""
    flat = np.ascontiguousarray(x.transpose(_order(x.ndim, layout))).reshape(-1)
    if not layout.endswith("gap"):
        return flat
    memory = np.full(2 * flat.size, gap_of(flat.dtype), flat.dtype)
    memory[::2] = flat
    return memory


def read_back(memory, shape, layout):
    """The image in flat memory, checking that gaps are unwritten (NaN)."""
    if layout.endswith("gap"):
        assert np.isnan(memory[1::2]).all()
        memory = memory[::2]
    order = _order(len(shape), layout)
    return memory.reshape([shape[axis] for axis in order]).transpose(np.argsort(order))
