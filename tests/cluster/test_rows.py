"""A model as a function of rows: any number of them, whatever batches the model knows, and what does not fit."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import graphpool as gp
from graphpool import worker_model
from graphpool.rows import RowFunction
from tests.helpers.memory import run_in_child

if TYPE_CHECKING:
    from pathlib import Path

RNG = np.random.default_rng(3)
WEIGHTS = RNG.standard_normal((5, 3)).astype(np.float32)


def make_model(rows: int | str = "rows", features: int | str = 5) -> onnx.ModelProto:
    """A product of rows with weights, and the largest of each row's results."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("ReduceMax", ["y"], ["most"], axes=[1], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "rows",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, features])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, 3]),
            helper.make_tensor_value_info("most", TensorProto.FLOAT, [rows]),
        ],
        [helper.make_tensor("w", TensorProto.FLOAT, [5, 3], WEIGHTS.ravel())],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


RANGES = {
    "free": ("rows", None),
    "range": ("rows", {"rows": (1, 4)}),
    "least": ("rows", {"rows": (3, 4)}),
    "static": (4, None),
}


@pytest.mark.parametrize("kind", RANGES)
@pytest.mark.parametrize("nrows", [0, 1, 4, 5, 11])
def test_any_number_of_rows_is_cut_and_filled_up(kind: str, nrows: int) -> None:
    rows, shapes = RANGES[kind]
    x = RNG.standard_normal((nrows, 5)).astype(np.float32)
    with gp.onnx.load(make_model(rows), shapes=shapes) as model:
        found = RowFunction(model)({"x": x})
    assert found["y"].shape == (nrows, 3)
    np.testing.assert_allclose(found["y"], x @ WEIGHTS, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["most"], (x @ WEIGHTS).max(axis=1, initial=-np.inf), rtol=1e-5, atol=1e-6)


def test_columns_are_read_made_and_kept_by_name() -> None:
    x = RNG.standard_normal((6, 5))
    batch = {f"f{k}": x[:, k] for k in range(5)} | {"id": list("abcdef"), "other": range(6)}
    with gp.onnx.load(make_model()) as model:
        predict = RowFunction(model, columns={"x": [f"f{k}" for k in range(5)]}, outputs={"most": "score"}, keep=["id"])
        assert predict.columns == ("f0", "f1", "f2", "f3", "f4")
        found = predict(batch)
        everything = RowFunction(model, columns={"x": [f"f{k}" for k in range(5)]})(batch)
        with pytest.raises(gp.InvalidArgumentError, match=r"column 'id' is missing.*'f4', 'id'"):
            predict({name: batch[name] for name in predict.columns})
        with pytest.raises(gp.InvalidArgumentError, match=r"as many rows in each.*: 6, 'id': 5"):
            predict(batch | {"id": list("abcde")})
    assert list(found) == ["id", "score"]
    assert list(everything) == ["id", "other", "y", "most"]
    np.testing.assert_allclose(found["score"], (x @ WEIGHTS).max(axis=1), rtol=1e-5)


def test_an_output_takes_the_name_of_no_column_that_is_kept() -> None:
    batch = {"x": RNG.standard_normal((6, 5)), "id": range(6), "score": range(6)}
    outputs = {"most": "score"}
    with gp.onnx.load(make_model()) as model:
        with pytest.raises(gp.InvalidArgumentError, match=r"'score' is kept, and an output has.*keep=\['id'\]"):
            RowFunction(model, outputs=outputs)(batch)
        with pytest.raises(gp.InvalidArgumentError, match=r"'score' is kept, and an output has"):
            RowFunction(model, outputs=outputs, keep=["score"])
        found = RowFunction(model, outputs=outputs, keep=["id"])(batch)
        again = RowFunction(model, outputs={"most": "x"})(batch)
    np.testing.assert_allclose(found["score"], (batch["x"] @ WEIGHTS).max(axis=1), rtol=1e-5)
    assert list(again) == ["id", "score", "x"]


def test_rows_come_as_lists_and_arrays_of_arrays_too() -> None:
    x = RNG.standard_normal((3, 5)).astype(np.float32)
    nested = np.empty(3, object)
    nested[:] = [row.astype(object) for row in x]
    with gp.onnx.load(make_model()) as model:
        predict = RowFunction(model)
        expected = predict({"x": x})["y"]
        for rows in (list(x), [list(map(float, row)) for row in x], nested):
            assert np.array_equal(predict({"x": rows})["y"], expected)


WRONG = {
    "missing": ({"z": 1}, gp.InvalidArgumentError, "column 'x' is missing.*got.*z"),
    "ragged": ({"x": [np.zeros(5), np.zeros(4)]}, gp.InvalidShapeError, r"row 1 of column 'x'.*\[5\].*\[4\]"),
    "none": ({"x": [np.zeros(5), None]}, gp.InvalidDataTypeError, "row 1 of column 'x'.*float32"),
    "text": ({"x": [np.zeros(5), "abc"]}, gp.InvalidDataTypeError, "row 1 of column 'x'.*float32"),
    "nested text": ({"x": [[1, 2, 3, 4, "a"]]}, gp.InvalidDataTypeError, "row 0 of column 'x'"),
    "uneven": ({"x": [[1.0, 2.0, 3.0, 4.0, [5.0]]]}, gp.InvalidDataTypeError, "row 0 of column 'x'"),
    "complex": ({"x": np.zeros((2, 5), complex)}, gp.InvalidDataTypeError, "column 'x'.*float32.*complex"),
    "rank": ({"x": np.zeros((2, 5, 1), np.float32)}, gp.InvalidShapeError, "row 0 of column 'x'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_told_with_its_row(name: str) -> None:
    batch, error, message = WRONG[name]
    with gp.onnx.load(make_model()) as model, pytest.raises(error, match=message):
        RowFunction(model)(batch)


def test_what_the_row_holds_that_does_not_fit_is_noted() -> None:
    others = {"name": ["a", "b"], "place": np.array([7, 8]), "image": np.zeros((2, 3)), "share": [None, 0.5]}
    with gp.onnx.load(make_model()) as model, pytest.raises(gp.InvalidShapeError, match="row 1") as caught:
        RowFunction(model, keep=[])({"x": [np.zeros(5), np.zeros(4)], **others})
    assert caught.value.__notes__ == ["in that row: name = 'b', place = 8, share = 0.5"]


@pytest.mark.parametrize("count", [-1, 1.5, True, "9"])
def test_counts_of_rows_are_checked(count: Any) -> None:
    with gp.onnx.load(make_model(), shapes={"rows": (1, 4)}) as model:
        predict = RowFunction(model)
        for name, ask in {
            "nrows": lambda: predict.predict_nbytes(count),
            "nbytes": lambda: predict.rows_within(count, 4),
            "most": lambda: predict.rows_within(1 << 20, count),
        }.items():
            with pytest.raises(gp.InvalidArgumentError, match=f"{name}; accepted: an int"):
                ask()


def test_a_run_that_fails_says_which_rows() -> None:
    loaded = gp.onnx.load(make_model(features="n"), shapes={"rows": (1, 4)})
    with loaded as model, pytest.raises(gp.GraphpoolError) as caught:
        RowFunction(model)({"x": np.zeros((6, 7), np.float32)})
    assert caught.value.__notes__ == ["rows 0 to 3 of the batch"]


def test_models_without_rows_and_unknown_names_are_refused() -> None:
    node = helper.make_node("Transpose", ["x"], ["y"])
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
        for name, dims in (("x", ["a", 2]), ("y", [2, "a"]))
    ]
    turned = helper.make_model(helper.make_graph([node], "turned", ports[:1], ports[1:]), ir_version=8)
    with gp.onnx.load(turned) as model, pytest.raises(gp.InvalidArgumentError, match=r"first dimension.*'y'"):
        RowFunction(model)
    with gp.onnx.load(make_model()) as model:
        with pytest.raises(gp.InvalidArgumentError, match=r"'z'.*names of the model.*x"):
            RowFunction(model, columns={"z": "a"})
        with pytest.raises(gp.InvalidArgumentError, match=r"'z'.*names of the model.*most"):
            RowFunction(model, outputs={"z": "a"})
        with pytest.raises(gp.InvalidArgumentError, match=r"columns of outputs.*differ.*'y': 'a', 'most': 'a'"):
            RowFunction(model, outputs={"y": "a", "most": "a"})
        with pytest.raises(gp.InvalidArgumentError, match=r"keep.*sequence of names.*got: 'id'"):
            RowFunction(model, keep="id")
        with pytest.raises(gp.InvalidArgumentError, match=r"columns of input 'x'.*sequence of names.*got: 5"):
            RowFunction(model, columns={"x": 5})  # type: ignore[dict-item]
        with pytest.raises(gp.InvalidArgumentError, match="store; accepted: the path of a folder; got: 3"):
            RowFunction(model, store=3)  # type: ignore[arg-type]
        with pytest.raises(gp.InvalidArgumentError, match="batch; accepted: columns by name; got: list"):
            RowFunction(model)([1])  # type: ignore[arg-type]
    with pytest.raises(gp.InvalidArgumentError, match=r"graphpool\.Model.*got: str"):
        RowFunction("model.onnx")  # type: ignore[arg-type]


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_process_opens_a_model_once_for_all_pickles(protocol: int) -> None:
    x = RNG.standard_normal((7, 5)).astype(np.float32)
    with gp.onnx.load(make_model(), shapes={"rows": (1, 4)}) as model:
        predict = RowFunction(model, outputs={"most": "score"})
        expected = predict({"x": x})["score"]
        text = pickle.dumps(predict, protocol)
        assert pickle.dumps(predict, protocol) == text
    with ThreadPoolExecutor(4) as threads:
        copies = list(threads.map(pickle.loads, [text] * 8))
    again = pickle.loads(pickle.dumps(copies[0], protocol))
    assert {id(copy.model) for copy in (*copies, again)} == {id(again.model)}
    assert again.model is not model
    assert np.array_equal(again({"x": x})["score"], expected)


@pytest.mark.native
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_opens_models_that_another_thread_was_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    x = RNG.standard_normal((3, 5)).astype(np.float32)
    with gp.onnx.load(make_model(), shapes={"rows": (1, 5)}) as model:  # of no other test
        predict = RowFunction(model, store="store")
        expected = predict({"x": x})["most"]
        text = pickle.dumps(predict)
    is_opening, may_end = threading.Event(), threading.Event()

    def packed_store() -> object:
        if not is_opening.is_set():
            is_opening.set()
            may_end.wait()
        return object()  # there is one, so that none is set

    def work() -> None:
        found: list[np.ndarray] = []
        thread = threading.Thread(target=lambda: found.append(pickle.loads(text)({"x": x})["most"]), daemon=True)
        thread.start()
        thread.join(10)
        assert np.array_equal(found, [expected])

    monkeypatch.setattr(worker_model, "packed_store", packed_store)
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(lambda: pickle.loads(text)({"x": x})["most"])
        is_opening.wait()
        try:
            run_in_child(work)
        finally:
            may_end.set()
        assert np.array_equal(other.result(), expected)


def test_models_that_nobody_has_are_closed_after_some_others() -> None:
    texts = []
    for threads in range(1, 7):
        with gp.onnx.load(make_model(), threads=threads) as model:
            texts.append(pickle.dumps(RowFunction(model)))
    first = pickle.loads(texts[0]).model
    held = pickle.loads(texts[1])
    assert not held.model.is_closed
    assert not first.is_closed
    for text in texts[2:]:
        assert not pickle.loads(text).model.is_closed
    assert first.is_closed
    assert not held.model.is_closed


def test_a_worker_keeps_packed_weights_in_the_folder_and_a_scheduler_opens_nothing(tmp_path: Path) -> None:
    code = f"""
import pickle, sys
from graphpool.cache import packed_store
predict = pickle.loads(bytes.fromhex(sys.argv[1]))
assert repr(predict) == {"<RowFunction 'rows': x -> y, most>"!r}, predict
again = pickle.loads(pickle.dumps(predict))
assert predict.columns == ("x",) and packed_store() is None and predict._worker_model._model is None
assert predict.model is again.model
assert str(packed_store().path) == {str(tmp_path / "store")!r}, packed_store()
"""
    with gp.onnx.load(make_model()) as model:
        text = pickle.dumps(RowFunction(model, store=tmp_path / "store"))
    subprocess.run([sys.executable, "-c", code, text.hex()], check=True)


def test_predicted_bytes_bound_what_a_run_takes() -> None:
    with gp.onnx.load(make_model(), shapes={"rows": (1, 64)}) as model:
        predict = RowFunction(model)
        least = int(model.predict_peak())
        assert predict.predict_nbytes(64) >= least + 2 * 64 * (5 + 3 + 1) * 4
        assert predict.predict_nbytes(128) > predict.predict_nbytes(64)
    with gp.onnx.load(make_model()) as model, pytest.raises(gp.InvalidArgumentError):
        RowFunction(model).predict_nbytes(4)
