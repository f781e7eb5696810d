"""Attention in float64, spelt out: what the tests of its fused forms expect."""

import numpy as np


def split_heads(x, heads):
    """(batch, sequence, heads * depth) as (batch, heads, sequence, depth)."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def join_heads(x):
    """The way back."""
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


def attend(query, key, value, *, added=0.0, scale=None, cap=0.0):
    """Attention of heads; `added` broadcasts with the scores (batch, heads, queries, keys)."""
    query, key, value = (x.astype(np.float64) for x in (query, key, value))
    shared = query.shape[1] // key.shape[1]
    key, value = (np.repeat(x, shared, 1) for x in (key, value))
    scores = query @ key.swapaxes(2, 3) * (query.shape[3] ** -0.5 if scale is None else scale)
    if cap:
        scores = cap * np.tanh(scores / cap)
    scores = scores + added
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ value


def causal(queries, keys, past=0, window=None):
    """Minus infinity for keys behind a query, or further in front of it than a window of keys with its own."""
    distance = np.arange(queries)[:, None] + past - np.arange(keys)
    return np.where((distance < 0) | (distance >= (window or keys + past)), -np.inf, 0)


def rotate(x, cos, sin, positions, *, interleaved=False):
    """Heads (batch, heads, sequence, depth) with their first 2 * columns of the caches rotated."""
    half = cos.shape[1]
    c, s = (table[positions][:, None].astype(np.float64) for table in (cos, sin))
    result = x.astype(np.float64)
    sides = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(half), slice(half, 2 * half))
    a, b = (result[..., side].copy() for side in sides)
    result[..., sides[0]], result[..., sides[1]] = a * c - b * s, a * s + b * c
    return result
