"""What does each row of the case table cost on one thread, every tensor prepared?

    python -m pytest bench/bench_cases.py --benchmark-only

Shapes are small: a row that stands out has a kernel, or a step between kernels, that costs more than its like.
"""

from __future__ import annotations

import pytest

from bench.bench_team import operand_nbytes, prepared
from tests.cases.workloads import BY_NAME

FAMILIES = {
    "MatMul": "products", "Conv": "convolutions", "MaxPool": "pools and resampling", "AvgPool": "pools and resampling",
    "Interpolate": "pools and resampling", "LayerNorm": "normalisation", "RMSNorm": "normalisation",
    "GroupNorm": "normalisation", "BatchNorm": "normalisation", "SoftMax": "normalisation",
    "LogSoftmax": "normalisation", "Reduce": "reductions",
}  # fmt: skip
"""By how the name of a case begins; the others are element-wise, or move data."""


def family(name):
    """What a case is compared with."""
    return next((found for begin, found in FAMILIES.items() if name.startswith(begin)), "element-wise and movement")


@pytest.mark.parametrize("name", BY_NAME)
def test_case(benchmark, name):
    case = BY_NAME[name]
    benchmark.group = f"cases: {family(name)}"
    with prepared(case.build, 1, **case.bounds) as (bind, compiled):
        benchmark.extra_info.update(threads=1, nbytes=operand_nbytes(compiled))
        benchmark(bind())
