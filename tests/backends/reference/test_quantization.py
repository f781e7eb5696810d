import numpy as np
import pytest

from graphpool.typing import DataType
from tests.helpers.reference import onnx_run, run_one

PER_TENSOR = {"qtype": "per_tensor", "axis": 1}


@pytest.mark.parametrize(("dtype", "low", "high"), [("u8", 0, 255), ("s8", -128, 127)])
def test_quantize_rounds_half_to_even_and_saturates(dtype, low, high):
    src = np.array([0.25, 0.75, 1.25, -1e9, 1e9, np.inf], np.float32)
    result = run_one("Quantize", src, dtype=dtype, scales=[0.5], zps=[3], **PER_TENSOR)
    assert result.dtype == DataType(dtype).numpy
    # 0.5 + 3, 1.5 + 3 and 2.5 + 3: the zero point is added before rounding.
    assert result.tolist() == [4, 4, 6, low, high, high]


@pytest.mark.parametrize("zps", [{}, {"zps": []}])
def test_zero_points_may_be_absent(zps):
    src = np.array([4, 5], np.uint8)
    assert run_one("Dequantize", src, scales=[0.5], **PER_TENSOR, **zps).tolist() == [2.0, 2.5]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_per_channel_attributes_agree_with_onnx(axis):
    rng = np.random.default_rng(1)
    src = (rng.normal(size=(3, 3, 3)) * 20).astype(np.float32)
    scales, zps = [0.5, 0.25, 2.0], [3, 128, 250]
    attrs = {"qtype": "per_channel", "axis": axis, "scales": scales, "zps": zps}
    points = [np.array(scales, np.float32), np.array(zps, np.uint8)]
    quantized = run_one("Quantize", src, dtype="u8", **attrs)
    expected = onnx_run("QuantizeLinear", [src, *points], axis=axis)[0]
    assert np.max(np.abs(quantized.astype(int) - expected.astype(int))) <= 1  # ONNX rounds before it adds
    restored = run_one("Dequantize", quantized, dtype="f32", **attrs)
    np.testing.assert_array_equal(restored, onnx_run("DequantizeLinear", [quantized, *points], axis=axis)[0])


@pytest.mark.parametrize(("dtype", "limit"), [("f8_e4m3", 448.0), ("f8_e5m2", 57344.0)])
def test_f8_has_no_integer_step_and_saturates(dtype, limit):
    src = np.array([0.25, 0.75, 1e6, -1e6], np.float32)
    result = run_one("Quantize", src, dtype=dtype, scales=[0.5], **PER_TENSOR)
    assert result.astype(float).tolist() == [0.5, 1.5, limit, -limit]
    restored = run_one("Dequantize", result, dtype="f32", scales=[0.5], **PER_TENSOR)
    assert restored[:2].tolist() == [0.25, 0.75]


@pytest.mark.parametrize("scale_shape", [(), (1,)])
def test_dynamic_per_tensor(scale_shape):
    src = np.array([[1.0, -2.0]], np.float32)
    scales, zps = np.full(scale_shape, 0.5, np.float32), np.full(scale_shape, 5, np.int32)
    quantized = run_one("DynamicQuantize", src, scales, zps, dtype="u8", **PER_TENSOR)
    assert quantized.tolist() == [[7, 1]]
    assert run_one("DynamicDequantize", quantized, scales, zps, **PER_TENSOR).tolist() == src.tolist()
    assert run_one("DynamicQuantize", src, scales, dtype="s8", **PER_TENSOR).tolist() == [[2, -4]]
    assert run_one("DynamicDequantize", quantized, scales, **PER_TENSOR).tolist() == [[3.5, 0.5]]


@pytest.mark.parametrize("axis", [0, 1])
def test_dynamic_per_channel_equals_the_static_kind(axis):
    src = np.random.default_rng(1).normal(size=(3, 3)).astype(np.float32)
    scales, zps = [0.5, 0.25, 0.125], [1, 2, 3]
    attrs = {"qtype": "per_channel", "axis": axis}
    static = run_one("Quantize", src, dtype="u8", scales=scales, zps=zps, **attrs)
    points = np.array(scales, np.float32), np.array(zps, np.uint8)
    np.testing.assert_array_equal(run_one("DynamicQuantize", src, *points, dtype="u8", **attrs), static)
    np.testing.assert_array_equal(
        run_one("DynamicDequantize", static, *points, **attrs),
        run_one("Dequantize", static, scales=scales, zps=zps, **attrs),
    )


@pytest.mark.parametrize("axis", [0, 1])
def test_one_zero_point_stands_for_all_channels(axis):
    src = np.random.default_rng(1).normal(size=(3, 3)).astype(np.float32)
    scales, attrs = np.array([0.5, 0.25, 0.125], np.float32), {"qtype": "per_channel", "axis": axis}
    for zps in (np.array([3], np.uint8), np.uint8(3)):
        quantized = run_one("DynamicQuantize", src, scales, zps, dtype="u8", **attrs)
        spread = np.array([3, 3, 3], np.uint8)
        np.testing.assert_array_equal(quantized, run_one("DynamicQuantize", src, scales, spread, dtype="u8", **attrs))
        np.testing.assert_array_equal(
            run_one("DynamicDequantize", quantized, scales, zps, **attrs),
            run_one("DynamicDequantize", quantized, scales, spread, **attrs),
        )


@pytest.mark.parametrize("dtype", ["s4", "u4", "s8", "u8"])
@pytest.mark.parametrize("shape", [(6, 4), (2, 6, 4), (0, 6, 4)])
def test_groups_share_a_scale_and_a_zero_point(dtype, shape):
    rng = np.random.default_rng(1)
    numpy_dtype = DataType(dtype).numpy
    src = rng.integers(-8 if dtype[0] == "s" else 0, 8, size=shape)
    group = [1] * (len(shape) - 2) + [3, 2]
    grid = [n // g for n, g in zip(shape, group, strict=True)]
    scales, zps = rng.normal(size=grid), rng.integers(0, 8, size=grid)
    attrs = {"qtype": "per_group", "axis": 1, "group_shape": group}
    result = run_one("DynamicDequantize", src.astype(numpy_dtype), scales, zps.astype(numpy_dtype), **attrs)
    assert result.shape == shape
    for index in np.ndindex(shape):
        cell = tuple(i // g for i, g in zip(index, group, strict=True))
        assert result[index] == (src[index] - zps[cell]) * scales[cell]


def test_one_zero_point_stands_for_all_groups():
    src, scales = np.arange(24).reshape(6, 4), np.array([[1.0, 2.0], [4.0, 8.0]])
    attrs = {"qtype": "per_group", "axis": 1, "group_shape": [3, 2]}
    result = run_one("DynamicDequantize", src.astype(np.uint8), scales, np.array([[3]], np.uint8), **attrs)
    np.testing.assert_array_equal(result, (src - 3) * scales.repeat(3, 0).repeat(2, 1))


def test_an_empty_tensor():
    assert run_one("Quantize", np.zeros((0, 3)), dtype="u8", scales=[1.0], **PER_TENSOR).shape == (0, 3)
