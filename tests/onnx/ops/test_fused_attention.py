"""Attention as ONNX Runtime fuses it, against float64."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphpool as gp
from tests.helpers.onnx_models import ContributedCase, random_array
from tests.helpers.plain_attention import attend, causal, join_heads, rotate, split_heads
from tests.helpers.variable_programs import make_unknown

B, S, KEYS, PAST, N, H = 2, 4, 6, 5, 3, 8
D = N * H
QUERY, KEY, VALUE = random_array((B, S, D)), random_array((B, KEYS, D), seed=1), random_array((B, KEYS, 2 * D), seed=2)
OWN_KEY, OWN_VALUE = random_array((B, S, D), seed=1), random_array((B, S, D), seed=2)
BIAS = random_array((4 * D,), seed=3)
PAST_KEY, PAST_VALUE = random_array((B, N, PAST, H), seed=5), random_array((B, N, PAST, H), seed=6)
RAGGED = np.array([[1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1]], "int32")
MASK_3D = np.maximum(
    np.eye(S, KEYS, dtype="int32"), np.random.default_rng(0).integers(0, 2, (B, S, KEYS)).astype("int32")
)
ADDED = random_array((1, N, S, KEYS), seed=9)


def hidden(mask, value=-10000.0):
    return np.where(mask > 0, 0, value)


def lengths(ends, keys, starts=(0, 0)):
    """A mask of 0 and 1 for keys from a start up to an end."""
    columns = np.arange(keys)
    return ((columns < np.reshape(ends, (-1, 1))) & (columns >= np.reshape(starts, (-1, 1)))).astype("int32")


def case(kind, inputs, expected, constants=(), dtype="float32", **attributes):
    results = [np.asarray(value, dtype) for value in expected]
    return ContributedCase(kind, inputs, results, constants, {"num_heads": N} | attributes)


def multi_head(query, key, value, *further, added=0.0, bias=None, past=False, scale=None, **attributes):
    """Further inputs are those from the bias on."""
    parts = [query, key, value]
    if bias is not None:
        parts = [x + b for x, b in zip(parts, np.split(bias, np.cumsum([x.shape[2] for x in parts])[:-1]), strict=True)]
    q, k, v = (split_heads(x, N) for x in parts)
    if past:
        k, v = np.concatenate([PAST_KEY, k], 2), np.concatenate([PAST_VALUE, v], 2)
    expected = [join_heads(attend(q, k, v, added=added, scale=scale)), *([k, v] if past else [])]
    options = {} if scale is None else {"scale": scale}
    return case("MultiHeadAttention", [query, key, value, *further], expected, **options, **attributes)


def self_attention(*further, added=0.0, past=None, sizes=(D, D, D), constants=(1, 2), bias=True, **attributes):
    """Further inputs are those from the mask on."""
    x, weights, offset = random_array((B, S, 10)), random_array((10, sum(sizes)), seed=1), BIAS[: sum(sizes)]
    projected = x.astype(float) @ weights + (offset if bias else 0)
    q, k, v = (split_heads(part, N) for part in np.split(projected, np.cumsum(sizes)[:-1], axis=2))
    if past is not None:
        k, v = np.concatenate([past[0], k], 2), np.concatenate([past[1], v], 2)
    expected = [join_heads(attend(q, k, v, added=added)), *([] if past is None else [np.stack([k, v])])]
    return case("Attention", [x, weights, offset if bias else None, *further], expected, constants, **attributes)


def quantised(per_column=False, mask=None, added=0.0):
    rng = np.random.default_rng(0)
    x, weights = rng.integers(0, 256, (B, S, 10)).astype("uint8"), rng.integers(-128, 128, (10, 3 * D)).astype("int8")
    scale = np.linspace(0.01, 0.02, 3 * D).astype("float32") if per_column else np.float32(0.01)
    points = np.uint8(120), np.zeros(np.shape(scale), "int8")
    projected = ((x.astype(float) - 120) * np.float64(np.float32(0.02))) @ (weights * scale.astype(float))
    q, k, v = (split_heads(part, N) for part in np.split(projected + BIAS[: 3 * D], 3, axis=2))
    inputs = [x, weights, BIAS[: 3 * D], np.float32(0.02), scale, mask, *points]
    return case("QAttention", inputs, [join_heads(attend(q, k, v, added=added))], (1, 2, 3, 4, 6, 7))


def packed(*parts):
    """(batch, sequence, heads, parts, depth)."""
    return np.stack([x.reshape(*x.shape[:2], N, H) for x in parts], 3)


def rotary(shape, positions, columns=H // 2, **attributes):
    x = random_array(shape)
    cos, sin = random_array((12, columns), seed=1), random_array((12, columns), seed=2)
    heads = x if len(shape) == 4 else split_heads(x, N)
    places = np.broadcast_to(positions if positions.ndim == 2 else positions + np.arange(S), (B, S))
    turned = rotate(heads, cos, sin, places, interleaved=bool(attributes.get("interleaved")))
    attributes |= {} if columns == H // 2 else {"rotary_embedding_dim": 2 * columns, "num_heads": N}
    expected = np.asarray(turned if len(shape) == 4 else join_heads(turned), "float32")
    return ContributedCase("RotaryEmbedding", [x, positions, cos, sin], [expected], (2, 3), attributes)


ALL = PAST + S
OLD = np.stack([PAST_KEY, PAST_VALUE])
LEFT_PADDED = np.array([[1] * ALL, [0] * 3 + [1] * (ALL - 3)], "int32")
LATER = hidden(LEFT_PADDED)[:, None, None] + causal(S, ALL, PAST)
SHORT = lengths([3, 4], S)
PLACES = np.array([[0, 3, 1, 2], [5, 6, 7, 8]])
CASES = {
    "heads": multi_head(QUERY, KEY, VALUE), "heads-scale": multi_head(QUERY, KEY, VALUE, scale=0.3),
    "heads-bias": multi_head(QUERY, KEY, VALUE, BIAS, bias=BIAS),
    "heads-causal": multi_head(KEY, KEY, VALUE, unidirectional=1, added=causal(KEYS, KEYS)),
    "heads-mask": multi_head(QUERY, KEY, VALUE, None, RAGGED, added=hidden(RAGGED)[:, None, None]),
    "heads-mask-filter": multi_head(QUERY, KEY, VALUE, None, RAGGED, added=hidden(RAGGED, -1.5)[:, None, None],
                                    mask_filter_value=-1.5),
    "heads-all-masked": multi_head(QUERY, KEY, VALUE, None, RAGGED * 0),
    "heads-mask-rows": multi_head(QUERY, KEY, VALUE, None, MASK_3D, added=hidden(MASK_3D)[:, None]),
    "heads-lengths": multi_head(QUERY, KEY, VALUE, None, np.array([4, 6], "int32"),
                                added=hidden(lengths([4, 6], KEYS))[:, None, None]),
    "heads-added": multi_head(QUERY, KEY, VALUE, None, None, ADDED, added=ADDED),
    "heads-added-mask": multi_head(QUERY, KEY, VALUE, None, RAGGED, ADDED, added=ADDED + hidden(RAGGED)[:, None, None]),
    "heads-past": multi_head(QUERY, OWN_KEY, OWN_VALUE, None, None, None, PAST_KEY, PAST_VALUE, past=True),
    "heads-past-causal": multi_head(
        QUERY, OWN_KEY, OWN_VALUE, BIAS[: 3 * D], LEFT_PADDED, None, PAST_KEY, PAST_VALUE, bias=BIAS[: 3 * D],
        past=True, unidirectional=1, added=LATER),
    "heads-of-a-cache": case("MultiHeadAttention", [QUERY, PAST_KEY, PAST_VALUE, BIAS[: 3 * D]],
                             [join_heads(attend(split_heads(QUERY + BIAS[:D], N), PAST_KEY, PAST_VALUE))]),
    "projected": self_attention(), "projected-causal": self_attention(unidirectional=1, added=causal(S, S)),
    "projected-inputs": self_attention(constants=()),
    "projected-sizes": self_attention(sizes=(D, D, 2 * D), qkv_hidden_sizes=[D, D, 2 * D]),
    "projected-mask": self_attention(SHORT, added=hidden(SHORT)[:, None, None]),
    "projected-ends": self_attention(np.array([3, 4], "int32"), added=hidden(SHORT)[:, None, None]),
    "projected-starts": self_attention(np.array([3, 4, 0, 2], "int32"),
                                       added=hidden(lengths([3, 4], S, [0, 2]))[:, None, None]),
    "projected-added": self_attention(None, None, ADDED[..., :S], added=ADDED[..., :S]),
    "projected-past": self_attention(LEFT_PADDED, OLD, past=OLD, unidirectional=1, added=LATER),
    "quantised": quantised(), "quantised-mask": quantised(True, SHORT, hidden(SHORT)[:, None, None]),
    "rotary": rotary((B, S, D), PLACES), "rotary-first": rotary((B, S, D), np.array([3])),
    "rotary-heads": rotary((B, N, S, H), np.array([3])),
    "rotary-interleaved": rotary((B, S, D), PLACES, interleaved=1),
    "rotary-part": rotary((B, S, D), np.array([3]), columns=2),
}  # fmt: skip
OWN = {
    "packed": case("MultiHeadAttention", [packed(QUERY, OWN_KEY, OWN_VALUE)],
                   multi_head(QUERY, OWN_KEY, OWN_VALUE).expected),
    "packed-keys": case("MultiHeadAttention", [QUERY, packed(KEY, VALUE[..., :D])],
                        multi_head(QUERY, KEY, VALUE[..., :D].copy()).expected),
    "no-bias": self_attention(bias=False, constants=(1,)),
    "half": case("MultiHeadAttention", [x.astype("float16") for x in (QUERY, KEY, VALUE)],
                 multi_head(QUERY, KEY, VALUE).expected, dtype="float16"),
}  # fmt: skip
"""What ONNX Runtime does not compute on a CPU."""
ROUNDED = {"heads-all-masked": 2e-3}
"""Absolute tolerance where scores are rounded: beside -10000 float32 has steps of 0.001."""


@pytest.mark.parametrize("name", [*CASES, *OWN])
def test_what_numpy_expects(name):
    (CASES | OWN)[name].check(ROUNDED.get(name, 0))


@pytest.mark.parametrize("name", CASES)
def test_onnx_runtime_expects_the_same(name):
    pytest.importorskip("onnxruntime")
    CASES[name].check_onnxruntime(rtol=1e-4, atol=ROUNDED.get(name, 1e-5))


@pytest.mark.parametrize("name", ["heads", "heads-causal", "heads-mask", "heads-past-causal", "projected-past"])
def test_the_scores_are_never_stored(name):
    model, inputs = CASES[name].model()
    with gp.onnx.load(model) as loaded:
        names = [kernel for kernels in loaded.specialise(inputs).implementations for kernel in kernels]
    assert any("f32_attention" in kernel for kernel in names)
    assert not any("softmax" in kernel for kernel in names)


@pytest.mark.parametrize(("case", "reason"), [
    (multi_head(QUERY, KEY, VALUE, unidirectional=1), "unidirectional"),
    (multi_head(QUERY, OWN_KEY, OWN_VALUE, None, None, None, PAST_KEY, PAST_VALUE, np.array([5], "int32"), past=True),
     "past_sequence_length"),
    (multi_head(QUERY, KEY, VALUE, None, RAGGED[:, :5].copy()), r"a mask of shape \(2, 5\)"),
    (multi_head(QUERY, KEY, VALUE, None, np.array([4, 6, 0, 1], "int32")), "key_padding_mask"),
    (self_attention(do_rotary=1), "do_rotary"), (self_attention(qkv_hidden_sizes=[D, D, D + 3]), "columns"),
    (self_attention(past_present_share_buffer=1), "past_present_share_buffer"),
    (rotary((B, S, D), PLACES, scale=2.0), "scale"),
])  # fmt: skip
def test_what_has_no_expression_is_refused(case, reason):
    with pytest.raises(gp.UnsupportedError, match=reason):
        gp.onnx.load(case.model()[0])


@pytest.mark.parametrize("is_flat", [True, False])
def test_masked_texts_of_all_lengths_share_a_compilation(is_flat):
    """The same tokens give the same, whatever is hidden behind them."""
    weights = random_array((10, 3 * D), seed=1)

    def given(tokens, padding):
        x = np.pad(random_array((2, tokens, 10)), [(0, 0), (0, padding), (0, 0)], constant_values=3)
        ends = np.full(2, tokens, "int32")
        return [x, weights, BIAS[: 3 * D], ends if is_flat else lengths(ends, tokens + padding)]

    cases = [(tokens, padding) for tokens in (3, 8, 21) for padding in (2, 5, 9)]
    proto = make_unknown(case("Attention", given(4, 2), [np.zeros((2, 6, D))], (1, 2)).model()[0])
    with gp.onnx.load(proto, fallback=False) as model:
        for tokens, padding in cases:
            names = [port.name for port in model.inputs]
            x, _, _, mask = given(tokens, padding)
            found = model.run(dict(zip(names, (x, mask), strict=True)))["y0"]
            expected = self_attention_of(x[:, :tokens], weights)
            np.testing.assert_allclose(found[:, :tokens], expected, rtol=1e-4, atol=1e-5)
        assert model.stats().compilations == 1


def test_a_masked_batch_of_no_texts():
    given = [random_array((2, 4, 10)), random_array((10, 3 * D), seed=1), BIAS[: 3 * D], np.full(2, 3, "int32")]
    proto = make_unknown(case("Attention", given, [np.zeros((2, 4, D))], (1, 2)).model()[0])
    with gp.onnx.load(proto, fallback=False) as model:
        names = [port.name for port in model.inputs]
        assert model.run(dict(zip(names, (given[0][:0], given[3][:0]), strict=True)))["y0"].shape == (0, 4, D)


def self_attention_of(x, weights):
    parts = np.split(x.astype(float) @ weights + BIAS[: 3 * D], 3, axis=2)
    return join_heads(attend(*(split_heads(part, N) for part in parts)))


@pytest.mark.parametrize("place", ["buffer", "cache", "other"])
@pytest.mark.parametrize("has_mask", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
def test_one_token_that_attends(place, has_mask, has_bias):
    """Buffers have room for 9 tokens, of which as many are in use as an input says."""
    batch, heads, depth, room = 2, 3, 4, 9
    rng = np.random.default_rng(0)

    def rows(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    floats, columns = TensorProto.FLOAT, heads * depth
    cache = ("b", heads, "s", depth)
    shapes = {"q": ("b", 1, columns)} | dict.fromkeys("kv", cache if place == "other" else ("b", 1, columns))
    shapes |= {} if place == "other" else dict.fromkeys(("pk", "pv"), cache)
    ports = [helper.make_tensor_value_info(name, floats, shape) for name, shape in shapes.items()]
    names = ["q", "k", "v", "mask" if has_mask else "", "", "pk", "pv", "used", "", "", "bias" if has_bias else ""]
    if has_mask:
        ports.append(helper.make_tensor_value_info("mask", TensorProto.INT32, ("b", "t")))
    if place == "buffer":
        ports.append(helper.make_tensor_value_info("used", TensorProto.INT32, (1,)))
    known = {port.name for port in ports} | {"bias"}
    bias = rows(3 * columns) if has_bias else np.zeros(3 * columns, np.float32)
    outputs = ["y"] if place == "other" else ["y", "nk", "nv"]
    one = helper.make_node(
        "DecoderMaskedMultiHeadAttention", [name if name in known else "" for name in names], outputs,
        domain="com.microsoft", num_heads=heads, past_present_share_buffer=int(place == "buffer"),
    )  # fmt: skip
    graph = helper.make_graph([one], "g", ports, [helper.ValueInfoProto(name=name) for name in outputs],
                              [numpy_helper.from_array(bias, "bias")])  # fmt: skip
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    with gp.onnx.load(helper.make_model(graph, opset_imports=imports, ir_version=8), fallback=False) as model:
        for used in (0, 4, 8):
            feeds = {"q": rows(batch, 1, columns)}
            query = (feeds["q"] + bias[:columns]).reshape(batch, heads, 1, depth)
            if place == "other":
                feeds |= {"k": rows(batch, heads, used + 1, depth), "v": rows(batch, heads, used + 1, depth)}
                key, value = feeds["k"], feeds["v"]
            else:
                length = room if place == "buffer" else used
                feeds |= {name: rows(batch, heads, length, depth) for name in ("pk", "pv")}
                feeds |= {name: rows(batch, 1, columns) for name in "kv"}
                new = [(feeds[name] + bias[k * columns : (k + 1) * columns]).reshape(query.shape)
                       for k, name in ((1, "k"), (2, "v"))]  # fmt: skip
                key, value = (np.concatenate([feeds[name][:, :, :used], own], 2)
                              for name, own in zip(("pk", "pv"), new, strict=True))  # fmt: skip
            mask = np.ones((batch, used + 1), np.int32)
            if has_mask:
                mask[1, : used // 2] = 0
                feeds["mask"] = mask
            if place == "buffer":
                feeds["used"] = np.array([used], np.int32)
            scores = query @ key.transpose(0, 1, 3, 2) / np.sqrt(depth) + np.where(mask, 0, -1e4)[:, None, None]
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            want = (weights / weights.sum(-1, keepdims=True)) @ value
            got = model.run(feeds)
            np.testing.assert_allclose(got["y"], want.reshape(batch, 1, columns), rtol=1e-4, atol=1e-5)
            for name, whole in zip(outputs[1:], (key, value), strict=False):
                np.testing.assert_array_equal(got[name][:, :, : used + 1], whole)
