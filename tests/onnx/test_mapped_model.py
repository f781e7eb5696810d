"""Models whose files somebody changes while they are mapped, in forked children: a page that is gone kills."""

import os
import pickle

import numpy as np
import onnx
import pytest
from onnx import helper

import graphpool as gp
from graphpool.cache import constant_tensor_cache
from graphpool.mapped_file import MappedFile
from graphpool.onnx.source import read_model
from tests.helpers.memory import run_in_child
from tests.helpers.onnx_models import make_model, random_array

W = random_array((300, 400))
X = random_array((3, 300))


def overwrite(path):
    with path.open("r+b") as file:
        file.seek(10_000)
        file.write(bytes(100))
    os.utime(path)


def replace(path):
    other = path.with_suffix(".new")
    other.write_bytes(bytes(5000))
    other.replace(path)


EVENTS = {
    "cut": lambda path: os.truncate(path, 5000),
    "empty": lambda path: path.write_bytes(b""),
    "overwritten": overwrite,
    "replaced": replace,
    "removed": lambda path: path.unlink(),
}


@pytest.fixture(params=["m.onnx", "w.bin"])
def files(request, tmp_path):
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    model = make_model([node], {"x": X}, ["y"], {"w": W}, name="tiny")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    is_external = request.param == "w.bin"
    options = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0} if is_external else {}
    onnx.save(model, tmp_path / "m.onnx", **options)
    return tmp_path, request.param


def attempt(call, name):
    try:
        return call()
    except gp.StateError as error:
        return "changed" if "changed in place" in str(error) and name in str(error) else str(error)


def uses_after(files, mapping, event):
    """What becomes of each use of a model, in this process, after the event: True, or that a file was changed."""
    folder, name = files
    model = gp.onnx.load(folder / "m.onnx", mapping=mapping)
    model.specialise({"x": (3, 300)})

    def is_right(rows=3):
        return np.allclose(model.run({"x": X[:rows]})["y"], X[:rows] @ W, rtol=1e-3, atol=1e-3)

    assert is_right()
    EVENTS[event](folder / name)
    found = [attempt(is_right, name), attempt(lambda: is_right(2), name)]
    constant_tensor_cache("cpu").clear()
    found += [attempt(is_right, name), attempt(lambda: np.array_equal(model.read_weight("w"), W), name)]
    found.append(attempt(lambda: len(pickle.dumps(model)) > 400_000, name))
    model.close()
    return found


def check(files, mapping, event, expected):
    def child():
        assert uses_after(files, mapping, event) == expected

    run_in_child(child)


@pytest.mark.native
@pytest.mark.parametrize("event", ["cut", "empty", "overwritten"])
def test_a_mapped_file_that_was_changed_in_place_is_a_typed_error(files, event):
    check(files, "map", event, [True, True, "changed", "changed", "changed"])  # the second shape needs no weight


@pytest.mark.native
@pytest.mark.parametrize("event", ["replaced", "removed"])
def test_a_file_that_was_replaced_stays_whole_for_who_has_it_mapped(files, event):
    check(files, "map", event, [True] * 5)


@pytest.mark.native
@pytest.mark.parametrize("event", EVENTS)
def test_a_file_that_was_read_may_be_changed(files, event):
    check(files, "copy", event, [True] * 5)


def test_a_copied_model_maps_nothing_and_charges_its_weights(files):
    folder, _ = files
    base = read_model(folder / "m.onnx", "copy").constants["w"]
    while isinstance(base, np.ndarray):
        base = base.base
    assert not isinstance(getattr(base, "obj", base), MappedFile)
    for mapping, nbytes in (("map", 0), ("copy", W.nbytes)):
        with gp.onnx.load(folder / "m.onnx", mapping=mapping) as model:
            model.specialise({"x": (3, 300)})
            assert model.stats().constants_nbytes == nbytes
    with pytest.raises(gp.InvalidArgumentError, match="map, copy"):
        gp.onnx.load(folder / "m.onnx", mapping="private")


def test_what_is_no_regular_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.onnx")
    for path in (tmp_path, tmp_path / "pipe.onnx"):
        with pytest.raises(gp.InvalidArgumentError, match="no regular file"):
            gp.onnx.load(path)
