"""ONNX Runtime's interface: names, arguments and results."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, shape_inference

import graphpool as gp
from graphpool import onnx as onnxruntime
from tests.helpers.memory import run_threads
from tests.helpers.onnx_models import make_model

F32 = TensorProto.FLOAT


def two_outputs() -> bytes:
    """``y = x @ w + b`` for any number of rows, and ``z = max(y, 0)``; it describes itself."""
    rng = np.random.default_rng(0)
    constants = {"w": rng.standard_normal((4, 3), np.float32), "b": rng.standard_normal(3, np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node("Add", ["xw", "b"], ["y"]),
        helper.make_node("Relu", ["y"], ["z"]),
    ]
    x = np.zeros((2, 4), np.float32)
    model = make_model(nodes, {"x": x}, ["y", "z"], constants, shapes={"x": ["rows", 4]})
    model = shape_inference.infer_shapes(model)
    model.producer_name, model.domain, model.model_version, model.doc_string = "maker", "there", 7, "what it does"
    model.metadata_props.add(key="character", value="a\nb")
    return bytes(model.SerializeToString())


def feed(rows: int = 2) -> dict[str, Any]:
    return {"x": np.random.default_rng(rows).standard_normal((rows, 4), np.float32)}


@pytest.fixture
def session() -> Any:
    with onnxruntime.InferenceSession(two_outputs()) as made:
        yield made


def test_outputs_come_in_the_order_that_is_asked_for(session: Any) -> None:
    y, z = session.run(None, feed())
    assert np.array_equal(z, np.maximum(y, 0))
    assert [np.array_equal(*pair) for pair in zip(session.run(["z", "y"], feed()), (z, y), strict=True)] == [True, True]
    assert np.array_equal(session.run([], feed())[1], z)
    assert len(session.run(["z"], feed(5))[0]) == 5


def test_lists_become_arrays(session: Any) -> None:
    x = feed()["x"]
    assert np.array_equal(session.run(["y"], {"x": x.tolist()})[0], session.run(["y"], {"x": x})[0])
    for wrong in ([[1.0], [1.0, 2.0]], [["a"] * 4]):
        with pytest.raises(gp.InvalidArgumentError, match="input 'x'"):
            session.run(None, {"x": wrong})


def test_inputs_outputs_and_metadata_are_described(session: Any) -> None:
    [x] = session.get_inputs()
    assert (x.name, x.type, x.shape) == ("x", "tensor(float)", ["rows", 4])
    assert [(port.name, port.type) for port in session.get_outputs()] == [
        ("y", "tensor(float)"),
        ("z", "tensor(float)"),
    ]
    meta = session.get_modelmeta()
    assert (meta.producer_name, meta.domain, meta.version, meta.description) == ("maker", "there", 7, "what it does")
    assert meta.custom_metadata_map == {"character": "a\nb"}
    assert session.get_overridable_initializers() == []
    assert session.get_providers() == onnxruntime.get_available_providers() == ["CPUExecutionProvider"]


@pytest.fixture
def overridable() -> ModelProto:
    """y = x * w + b, where w is an input too."""
    nodes = [helper.make_node("Mul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "b"], ["y"])]
    infos = [helper.make_tensor_value_info(name, F32, shape) for name, shape in {"x": [2], "w": [2], "y": [2]}.items()]
    constants = [numpy_helper.from_array(np.array(v, "float32"), n) for n, v in (("w", [2, 3]), ("b", [1, 1]))]
    graph = helper.make_graph(nodes, "g", infos[:2], infos[2:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_run_may_override_an_initializer(overridable: ModelProto) -> None:
    x, w = np.array([1, 2], "float32"), np.array([5, 7], "float32")
    with onnxruntime.InferenceSession(overridable.SerializeToString(), memory_limit="64MiB") as session:
        assert [port.name for port in session.get_inputs()] == ["x"]
        [port] = session.get_overridable_initializers()
        assert (port.name, port.type, port.shape) == ("w", "tensor(float)", [2])
        for _ in range(2):
            assert session.run(None, {"x": x})[0].tolist() == [3, 7]
            assert session.run(None, {"x": x, "w": w})[0].tolist() == [6, 15]
        assert session.run(None, {"x": x, "w": [0.0, 1.0]})[0].tolist() == [1, 3]
        binding = session.io_binding()
        binding.bind_cpu_input("x", x)
        binding.bind_cpu_input("w", w)
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        assert binding.copy_outputs_to_cpu()[0].tolist() == [6, 15]
        with pytest.raises(gp.InvalidArgumentError, match="unknown input 'b'"):
            session.run(None, {"x": x, "b": w})
        engine = session.model.engine
        models = [session.model, *session._overriding.values()]
        assert len(models) == 2
        assert all(model.engine is engine for model in models)
    assert all(model.is_closed for model in models)


def test_in_old_files_no_initializer_can_be_overridden(overridable: ModelProto) -> None:
    overridable.ir_version = 3
    overridable.graph.input.append(helper.make_tensor_value_info("b", F32, [2]))
    with onnxruntime.InferenceSession(overridable.SerializeToString()) as session:
        assert session.get_overridable_initializers() == []
        with pytest.raises(gp.InvalidArgumentError, match="unknown input 'w'"):
            session.run(None, {"x": np.ones(2, "float32"), "w": np.ones(2, "float32")})


def test_an_initializer_as_an_input(overridable: ModelProto) -> None:
    with gp.onnx.load(overridable, as_inputs=["w"]) as model:
        assert [port.name for port in model.inputs] == ["x", "w"]
        with pytest.raises(gp.InvalidArgumentError, match="input 'w' is missing"):
            model.run({"x": np.ones(2, "float32")})
    with pytest.raises(gp.InvalidArgumentError, match=r"as_inputs: 'b' .* accepted: \['w'\]"):
        gp.onnx.load(overridable, as_inputs=["b"])
    with pytest.raises(gp.InvalidArgumentError, match="as_inputs"):
        gp.onnx.load(overridable, as_inputs="w")


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        (helper.make_tensor_type_proto(TensorProto.STRING, [1]), "tensor(string)"),
        (helper.make_tensor_type_proto(TensorProto.BFLOAT16, [1]), "tensor(bfloat16)"),
        (
            helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.BOOL, [])),
            "optional(tensor(bool))",
        ),
        (
            helper.make_sequence_type_proto(
                helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(F32, []))
            ),
            "seq(map(int64,tensor(float)))",
        ),
    ],
)
def test_types_are_written_as_onnx_runtime_writes_them(type_: Any, text: str) -> None:
    from graphpool.onnx.types import describe_type

    assert describe_type(type_) == text


def test_options_reach_the_model() -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    options.inter_op_num_threads = 3
    options.add_free_dimension_override_by_name("rows", 2)
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    with onnxruntime.InferenceSession(two_outputs(), options, memory_limit="64MiB") as session:
        assert session.model.engine.threads == 1
        assert session.model.engine.memory_limit == 64 << 20
        assert session.model.options.streams == 3
        assert session.get_session_options() is options
        assert session.model.stats().forms == 1
        assert len(session.run(None, feed(2))[0]) == 2
        with pytest.raises(gp.InvalidShapeError, match="rows"):
            session.run(None, feed(3))
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    of_run = onnxruntime.RunOptions()
    of_run.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    assert of_run.get_run_config_entry("memory.enable_memory_arena_shrinkage") == "cpu:0"
    for find in (options.get_session_config_entry, of_run.get_run_config_entry):
        with pytest.raises(gp.InvalidArgumentError, match="no config entry 'other'"):
            find("other")


def test_an_engine_of_the_users_stays_open() -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    with gp.Engine("cpu", threads=2) as engine:
        onnxruntime.InferenceSession(two_outputs(), options, engine=engine).close()
        assert not engine.is_closed


def test_what_is_not_there_is_refused() -> None:
    options = onnxruntime.SessionOptions()
    with pytest.raises(AttributeError):
        options.no_such_option = 1
    with pytest.raises(gp.UnsupportedError, match="register_custom_ops_library"):
        options.register_custom_ops_library("ops.so")
    with pytest.raises(gp.UnsupportedError, match="add_initializer"):
        options.add_initializer("w", None)
    options.enable_profiling = True
    with pytest.raises(gp.UnsupportedError, match=r"graphpool\.profile"):
        onnxruntime.InferenceSession(two_outputs(), options)
    options.enable_profiling, options.optimized_model_filepath = False, "out.onnx"
    with pytest.raises(gp.UnsupportedError, match="optimized_model_filepath"):
        onnxruntime.InferenceSession(two_outputs(), options)


def test_other_providers_are_left_out_with_a_warning(session: Any) -> None:
    with pytest.warns(UserWarning, match="CUDAExecutionProvider"):
        onnxruntime.InferenceSession(
            two_outputs(), providers=[("CUDAExecutionProvider", {"device_id": 0}), "CPUExecutionProvider"]
        ).close()
    with pytest.raises(gp.InvalidArgumentError, match="providers"):
        onnxruntime.InferenceSession(two_outputs(), providers=[3])


def test_errors_name_inputs_and_outputs(session: Any) -> None:
    with pytest.raises(gp.InvalidArgumentError, match="unknown output 'w'"):
        session.run(["w"], feed())
    with pytest.raises(gp.InvalidArgumentError, match="'x'"):
        session.run(None, {})
    with pytest.raises(gp.InvalidDataTypeError, match="input 'x'"):
        session.run(None, {"x": np.zeros((2, 4))})
    with pytest.raises(gp.InvalidArgumentError, match="unknown input 'q'"):
        session.io_binding().bind_cpu_input("q", np.zeros(3))


def test_a_run_that_is_to_terminate_is_refused(session: Any) -> None:
    options = onnxruntime.RunOptions()
    session.run(None, feed(), options)
    options.terminate = True
    with pytest.raises(gp.StateError, match="terminate"):
        session.run(None, feed(), options)
    with pytest.raises(gp.StateError, match="terminate"):
        session.run_with_iobinding(session.io_binding(), options)


def test_values_and_bindings_share_memory(session: Any) -> None:
    x = feed()["x"]
    y, z = session.run(None, {"x": x})
    value = onnxruntime.OrtValue.ortvalue_from_numpy(x)
    assert (value.shape(), value.data_type(), value.element_type()) == ([2, 4], "tensor(float)", F32)
    assert np.array_equal(session.run_with_ort_values(["z"], {"x": value})[0].numpy(), z)
    room = onnxruntime.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32)
    own = np.zeros((2, 3), np.float32)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", value)
    binding.bind_ortvalue_output("z", room)
    binding.bind_output("y", "cpu", 0, np.float32, own.shape, own.ctypes.data)
    session.run_with_iobinding(binding)
    assert np.array_equal(room.numpy(), z)
    assert np.array_equal(own, y)
    assert [value.data_ptr() for value in binding.get_outputs()] == [room.data_ptr(), own.ctypes.data]
    value.update_inplace(x * 2)
    session.run_with_iobinding(binding)
    assert np.array_equal(own, session.run(["y"], {"x": x * 2})[0])
    binding.clear_binding_outputs()
    binding.bind_output("z")
    session.run_with_iobinding(binding)
    assert np.array_equal(binding.copy_outputs_to_cpu()[0], np.maximum(own, 0))
    with pytest.raises(gp.InvalidArgumentError, match="update_inplace"):
        value.update_inplace(np.zeros(3, np.float32))
    with pytest.raises(gp.UnsupportedError, match="cuda:1"):
        binding.bind_output("z", "cuda", 1)


def test_texts_are_values() -> None:
    value = onnxruntime.OrtValue.ortvalue_from_numpy(np.array(["a", "b"], object))
    assert (value.data_type(), value.element_type()) == ("tensor(string)", TensorProto.STRING)


def test_a_session_that_nobody_holds_is_closed() -> None:
    session = onnxruntime.InferenceSession(two_outputs())
    model = session.model
    held = weakref.ref(session)
    del session
    gc.collect()
    assert held() is None
    assert model.is_closed
    assert model.engine.is_closed


def test_threads_share_a_session(session: Any) -> None:
    expected = [session.run(None, feed(rows)) for rows in range(1, 5)]

    def work(_: int) -> None:
        for _ in range(20):
            for rows, wanted in enumerate(expected, 1):
                for pair in zip(session.run(None, feed(rows)), wanted, strict=True):
                    np.testing.assert_array_equal(*pair)

    run_threads(4, work)


def test_severity_is_the_loggers_level() -> None:
    logger = logging.getLogger("graphpool")
    before = logger.level
    try:
        onnxruntime.set_default_logger_severity(3)
        assert logger.level == logging.ERROR
        with pytest.raises(gp.InvalidArgumentError, match="0 to 4"):
            onnxruntime.set_default_logger_severity(9)
    finally:
        logger.setLevel(before)


def test_runs_end_in_a_callback(session: Any) -> None:
    told, is_over = [], threading.Event()

    def callback(results: list[Any], given: Any, error: str) -> None:
        told.append((results, given, error))
        is_over.set()

    for feeds in (feed(), {}):
        session.run_async(["y"], feeds, callback, "mine")
        assert is_over.wait(60)
        is_over.clear()
    [([y], given, error), (nothing, _, failure)] = told
    assert (given, error, nothing) == ("mine", "", [])
    assert np.array_equal(y, session.run(["y"], feed())[0])
    assert "input 'x' is missing" in failure
    with pytest.raises(gp.InvalidArgumentError, match="unknown output 'other'"):
        session.run_async(["other"], feed(), callback, None)


CALLS = {
    "InvalidArgument": lambda: onnxruntime.InferenceSession(two_outputs()).run(None, {"x": np.zeros((2, 4))}),
    "InvalidProtobuf": lambda: onnxruntime.InferenceSession(b"no model"),
    "NoSuchFile": lambda: onnxruntime.InferenceSession("there_is_none.onnx"),
    "Fail": lambda: onnxruntime.InferenceSession(two_outputs()).run(["other"], feed()),
}


@pytest.mark.parametrize("name", CALLS)
def test_errors_are_caught_by_the_names_that_onnx_runtime_has_for_them(name: str) -> None:
    with pytest.raises(getattr(onnxruntime.capi.onnxruntime_pybind11_state, name)):
        CALLS[name]()


def test_another_name_of_the_package_has_its_exceptions_too() -> None:
    code = (
        "import sys, graphpool.onnx; sys.modules['onnxruntime'] = graphpool.onnx\n"
        "from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument\n"
        "import onnxruntime, graphpool\n"
        "assert InvalidArgument is graphpool.InvalidArgumentError\n"
        "print(onnxruntime.__version__ == onnxruntime.get_version_string())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_what_packages_ask_of_a_session(tmp_path: Any) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(two_outputs())
    made = onnxruntime.InferenceSession(path, disabled_optimizers=["ConstantFolding"], enable_fallback=False)
    with made as session:
        assert session._model_path == str(path)
    with onnxruntime.InferenceSession(two_outputs()) as session:
        assert session._model_path is None


def test_bytes_are_taken_for_another_type() -> None:
    halves = np.array([1, 2.5], np.float16)
    value = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(halves.view(np.uint16), TensorProto.FLOAT16)
    assert value.data_type() == "tensor(float16)"
    assert np.array_equal(value.numpy(), halves)
    with pytest.raises(gp.InvalidArgumentError, match="elements of 4 bytes"):
        onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(halves, TensorProto.FLOAT)
