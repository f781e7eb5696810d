import subprocess
import sys

import numpy as np
import pytest
from onnx import TensorProto, helper

import graphpool as gp
from graphpool.onnx import loader
from tests.helpers.onnx_models import check_against_evaluator, make_model, node_model, random_array

X = random_array((3, 4))


def test_a_static_model_is_compiled_when_it_is_loaded():
    with gp.onnx.load(node_model("Relu", [X])[0]) as model:
        assert model.stats().forms == 1
        assert [p.is_supported for p in model.partitions] == [True]


def test_unsupported_ops_are_named_when_the_host_may_not_help():
    model, _ = node_model("Det", [random_array((5, 5))])
    with pytest.raises(
        gp.UnsupportedError,
        match=r"node 'the_Det' \(Det\) is not supported; got: matrices of other sizes; load with",
    ) as e:
        gp.onnx.load(model, fallback=False)
    assert (e.value.node, e.value.op_type) == ("the_Det", "Det")


SEARCH = [helper.make_node("Unique", ["x"], ["places"], axis=1), helper.make_node("CumSum", ["places", "axis"], ["y"])]
REASONS = {
    "no ops": (
        node_model("BitCast", [X], opset=26, to=TensorProto.INT32)[0],
        [("the_BitCast", "BitCast", "graphpool has no ops for it")]),
    "refused": (
        make_model(
            [helper.make_node("Resize", ["x", "", "scales"], ["y"], "the_Resize", mode="cubic")],
            {"x": np.arange(6, dtype=np.int32)}, ["y"], {"scales": np.float32([2])}),
        [("the_Resize", "Resize", "integers by a cubic")]),
    "known late": (
        make_model(SEARCH, {"x": X}, ["y"], {"axis": np.array(0)}),
        [("places", "Unique", "slices along an axis")]),
}  # fmt: skip


@pytest.mark.parametrize("case", REASONS)
def test_what_the_host_runs_and_why(case):
    model, expected = REASONS[case]
    with gp.onnx.load(model) as loaded:
        found = [fallback for fallback in loaded.specialise().fallbacks if fallback is not None]
    assert [(each.node, each.op_type) for each in found] == [(node, kind) for node, kind, _ in expected]
    assert all(reason in each.reason for each, (_, _, reason) in zip(found, expected, strict=True))


def test_ops_are_called_as_their_nodes():
    """Those too that compute sizes as data, as the node that reads them."""
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"], "the_Shape"),
        helper.make_node("Cast", ["sizes"], ["reals"], "the_Cast", to=TensorProto.FLOAT),
        helper.make_node("Mul", ["x", "reals"], ["y"], "the_Mul"),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    with gp.onnx.load(model, fallback=False) as loaded:
        assert loaded.run({"x": np.ones(3, np.float32)})["y"].tolist() == [3, 3, 3]
        found = {op.name for part in loaded.partitions for op in part.ops}
    assert found == {"the_Mul"}


def test_an_error_of_the_host_names_the_node_and_why_it_runs_there():
    node = helper.make_node("ImageDecoder", ["x"], ["y"], "the_node")
    info = helper.make_tensor_value_info("x", TensorProto.UINT8, [5])
    graph = helper.make_graph([node], "g", [info], [helper.make_tensor_value_info("y", TensorProto.UINT8, [None] * 3)])
    with (
        gp.onnx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)) as loaded,
        pytest.raises(
            gp.BackendError, match=r"node 'the_node' \(ImageDecoder\) failed; .*since graphpool has no ops"
        ) as e,
    ):
        loaded.run({"x": np.zeros(5, np.uint8)})
    assert (e.value.node, e.value.op_type) == ("the_node", "ImageDecoder")


def test_an_op_that_nobody_runs_is_named():
    model, _ = node_model("Relu", [X])
    model.graph.node[0].domain = "acme"
    model.opset_import.append(helper.make_opsetid("acme", 1))
    with pytest.raises(gp.UnsupportedError, match=r"node 'the_Relu': nothing runs Relu of domain 'acme'"):
        gp.onnx.load(model)


def test_shapes_that_do_not_fit_name_the_node():
    model, _ = node_model("Add", [X, random_array((3, 4), seed=1)])
    model.graph.input[1].type.tensor_type.shape.dim[1].dim_value = 5
    with pytest.raises(gp.InvalidShapeError, match=r"node 'the_Add' \(Add\)"):
        gp.onnx.load(model)


def test_the_engine_is_the_users_or_the_models_own():
    model, _ = node_model("Relu", [X])
    with gp.Engine("cpu", threads=1) as engine:
        with gp.onnx.load(model, engine=engine) as loaded:
            assert loaded.engine is engine
        assert not engine.is_closed
        with pytest.raises(gp.InvalidArgumentError, match="belong to the engine"):
            gp.onnx.load(model, engine=engine, threads=2)
    with pytest.raises(gp.InvalidArgumentError, match="engine; accepted: an Engine, or None; got: str"):
        gp.onnx.load(model, engine="cpu")
    loaded = gp.onnx.load(model, threads=1, memory_limit="64MiB")
    assert loaded.engine.threads == 1
    assert loaded.engine.memory_limit == 64 * 2**20
    loaded.close()
    assert loaded.engine.is_closed


def test_a_model_that_fails_to_compile_leaves_nothing_open():
    model, _ = node_model("Det", [random_array((5, 5))])
    with gp.Engine("cpu") as engine:
        with pytest.raises(gp.UnsupportedError):
            gp.onnx.load(model, engine=engine, fallback=False)
        assert engine.stats().current_nbytes == 0


def test_importing_graphpool_does_not_import_onnx():
    code = "import sys, graphpool; graphpool.Model; sys.exit('onnx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_onnx_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.setattr(loader, "importer", loader.importer.__wrapped__)  # as in a process that has loaded nothing
    with pytest.raises(gp.UnsupportedError, match=r"install the extra graphpool\[onnx\]"):
        gp.onnx.load(b"")


def test_host_and_native_partitions_work_together():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Det", ["a"], ["d"]),
        helper.make_node("Mul", ["a", "d"], ["b"]),
        helper.make_node("Sin", ["b"], ["c"]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    x = random_array((5, 4)) / 4  # a sine of large numbers would show the last bits of what is in front
    model = make_model(nodes, {"x": x}, ["y", "a"], {"w": random_array((4, 5), seed=1)})
    assert check_against_evaluator(model, {"x": x}) == 1


def test_outputs_may_be_inputs_constants_and_one_another():
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Identity", ["w"], ["fixed"]),
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Identity", ["r"], ["again"]),
    ]
    model = make_model(nodes, {"x": X}, ["same", "fixed", "r", "again"], {"w": X + 1})
    with gp.onnx.load(model) as loaded:
        results = loaded.run({"x": X})
    for name, wanted in {"same": X, "fixed": X + 1, "r": np.maximum(X, 0), "again": np.maximum(X, 0)}.items():
        np.testing.assert_array_equal(results[name], wanted)
    arrays = [X, *results.values()]
    assert not any(np.shares_memory(a, b) for k, a in enumerate(arrays) for b in arrays[:k])


def test_shapes_that_depend_on_content_pass_through_the_host():
    nodes = [helper.make_node("NonZero", ["x"], ["i"]), helper.make_node("Cast", ["i"], ["y"], to=1)]
    check_against_evaluator(make_model(nodes, {"x": X}, ["y"]), {"x": np.round(X)})


def test_a_plain_model_imports_nothing_heavy(tmp_path):
    model, _ = node_model("MatMul", [X, random_array((4, 5))], constants={1})
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    heavy = ("onnx.reference", "scipy.special", "matplotlib", "numpy.testing", "unittest")
    code = f"""
import sys, numpy, graphpool.onnx
model = graphpool.onnx.load({str(path)!r}, fallback=False)
model.run({{"x0": numpy.ones((3, 4), numpy.float32)}})
print([name for name in {heavy!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
