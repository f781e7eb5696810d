import numpy as np
import pytest

import graphpool as gp
from tests.helpers.onnx_models import check_against_evaluator, node_model, random_array
from tests.helpers.variable_programs import make_unknown

Q, K, V = random_array((2, 6, 3, 8)), random_array((2, 2, 5, 8), seed=1), random_array((2, 2, 5, 4), seed=2)


def attention(*inputs, **attributes):
    return node_model("Attention", list(inputs), opset=25, **attributes)


@pytest.mark.parametrize("attributes", [
    {}, {"scale": 0.3}, {"softcap": 2.0}, {"is_causal": 1}, {"left_window_size": 1},
    {"left_window_size": 1, "right_window_size": 0}, {"is_causal": 1, "right_window_size": 2},
])  # fmt: skip
@pytest.mark.parametrize("heads", [1, 2, 6])
def test_fewer_heads_of_keys_than_of_queries(attributes, heads):
    k, v = (np.repeat(x[:, :1], heads, 1) * np.arange(1, heads + 1).reshape(-1, 1, 1) for x in (K, V))
    assert check_against_evaluator(*attention(Q, k.astype("float32"), v.astype("float32"), **attributes)) == 0


@pytest.mark.parametrize("shape", [(3, 5), (6, 3, 5), (2, 1, 3, 5), (3, 4)])
@pytest.mark.parametrize("is_boolean", [True, False])
@pytest.mark.parametrize("is_causal", [0, 1])
def test_masks(shape, is_boolean, is_causal):
    mask = random_array(shape, seed=3)
    given = mask > -0.5 if is_boolean else mask
    assert check_against_evaluator(*attention(Q, K, V, given, is_causal=is_causal)) == 0


def test_a_query_that_sees_no_key_gives_zeros():
    mask = np.ones((3, 5), bool)
    mask[1] = False
    model, inputs = attention(Q, K, V, mask)
    assert check_against_evaluator(model, inputs) == 0


@pytest.mark.parametrize("is_causal", [0, 1])
def test_keys_of_the_past(is_causal):
    past = random_array((2, 2, 4, 8), seed=4), random_array((2, 2, 4, 4), seed=5)
    model = node_model("Attention", [Q, K, V, None, *past], noutputs=3, opset=25, is_causal=is_causal)
    assert check_against_evaluator(*model) == 0


@pytest.mark.parametrize("attributes", [{"is_causal": 1}, {"is_causal": 1, "left_window_size": 2}])
def test_lengths_that_vary(attributes):
    """Compilations are for one token and for several, that see all keys or not."""

    def case(queries, past):
        inputs = [random_array((1, 2, length, 8), seed=k) for k, length in enumerate([queries] * 3 + [past] * 2)]
        return node_model("Attention", [*inputs[:3], None, *inputs[3:]], noutputs=3, opset=25, **attributes)

    with gp.onnx.load(make_unknown(case(2, 3)[0]), fallback=False) as model:
        for queries, past in [(1, 4), (1, 5), (3, 4), (5, 2), (1, 9), (7, 12), (1, 30), (2, 31)]:
            fixed, inputs = case(queries, past)
            assert check_against_evaluator(fixed, inputs) == 0
            with gp.onnx.load(fixed) as alone:
                wanted = alone.run(inputs)
            for name, found in model.run(inputs).items():
                np.testing.assert_allclose(found, wanted[name], rtol=1e-5, atol=1e-6)
        assert model.stats().compilations <= 4


@pytest.mark.parametrize("attributes", [{}, {"is_causal": 1}, {"is_causal": 1, "left_window_size": 1}])
def test_lengths_in_use(attributes):
    lengths = np.array([5, 3], "int64")
    assert check_against_evaluator(*attention(Q, K, V, None, None, None, lengths, **attributes)) == 0


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_scores_are_shown(mode):
    model = node_model("Attention", [Q, K, V, random_array((3, 5), seed=3)], noutputs=4, opset=25,
                       qk_matmul_output_mode=mode)  # fmt: skip
    assert check_against_evaluator(*model) == 0


def test_heads_side_by_side():
    q, k, v = random_array((2, 3, 24)), random_array((2, 5, 8), seed=1), random_array((2, 5, 6), seed=2)
    assert check_against_evaluator(*attention(q, k, v, q_num_heads=6, kv_num_heads=2, is_causal=1)) == 0


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embedding(interleaved):
    cos, sin = random_array((7, 4), seed=1), random_array((7, 4), seed=2)
    positions = np.array([[0, 3, 6], [1, 1, 2]], "int64")
    model = node_model("RotaryEmbedding", [Q, cos, sin, positions], opset=23, interleaved=interleaved)
    assert check_against_evaluator(*model) == 0
