import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpool._kernels.core import _dispatch
from graphpool._kernels.eltwise.eltwise import EltwiseBuilder
from graphpool._kernels.gemm.attention import AttentionProblem, Rounding, attention
from graphpool.errors import InvalidDataTypeError, InvalidShapeError
from tests.helpers.kernel_outputs import Out, assert_near, execute, strided, unstride

ISAS = _dispatch.isas()

# Errors of the scores, of a few ulp of |score|, pass through the exponential; results are averages of values near 1.
TOLERANCE = (8, 4e-6)


def sample(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def inputs(batch, heads, kv_heads, queries, keys, depth, value_depth):
    return (
        sample(batch, heads, queries, depth),
        sample(batch, kv_heads, keys, depth),
        sample(batch, kv_heads, keys, value_depth),
    )


def causal_mask(queries, keys, offset):
    return np.arange(keys) <= np.arange(queries)[:, None] + (keys if offset is None else offset)


def reference(q, k, v, scale=1.0, cap=0.0, causal=None, additive=0.0, boolean=True, fill=-np.inf):
    """The formula in float64; an empty or all -inf row gives NaN."""
    group = q.shape[1] // max(k.shape[1], 1)
    q, k, v = (x.astype(np.float64) for x in (q, np.repeat(k, group, 1), np.repeat(v, group, 1)))
    scores = scale * (q @ k.swapaxes(2, 3))
    scores = cap * np.tanh(scores / cap) if cap else scores
    scores = np.where(boolean, scores + additive, fill)
    scores = np.where(causal_mask(q.shape[2], k.shape[2], causal), scores, fill)
    with np.errstate(invalid="ignore", divide="ignore"):
        exps = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
        return exps / exps.sum(-1, keepdims=True) @ v if k.shape[2] else np.full((*q.shape[:3], v.shape[3]), np.nan)


def attend(q, k, v, *extra, isa, inf_as_zero=False, **options):
    call = attention(AttentionProblem(q.shape, k.shape, v.shape[3], **options), inf_as_zero=inf_as_zero, isa=isa)
    return execute(call, q, k, v, *extra, Out((*q.shape[:3], v.shape[3])))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "sizes",
    [
        (1, 1, 1, 1, 1, 1, 1), (2, 3, 3, 1, 65, 16, 16), (1, 2, 2, 2, 300, 64, 64), (1, 2, 2, 3, 64, 8, 5),
        (1, 2, 1, 63, 63, 33, 17), (1, 4, 2, 64, 128, 64, 64), (1, 3, 3, 65, 129, 20, 40), (2, 8, 2, 1, 77, 32, 32),
        (1, 2, 2, 197, 197, 64, 64), (0, 2, 2, 4, 4, 4, 4), (1, 2, 2, 0, 4, 4, 4), (1, 2, 2, 4, 4, 4, 0),
        (1, 2, 2, 4, 0, 4, 4), (1, 2, 2, 4, 4, 0, 4), (1, 2, 2, 1, 0, 4, 4), (1, 3, 3, 7, 130, 20, 40),
        (1, 2, 2, 8, 64, 16, 33), (1, 2, 2, 9, 70, 16, 16), (2, 16, 2, 1, 200, 33, 17), (1, 6, 2, 1, 65, 128, 128),
        (1, 10, 2, 1, 300, 64, 100),
    ],
    ids=str,
)  # fmt: skip
def test_matches_float64(sizes, isa):
    q, k, v = inputs(*sizes)
    assert_near(attend(q, k, v, scale=0.25, isa=isa), reference(q, k, v, 0.25), *TOLERANCE)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["u8", "s8", "f8_e4m3", "f8_e5m2"])
@pytest.mark.parametrize(("queries", "turned"), [(1, False), (70, False), (70, True)])
def test_operands_of_one_byte(queries, turned, dtype, isa):
    """Whole tiles and parts of them, dense, and with rows apart or across."""
    stored = [np.round(np.abs(10 * x)).astype(TYPES[dtype]) for x in inputs(2, 4, 2, queries, 150, 24, 20)]
    numbers = {"q": (0.03, 2.0), "k": (0.05, 4.0), "v": (0.5, 1.0)}
    plain = [
        (x.astype(np.float32) - np.float32(zero)) * np.float32(scale)
        for x, (scale, zero) in zip(stored, numbers.values(), strict=True)
    ]
    strides = {}
    if turned:
        stored = [np.ascontiguousarray(x.swapaxes(2, 3)) for x in stored]
        strides = {
            f"{name}_strides": [s // x.itemsize for s in x.swapaxes(2, 3).strides]
            for name, x in zip(numbers, stored, strict=True)
        }
    problem = AttentionProblem(
        plain[0].shape,
        plain[1].shape,
        20,
        scale=0.5,
        dtypes=dict.fromkeys(numbers, dtype),
        quantized=numbers,
        **strides,
    )
    found = execute(attention(problem, isa=isa), *(x.view(np.uint8) for x in stored), Out(problem.result_shape))
    assert_near(found, reference(*plain, 0.5), *TOLERANCE)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_shape_mask_and_stride(data):
    kv_heads, group = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    queries, keys = data.draw(st.one_of(st.integers(1, 10), st.integers(1, 70))), data.draw(st.integers(1, 140))
    depth, value_depth = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 20))
    q, k, v = inputs(data.draw(st.integers(1, 2)), kv_heads * group, kv_heads, queries, keys, depth, value_depth)
    order = st.permutations(range(4))
    flats, strides = zip(*(strided(x, data.draw(order), pad=1) for x in (q, k, v)), strict=True)
    shape = (*q.shape[:3], value_depth)
    dst, dst_strides = strided(np.zeros(shape), data.draw(order))
    full = (*q.shape[:3], keys)
    kept = data.draw(st.lists(st.booleans(), min_size=4, max_size=4))
    mask = sample(*(dim if keep else 1 for dim, keep in zip(full, kept, strict=True)))
    allowed = np.random.default_rng(keys).random(mask.shape) < 0.9
    mask_order = data.draw(order)
    mask_flat, mask_strides = strided(mask, mask_order)
    mask_strides = [stride if keep else 0 for stride, keep in zip(mask_strides, kept, strict=True)]
    allowed_flat, _ = strided(allowed.view("u1"), mask_order)
    causal = data.draw(st.sampled_from([None, 0, keys - queries]))
    cap = data.draw(st.sampled_from([0.0, 2.0]))
    hides = data.draw(st.booleans())
    for isa in ISAS:
        problem = AttentionProblem(
            q.shape, k.shape, value_depth, scale=0.5, soft_cap=cap, causal_offset=causal, additive_strides=mask_strides,
            boolean_strides=mask_strides, mask_hides=hides, q_strides=strides[0], k_strides=strides[1],
            v_strides=strides[2],
        )  # fmt: skip
        call = attention(problem, dst_strides=dst_strides, isa=isa)
        y = execute(call, *flats, mask_flat, allowed_flat, Out((dst.size,)))
        expected = reference(q, k, v, 0.5, cap, causal, mask, allowed != hides)
        assert_near(unstride(y, shape, dst_strides), expected, *TOLERANCE)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("is_bottom_right", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(1, 9), (2, 70), (70, 70), (130, 40), (40, 130)], ids=str)
def test_causal(queries, keys, is_bottom_right, isa):
    q, k, v = inputs(1, 4, 2, queries, keys, 16, 16)
    causal = keys - queries if is_bottom_right else 0
    expected = reference(q, k, v, causal=causal)
    assert_near(attend(q, k, v, causal_offset=causal, isa=isa), expected, *TOLERANCE)
    ahead, behind = (np.array([n], np.int32) for n in (keys, queries))
    if is_bottom_right:
        y = attend(q, k, v, ahead, behind, causal_offset=0, ahead=True, behind=True, isa=isa)
        assert_near(y, expected, *TOLERANCE)
    zeroed = attend(q, k, v, causal_offset=causal, inf_as_zero=True, isa=isa)
    assert_near(zeroed, np.nan_to_num(expected), *TOLERANCE)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("queries", [2, 20])
def test_rows_and_tiles_that_are_masked_out(queries, isa):
    q, k, v = inputs(1, 1, 1, queries, 200, 8, 8)
    mask = np.zeros((queries, 200), np.float32)
    mask[0] = -np.inf
    mask[1, :150] = -np.inf
    strides = (0, 0, 200, 1)
    expected = reference(q, k, v, additive=mask)
    assert np.isnan(expected[0, 0, 0]).all()
    assert_near(attend(q, k, v, mask, additive_strides=strides, isa=isa), expected, *TOLERANCE)
    zeroed = attend(q, k, v, mask, additive_strides=strides, inf_as_zero=True, isa=isa)
    assert_near(zeroed, np.nan_to_num(expected), *TOLERANCE)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("queries", [1, 5])
def test_special_scores(queries, isa):
    q, k, v = inputs(1, 1, 1, queries, 130, 4, 4)
    for value, at in [(np.nan, 100), (np.inf, 3), (1e30, 129)]:
        broken = k.copy()
        broken[0, 0, at, 0] = value
        with np.errstate(invalid="ignore"):
            expected = reference(q, broken, v)
        assert_near(attend(q, broken, v, isa=isa), expected, *TOLERANCE)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("queries", [1, 9])
def test_scalars_among_the_arguments(queries, isa):
    q, k, v = inputs(1, 2, 2, queries, 33, 8, 8)
    scale, cap = np.array([4], np.float32), np.array([1.5], np.float32)
    y = attend(q, k, v, scale, cap, scale=None, is_divisor=True, soft_cap=None, isa=isa)
    assert_near(y, reference(q, k, v, 0.25, 1.5), *TOLERANCE)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("queries", [1, 9])
def test_finite_fill_makes_a_hidden_row_uniform(queries, isa):
    q, k, v = inputs(1, 2, 2, queries, 33, 8, 8)
    hidden = np.zeros(1, np.uint8)
    y = attend(q, k, v, hidden, boolean_strides=(0, 0, 0, 0), fill=-1e9, isa=isa)
    assert_near(y, np.broadcast_to(v.mean(2, dtype=np.float64, keepdims=True), y.shape), *TOLERANCE)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("queries", [1, 9])
def test_epilogue_over_transposed_heads(queries, isa):
    q, k, v = inputs(2, 3, 3, queries, 33, 8, 8)
    shape = (2, queries, 3, 8)
    builder = EltwiseBuilder(shape)
    builder.store(0, "f32", None, builder.unary("relu", builder.acc()))
    strides = (queries * 24, 8, 24, 1)
    problem = AttentionProblem(q.shape, k.shape, 8)
    call = attention(problem, dst_strides=strides, epilogue=builder.epilogue(), isa=isa)
    y = execute(call, q, k, v, Out(shape))
    assert_near(y, np.maximum(reference(q, k, v), 0).swapaxes(1, 2), *TOLERANCE)


ROUNDINGS = {
    "u8": Rounding("u8", 1 / 256, 1 / 256), "u8, zero point": Rounding("u8", 1 / 200, 1 / 100, 7),
    "u8, rounded first": Rounding("u8", 1 / 200, 1 / 200, 7, True), "s8": Rounding("s8", 1 / 127, 1 / 127, -100),
    "u8, saturates": Rounding("u8", 1 / 2048, 1 / 2048), "f8": Rounding("f8_e4m3", 1 / 4, 1 / 4),
    "f8 with two bits": Rounding("f8_e5m2", 1.0, 1.0),
}  # fmt: skip
TYPES = {"u8": np.uint8, "s8": np.int8, "f8_e4m3": ml_dtypes.float8_e4m3fn, "f8_e5m2": ml_dtypes.float8_e5m2}


def rounded(p, rounding):
    dtype = TYPES[rounding.dtype]
    scaled = p.astype(np.float64) / np.float64(np.float32(rounding.scale))
    scaled = (np.rint(scaled) if rounding.rounds_first else scaled) + rounding.zero_point
    if rounding.dtype in ("u8", "s8"):
        scaled = np.clip(np.rint(scaled), np.iinfo(dtype).min, np.iinfo(dtype).max)
    codes = scaled.astype(np.float32).astype(dtype).astype(np.float64)
    return (codes - rounding.zero_point) * np.float64(np.float32(rounding.scale_back))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("queries", "keys"), [(1, 9), (2, 150), (2, 700), (5, 64), (70, 130), (9, 512), (66, 600)], ids=str
)
@pytest.mark.parametrize("name", ROUNDINGS)
def test_probabilities_are_rounded(name, queries, keys, isa):
    rounding, (q, k, v) = ROUNDINGS[name], inputs(2, 4, 2, queries, keys, 12, 20)
    problem = AttentionProblem(q.shape, k.shape, v.shape[3], scale=0.5, causal_offset=5)
    found = execute(attention(problem, rounding=rounding, isa=isa), q, k, v, Out((*q.shape[:3], v.shape[3])))
    everything = np.broadcast_to(np.eye(keys, dtype=np.float32), (2, 2, keys, keys))
    p, values = reference(q, k, everything, 0.5, causal=5), np.repeat(v, 2, 1).astype(np.float64)
    lower, upper = (rounded(p * (1 + sign * 3e-6), rounding) for sign in (-1, 1))  # ties may go either way
    unsure = np.abs(upper - lower) @ np.abs(values)
    assert np.all(np.abs(found - rounded(p, rounding) @ values) <= unsure + 1e-5)
    assert np.mean(unsure > 0) < 0.1


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("queries", [1, 9])
def test_a_row_that_is_masked_out_is_rounded_to_zeros(queries, isa):
    q, k, v = inputs(1, 1, 1, queries, 9, 8, 8)
    problem = AttentionProblem(q.shape, k.shape, 8, causal_offset=-queries)
    call = attention(problem, rounding=ROUNDINGS["u8, zero point"], inf_as_zero=True, isa=isa)
    assert not np.any(execute(call, q, k, v, Out((1, 1, queries, 8))))


@pytest.mark.parametrize("rounding", [None, ROUNDINGS["u8"]])
def test_scratch_does_not_grow_with_keys(rounding):
    problems = [AttentionProblem((1, 1, 64, 64), (1, 1, keys, 64), 64) for keys in (512, 65536)]
    sizes = [attention(problem, rounding=rounding).scratch_nbytes for problem in problems]
    assert sizes[0] == sizes[1] < (64 if rounding is None else 192) * 1024


def test_bad_arguments():
    with pytest.raises(InvalidShapeError, match="equal batch and depth"):
        AttentionProblem((1, 1, 1, 2), (1, 1, 1, 1), 1)
    with pytest.raises(InvalidShapeError, match="multiple of kv_heads"):
        AttentionProblem((1, 3, 1, 1), (1, 2, 1, 1), 1)
    with pytest.raises(InvalidShapeError, match="strides of q"):
        attention(AttentionProblem((1, 1, 1, 1), (1, 1, 1, 1), 1, q_strides=(1,)))
    with pytest.raises(InvalidDataTypeError, match="rounding"):
        Rounding("s32", 1.0, 1.0)
