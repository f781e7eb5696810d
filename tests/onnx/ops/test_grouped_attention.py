"""GroupQueryAttention, against float64."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphpool as gp
from tests.helpers.onnx_models import ContributedCase, peer_session, random_array
from tests.helpers.plain_attention import attend, causal, join_heads, rotate, split_heads

HEADS, SHARED, DEPTH = 4, 2, 16


def grouped(
    batch=1, new=4, past=0, *, room=None, lengths=None, columns=0, packed=False, bias=None, constants=(6,), window=None,
    dtype="float32", **attributes,
):  # fmt: skip
    """A case, and what it expects; `room` are rows of the past buffer, `lengths` those of the batch entries."""
    room, total = past if room is None else room, past + new
    lengths = [total] * batch if lengths is None else lengths
    flat = [random_array((batch, new, heads * DEPTH), dtype, seed=k) for k, heads in enumerate((HEADS, SHARED, SHARED))]
    caches = [random_array((batch, SHARED, room, DEPTH), dtype, seed=k) for k in (3, 4)] if room else [None, None]
    tables = [random_array((32, columns), dtype, seed=k) for k in (5, 6)] if columns else [None, None]
    inputs = [np.concatenate(flat, 2), None, None] if packed else list(flat)
    inputs += [*caches, np.array(lengths, "int32") - 1, np.array([total], "int32"), *tables]
    inputs += [] if bias is None else [None, bias]
    results = [
        _entry([x[b : b + 1] for x in flat], [None if x is None else x[b : b + 1] for x in caches], tables, length, new,
               max(room, total), bias, window, attributes)
        for b, length in enumerate(lengths)
    ]  # fmt: skip
    expected = [np.concatenate(parts).astype(dtype) for parts in zip(*results, strict=True)]
    attributes |= {"local_window_size": window} if window else {}
    options = {"num_heads": HEADS, "kv_num_heads": SHARED, "do_rotary": int(columns > 0)} | attributes
    return ContributedCase("GroupQueryAttention", inputs, expected, constants, options)


def _entry(flat, caches, tables, length, new, height, bias, window, attributes):
    """Result and caches of one batch entry."""
    before = max(length - new, 0)
    query, key, value = (split_heads(x, heads) for x, heads in zip(flat, (HEADS, SHARED, SHARED), strict=True))
    if tables[0] is not None:
        places, interleaved = before + np.arange(new)[None], bool(attributes.get("rotary_interleaved"))
        query, key = (rotate(x, *tables, places, interleaved=interleaved) for x in (query, key))
    grown = []
    for cache, x in zip(caches, (key, value), strict=True):
        rows = np.zeros((1, SHARED, height, DEPTH))
        if cache is not None:
            rows[:, :, : cache.shape[2]] = cache
        rows[:, :, before : before + new] = x
        grown.append(rows)
    is_causal = attributes.get("causal", 1)
    seen = before + new if is_causal else length  # queries behind the end of a prompt see what is behind it
    used = [rows[:, :, :seen] for rows in grown]
    added = (0 if bias is None else bias[..., :seen]) + (causal(new, seen, before, window) if is_causal else 0)
    result = attend(query, *used, added=added, scale=attributes.get("scale"), cap=attributes.get("softcap", 0))
    return join_heads(result), *grown


CASES = {
    "prompt": grouped(2), "prompt-rotary": grouped(2, columns=8), "prompt-part": grouped(columns=4),
    "prompt-interleaved": grouped(columns=8, rotary_interleaved=1), "prompt-packed": grouped(2, columns=8, packed=True),
    "step": grouped(new=1, past=5), "step-rotary": grouped(new=1, past=5, columns=8),
    "step-packed": grouped(new=1, past=5, columns=8, packed=True), "two-steps": grouped(new=2, past=5, columns=8),
    "step-batch": grouped(2, new=1, past=5, columns=8), "scale-and-cap": grouped(scale=0.3, softcap=2.0),
    "total-as-input": grouped(new=1, past=5, columns=8, constants=()),
    "known-lengths": grouped(2, new=1, past=5, columns=8, constants=(5, 6)),
    **{f"window-{w}": grouped(new=6, window=w) for w in (1, 2, 3)},
    **{f"window-{w}-step": grouped(new=1, past=6, window=w) for w in (1, 2, 3)},
    "bias": grouped(bias=random_array((1, 4, 4, 4))),
    "bias-step": grouped(new=1, past=3, bias=random_array((1, 1, 1, 4))),
    "both-ways": grouped(new=2, past=3, causal=0),
}  # fmt: skip
BUFFERS = {
    "prompt-buffer": grouped(room=10),
    "step-buffer": grouped(new=1, past=5, room=9, columns=8),
    "step-uneven-buffer": grouped(2, new=1, past=5, room=9, lengths=[6, 4], columns=8),
    "step-uneven": grouped(2, new=1, past=5, lengths=[6, 4], columns=8),
    "step-short": grouped(new=1, past=5, lengths=[3], columns=8),
    "step-short-buffer": grouped(new=1, past=5, room=9, lengths=[4], columns=8, constants=(5, 6)),
    "steps-short-window": grouped(new=2, past=5, lengths=[4], window=3),
    "both-ways-short-prompt": grouped(2, lengths=[4, 2], columns=8, causal=0),
    "both-ways-short-step": grouped(new=1, past=5, lengths=[4], causal=0),
    "steps-uneven-window": grouped(2, new=2, past=5, lengths=[7, 4], window=3),
    "half": grouped(new=1, past=5, dtype="float16"),
}
"""Cases with rows behind the ends, which nothing specifies: ours are those of the past."""


def random_step(seed):
    """A case with a past, whose lengths say more than the longest of them."""
    rng = np.random.default_rng(seed)
    batch, past, dynamic = int(rng.integers(1, 4)), int(rng.integers(1, 8)), bool(rng.integers(2))
    new = int(rng.integers(1, 4)) if batch == 1 else 1  # ONNX Runtime takes several tokens behind a past of one entry
    room = past + int(rng.choice([0, new, new + 3]))
    options = {"softcap": 2.0} if rng.integers(2) else {"scale": 0.3}
    bias = random_array((1, HEADS, new, past + new)) if rng.integers(2) else None
    return grouped(
        batch, new, past, room=room, lengths=rng.integers(new, past + new + 1, batch).tolist(),
        columns=int(rng.choice([0, 8])), packed=bool(rng.integers(2)), bias=bias, constants=(6,) if dynamic else (5, 6),
        window=None if rng.integers(2) else int(rng.integers(1, 5)), **options,
    )  # fmt: skip


BUFFERS |= {f"random-{seed}": random_step(seed) for seed in range(16)}


@pytest.mark.parametrize("name", [*CASES, *BUFFERS])
def test_what_numpy_expects(name):
    case = (CASES | BUFFERS)[name]
    case.check()


@pytest.mark.parametrize("name", [name for name in CASES if name != "prompt-part"])  # there in multiples of 16
def test_onnx_runtime_expects_the_same(name):
    pytest.importorskip("onnxruntime")
    CASES[name].check_onnxruntime(rtol=1e-4, atol=1e-5)


def test_short_prompts_of_a_batch():
    """Rows behind the end of an entry hold nothing of use."""
    case, whole = grouped(2, lengths=[4, 2]), grouped(2)
    model, inputs = case.model()
    with gp.onnx.load(model, fallback=False) as loaded:
        result = loaded.run(inputs)["y0"]
    np.testing.assert_allclose(result[0], whole.expected[0][0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(result[1, :2], whole.expected[0][1, :2], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["prompt-rotary", "step-rotary", "window-2", "step-uneven-buffer"])
def test_the_scores_are_never_stored(name):
    model, inputs = (CASES | BUFFERS)[name].model()
    with gp.onnx.load(model) as loaded:
        names = [kernel for kernels in loaded.specialise(inputs).implementations for kernel in kernels]
    assert any("f32_attention" in kernel for kernel in names)


@pytest.mark.parametrize(("case", "reason"), [
    (grouped(smooth_softmax=1), "smooth_softmax"), (grouped(k_quant_type="PER_TENSOR"), "k_quant_type"),
    (grouped(sliding_window_cache=1), "sliding_window_cache"), (grouped(new=2, past=5, room=3), "past_key"),
    (grouped(causal=0, local_window_size=2), "local_window_size"),
])  # fmt: skip
def test_what_has_no_expression_is_refused(case, reason):
    with pytest.raises(gp.UnsupportedError, match=reason):
        gp.onnx.load(case.model()[0])


@pytest.mark.parametrize(("index", "reason"), [(9, "position_ids"), (11, "head_sink"), (14, "q_norm_weight")])
def test_inputs_without_expression_are_refused(index, reason):
    case = grouped(columns=8)
    case.inputs += [None] * (index - len(case.inputs)) + [random_array((4,))]
    with pytest.raises(gp.UnsupportedError, match=reason):
        gp.onnx.load(case.model()[0])


def decoder_layer(width=HEADS * DEPTH, window=-1):
    """A layer as exporters write it: lengths follow from a mask of attention, caches grow with each step."""
    rng, columns = np.random.default_rng(0), (HEADS + 2 * SHARED) * DEPTH
    angles = np.outer(np.arange(32), 0.5 ** np.arange(8))
    constants = {
        "gamma": rng.normal(1, 0.1, width), "gamma2": rng.normal(1, 0.1, width),
        "qkv": rng.normal(0, 0.1, (width, columns)), "out": rng.normal(0, 0.1, (width, width)),
        "cos": np.cos(angles), "sin": np.sin(angles),
    }  # fmt: skip
    constants = {name: value.astype("float32") for name, value in constants.items()}
    constants |= {"one": np.array([1]), "index": np.array(1)}

    def node(kind, inputs, *outputs, **attributes):
        return helper.make_node(kind, inputs, outputs, domain="com.microsoft", **attributes)

    nodes = [
        helper.make_node("ReduceSum", ["mask", "one"], ["used"], keepdims=0),
        helper.make_node("Sub", ["used", "one"], ["less"]),
        helper.make_node("Cast", ["less"], ["lengths"], to=TensorProto.INT32),
        helper.make_node("Shape", ["mask"], ["shape"]), helper.make_node("Gather", ["shape", "index"], ["long"]),
        helper.make_node("Cast", ["long"], ["total"], to=TensorProto.INT32),
        helper.make_node("SimplifiedLayerNormalization", ["x", "gamma"], ["normal"], epsilon=1e-5),
        helper.make_node("MatMul", ["normal", "qkv"], ["packed"]),
        node("GroupQueryAttention", ["packed", "", "", "past_key", "past_value", "lengths", "total", "cos", "sin"],
             "attended", "key", "value", num_heads=HEADS, kv_num_heads=SHARED, do_rotary=1, local_window_size=window),
        helper.make_node("MatMul", ["attended", "out"], ["projected"]),
        node("SkipSimplifiedLayerNormalization", ["projected", "x", "gamma2"], "y", "", "", "z", epsilon=1e-5),
    ]  # fmt: skip
    cache = (1, SHARED, "past", DEPTH)
    shapes = {"x": (1, "tokens", width), "mask": (1, "total_tokens"), "past_key": cache, "past_value": cache}
    types = {"mask": TensorProto.INT64}
    infos = [helper.make_tensor_value_info(k, types.get(k, TensorProto.FLOAT), shape) for k, shape in shapes.items()]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * rank) for name, rank in
               (("y", 3), ("z", 3), ("key", 4), ("value", 4))]  # fmt: skip
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "layer", infos, results, tensors)
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


NO_CACHES = {"key": None, "value": None}
"""Of a session, which keeps them."""


def in_parts(run, x, sizes):
    """Results for all tokens, given in parts of these sizes one behind the other."""
    caches, parts, start = [np.zeros((1, SHARED, 0, DEPTH), "float32")] * 2, [], 0
    for size in sizes:
        mask = np.ones((1, start + size), "int64")
        found = run({"x": x[:, start : start + size], "mask": mask, "past_key": caches[0], "past_value": caches[1]})
        caches, start = [found["key"], found["value"]], start + size
        parts.append(found["y"])
    return np.concatenate(parts, 1)


def test_steps_continue_a_prompt():
    x = random_array((1, 7, HEADS * DEPTH))
    with gp.onnx.load(decoder_layer(), fallback=False) as model:
        whole = in_parts(model.run, x, [7])
        np.testing.assert_allclose(in_parts(model.run, x, [4, 1, 1, 1]), whole, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(in_parts(model.run, x, [3, 4]), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("window", [-1, 4])
@pytest.mark.parametrize("as_session", [False, True])
def test_steps_of_all_lengths_share_compilations(as_session, window):
    """One for a prompt, one for steps of one token, one for more tokens behind others."""
    x, sizes = random_array((1, 31, HEADS * DEPTH)), [5, *[1] * 9, 3, 1, 1, 7, 4, 1]
    with gp.onnx.load(decoder_layer(window=window), fallback=False) as model:
        whole = in_parts(model.run, x, [31])
        before = model.stats().compilations
        if as_session:
            with model.session({"key": "past_key", "value": "past_value"}, {"past": 40}) as session:
                found = in_parts(lambda feeds: session.run({k: feeds[k] for k in ("x", "mask")}) | NO_CACHES, x, sizes)
        else:
            found = in_parts(model.run, x, sizes)
        assert model.stats().compilations - before <= 3
    np.testing.assert_allclose(found, whole, rtol=1e-4, atol=1e-5)


def test_onnx_runtime_continues_a_prompt_likewise():
    pytest.importorskip("onnxruntime")
    proto, x = decoder_layer(), random_array((1, 7, HEADS * DEPTH))
    session = peer_session(proto)
    names = [output.name for output in session.get_outputs()]
    expected = in_parts(lambda feeds: dict(zip(names, session.run(None, feeds), strict=True)), x, [5, 1, 1])
    with gp.onnx.load(proto, fallback=False) as model:
        np.testing.assert_allclose(in_parts(model.run, x, [5, 1, 1]), expected, rtol=1e-4, atol=1e-5)
