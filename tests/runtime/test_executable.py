import numpy as np
import pytest

import graphpool as gp
from graphpool.runtime.executable import Executable
from graphpool.runtime.model_form import ModelForm


def chain(*kinds, rows=64):
    """A graph of one op after another, host functions between them so that every op is a partition."""
    tensors = [gp.LogicalTensor(k, "f32", (rows, 16)) for k in range(2 * len(kinds))]
    graph = gp.Graph("cpu")
    for k, kind in enumerate(kinds):
        graph.add_op(gp.Op(2 * k, kind, [tensors[2 * k]], [tensors[2 * k + 1]]))
        if k + 1 < len(kinds):
            graph.add_op(gp.Op(2 * k + 1, "Wildcard", [tensors[2 * k + 1]], [tensors[2 * k + 2]]))
    graph.finalize()
    hosts = {2 * k + 1: copy for k in range(len(kinds) - 1)}
    return ModelForm(graph, {}, {"x": 0}, {"y": 2 * len(kinds) - 1}, hosts)


def copy(inputs, outputs):
    outputs[0][...] = inputs[0]
    return outputs


@pytest.fixture
def engine():
    with gp.Engine("cpu") as engine:
        yield engine


def test_tensors_between_partitions_share_one_arena(engine):
    executable = Executable(chain("ReLU", "Sigmoid", "Tanh", "Square"), engine)
    x = np.random.default_rng(0).standard_normal((64, 16)).astype(np.float32)
    result = executable.run({"x": x})["y"]
    np.testing.assert_allclose(result, np.tanh(1 / (1 + np.exp(-np.maximum(x, 0)))) ** 2, rtol=1e-5, atol=1e-6)
    scratch = max(step.compiled.scratchpad_nbytes for step in executable.steps if step.compiled)
    # six tensors lie between the partitions; two at a time are alive
    assert executable.arena_nbytes <= 2 * x.nbytes + scratch
    executable.close()


def test_an_op_without_backend_and_host_function_is_named(engine):
    form = chain("ReLU", "Tanh")
    with pytest.raises(gp.UnsupportedError, match=r"op 1 \(Wildcard\) has neither a backend nor a host function"):
        Executable(ModelForm(form.graph, {}, form.inputs, form.outputs, {}), engine)


def test_a_host_result_of_another_shape_or_type_is_refused(engine):
    for wrong in (np.zeros((64, 17), np.float32), np.zeros((64, 16), np.float64)):
        form = chain("ReLU", "Tanh")
        hosts = {1: lambda inputs, outputs, wrong=wrong: [wrong]}
        executable = Executable(ModelForm(form.graph, {}, form.inputs, form.outputs, hosts), engine)
        with pytest.raises(gp.BackendError, match=r"gave another result than inferred; accepted: float32 \(64, 16\)"):
            executable.run({"x": np.zeros((64, 16), np.float32)})
        executable.close()


def test_values_without_a_shape_pass_between_host_functions(engine):
    x, y = gp.LogicalTensor(0, "f32", (4,)), gp.LogicalTensor(2, "f32", (4,))
    thing = gp.LogicalTensor(1, "undef")
    graph = gp.Graph("cpu")
    graph.add_op(gp.Op(0, "Wildcard", [x], [thing]))
    graph.add_op(gp.Op(1, "Wildcard", [thing], [y]))
    graph.finalize()
    hosts = {
        0: lambda inputs, outputs: [list(inputs[0])],
        1: lambda inputs, outputs: [np.array(inputs[0], np.float32) + 1],
    }
    executable = Executable(ModelForm(graph, {}, {"x": 0}, {"y": 2}, hosts), engine)
    for seed in range(2):
        value = np.random.default_rng(seed).standard_normal(4).astype(np.float32)
        np.testing.assert_array_equal(executable.run({"x": value})["y"], value + 1)
    executable.close()


def test_arrays_of_a_run_are_not_kept(engine):
    import sys

    executable = Executable(chain("ReLU", "Tanh"), engine)
    x = np.zeros((64, 16), np.float32)
    before = sys.getrefcount(x)
    result = executable.run({"x": x})["y"]
    assert sys.getrefcount(x) == before
    assert sys.getrefcount(result) == 2
    executable.close()


def test_inplace_pairs_share_bytes(engine):
    """Multiply may write over its input, so a chain of two large tensors needs the bytes of one."""
    x, a, b, y = (gp.LogicalTensor(k, "f32", (1024, 16)) for k in range(4))
    graph = gp.Graph("cpu")
    graph.add_op(gp.Op(0, "Wildcard", [x], [a]))
    graph.add_op(gp.Op(1, "ReLU", [a], [b]))
    graph.add_op(gp.Op(2, "Wildcard", [b], [y]))
    graph.finalize()
    executable = Executable(ModelForm(graph, {}, {"x": 0}, {"y": 3}, {0: copy, 2: copy}), engine)
    [compiled] = [step.compiled for step in executable.steps if step.compiled]
    assert compiled.inplace_ports == ((1, 2),)
    assert executable.arena_nbytes == 1024 * 16 * 4 + compiled.scratchpad_nbytes
    value = np.random.default_rng(0).standard_normal((1024, 16)).astype(np.float32)
    np.testing.assert_array_equal(executable.run({"x": value})["y"], np.maximum(value, 0))
    executable.close()
