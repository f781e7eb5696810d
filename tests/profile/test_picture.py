"""The picture of a run as data."""

from itertools import combinations

import numpy as np
import pytest

import graphpool as gp
from graphpool import demo
from graphpool.profile import ArenaTenant, footprint, trace
from graphpool.profile.picture import _find_holes, picture_run
from graphpool.profile.tenants import _end_in_place

pytest.importorskip("onnx")
from tests.cases.two_programs import INPUTS, SCRIPT, two_programs


def check(picture):
    """The rectangles and the holes tile the arena for the time of the run."""
    tenants = [*picture.temporaries, *picture.holes]
    for t in tenants:
        assert 0 <= t.offset <= t.offset + t.nbytes <= picture.arena_nbytes
        assert 0 <= t.start_ns <= t.end_ns <= picture.duration_ns
    for a, b in combinations(tenants, 2):
        is_apart = a.end_ns <= b.start_ns or b.end_ns <= a.start_ns
        assert is_apart or a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset, (a, b)
    area = sum((t.end_ns - t.start_ns) * t.nbytes for t in tenants)
    assert area == picture.arena_nbytes * picture.duration_ns
    assert picture.needed_nbytes <= picture.arena_nbytes
    assert sum(picture.parts.values()) == picture.predicted_nbytes
    for t in picture.temporaries:
        assert picture.steps[t.first_step].start_ns == t.start_ns
        assert 0 <= t.first_step <= t.last_step < len(picture.steps)


@pytest.mark.parametrize("name", demo.MODELS)
@pytest.mark.parametrize("options", [{}, {"schedule": "list", "streams": 2}], ids=["one stream", "two"])
def test_demo_models(name, options):
    images, _ = demo.test_images()
    with gp.Engine(threads=2) as engine, gp.onnx.load(demo.model_path(name), engine=engine, **options) as model:
        for count in (3, 16, 5):
            given = {"image": images[:count]}
            picture = footprint(model, given)
            check(picture)
            assert picture.predicted_nbytes == model.predict_peak(given)
            assert all(step.op for step in picture.steps)
            shapes = [t.shape for t in picture.temporaries if t.shape]
            assert shapes
            assert all(np.prod(shape) % count == 0 for shape in shapes)
            named = [t.tensor for t in picture.temporaries if t.shape is not None]
            assert all(name.startswith("tensor ") and not name[7:].isdigit() for name in named)


@pytest.mark.parametrize("name", demo.MODELS)
def test_what_was_needed_is_what_a_trace_measured(name):
    images, _ = demo.test_images()
    with gp.Engine(threads=2) as engine, gp.onnx.load(demo.model_path(name), engine=engine) as model:
        given = {"image": images[:8]}
        peak = model.predict_peak(given)
        model.run(given)
        assert engine.budget.peak == peak
        with trace() as recorded:
            model.run(given)
        picture = picture_run(model.specialise(given), recorded, (model.name, ""), peak, engine.budget.peak)
        assert picture.needed_nbytes == recorded.footprint().peak_nbytes
        assert picture.measured_nbytes == picture.predicted_nbytes


def test_programs_for_other_shapes_are_the_rest_of_the_prediction():
    ranges = {"image": [(1, 8), 1, 8, 8]}
    with gp.onnx.load(demo.model_path("digits_transformer"), shapes=ranges) as model:
        picture = footprint(model, {"image": demo.test_images()[0][:8]})
    check(picture)
    assert picture.parts["rest of the prediction"] > 0
    assert picture.measured_nbytes == picture.predicted_nbytes


def test_streams(model, inputs):
    picture = footprint(model, inputs)
    check(picture)
    assert {step.stream for step in picture.steps} == {0, 1}


def test_programs_follow_one_another():
    with gp.Engine(threads=2) as engine, gp.onnx.load(two_programs(), engine=engine) as model:
        picture = footprint(model, INPUTS)
    check(picture)
    kinds = [step.kind for step in picture.steps]
    assert kinds == ["MatMul", "BitCast", "BitCast", "SoftMax", "MatMul"]
    assert picture.steps[0].program != picture.steps[-1].program
    assert [step.name for step in picture.steps[1:3]] == ["host function"] * 2
    between = next(t for t in picture.temporaries if t.tensor == f"tensor sum{SCRIPT}")
    assert (between.node, between.kind, between.dtype, between.shape) == (f"add {SCRIPT}", "Add", "f32", (64, 256))
    assert (between.first_step, between.last_step, between.nbytes) == (0, 4, 64 * 256 * 4)
    assert any(t.shape is None and t.kind == "SoftMax" for t in picture.temporaries)


def test_random_inputs_are_the_default(model):
    with gp.onnx.load(two_programs()) as other:
        assert footprint(other).model == other.name
    picture = footprint(model)
    assert picture.duration_ns > 0


def test_a_closed_model_is_refused():
    with gp.onnx.load(two_programs()) as model:
        pass
    with pytest.raises(gp.StateError):
        footprint(model, INPUTS)


def tenant(offset, nbytes, start, end):
    return ArenaTenant("t", "n", "Add", "f32", (1,), offset, nbytes, 0, 0, start, end)


def test_what_is_written_in_place_ends_there():
    ends = [t.end_ns for t in _end_in_place([tenant(0, 64, 0, 20), tenant(0, 64, 10, 30), tenant(64, 64, 0, 30)])]
    assert ends == [10, 30, 30]


def test_holes():
    holes, needed = _find_holes([tenant(0, 64, 0, 20), tenant(128, 64, 10, 30)], 256, 40)
    spans = {(h.offset, h.nbytes, h.start_ns, h.end_ns) for h in holes}
    assert spans == {
        (64, 192, 0, 10), (64, 64, 10, 20), (192, 64, 10, 30), (0, 128, 20, 30), (0, 256, 30, 40),
    }  # fmt: skip
    assert needed == 128
    assert _find_holes([], 0, 0) == ([], 0)
