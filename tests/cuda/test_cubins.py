"""Kernels compile for the architectures that are supported, within the limits of their launches, without a device."""

import importlib.util

import pytest

import graphpool as gp
from graphpool._kernels.cuda import attention, image, index, nvrtc, products, rows
from graphpool._kernels.eltwise.eltwise import EltwiseBuilder
from tests.helpers.cubin import facts_of

has_nvrtc = importlib.util.find_spec("cuda") is not None and importlib.util.find_spec("cuda.bindings") is not None
pytestmark = pytest.mark.skipif(not has_nvrtc, reason="graphpool[cuda] is not installed: no cuda-bindings")

ARCHITECTURES = (80, 90, 100)
REGISTERS_OF_A_BLOCK, REGISTERS_OF_A_THREAD = 65536, 255
SHARED_NBYTES = 48 << 10


def epilogue(shape):
    """A bias, a residual and a GELU behind accumulators, into bf16."""
    builder = EltwiseBuilder(shape)
    x = builder.binary("add", builder.acc(), builder.load(1, "f32", [0] * (len(shape) - 1) + [1]))
    builder.store(0, "bf16", None, builder.unary("gelu_erf", builder.binary("add", x, builder.load(2, "f32"))))
    return builder.program()


def chain(shape):
    """An elementwise program of its own, operands with broadcast axes."""
    builder = EltwiseBuilder(shape)
    x, y = builder.load(1, "f32"), builder.load(2, "bf16", [0, 5, 0])
    x = builder.ternary("select", builder.binary("gt", x, y), builder.unary("tanh", x), builder.binary("pow", x, y))
    builder.store(0, "f32", None, builder.unary("clamp", x, -1.0, 1.0))
    return builder.program()


def wide(register, dtype, operation):
    """An elementwise program in other registers than f32."""
    builder = EltwiseBuilder((4, 6, 8), register=register)
    x, y = builder.load(1, dtype), builder.load(2, "boolean", [0, 5, 0])
    builder.store(0, dtype, None, builder.ternary("select", y, builder.binary(operation, x, y), x))
    return builder.program()


SHAPE, STRIDES = (4, 6, 8), (48, 8, 1)
WINDOWS = image.Windows((9, 9), (4, 4), (3, 3), (2, 2), (1, 1), (0, 0), (243, 81, 9, 1), (64, 16, 4, 1))
WIDE = image.Windows((16, 16), (16, 16), (3, 3), (1, 1), (1, 1), (1, 1), (16384, 256, 16, 1), (32768, 256, 16, 1))
CALLS = {
    "eltwise": products.eltwise(chain(SHAPE)),
    "matmul": products.matmul((4,), 6, 8, 5, ("f32", (30, 5, 1)), ("bf16", (0, 8, 1)), epilogue(SHAPE)),
    "attention": attention.attention(
        (2, 3),
        (70, 80, 16, 8),
        [("f32", (3840, 1280, 16, 1))] * 3,
        attention.Scores({"scale": "f32", "fill": "f32"}, {"mask": ("bf16", (0, 0, 80, 1))}, is_causal=True),
        epilogue((2, 3, 70, 8)),
        stats=True,
    ),
    "large matmul": products.matmul((512,), 6, 8, 5, ("f32", (30, 5, 1)), ("f32", (0, 8, 1)), epilogue((512, 6, 8))),
    "matmul of bf16": products.matmul((4,), 6, 8, 5, ("bf16", (30, 5, 1)), ("bf16", (0, 8, 1)), epilogue(SHAPE)),
    "softmax": rows.softmax(SHAPE, 1, "f32", STRIDES, epilogue(SHAPE), stats=True),
    "log softmax": rows.softmax(SHAPE, 2, "bf16", STRIDES, epilogue(SHAPE), is_log=True),
    "layer norm": rows.norm(
        SHAPE,
        (1, 2),
        "f32",
        STRIDES,
        [("f32", (0, 8, 1)), ("f32", (0, 8, 1))],
        epilogue(SHAPE),
        epsilon=1e-5,
        stats=True,
    ),
    "rms norm": rows.norm(SHAPE, (2,), "bf16", STRIDES, [], epilogue(SHAPE), epsilon=1e-5, is_rms=True),
    "gather": index.gather((3, 4), (4, 1), (96, 0), [(6, 16)], 32, itemsize=4, index_dtype="s64"),
    "scatter": index.scatter(
        (3, 4),
        (4, 1),
        (96, 0),
        [(6, 16)],
        32,
        itemsize=4,
        index_dtype="s64",
        dtype="f32",
        register="f32",
        reduction="add",
    ),
    "reduction of integers": rows.reduce("max", SHAPE, [1], "s16", STRIDES, None, register="s64"),
    "running sums": rows.running(SHAPE, 1, "f32", STRIDES, register="f64"),
    "running products": rows.running(SHAPE, 1, "s32", STRIDES, register="s64", is_product=True),
    "best": rows.best(SHAPE, 1, 3, "f64", STRIDES, register="f64", is_largest=True, is_nan_first=True, has_values=True),
    "resampling": image.resampling(True, False, 4, 3, WINDOWS, "f32", epilogue((4, 3, 4, 4))),
    "integers": products.eltwise(wide("s64", "s32", "mod")),
    "doubles": products.eltwise(wide("f64", "f64", "div")),
    "floats of 8 bits": products.eltwise(wide("f32", "f8_e5m2", "div")),
    "a range": rows.reduce("least", SHAPE, [0, 1, 2], "f32", STRIDES, None),
    **{mode: rows.reduce(mode, SHAPE, [1], "f32", STRIDES, epilogue((4, 8))) for mode in ("sum", "max", "l2")},
    "max pool": image.pooling("max", 4, 3, WINDOWS, "f32", epilogue((4, 3, 4, 4)), pads_end=(0, 0)),
    "mean pool": image.pooling("avg", 4, 3, WINDOWS, "f32", epilogue((4, 3, 4, 4)), pads_end=(0, 0)),
    **{
        f"{kind} {name}": image.convolution(
            batch,
            1,
            (3, outer),
            WINDOWS,
            (dtype, dtype),
            (0, 27, 9, 3, 1),
            epilogue((batch, outer, 4, 4)),
            transposed=transposed,
        )
        for kind, batch, outer, dtype in (
            ("direct", 4, 4, "f32"),
            ("small", 4, 16, "f32"),
            ("large", 256, 16, "f32"),
            ("bf16", 256, 16, "bf16"),
        )
        for name, transposed in (("convolution", False), ("transposed convolution", True))
    },
    **{
        f"convolution to {outer} channels in {dtype}": image.convolution(
            300, 1, (64, outer), WIDE, (dtype, dtype), (0, 576, 9, 3, 1), epilogue((300, outer, 16, 16))
        )
        for outer, dtype in ((128, "f32"), (64, "f32"), (128, "bf16"))  # in the largest tiles, and the next ones
    },
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", CALLS)
def test_cubin(name, architecture):
    call = CALLS[name]
    facts = facts_of(nvrtc.compile_cubin(call.kernel, architecture), call.kernel.entry)
    print(f"{name:12} sm_{architecture}: {facts.registers} registers, {facts.shared_nbytes} bytes of shared memory")
    assert 0 < facts.registers <= REGISTERS_OF_A_THREAD
    assert facts.registers * call.threads <= REGISTERS_OF_A_BLOCK
    assert facts.shared_nbytes <= SHARED_NBYTES
    assert (facts.shared_nbytes > 0) == ("__shared__" in call.kernel.text)
    assert facts.local_nbytes == 0  # nothing is spilled


def test_structure_alone_makes_a_kernel():
    """Other sizes, strides and numbers are other parameters of the same kernel."""
    one = products.matmul((4,), 6, 8, 5, ("f32", (30, 5, 1)), ("bf16", (0, 8, 1)), epilogue((4, 6, 8)))
    other = products.matmul((9,), 3, 7, 2, ("f32", (6, 2, 1)), ("bf16", (0, 7, 1)), epilogue((9, 3, 7)))
    assert one.kernel == other.kernel == CALLS["matmul"].kernel
    assert one.params != other.params


def test_cubins_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(nvrtc, "cubin_folder", lambda: tmp_path / "cubins")
    compiled = []
    real = nvrtc.compile_cubin
    monkeypatch.setattr(nvrtc, "compile_cubin", lambda *call: compiled.append(call) or real(*call))
    kernel = CALLS["eltwise"].kernel
    first = nvrtc.find_cubin(kernel, 90)
    assert nvrtc.find_cubin(kernel, 90) == first
    assert len(compiled) == 1
    nvrtc.find_cubin(kernel, 80)
    assert len(compiled) == 2
    files = sorted((tmp_path / "cubins").iterdir())
    assert len(files) == 2
    for file in files:  # damaged by a byte
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
    assert nvrtc.find_cubin(kernel, 90) == first
    assert len(compiled) == 3


def test_folder_that_cannot_be_written_is_not_used(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(nvrtc, "cubin_folder", lambda: tmp_path / "file" / "cubins")
    assert nvrtc.find_cubin(CALLS["eltwise"].kernel, 90)


def test_what_nvrtc_says_is_told():
    kernel = CALLS["eltwise"].kernel
    broken = type(kernel)(kernel.family, kernel.entry, kernel.text.replace("gp_program(p, i", "gp_programme(p, i"))
    with pytest.raises(gp.BackendError, match="NVRTC could not compile gp_eltwise_") as caught:
        nvrtc.compile_cubin(broken, 90)
    assert "gp_programme" in caught.value.log
    with pytest.raises(gp.BackendError, match="sm_1"):
        nvrtc.compile_cubin(kernel, 1)
