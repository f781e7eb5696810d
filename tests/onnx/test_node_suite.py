"""The node tests that the onnx package ships: every case runs, natively, mixed or on the host."""

import re
import warnings

import numpy as np
import pytest

import graphpool as gp

KNOWN = re.compile(
    # the evaluator, which runs these for us, fails on them itself
    r"test_(if_opt|scan_sum"
    # random numbers
    r"|bernoulli\w*"
    # needs an image library
    r"|image_decoder\w*"
    # the half-precision result is more exact than the expected one, by one unit in the last place
    r"|attention_4d_causal_fp16(_expanded)?"
    # a tie before the zero point is added, where ONNX rounds; oneDNN's definition, which is ours, rounds behind it
    r"|dynamicquantizelinear_expanded)$"
)
FEWEST_CASES, FEWEST_NATIVE = 1400, 500
"""Fewer cases than the oldest supported onnx has would mean that they were not found."""


@pytest.fixture(scope="module")
def cases():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        return load_model_tests(kind="node")


def as_array(value):
    from onnx import TensorProto, numpy_helper

    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def run_case(case, engine):
    """Whether every partition was native; raises where the outputs are not the expected ones."""
    from onnx.backend.test.runner import Runner

    names = [info.name for info in case.model.graph.input]
    with gp.onnx.load(case.model, engine=engine) as model:
        for inputs, expected in case.data_sets:
            given = {name: as_array(value) for name, value in zip(names, inputs, strict=False)}
            results = list(model.run(given).values())
            wanted = [as_array(value) for value in expected]
            Runner.assert_similar_outputs(wanted, results, rtol=case.rtol, atol=case.atol)
        return all(partition.is_supported for partition in model.partitions)


def test_node_cases(cases):
    failures, native = [], 0
    with gp.Engine("cpu", threads=1) as engine:
        for case in cases:
            try:
                native += run_case(case, engine)
            except Exception as error:
                if not KNOWN.match(case.name):
                    failures.append(f"{case.name}: {error}"[:300])
    assert len(cases) >= FEWEST_CASES
    assert failures == []
    assert native >= FEWEST_NATIVE
