"""DFT and STFT without the host, against numpy.fft."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphpool as gp

RNG = np.random.default_rng(0)


def run(kind, x, opset, constants, fallback=False, **attributes):
    """The result of one node; constants by name, in the order of the inputs, "" for one that is left out."""
    names = [name if value is not None else "" for name, value in constants.items()]
    node = helper.make_node(kind, ["x", *names], ["y"], "the_node", **attributes)
    port = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None] * x.ndim)
    known = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items() if value is not None]
    graph = helper.make_graph([node], "g", [port], [helper.make_empty_tensor_value_info("y")], known)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    with gp.onnx.load(proto, fallback=fallback) as model:
        return model.run({"x": x})["y"]


def check(got, wanted):
    np.testing.assert_allclose(got[..., 0] + 1j * got[..., 1], wanted, atol=2e-6 * np.abs(wanted).max() * 16)


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("axis", [0, 1, -2])
@pytest.mark.parametrize("length", [None, 6, 15, 20])
def test_dft(length, axis, opset):
    for nparts in (1, 2):
        x = RNG.normal(size=(9, 15, 12, nparts)).astype(np.float32)
        numbers = x[..., 0] + (1j * x[..., 1] if nparts == 2 else 0)
        places = {"axis": axis} if opset == 17 else {}
        constants = {"length": length} | ({} if opset == 17 else {"axis": axis})
        own = axis if axis >= 0 else 2
        check(run("DFT", x, opset, constants, **places), np.fft.fft(numbers, length, own))
        if nparts == 1:
            check(run("DFT", x, opset, constants, onesided=1, **places), np.fft.rfft(x[..., 0], length, own))


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("axis", [0, 1, -2])
@pytest.mark.parametrize("length", [None, 1, 6, 15, 20])
def test_inverse(length, axis, opset):
    places = {"axis": axis} if opset == 17 else {}
    constants = {"length": length} | ({} if opset == 17 else {"axis": axis})
    own = axis if axis >= 0 else 2
    for nparts in (1, 2):
        x = RNG.normal(size=(9, 15, 12, nparts)).astype(np.float32)
        numbers = x[..., 0] + (1j * x[..., 1] if nparts == 2 else 0)
        check(run("DFT", x, opset, constants, inverse=1, **places), np.fft.ifft(numbers, length, own))
    found = run("DFT", x, opset, constants, inverse=1, onesided=1, **places)
    wanted = np.fft.irfft(numbers, length, own)
    assert found.shape == (*wanted.shape, 1)
    np.testing.assert_allclose(found[..., 0], wanted, atol=3e-6)


@pytest.mark.parametrize("length", [None, 1, 12, 13])
@pytest.mark.parametrize("is_onesided", [0, 1])
def test_inverses_of_all_lengths_share_compilations(is_onesided, length):
    node = helper.make_node("DFT", ["x", "length" if length else ""], ["y"], axis=1, inverse=1, onesided=is_onesided)
    port = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "t", 2])
    known = [numpy_helper.from_array(np.array(length), "length")] if length else []
    graph = helper.make_graph([node], "g", [port], [helper.make_empty_tensor_value_info("y")], known)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with gp.onnx.load(proto, fallback=False) as model:
        for size in (3, 2, 5, 7, 8, 11, 30, 31, 100, 101, 400):
            x = RNG.normal(size=(2, size, 2)).astype(np.float32)
            transform = np.fft.irfft if is_onesided else np.fft.ifft
            wanted = transform(x[..., 0] + 1j * x[..., 1], length, 1)
            found = model.run({"x": x})["y"]
            got = found[..., 0] if is_onesided else found[..., 0] + 1j * found[..., 1]
            np.testing.assert_allclose(got, wanted, atol=1e-5)
        assert model.stats().compilations <= 3


@pytest.mark.parametrize("length", [None, 12])
@pytest.mark.parametrize("nparts", [1, 2])
@pytest.mark.parametrize("is_onesided", [0, 1])
def test_transforms_of_all_lengths_share_compilations(is_onesided, nparts, length):
    if is_onesided and nparts == 2:
        pytest.skip("not defined")
    node = helper.make_node("DFT", ["x", "length" if length else "", "axis"], ["y"], onesided=is_onesided)
    port = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "t", nparts])
    constants = {"axis": np.array(1)} | ({"length": np.array(length)} if length else {})
    known = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph([node], "g", [port], [helper.make_empty_tensor_value_info("y")], known)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    with gp.onnx.load(proto, fallback=False) as model:
        for size in (3, 2, 5, 8, 11, 13, 30, 31, 100, 101, 400, 1):
            x = RNG.normal(size=(2, size, nparts)).astype(np.float32)
            transform = np.fft.rfft if is_onesided else np.fft.fft
            numbers = x[..., 0] + (1j * x[..., 1] if nparts == 2 else 0)
            check(model.run({"x": x})["y"], transform(numbers, length, 1))
        assert model.stats().compilations <= 4  # one element, fewer than the length, and more


@pytest.mark.parametrize("is_onesided", [0, 1])
@pytest.mark.parametrize("has_window", [False, True])
@pytest.mark.parametrize(("length", "step"), [(16, 4), (15, 20), (1, 1)])
def test_stft(length, step, has_window, is_onesided):
    x = RNG.normal(size=(3, 101, 1)).astype(np.float32)
    window = RNG.normal(size=length).astype(np.float32) if has_window else None
    frames = np.lib.stride_tricks.sliding_window_view(x[..., 0], length, axis=1)[:, ::step]
    transform = np.fft.rfft if is_onesided else np.fft.fft
    wanted = transform(frames * (1.0 if window is None else window), axis=-1)
    constants = {"step": step, "window": window, "length": length}
    check(run("STFT", x, 17, constants, onesided=is_onesided), wanted)
    check(run("STFT", x[..., 0], 17, constants, onesided=is_onesided), wanted)


def test_the_window_of_stft_may_be_an_input():
    names = {"x": [1, None, 1], "window": [None]}
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in names.items()]
    node = helper.make_node("STFT", ["x", "step", "window"], ["y"], "the_node")
    step = numpy_helper.from_array(np.int64(8), "step")
    graph = helper.make_graph([node], "g", ports, [helper.make_empty_tensor_value_info("y")], [step])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with gp.onnx.load(proto, fallback=False) as model:
        for length in (16, 40):
            x, window = RNG.normal(size=(1, 128, 1)).astype(np.float32), RNG.normal(size=length).astype(np.float32)
            frames = np.lib.stride_tricks.sliding_window_view(x[..., 0], length, axis=1)[:, ::8]
            check(model.run({"x": x, "window": window})["y"], np.fft.rfft(frames * window, axis=-1))


def test_long_transforms_are_for_the_host():
    x = RNG.normal(size=(1, 5000, 1)).astype(np.float32)
    with pytest.raises(gp.UnsupportedError, match="length 5000"):
        run("DFT", x, 17, {"length": None})
    check(run("DFT", x, 17, {"length": None}, fallback=True), np.fft.fft(x[..., 0], axis=1))
