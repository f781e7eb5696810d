"""The gradients of attention, and what the forward pass writes for them beside its result."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpool._kernels.core import _dispatch
from graphpool._kernels.gemm.attention import AttentionProblem, attention, attention_backward
from graphpool.errors import InvalidShapeError
from tests._kernels.eltwise.test_random import mask_reference
from tests.helpers.kernel_outputs import Out, assert_near, execute, strided, unstride

ISAS = _dispatch.isas()
TYPES = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}
EPSILON = {"f32": 0.0, "bf16": 2.0**-7, "f16": 2.0**-10}
SEED = 1234567890123


class Case:
    """Operands of attention, and everything that follows from them in float64."""

    def __init__(
        self, batch, heads, kv_heads, queries, keys, depth, value_depth, *, dtype="f32", scale=0.5, causal=None,
        factor=None, additive=None, boolean=None, fill=-np.inf, probability=None,
    ):  # fmt: skip
        rng = np.random.default_rng(queries * 1000 + keys)
        self.group, self.scale, self.fill, self.dtype = heads // kv_heads, scale, fill, dtype
        self.probability, self.causal = probability, causal
        shapes = {
            "q": (batch, heads, queries, depth), "k": (batch, kv_heads, keys, depth),
            "v": (batch, kv_heads, keys, value_depth), "d": (batch, heads, queries, value_depth),
        }  # fmt: skip
        self.arrays = {name: rng.normal(size=shape).astype(TYPES[dtype]) for name, shape in shapes.items()}
        self.scores_shape = (batch, heads, queries, keys)
        self.masks = {
            name: rng.random(shape) < 0.8 if name == "boolean" else rng.normal(size=shape).astype(TYPES[dtype])
            for name, shape in (("factor", factor), ("additive", additive), ("boolean", boolean))
            if shape is not None
        }
        q, k, v, d = (self.arrays[name].astype(np.float64) for name in "qkvd")
        k, v = (np.repeat(x, self.group, 1) for x in (k, v))
        scores = q @ k.swapaxes(2, 3) * scale
        if factor is not None:
            scores = scores * self.masks["factor"].astype(np.float64)
        if additive is not None:
            scores = scores + self.masks["additive"].astype(np.float64)
        if boolean is not None:
            scores = np.where(self.masks["boolean"], scores, fill)
        if causal is not None:
            scores = np.where(np.arange(keys) <= np.arange(queries)[:, None] + causal, scores, fill)
        top = scores.max(-1, keepdims=True)
        top = np.where(np.isneginf(top), 0, top)
        with np.errstate(divide="ignore"):
            self.stats = top + np.log(np.exp(scores - top).sum(-1, keepdims=True))
        weights = np.exp(scores - np.where(np.isneginf(self.stats), 0, self.stats))
        self.kept = np.ones(self.scores_shape, bool)
        inverse_kept = 1.0
        if probability is not None:
            self.kept = mask_reference(scores.size, SEED, 5, probability).reshape(scores.shape)
            inverse_kept = 1 / (1 - np.float64(np.float32(probability)))
        self.result = weights * self.kept * inverse_kept @ v
        self.rounded = self.result.astype(TYPES[dtype])
        delta = (self.rounded.astype(np.float64) * d).sum(-1, keepdims=True)
        dropped = weights * self.kept * inverse_kept
        d_weights = d @ v.swapaxes(2, 3) * self.kept * inverse_kept
        self.d_scores = weights * (d_weights - delta)
        terms = np.abs(d) @ np.abs(v).swapaxes(2, 3) * self.kept * inverse_kept  # what is summed may cancel
        terms = weights * (terms + np.abs(self.rounded.astype(np.float64) * d).sum(-1, keepdims=True))
        k_size, q_size, d_size = (np.abs(x) for x in (k, q, d))
        self.gradients = {
            "d_q": (self.d_scores @ k * scale, terms @ k_size * scale),
            "d_k": (self._summed(self.d_scores.swapaxes(2, 3) @ q), self._summed(terms.swapaxes(2, 3) @ q_size)),
            "d_v": (self._summed(dropped.swapaxes(2, 3) @ d), self._summed(dropped.swapaxes(2, 3) @ d_size)),
            "d_scores": (self.d_scores, terms),
        }
        self.gradients["d_k"] = tuple(x * scale for x in self.gradients["d_k"])

    def _summed(self, x):
        return x.reshape(x.shape[0], -1, self.group, *x.shape[2:]).sum(2)

    def problem(self, **options):
        full = {
            f"{name}_strides": [s // mask.itemsize for s in np.broadcast_to(mask, self.scores_shape).strides]
            for name, mask in self.masks.items()
        }
        q, k, v = (self.arrays[name] for name in "qkv")
        names = ("q", "k", "v", "factor", "additive")
        options = {"dtypes": dict.fromkeys(names, self.dtype), "scale": self.scale, "fill": self.fill} | options
        has_dropout = self.probability is not None
        return AttentionProblem(
            q.shape, k.shape, v.shape[3], causal_offset=self.causal, dropout=has_dropout, **full, **options
        )

    def args(self):
        """Those of the problem."""
        masks = [mask if mask.dtype != bool else mask.view("u1") for mask in self.masks.values()]
        drawn = [np.array([SEED]), np.array([5]), np.array([self.probability], np.float32)]
        return [*(self.arrays[name] for name in "qkv"), *masks, *(drawn if self.probability is not None else [])]

    def check_forward(self, isa):
        q_shape, keys = self.arrays["q"].shape, self.scores_shape[3]
        rows = int(np.prod(q_shape[1:3]))
        kept = [] if self.probability is None else [Out(self.scores_shape, "u1")]
        strides = None if self.probability is None else (rows * keys, q_shape[2] * keys, keys, 1)
        call = attention(
            self.problem(), inf_as_zero=True, stats_strides=(rows, q_shape[2], 1, 1), kept_strides=strides, isa=isa
        )
        stats, *more, result = execute(call, *self.args(), Out(self.stats.shape), *kept, Out(self.result.shape))
        assert_near(stats, self.stats, 4, 4e-6)
        assert_near(result, self.result, 8, 8e-6)
        for mask in more:
            np.testing.assert_array_equal(mask, self.kept)

    def check_backward(self, isa):
        dtypes = dict.fromkeys(("result", "d_result", "d_q", "d_k", "d_v"), self.dtype)
        call = attention_backward(
            self.problem(), d_scale=self.scale, group=self.group, has_d_scores=True, dtypes=dtypes, isa=isa
        )
        outs = [Out(x.shape, TYPES[dtypes.get(name, "f32")]) for name, (x, _) in self.gradients.items()]
        found = execute(call, *self.args(), self.stats.astype(np.float32), self.rounded, self.arrays["d"], *outs)
        for name, got in zip(self.gradients, found, strict=True):
            self.check(name, got, EPSILON[self.dtype] if name in dtypes else 0.0)

    def check(self, name, got, epsilon=0.0):
        """A gradient within its type's epsilon, and 2e-5 of the sum of the absolute values of its terms."""
        expected, size = self.gradients[name]
        wrong = np.abs(got.astype(np.float64) - expected) > epsilon * np.abs(expected) + 2e-5 * size + 1e-7
        assert not wrong.any(), f"{name}: {got[wrong][:4]} instead of {expected[wrong][:4]}"


CASES = {
    "one of each": ((1, 1, 1, 1, 1, 1, 1), {}),
    "edges of blocks": ((1, 2, 1, 65, 129, 20, 40), {}),
    "whole blocks": ((2, 2, 2, 64, 128, 64, 64), {}),
    "deep": ((1, 1, 1, 70, 66, 128, 127), {}),
    "one query of a group": ((1, 4, 2, 1, 77, 16, 16), {}),
    "two queries": ((1, 2, 2, 2, 77, 16, 8), {"additive": (1, 1, 1, 77)}),
    "group": ((2, 6, 2, 40, 70, 8, 12), {"additive": (2, 1, 40, 70)}),
    "mask of rows": ((2, 2, 2, 40, 70, 8, 12), {"additive": (1, 2, 40, 1)}),
    "mask of columns": ((2, 2, 2, 70, 70, 8, 12), {"additive": (2, 1, 1, 70), "boolean": (2, 1, 1, 70)}),
    "factor of columns": ((2, 2, 2, 70, 70, 8, 12), {"factor": (1, 1, 1, 70)}),
    "factors": ((1, 2, 2, 70, 70, 8, 12), {"factor": (1, 2, 70, 70), "additive": (1, 1, 70, 1)}),
    "factor of a query": ((1, 4, 2, 1, 70, 8, 12), {"factor": (1, 4, 1, 70)}),
    "causal": ((1, 2, 1, 130, 200, 8, 8), {"causal": 0}),
    "few keys seen": ((1, 2, 2, 200, 130, 8, 8), {"causal": -70}),
    "shown in vain": ((1, 2, 2, 70, 70, 8, 8), {"causal": 0, "fill": -2.0}),
    "dropout": ((2, 2, 1, 67, 71, 8, 8), {"probability": 0.3, "additive": (2, 2, 67, 71)}),
    "dropout of a query": ((2, 4, 2, 1, 71, 8, 8), {"probability": 0.5}),
    "dropout of all": ((1, 2, 2, 10, 10, 8, 8), {"probability": 0.99999}),
}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", CASES)
def test_against_float64(name, dtype, isa):
    sizes, options = CASES[name]
    case = Case(*sizes, dtype=dtype, **options)
    case.check_forward(isa)
    hidden = np.isneginf(case.stats)
    if not hidden.any():  # their gradients are NaN, as e^(-inf + inf) is
        case.check_backward(isa)
    else:
        assert name == "few keys seen"


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_shape_and_stride(data):
    kv_heads, group = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 3))
    sizes = [data.draw(st.integers(1, most)) for most in (2, 140, 140, 128, 128)]
    batch, queries, keys, depth, value_depth = sizes
    causal = data.draw(st.sampled_from([None, 0, max(keys - queries, 0)]))
    case = Case(batch, kv_heads * group, kv_heads, queries, keys, depth, value_depth, scale=depth**-0.5, causal=causal,
                probability=data.draw(st.sampled_from([None, 0.2])), additive=(1, 1, queries, keys))  # fmt: skip
    order = st.permutations(range(4))
    flats, strides = zip(*(strided(case.arrays[name], data.draw(order), pad=1) for name in "qkvd"), strict=True)
    result, result_strides = strided(case.rounded, data.draw(order))
    names = ("d_q", "d_k", "d_v")
    own = {name: strided(np.zeros(case.gradients[name][0].shape), data.draw(order))[1] for name in names}
    for isa in ISAS:
        problem = case.problem(q_strides=strides[0], k_strides=strides[1], v_strides=strides[2])
        call = attention_backward(
            problem, d_scale=case.scale, group=group, isa=isa,
            strides=own | {"result": result_strides, "d_result": strides[3]},
        )  # fmt: skip
        args = [*flats[:3], *case.args()[3:], case.stats.astype(np.float32), result, flats[3]]
        found = execute(call, *args, *[Out((case.gradients[name][0].size,)) for name in names])
        for name, flat in zip(names, found, strict=True):
            case.check(name, unstride(flat, case.gradients[name][0].shape, own[name]))


@pytest.mark.parametrize("isa", ISAS)
def test_a_fill_in_front_of_the_scale_is_scaled(isa):
    case = Case(1, 2, 2, 20, 70, 8, 8, boolean=(1, 1, 20, 70), fill=-4.0, scale=0.25)
    problem = case.problem(fill=-16.0, fills_first=True)
    assert_near(execute(attention(problem, isa=isa), *case.args(), Out(case.result.shape)), case.result, 8, 8e-6)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", TYPES)
def test_numbers_among_the_arguments(dtype, isa):
    case = Case(1, 2, 2, 20, 70, 8, 8, causal=0, fill=-3.0, scale=0.25)
    dtypes = dict.fromkeys(("scale", "fill"), dtype)
    problem = case.problem(scale=None, is_divisor=True, fill=None, dtypes=dtypes)
    args = [*case.args(), *(np.array([x], TYPES[dtype]) for x in (4.0, -3.0))]
    assert_near(execute(attention(problem, isa=isa), *args, Out(case.result.shape)), case.result, 8, 8e-6)
    call = attention_backward(problem, d_scale=None, is_d_divisor=True, dtypes={"d_scale": dtype}, isa=isa)
    names = ("d_q", "d_k", "d_v")
    outs = [Out(case.gradients[name][0].shape) for name in names]
    more = [case.stats.astype(np.float32), case.rounded, case.arrays["d"], np.array([4.0], TYPES[dtype])]
    for name, got in zip(names, execute(call, *args, *more, *outs), strict=True):
        case.check(name, got)


def test_without_keys_the_gradient_of_queries_is_zero():
    problem = AttentionProblem((1, 2, 3, 4), (1, 2, 0, 4), 5)
    rows = np.ones((1, 2, 3, 5), np.float32)
    args = [np.ones((1, 2, 3, 4), np.float32), *[np.ones(0, np.float32)] * 2, rows[..., :1].copy(), rows, rows]
    d_q = execute(attention_backward(problem), *args, Out((1, 2, 3, 4)), Out((0,)), Out((0,)))[0]
    assert not d_q.any()


def test_scratch_does_not_grow_with_the_sequence():
    sizes = [
        attention_backward(AttentionProblem((1, 1, n, 64), (1, 1, n, 64), 64, dtypes={"q": "bf16"})).scratch_nbytes
        for n in (64, 65536)
    ]
    assert sizes[0] == sizes[1] < 192 * 1024


def test_bad_arguments():
    problem = AttentionProblem((1, 4, 2, 3), (1, 2, 2, 3), 3)
    with pytest.raises(InvalidShapeError, match="a divisor of 2"):
        attention_backward(problem, group=4)
    with pytest.raises(InvalidShapeError, match="strides of d_k"):
        attention_backward(problem, strides={"d_k": (1,)})
