"""Models whose files somebody changes while they are mapped, in processes of their own: a page that is gone kills."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import onnx
import pytest
from onnx import helper

import graphpool as gp
from graphpool.mapped_file import MappedFile
from graphpool.onnx.source import read_model
from tests.helpers.onnx_models import make_model, random_array

W = random_array((300, 400))
X = random_array((3, 300))

PROLOGUE = """
import os, pickle, sys
import numpy as np
import graphpool as gp
from graphpool.cache import constant_tensor_cache
folder, name, mapping = sys.argv[1:]
path, weights = f"{folder}/m.onnx", f"{folder}/{name}"
x = np.load(f"{folder}/x.npy")
def attempt(call):
    try:
        return call()
    except gp.StateError as error:
        assert "changed in place" in str(error) and name in str(error), error
        return "changed"
def right(found, rows=3):
    return np.allclose(found["y"], x[:rows] @ np.load(f"{folder}/w.npy"), rtol=1e-3, atol=1e-3)
model = gp.onnx.load(path, mapping=mapping)
model.specialise({"x": (3, 300)})
assert right(model.run({"x": x}))
"""

EVENTS = {
    "cut": "os.truncate(weights, 5000)",
    "empty": "open(weights, 'wb').close()",
    "overwritten": """
        with open(weights, "r+b") as file:
            file.seek(10_000)
            file.write(bytes(100))
        os.utime(weights)
    """,
    "replaced": """
        with open(weights + ".new", "wb") as file:
            file.write(bytes(5000))
        os.replace(weights + ".new", weights)
    """,
    "removed": "os.unlink(weights)",
}


@pytest.fixture(params=["m.onnx", "w.bin"])
def files(request, tmp_path):
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    model = make_model([node], {"x": X}, ["y"], {"w": W}, name="tiny")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    is_external = request.param == "w.bin"
    options = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0} if is_external else {}
    onnx.save(model, tmp_path / "m.onnx", **options)
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "w.npy", W)
    return tmp_path, request.param


def run(files, mapping, code):
    code = PROLOGUE + textwrap.dedent(code)
    arguments = [sys.executable, "-c", code, str(files[0]), files[1], mapping]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout.split()


USES = """
print(attempt(lambda: right(model.run({"x": x}))))
print(attempt(lambda: right(model.run({"x": x[:2]}), 2)))
constant_tensor_cache("cpu").clear()
print(attempt(lambda: right(model.run({"x": x}))))
print(attempt(lambda: np.array_equal(model.read_weight("w"), np.load(f"{folder}/w.npy"))))
print(attempt(lambda: len(pickle.dumps(model)) > 400_000))
model.close()
"""


@pytest.mark.parametrize("event", ["cut", "empty", "overwritten"])
def test_a_mapped_file_that_was_changed_in_place_is_a_typed_error(files, event):
    found = run(files, "map", textwrap.dedent(EVENTS[event]) + USES)
    assert found == ["True", "changed", "changed", "changed", "changed"]


@pytest.mark.parametrize("event", ["replaced", "removed"])
def test_a_file_that_was_replaced_stays_whole_for_who_has_it_mapped(files, event):
    assert run(files, "map", textwrap.dedent(EVENTS[event]) + USES) == ["True"] * 5


@pytest.mark.parametrize("event", EVENTS)
def test_a_file_that_was_read_may_be_changed(files, event):
    assert run(files, "copy", textwrap.dedent(EVENTS[event]) + USES) == ["True"] * 5


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
