"""Every kernel exists for every instruction set, and a test file answers for it."""

from pathlib import Path

import pytest

from graphpool._kernels._dispatch import isas, names
from tests.helpers.tree import ROOT

TESTED_IN = {
    "concat": "move",
    "copy": "move",
    "eltwise": "eltwise",
    "f32_arg_extreme": "reduce",
    "f32_attention": "attention",
    "f32_avg_pool": "pool",
    "f32_batch_moments": "norm",
    "f32_conv_blas_im2col": "conv",
    "f32_conv_depthwise": "conv",
    "f32_conv_simd_im2col": "conv",
    "f32_cumsum": "reduce",
    "f32_dropout": "random",
    "f32_group_norm": "norm",
    "f32_layer_norm": "norm",
    "f32_matmul_blas": "matmul",
    "f32_matmul_simd": "matmul",
    "f32_max_pool": "pool",
    "f32_reduce": "reduce",
    "f32_resample_linear": "resample",
    "f32_resample_nearest": "resample",
    "f32_softmax": "softmax",
    "f64_matmul_blas": "matmul",
    "f64_matmul_simd": "matmul",
    "gather": "move",
    "gen_index": "move",
    "int_eltwise": "eltwise_int",
    "u32_philox": "random",
}
"""Kernel -> ``tests/_kernels/test_<family>.py``. A new kernel is entered here together with its tests."""


def test_every_kernel_has_its_tests() -> None:
    assert sorted(TESTED_IN) == sorted(names("generic"))


@pytest.mark.parametrize("isa", isas())
def test_every_instruction_set_has_every_kernel(isa: str) -> None:
    assert names(isa) == names("generic")


@pytest.mark.parametrize("family", sorted(set(TESTED_IN.values())))
def test_test_files_run_on_every_instruction_set(family: str) -> None:
    path: Path = ROOT / "tests" / "_kernels" / f"test_{family}.py"
    assert "isas" in path.read_text()
