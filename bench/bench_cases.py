"""What does each row of the case table cost on one thread, every tensor prepared?

    python -m pytest bench/bench_cases.py --benchmark-only

Shapes are small: a row that stands out has a kernel, or a step between kernels, that costs more than its like.
"""

from __future__ import annotations

import pytest

from bench.bench_team import prepared
from tests.cases.workloads import BY_NAME


@pytest.mark.benchmark(group="cases")
@pytest.mark.parametrize("name", BY_NAME)
def test_case(benchmark, name):
    case = BY_NAME[name]
    with prepared(case.build, 1, **case.bounds) as (bind, _):
        benchmark(bind())
