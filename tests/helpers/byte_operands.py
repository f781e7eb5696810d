"""Bytes to multiply whose sums of products leave 16 bits, or just do not."""

import numpy as np

__all__ = ["BYTE_OPERANDS", "byte_operands"]

BYTE_OPERANDS = ("largest", "lowest", "alternating", "limits", "one_large_weight", "one_large_activation", "common")


def byte_operands(kind, a_shape, w_shape):
    """Activations u8 and weights s8 of a kind of `BYTE_OPERANDS`; terms lie along the last axis of both."""
    rng = np.random.default_rng(7)
    a, w = np.full(a_shape, 255, np.uint8), np.full(w_shape, -128 if kind == "lowest" else 127, np.int8)
    if kind == "alternating":
        a[..., ::3], w[..., 1::2] = 0, -128
    elif kind == "limits":
        w = rng.choice(np.array([-128, -65, -64, -63, -33, -32, 0, 1, 31, 32, 63, 64, 65, 127], np.int8), w_shape)
        a = rng.choice(np.array([0, 1, 63, 64, 127, 128, 129, 252, 254, 255], np.uint8), a_shape)
        a[..., a_shape[-1] // 2 :] //= 2
    elif kind == "one_large_weight":
        w = np.where(rng.integers(0, 50, w_shape) == 0, -128, rng.integers(-32, 33, w_shape)).astype(np.int8)
    elif kind == "one_large_activation":
        a = np.where(rng.integers(0, 50, a_shape) == 0, 255, rng.integers(0, 64, a_shape)).astype(np.uint8)
    elif kind == "common":  # what convolutions behind a ReLU meet
        w = np.clip(np.rint(38 * rng.standard_normal(w_shape)), -127, 127).astype(np.int8)
        a = np.clip(np.rint(60 * rng.standard_normal(a_shape)), 0, 255).astype(np.uint8)
    return a, w
