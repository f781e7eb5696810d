"""gp_eltwise_run as other kernels call it: accumulators, and any range of the iteration space."""

import ctypes
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from graphpool import _kernels
from graphpool._kernels.eltwise.eltwise import EltwiseBuilder

FOLDER = Path(_kernels.__file__).parent
pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """run(block, args, acc, first, last), from a build of the two sources."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    library = tmp_path_factory.mktemp("epilogue") / "eltwise.so"
    sources = [FOLDER / "eltwise" / "eltwise.c", FOLDER / "core" / "convert.c"]
    flags = ["-O1", "-std=c11", "-shared", "-fPIC", "-DGP_ISA=plain", f"-I{FOLDER}"]
    flags += [f"-DGP_ISA_{source}=plain" for source in ("core_convert", "eltwise_eltwise")]
    subprocess.run([compiler, *flags, *sources, "-lm", "-o", library], check=True)
    function = ctypes.CDLL(str(library)).gp_eltwise_run__plain

    def call(block, args, acc, first, last):
        memory = np.frombuffer(block, np.int64).copy()
        pointers = (ctypes.c_void_p * len(args))(*(a.ctypes.data for a in args))
        acc_pointer = None if acc is None else ctypes.c_void_p(acc.ctypes.data)
        function(
            ctypes.c_void_p(memory.ctypes.data), pointers, acc_pointer, ctypes.c_int64(first), ctypes.c_int64(last)
        )

    return call


def bias_relu(shape, dtype):
    builder = EltwiseBuilder(shape)
    total = builder.binary("add", builder.acc(), builder.load(0, "f32", (0, 1)))
    builder.store(1, dtype, None, builder.unary("relu", total))
    return builder.epilogue()


def test_tiles_of_a_matrix(run):
    rng = np.random.default_rng(0)
    acc, bias = rng.normal(size=(37, 83)).astype(np.float32), rng.normal(size=83).astype(np.float32)
    out = np.zeros((37, 83), np.float16)
    block = bias_relu(acc.shape, "f16")
    for row in range(37):
        for column in range(0, 83, 24):
            end = min(column + 24, 83)
            tile = acc[row, column:end].copy()
            run(block, [bias, out], tile, row * 83 + column, row * 83 + end)
    np.testing.assert_array_equal(out, np.maximum(acc + bias, 0).astype(np.float16))


@pytest.mark.parametrize("cuts", [(0, 1, 2, 3071), (0, 255, 257, 1001, 3071), (0, 13, 14, 1500, 1501, 3071)])
def test_any_cut_gives_the_same_result(run, cuts):
    acc, bias = np.random.default_rng(1).normal(size=(37, 83)).astype(np.float32), np.ones(83, np.float32)
    block = bias_relu(acc.shape, "f32")
    flat, out = acc.ravel(), np.zeros((37, 83), np.float32)
    for first, last in pairwise(cuts):
        run(block, [bias, out], flat[first:last].copy(), first, last)
    np.testing.assert_array_equal(out, np.maximum(acc + 1, 0))


def test_accumulators_may_be_the_output(run):
    out = np.random.default_rng(2).normal(size=(9, 50)).astype(np.float32)
    expected = np.maximum(out + 1, 0)
    run(bias_relu(out.shape, "f32"), [np.ones(50, np.float32), out], out, 0, 450)
    np.testing.assert_array_equal(out, expected)


def test_four_bits_loaded_from_an_odd_place(run):
    packed, out = np.array([0x21, 0x43, 0x65], np.uint8), np.zeros(6, np.float32)
    builder = EltwiseBuilder((6,))
    builder.store(1, "f32", None, builder.load(0, "u4"))
    run(builder.epilogue(), [packed, out], None, 3, 6)
    assert out.tolist() == [0, 0, 0, 4, 5, 6]


def test_block_is_a_whole_number_of_words():
    block = bias_relu((4, 5), "bf16")
    assert len(block) % 8 == 0
    assert int.from_bytes(block[32:40], "little") == len(block)  # gp_eltwise.nbytes
