import numpy as np
import pytest

from graphpool.backends.reference import OutputSpec, evaluate, registry
from graphpool.errors import InvalidOpError, InvalidShapeError, UnsupportedError
from graphpool.typing import DataType
from tests.helpers.reference import run_one


@pytest.mark.parametrize("kind", ["End", "Wildcard", "relu"])
def test_a_kind_without_evaluation_is_unsupported(kind):
    with pytest.raises(UnsupportedError, match=kind) as caught:
        evaluate(kind, [np.zeros(1)], {}, [])
    assert caught.value.kind == kind


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_wrong_number_of_inputs_is_refused(count):
    with pytest.raises(InvalidOpError, match="inputs of Add"):
        run_one("Add", *[np.zeros(2)] * count)


def test_a_missing_required_attribute_is_named():
    with pytest.raises(InvalidOpError, match="'min' of Clamp"):
        run_one("Clamp", np.zeros(2), max=1.0)


def test_more_outputs_than_the_kind_has_are_refused():
    with pytest.raises(InvalidOpError, match="outputs of ReLU"):
        evaluate("ReLU", [np.zeros(2)], {}, [OutputSpec(DataType.F32)] * 2)


def test_inputs_that_do_not_fit_are_refused():
    with pytest.raises(InvalidShapeError, match="inputs of Add") as caught:
        run_one("Add", np.zeros((2, 3)), np.zeros((2, 4)))
    assert caught.value.shapes == [(2, 3), (2, 4)]
    with pytest.raises(InvalidShapeError, match="inputs of ReduceSum"):
        run_one("ReduceSum", np.zeros((2, 3)), axes=[2], keep_dims=False)


def test_another_shape_than_declared_is_refused():
    with pytest.raises(InvalidShapeError, match="output 0 of ReLU") as caught:
        evaluate("ReLU", [np.zeros((2, 3))], {}, [OutputSpec(DataType.F32, (3, 2))])
    assert caught.value.port == 0


def test_optional_outputs_are_left_out_from_the_end():
    specs = [OutputSpec(DataType.F32, (2, 3)), OutputSpec(DataType.F32, (2, 1))]
    attrs = {"axis": 1, "mode": "none"}
    assert len(evaluate("SoftMax", [np.zeros((2, 3))], attrs, specs[:1])) == 1
    assert len(evaluate("SoftMax", [np.zeros((2, 3))], attrs, specs)) == 2


def test_outputs_are_new_c_contiguous_arrays():
    src = np.arange(6.0).reshape(2, 3)
    for kind, attrs in [("Reorder", {}), ("StaticTranspose", {"order": [1, 0]}), ("GenIndex", {"axis": 0})]:
        result = run_one(kind, src, **attrs)
        assert result.flags.c_contiguous
        assert result.flags.writeable
        assert not np.shares_memory(result, src)


def test_inputs_are_not_written():
    src = np.array([-1.0, 2.0], dtype=np.float32)
    src.flags.writeable = False
    np.testing.assert_array_equal(run_one("ReLU", src, dtype="f32"), [0.0, 2.0])


def test_float_attributes_hold_float32_values():
    third = float(np.float32(1 / 3))
    assert run_one("LeakyReLU", -np.ones(1), alpha=1 / 3)[0] == -third
    assert run_one("Dequantize", np.ones(1, np.uint8), qtype="per_tensor", scales=[1 / 3])[0] == third


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_a_result_is_computed_in_float64_and_rounded_once(dtype):
    element = DataType(dtype)
    src = np.linspace(-3, 3, 101).astype(element.numpy)
    [result] = evaluate("Tanh", [src], {}, [OutputSpec(element)])
    assert result.dtype == element.numpy
    exact = np.tanh(src.astype(np.float64))
    np.testing.assert_allclose(result.astype(np.float64), exact, rtol=2.0 ** -{"f32": 24, "f16": 11, "bf16": 8}[dtype])


CONV = {"strides": [1], "pads_begin": [1], "pads_end": [1], "dilations": [1], "groups": 1, "weights_format": "XIO"}
POOL = {"kernel": [2], "strides": [1], "pads_begin": [0], "pads_end": [0], "rounding_type": "floor"}
TYPED = {
    "MatMul": ([(3, 4), (4, 2)], {"transpose_a": False, "transpose_b": False}),
    "Multiply": ([(3, 4), (4,)], {"auto_broadcast": "numpy"}),
    "Convolution": ([(2, 5, 3), (3, 3, 4), (4,)], {**CONV, "data_format": "NXC"}),
    "AvgPool": ([(2, 5, 3)], {**POOL, "exclude_pad": False, "data_format": "NXC"}),
    "LayerNorm": ([(3, 4), (4,), (4,)], {"begin_norm_axis": -1, "use_affine": True, "epsilon": 1e-5}),
    "SoftMax": ([(3, 4)], {"axis": 1, "mode": "none"}),
    "ReduceMean": ([(3, 4)], {"axes": [1], "keep_dims": False}),
    "GELUBackward": ([(3, 4), (3, 4)], {"mode": "gelu_erf"}),
}


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("kind", TYPED)
def test_a_narrow_type_gives_the_float64_result_of_the_same_values_rounded(kind, dtype):
    shapes, attrs = TYPED[kind]
    rng = np.random.default_rng(1)
    element = DataType(dtype)
    narrow = [rng.normal(size=shape).astype(element.numpy) for shape in shapes]
    wide = run_one(kind, *(x.astype(np.float64) for x in narrow), **attrs)
    result = run_one(kind, *narrow, dtype=dtype, **attrs)
    assert result.dtype == element.numpy
    gap = np.abs(result.astype(np.float64) - wide)
    assert np.all(gap <= np.abs(wide) * 2.0 ** -{"f32": 24, "f16": 11, "bf16": 8}[dtype] + 2.0**-25)


@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
@pytest.mark.parametrize(
    ("kind", "vectors", "outputs"),
    [("BatchNormInference", 4, 1), ("BatchNormForwardTraining", 4, 5), ("BatchNormTrainingBackward", 3, 3)],
)
def test_blocks_of_channels_give_what_the_whole_gives(monkeypatch, kind, vectors, outputs, data_format):
    rng = np.random.default_rng(0)
    shape = (3, 5, 4, 2) if data_format == "NCX" else (3, 4, 2, 5)
    images = 1 + (kind == "BatchNormTrainingBackward")
    arrays = [rng.uniform(0.5, 2, shape).astype(np.float32) for _ in range(images)]
    arrays += [rng.uniform(0.5, 2, 5).astype(np.float32) for _ in range(vectors)]
    attrs = {"epsilon": 0.1, "data_format": data_format, "momentum": 0.3}
    specs = [OutputSpec(DataType.F32)] * outputs
    whole = evaluate(kind, arrays, attrs, specs)
    for size in (1, 50, 119):
        monkeypatch.setattr(registry, "BLOCK", size)
        for a, b in zip(evaluate(kind, arrays, attrs, specs), whole, strict=True):
            np.testing.assert_array_equal(a, b)
    with pytest.raises(InvalidShapeError):
        evaluate(kind, arrays, attrs, [OutputSpec(DataType.F32, (1, 2))])
