"""Values of a wrong kind where users begin: each is refused with what is accepted, by name."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import graphpool as gp
from graphpool import demo
from tests.helpers.tree import PACKAGE

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("onnx")
X = np.zeros((1, 1, 8, 8), np.float32)
PATH = demo.model_path("digits_cnn")


def _session() -> gp.onnx.InferenceSession:
    return gp.onnx.InferenceSession(PATH)


WRONG = {
    "a list of inputs": (lambda m: m.run([X]), "inputs; accepted: a mapping with the keys"),
    "an array for inputs": (lambda m: m.run(X), "inputs; accepted: a mapping with the keys"),
    "a list for an input": (lambda m: m.run({"image": X.tolist()}), "input 'image'; accepted: an array of f32"),
    "another name": (lambda m: m.run({"img": X}), r"input 'image' is missing; .*got: \['img'\]"),
    "names for outputs": (lambda m: m.run({"image": X}, ["probabilities"]), "outputs; accepted: a mapping"),
    "a list of shapes": (lambda m: m.predict_peak([X]), "shapes; accepted: a mapping with names of inputs"),
    "a number for a shape": (lambda m: m.predict_peak({"image": 3}), "input 'image': shape; accepted: a shape"),
    "a number for states": (lambda m: m.session(3), "state; accepted: a mapping"),
    "a list for capacities": (lambda m: m.session({}, [1]), "capacity; accepted: a mapping"),
    "text for a shape": (lambda m: m.predict_peak({"image": "1x1x8x8"}), "input 'image': shape; accepted: a shape"),
    "one request": (lambda m: m.run_many({"image": X}), "requests: each of them; accepted: a mapping"),
    "an array to picture": (lambda m: gp.profile.footprint(m, X), "inputs; accepted: a mapping"),
    "a name for outputs": (lambda m: _session().run("probabilities", {"image": X}), "output_names; accepted: a list"),
    "an array for a feed": (lambda m: _session().run(None, X), "input_feed; accepted: a mapping"),
    "a dict for options": (lambda m: gp.onnx.InferenceSession(PATH, {"threads": 1}), "sess_options; accepted: a Sess"),
    "a dict for limits": (lambda m: gp.onnx.load(PATH, limits={"nodes": 1}), "limits; accepted: a graphpool.Limits"),
    "text for trust": (lambda m: gp.onnx.load(PATH, untrusted="no"), "untrusted; accepted: True or False"),
    "tuples to plan": (lambda m: gp.memory.plan([(0, 1, 10)]), "buffers; accepted: an iterable of BufferInfo"),
    "a number to plan": (lambda m: gp.memory.plan(5), "buffers; accepted: an iterable of BufferInfo; got: 5"),
    "more than all": (lambda m: gp.Engine(memory_limit="150%"), "not a size; accepted: .* up to 100%"),
    "no engine": (lambda m: gp.Stream(None), "engine; accepted: an Engine; got: NoneType"),
    "another engine": (lambda m: gp.Engine("cuda"), "engine kind; accepted: cpu, gpu; got: 'cuda'"),
    "text for threads": (lambda m: gp.Engine(threads="2"), "threads; accepted: an int"),
    "no size": (lambda m: gp.Engine(memory_limit="lots"), "not a size; accepted: bytes"),
}


@pytest.fixture(scope="module")
def model() -> Any:
    with gp.onnx.load(demo.model_path("digits_cnn"), threads=1) as loaded:
        yield loaded


@pytest.mark.parametrize("case", WRONG)
def test_what_is_accepted_is_said(model: Any, case: str) -> None:
    call, message = WRONG[case]
    with pytest.raises((gp.InvalidArgumentError, gp.InvalidShapeError), match=message):
        call(model)
    assert model.run({"image": X})["probabilities"].shape == (1, 10)


@pytest.mark.native
def test_a_source_tree_that_was_not_built_says_so(tmp_path: Path) -> None:
    for source in PACKAGE.rglob("*.py"):
        target = tmp_path / "graphpool" / source.relative_to(PACKAGE)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import graphpool; graphpool.Engine()"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "is missing; this is a source tree that was not built: ./run setup, or pip install ." in done.stderr
