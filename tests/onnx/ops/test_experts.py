"""Mixtures of experts, against float64."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from scipy.special import erf

import graphpool as gp

EXPERTS, WIDTH, INNER = 4, 32, 48
ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + erf(x / np.sqrt(2))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "identity": lambda x: x,
}


def packed(q, bits):
    """Numbers of fewer bits than 8 side by side along the last axis, the first in the low bits."""
    count = 8 // bits
    q = np.pad(q, [(0, 0)] * (q.ndim - 1) + [(0, -q.shape[-1] % count)])
    parts = q.reshape(*q.shape[:-1], -1, count)
    return (parts << np.arange(0, 8, bits)).sum(-1).astype(np.uint8)


def weights_of(rng, rows, columns, bits, block, zeros):
    """Inputs of one product, weights first, and the weights that they stand for."""
    if not bits:
        weights = (rng.standard_normal((EXPERTS, rows, columns)) / np.sqrt(columns)).astype(np.float32)
        return {"w": weights}, weights
    q = rng.integers(0, 1 << bits, (EXPERTS, rows, columns))
    blocks = columns // block if block else 1
    scale = (rng.uniform(0.5, 1.5, (EXPERTS, rows, blocks)) / (1 << bits) / np.sqrt(columns)).astype(np.float32)
    points = rng.integers(0, 1 << bits, scale.shape) if zeros else np.full(scale.shape, 1 << (bits - 1))
    given = {"w": packed(q, bits), "s": scale if block else scale[..., 0]}
    if zeros:
        given["z"] = packed(points if block else points[..., 0], bits)
    full = [np.repeat(x, columns // blocks, -1) for x in (scale.astype(float), points)]
    return given, (q - full[1]) * full[0]


def mixture(op, k=2, kind="silu", fusion=0, bits=0, block=0, zeros=False, beside=False, norm=1, **attributes):
    """A model, and a function that computes its result."""
    rng = np.random.default_rng(0)
    sizes = {"1": ((2 if fusion else 1) * INNER, WIDTH), "2": (WIDTH, INNER)}
    sizes |= {"3": (INNER, WIDTH)} if beside else {}
    given, plain = {}, {}
    for name, (rows, columns) in sizes.items():
        own, plain[name] = weights_of(rng, rows, columns, bits, block, zeros)
        given |= {f"{key}{name}": content for key, content in own.items()}
        given[f"b{name}"] = rng.standard_normal((EXPERTS, rows)).astype(np.float32)
    order = [f"{key}{name}" for name in "123" for key in ("wsb" if op == "QMoE" else "wb")]
    order += [f"z{name}" for name in "123"] if zeros else []
    names = ["x", "router", *(name if name in given else "" for name in order)]
    own = {"k": k, "activation_type": kind, "swiglu_fusion": fusion, "normalize_routing_weights": norm} | attributes
    own |= {"expert_weight_bits": bits} if bits else {}
    own |= {"block_size": block} if block else {}
    node = helper.make_node(op, names, ["y"], domain="com.microsoft", **own)
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
             for name, shape in (("x", ("n", WIDTH)), ("router", ("n", EXPERTS)), ("y", None))]  # fmt: skip
    constants = [numpy_helper.from_array(content, name) for name, content in given.items()]
    graph = helper.make_graph([node], "g", ports[:2], ports[2:], constants)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]

    def compute(x, router):
        shares = np.exp(router - router.max(1, keepdims=True).astype(float))
        shares /= shares.sum(1, keepdims=True)
        shares[shares < -np.sort(-shares, axis=1)[:, k - 1 : k]] = 0
        if norm:
            shares /= shares.sum(1, keepdims=True)
        result = np.zeros(x.shape)
        for e in range(EXPERTS):
            first, *others = (x @ plain[n][e].T + given[f"b{n}"][e] for n in "13" if n in plain)
            if kind == "swiglu":
                half = INNER
                gate, other = (first[:, ::2], first[:, 1::2]) if fusion == 1 else (first[:, :half], first[:, half:])
                limit = own.get("swiglu_limit", np.inf)
                gate, other = np.minimum(gate, limit), np.clip(other, -limit, limit) + own.get("activation_beta", 0)
                hidden = gate / (1 + np.exp(-own.get("activation_alpha", 1) * gate)) * other
            else:
                hidden = ACTIVATIONS[kind](first) * (others[0] if others else 1)
            result += shares[:, e : e + 1] * (hidden @ plain["2"][e].T + given["b2"][e])
        return result

    return helper.make_model(graph, opset_imports=imports, ir_version=10), compute


SWIGLU = {"kind": "swiglu", "activation_alpha": 1.7, "activation_beta": 1.0, "swiglu_limit": 0.5}
CASES = [
    *(("MoE", {"kind": kind}) for kind in ACTIVATIONS), ("MoE", {"norm": 0}), ("MoE", {"k": 1, "norm": 0}),
    ("MoE", {"beside": True}), ("MoE", {"fusion": 1, **SWIGLU}), ("MoE", {"fusion": 2, **SWIGLU}),
    *(("QMoE", {"bits": bits, "block": block, "zeros": zeros})
      for bits in (2, 4, 8) for block in (0, 16) for zeros in (False, True)),
    ("QMoE", {"bits": 4, "fusion": 1, "zeros": True, **SWIGLU}),
    ("QMoE", {"bits": 4, "block": 16, "fusion": 1, **SWIGLU}),
    ("QMoE", {"bits": 4, "beside": True, "k": 3}),
]  # fmt: skip


@pytest.mark.parametrize(("op", "options"), CASES, ids=lambda x: x if isinstance(x, str) else "-".join(map(str, x)))
def test_mixtures_of_experts(op, options):
    proto, compute = mixture(op, **options)
    rng = np.random.default_rng(1)
    with gp.onnx.load(proto, fallback=False) as model:
        for rows in (1, 3, 40):
            x, router = (rng.standard_normal((rows, n)).astype(np.float32) for n in (WIDTH, EXPERTS))
            error = 2e-3 if options.get("kind") == "gelu" else 1e-4
            np.testing.assert_allclose(model.run({"x": x, "router": router})["y"], compute(x, router), atol=error)


@pytest.mark.parametrize("chosen", [0, 1, 5, 11, 40])
def test_experts_that_few_or_all_rows_choose(chosen):
    proto, compute = mixture("MoE", k=1)
    x = np.random.default_rng(2).standard_normal((40, WIDTH)).astype(np.float32)
    router = np.zeros((40, EXPERTS), np.float32)
    router[:, 1] = 2
    router[:chosen, 2] = 4
    with gp.onnx.load(proto, fallback=False) as model:
        np.testing.assert_allclose(model.run({"x": x, "router": router})["y"], compute(x, router), atol=1e-4)


def test_experts_of_a_file(tmp_path):
    proto, compute = mixture("QMoE", bits=4, fusion=1, **SWIGLU)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    x, router = (np.random.default_rng(3).standard_normal((9, n)).astype(np.float32) for n in (WIDTH, EXPERTS))
    with gp.onnx.load(tmp_path / "m.onnx", fallback=False) as model:
        np.testing.assert_allclose(model.run({"x": x, "router": router})["y"], compute(x, router), atol=1e-4)


@pytest.mark.parametrize("attributes", [{"use_sparse_mixer": 1}, {"fusion": 1}, {"quant_type": "fp4"}])
def test_other_mixtures_are_refused(attributes):
    proto, _ = mixture("QMoE", bits=4, **attributes)
    with pytest.raises(gp.UnsupportedError, match=r"QMoE.*(use_sparse_mixer|swiglu_fusion|quant_type)"):
        gp.onnx.load(proto, fallback=False)


def test_experts_are_counted():
    proto, _ = mixture("MoE")
    with pytest.raises(gp.LimitError, match="4 experts"):
        gp.onnx.load(proto, limits=gp.Limits(nodes=100))
