"""Models with declared shapes: one plan holds for all of them, and what it takes is known and bounded."""

import gc
import itertools
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest

import graphpool as gp
from graphpool.demo import model_path
from graphpool.runtime import model_forms
from graphpool.runtime.model import Model
from graphpool.runtime.model_form import ModelForm
from graphpool.runtime.model_port import ModelPort
from graphpool.runtime.shape_ranges import RangePeak, ShapeRanges
from graphpool.typing import DataType
from tests.cases.unknown_sizes import MODELS, DynamicModel
from tests.helpers.memory import run_threads
from tests.helpers.tree import ROOT

onnx = pytest.importorskip("onnx")
Node = onnx.helper.make_node

RANGES = {
    "mlp": {"n": (1, 300)},
    "cnn": {"n": (1, 3), "h": 16, "w": (16, 18)},
    "attention": {"b": (1, 3), "l": (1, 6), "p": (1, 8)},
    "shared": {"n": (1, 60)},
    "host": {"n": (3, 30)},
}
"""Of models whose ranges are covered."""


def points(ranges):
    """All sizes in ranges."""
    spans = [range(span[0], span[1] + 1) if isinstance(span, tuple) else [span] for span in ranges.values()]
    return [dict(zip(ranges, sizes, strict=True)) for sizes in itertools.product(*spans)]


def shapes_of(case, sizes):
    return {name: array.shape for name, array in case.arrays(sizes, np.random.default_rng(0)).items()}


# ---- the plan


@pytest.mark.parametrize("name", RANGES)
def test_results_equal_those_of_models_for_fixed_shapes(engine, name):
    case, rng = MODELS[name], np.random.default_rng(0)
    with case.load(engine, shapes=RANGES[name]) as model:
        compilations = model.stats().compilations
        for sizes in rng.choice(points(RANGES[name]), 25):
            arrays = case.arrays(sizes, rng)
            with case.load(engine, sizes) as fixed:
                wanted = fixed.run(arrays)
            for _ in range(2):
                for key, found in model.run(arrays).items():
                    np.testing.assert_allclose(found, wanted[key], rtol=1e-5, atol=1e-6, err_msg=f"{sizes}")
        assert model.stats().compilations == compilations or name == "host"  # which is compiled for each shape


@pytest.mark.parametrize("name", RANGES)
def test_the_largest_peak_is_that_of_the_worst_shape(engine, name):
    case = MODELS[name]
    with case.load(engine, shapes=RANGES[name]) as model:
        worst = model.predict_peak()
        assert isinstance(worst, RangePeak)
        assert worst.is_exact
        assert worst.is_complete
        peaks = [model.predict_peak(shapes_of(case, sizes)) for sizes in points(RANGES[name])[:: 1 + len(name) // 4]]
        assert max(peaks) <= worst == model.predict_peak(worst.shapes)
        assert worst.shapes == shapes_of(case, worst.sizes)
        without = model.predict_peak(outputs=False)
        assert 0 < without < worst
        assert without >= model.predict_peak(worst.shapes, outputs=False)


@pytest.mark.parametrize("name", ["mlp", "attention", "shared"])
def test_the_prediction_for_a_shape_is_what_a_run_takes(name):
    case, rng = MODELS[name], np.random.default_rng(0)
    for sizes in rng.choice(points(RANGES[name]), 5):
        with gp.Engine("cpu", threads=1) as engine, case.load(engine, shapes=RANGES[name]) as model:
            arrays = case.arrays(sizes, rng)
            predicted = model.predict_peak(arrays)
            model.run(arrays)
            assert engine.budget.peak == predicted <= model.predict_peak()


@pytest.mark.parametrize("name", ["mlp", "attention", "shared"])
def test_runs_of_all_shapes_stay_below_the_largest_peak(engine, name):
    """Without a limit too: what is kept for other shapes makes room."""
    case, rng = MODELS[name], np.random.default_rng(0)
    with case.load(engine, shapes=RANGES[name]) as model:
        worst = model.predict_peak()
        for sizes in rng.permutation(points(RANGES[name])):
            model.run(case.arrays(sizes, rng))
        model.run(case.arrays(worst.sizes, rng))
        assert engine.budget.peak == worst


def test_memory_of_results_makes_room_too(engine):
    """A result that is less than half as large as one before leaves that one's memory idle."""
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    sizes = {"n": (1, 400)}
    case = DynamicModel((node,), {"x": ("f", "n", 8)}, {"y": 2}, {"w": np.ones((8, 512), np.float32)}, sizes)
    rng = np.random.default_rng(0)
    with case.load(engine, shapes=sizes) as model:
        worst = model.predict_peak()
        for rows in (400, 150, 390, 199, 380, 10, 398, 195):
            model.run(case.arrays({"n": rows}, rng))
            assert engine.budget.peak <= worst


def test_every_arena_of_a_form_is_the_same():
    case, rng = MODELS["mlp"], np.random.default_rng(0)
    with gp.Engine("cpu", threads=1) as engine, case.load(engine, shapes={"n": (100, 300)}) as model:
        for rows in (300, 100, 200, 123):
            model.run(case.arrays({"n": rows}, rng))
        sizes = {form.arena_nbytes for form in model._forms.cache.forms()}
        assert len(sizes) <= len(model._forms.variable)
        assert model.stats().arena_nbytes == max(sizes)


def test_arenas_stay_where_one_program_takes_the_place_of_another(engine):
    images = np.zeros((64, 1, 8, 8), np.float32)
    with gp.onnx.load(model_path("digits_transformer"), engine=engine, shapes={"batch": (1, 64)}) as model:
        model.run({"image": images})
        before, misses = engine.source.stats().total_count, model.stats().misses
        for rows in (8, 64, 40, 8):
            model.run({"image": images[:rows]})
        assert model.stats().misses == misses + 4
        assert engine.source.stats().total_count == before


# ---- the limit


@pytest.mark.parametrize("name", RANGES)
def test_the_largest_peak_is_a_limit_under_which_eight_threads_run(name):
    case, ranges = MODELS[name], RANGES[name]
    with gp.Engine("cpu", threads=1) as engine, case.load(engine, shapes=ranges) as model:
        limit = int(model.predict_peak())
    if name == "host":  # one program for each shape, none of which gives way
        return
    with gp.Engine("cpu", threads=1, memory_limit=limit) as engine, case.load(engine, shapes=ranges) as model:
        assert model.predict_peak() <= limit

        def work(seed):
            rng = np.random.default_rng(seed)
            for sizes in rng.choice(points(ranges), 40):
                model.run(case.arrays(sizes, rng))

        run_threads(8, work)
        assert engine.budget.peak <= limit
        assert model.stats().runs == 8 * 40


@pytest.mark.parametrize("less_nbytes", [1, 20_000, 80_000])
def test_without_room_for_all_that_is_kept_no_run_passes_what_is_told(less_nbytes):
    ranges = {"batch": (1, 40)}
    with gp.onnx.load(model_path("digits_cnn"), threads=1, shapes=ranges) as model:
        most = model.predict_peak()
        assert most.is_exact
    limit = int(most) - less_nbytes
    with gp.onnx.load(model_path("digits_cnn"), threads=1, shapes=ranges, memory_limit=limit) as model:
        told = model.predict_peak()
        for size in (1, 2, 3, 20, 39, 40, 2):
            model.run({"image": np.zeros((size, *model.inputs[0].shape[1:]), np.float32)})
            assert model.engine.budget.peak <= told <= limit
            assert model.predict_peak({"image": (size, *model.inputs[0].shape[1:])}) <= limit
        assert not told.is_exact


def test_weights_for_which_a_later_run_may_find_room_count_under_a_limit(monkeypatch):
    """As in a model whose programs take more while they are compiled than when smaller ones run."""
    ranges = {"batch": (1, 40)}
    with gp.onnx.load(model_path("digits_cnn"), threads=1, shapes=ranges) as model:
        most = model.predict_peak()
        monkeypatch.setattr(model_forms, "missing_nbytes", lambda forms: 1000)
        assert model.predict_peak() == most
        assert model.predict_peak().is_exact
    for spare_nbytes, later_nbytes in ((2000, 1000), (500, 500)):
        limit = int(most) + spare_nbytes
        with gp.onnx.load(model_path("digits_cnn"), threads=1, shapes=ranges, memory_limit=limit) as model:
            assert model.predict_peak() == most + later_nbytes
            assert not model.predict_peak().is_exact


def test_a_limit_refuses_at_loading_and_names_the_ranges_that_fit():
    case = MODELS["attention"]
    ranges = {"b": (2, 64), "l": (2, 32), "p": (2, 64)}
    with gp.Engine("cpu", threads=1) as engine, case.load(engine, shapes=ranges) as model:
        limit = model._forms.kept_nbytes() + model._forms.declared.most_run_nbytes // 3
    with gp.Engine("cpu", threads=1, memory_limit=limit) as engine:
        with pytest.raises(gp.OutOfMemoryError) as raised:
            case.load(engine, shapes=ranges)
        error = raised.value
        assert engine.budget.in_use == 0
        assert set(error.largest) <= set(ranges)
        assert "b" in error.largest
        for key, most in error.largest.items():
            assert f"dimension {key!r} {ranges[key][0]} to {most}" in str(error)
            with case.load(engine, shapes=ranges | {key: (ranges[key][0], most)}) as model:
                assert model.predict_peak(outputs=False) <= limit
            with pytest.raises(gp.OutOfMemoryError):
                case.load(engine, shapes=ranges | {key: (ranges[key][0], most + most // 4 + 1)}).close()
    with gp.Engine("cpu", threads=1, memory_limit=error.smallest_limit) as engine:
        case.load(engine, shapes=ranges).close()


@pytest.mark.parametrize("name", ["mlp", "shared"])
def test_forms_that_nothing_but_speed_needs_are_left_out_where_they_do_not_fit(name):
    case, limit, refusals = MODELS[name], 1, []
    while True:
        with gp.Engine("cpu", threads=1, memory_limit=limit) as engine:
            try:
                with case.load(engine, shapes=RANGES[name]) as model:
                    for sizes in (points(RANGES[name])[0], points(RANGES[name])[-1]):
                        model.run(case.arrays(sizes, np.random.default_rng(0)))
                    least = len(model._forms.variable)
                break
            except gp.OutOfMemoryError as error:
                limit = max(limit + 1, error.smallest_limit)
                refusals.append("declared" in str(error))
    assert refusals[-1]
    assert sum(refusals) == 1
    with gp.Engine("cpu", threads=1) as engine, case.load(engine, shapes=RANGES[name]) as model:
        assert len(model._forms.variable) > least


def test_a_limit_that_not_even_one_shape_fits():
    case = MODELS["mlp"]
    with gp.Engine("cpu", threads=1, memory_limit="40KiB") as engine:
        with pytest.raises(gp.OutOfMemoryError) as raised:
            case.load(engine, shapes={"n": (5000, 6000)})
        assert "no smaller ranges fit" in str(raised.value)
        assert raised.value.largest == {}
        assert engine.budget.in_use == 0


def test_where_no_size_alone_will_do_ranges_that_fit_together_are_named():
    case = MODELS["attention"]
    ranges = {"b": (2, 64), "l": (2, 32), "p": (2, 64)}
    with gp.Engine("cpu", threads=1) as engine, case.load(engine, shapes=ranges) as model:
        limit = model._forms.kept_nbytes() + model._forms.declared.most_run_nbytes // 50
    with gp.Engine("cpu", threads=1, memory_limit=limit) as engine:
        with pytest.raises(gp.OutOfMemoryError, match="what fits, together: dimension 'b' 2 to ") as raised:
            case.load(engine, shapes=ranges)
        most = raised.value.largest
        assert most.keys() == ranges.keys()
        with case.load(engine, shapes={key: (ranges[key][0], most[key]) for key in ranges}) as model:
            assert model.predict_peak(outputs=False) <= limit


def test_declared_shapes_that_the_model_does_not_take_are_named():
    node = onnx.helper.make_node("Add", ["x", "y"], ["z"])
    case = DynamicModel((node,), {"x": ("f", "n"), "y": ("f", "m")}, {"z": 1}, {}, {})
    with gp.Engine("cpu", threads=1) as engine:
        with pytest.raises(gp.InvalidShapeError, match="among the declared shapes: n = 9, m = 7; a dimension that is"):
            case.load(engine, shapes={"n": (2, 9), "m": (2, 7)})
        case.load(engine, shapes={"n": (2, 9), "m": "n"}).close()


def test_an_engine_of_its_own_is_closed_after_a_refusal():
    proto = MODELS["mlp"].proto().SerializeToString()
    with pytest.raises(gp.OutOfMemoryError):
        gp.onnx.load(proto, memory_limit="64KiB", shapes={"n": (1, 100_000)})
    with pytest.raises(gp.InvalidArgumentError):
        gp.onnx.load(proto, memory_limit="64KiB", shapes={"m": (1, 100_000)})
    gc.collect()


# ---- what is refused


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (41, "dimension 0 of input 'x', 'n', is 41; accepted: 4 to 40, as declared; got: shape (41, 24)"),
        (3, "dimension 0 of input 'x', 'n', is 3; accepted: 4 to 40, as declared; got: shape (3, 24)"),
        (0, "dimension 0 of input 'x', 'n', is 0"),
    ],
)
def test_a_shape_outside_is_refused_by_name(engine, rows, message):
    with MODELS["mlp"].load(engine, shapes={"n": (4, 40)}) as model:
        before = model.stats(), engine.budget.in_use
        for refuses in (model.run, model.predict_peak, model.specialise):
            with pytest.raises(gp.InvalidShapeError, match=re.escape(message)) as raised:
                refuses({"x": np.zeros((rows, 24), np.float32)})
            assert (raised.value.input_name, raised.value.dim) == ("x", 0)
        assert (model.stats(), engine.budget.in_use) == before
        assert model.run({"x": np.zeros((40, 24), np.float32)})["y"].shape == (40, 10)


def test_a_name_of_two_inputs_has_one_size(engine):
    case, rng = MODELS["shared"], np.random.default_rng(0)
    with case.load(engine, shapes={"n": (1, 20)}) as model:
        arrays = case.arrays({"n": 9}, rng) | {"c": rng.standard_normal((7, 12)).astype(np.float32)}
        with pytest.raises(gp.InvalidShapeError, match=r"dimension 'n' is 9 in input '.' and 7 in input 'c'"):
            model.run(arrays)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"m": (1, 4)}, "no dimension or input is called 'm'; accepted: n, x (one entry a dimension)"),
        ({"n": (4, 1)}, "shapes: 'n'; accepted: a number, or (least, most) with 0 <= least <= most; got: (4, 1)"),
        ({"n": (-1, 4)}, "got: (-1, 4)"),
        ({"n": ()}, "got: ()"),
        ({"n": (1, 2, 3)}, "got: (1, 2, 3)"),
        ({"n": "1..4"}, "accepted: a range, or a sum of numbers and of dimensions that have one: none; got: '1..4'"),
        ({"n": 1.5}, "got: 1.5"),
        ({"n": (1, 2.5)}, "got: (1, 2.5)"),
        ({"n": True}, "got: True"),
        ({"n": None}, "got: None"),
        ({"n": (1, 2**70)}, "got: (1, "),
        ({"x": (1, 2, 3)}, "input 'x'; accepted: one entry for each dimension of f32 [n, 24]; got: (1, 2, 3)"),
        ({"x": 7}, "input 'x'; accepted: one entry for each dimension"),
        ({"x": (4, 25)}, "dimension 1 of input 'x'; accepted: 24, as in the model; got: 25"),
        ({"x": ("n", "n")}, "dimension 1 of input 'x'; accepted: 24, as in the model; got: 'n'"),
        ({"x": ("m", 24), "n": (1, 4)}, "no dimension or input is called 'n'; accepted: m, x (one entry a dimension)"),
        ({"x": ("m",), "m": (1, 4)}, "input 'x'; accepted: one entry for each dimension"),
        ({"x": ((4, 5), None), "n": (4, 6)}, "dimension 'n' is declared twice; accepted: 4 to 5; got: 4 to 6"),
        ([("n", 4)], "shapes; accepted: a mapping such as"),
    ],
)
def test_declarations_that_are_none(engine, shapes, message):
    with pytest.raises(gp.InvalidArgumentError, match=re.escape(message)):
        MODELS["mlp"].load(engine, shapes=shapes)
    assert engine.budget.in_use == 0


@pytest.mark.parametrize(
    "shapes",
    [
        {"n": (np.int64(1), np.int32(40))}, {"n": [1, 40]}, {"x": ((1, 40), 24)}, {"x": [(1, 40), None]},
        {"x": ((1, 40), 24), "n": (1, 40)},
    ],
)  # fmt: skip
def test_ways_to_declare(engine, shapes):
    with MODELS["mlp"].load(engine, shapes=shapes) as model:
        assert model.predict_peak().sizes == {"n": 40}
        assert model.predict_peak().shapes == {"x": (40, 24)}


# ---- sums

DECODER = DynamicModel(
    (
        Node("Concat", ["past", "x"], ["present"], axis=1),
        Node("Transpose", ["present"], ["keys"], perm=[0, 2, 1]),
        Node("MatMul", ["x", "keys"], ["scores"]),
        Node("Unsqueeze", ["mask", "one"], ["row"]),
        Node("Add", ["scores", "row"], ["masked"]),
        Node("Softmax", ["masked"], ["shares"]),
        Node("MatMul", ["shares", "present"], ["y"]),
    ),
    {"mask": ("f", "b", "t"), "x": ("f", "b", "q", 24), "past": ("f", "b", "p", 24)},
    {"y": 3, "present": 3},
    {"one": np.array([1])},
    {},
)
"""Its mask covers the past and what is new."""


def decoder_arrays(rng, b, q, p):
    return DECODER.arrays({"b": b, "q": q, "p": p, "t": p + q}, rng)


@pytest.mark.parametrize(
    ("shapes", "name"),
    [
        ({"b": (1, 3), "q": (1, 4), "p": (0, 30), "t": "p + q"}, "t"),
        ({"t": "q+p", "b": (1, 3), "q": (1, 4), "p": (0, 30)}, "t"),
        ({"b": (1, 3), "q": (1, 4), "p": (0, 30), "mask": ("b", "p + q")}, "p + q"),
        ({"b": (1, 3), "q": 4, "p": (0, 30), "t": "p + q"}, "t"),
        ({"b": 2, "q": 4, "p": (0, 30), "t": "p + 4"}, "t"),
        ({"b": 2, "q": 1, "p": 30, "t": "p + q"}, "t"),
    ],
)
def test_a_dimension_is_as_long_as_others_together(engine, shapes, name):
    rng = np.random.default_rng(1)
    spans = [shapes[key] if isinstance(shapes[key], tuple) else (shapes[key],) * 2 for key in "bqp"]
    with DECODER.load(engine, shapes=shapes) as model:
        worst, compilations = model.predict_peak(), model.stats().compilations
        most = [span[1] for span in spans]
        assert worst.is_complete
        assert worst.is_exact
        assert worst.sizes == {**dict(zip("bqp", most, strict=True)), name: most[1] + most[2]}
        for _ in range(12):
            b, q, p = (int(rng.integers(least, most + 1)) for least, most in spans)
            arrays = decoder_arrays(rng, b, q, p)
            with DECODER.load(engine, {"b": b, "q": q, "p": p, "t": p + q}) as fixed:
                for key, wanted in fixed.run(arrays).items():
                    np.testing.assert_allclose(model.run(arrays)[key], wanted, rtol=1e-5, atol=1e-6)
            assert model.predict_peak(arrays) <= worst
        assert model.stats().compilations == compilations
        b, q, p = most
        wrong = decoder_arrays(rng, b, q, p) | {"mask": np.zeros((b, p + q - 1), np.float32)}
        message = f"dimension 1 of input 'mask', '{name}', is {p + q - 1}; accepted: {p + q}, "
        for refuses in (model.run, model.predict_peak):
            with pytest.raises(gp.InvalidShapeError, match=re.escape(message)):
                refuses(wrong)
        copied = pickle.loads(pickle.dumps(model))
        with copied, copied.engine:
            assert copied.predict_peak() == worst


def test_what_the_file_calls_by_a_sum_is_one(engine):
    file = DECODER.proto()
    file.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "p + q"
    ranges, rng = {"b": (1, 2), "q": (1, 4), "p": (0, 30)}, np.random.default_rng(2)
    with gp.onnx.load(file, engine=engine, shapes=ranges) as model:
        assert model.predict_peak().sizes == {"b": 2, "q": 4, "p": 30, "p + q": 34}
        with pytest.raises(gp.InvalidShapeError, match="'p \\+ q', is 9; accepted: 8, p \\+ q"):
            model.run(decoder_arrays(rng, 2, 3, 5) | {"mask": np.zeros((2, 9), np.float32)})
    with gp.onnx.load(file, engine=engine, shapes={"b": (1, 2), "q": (1, 4)}) as model:
        model.run(decoder_arrays(rng, 2, 3, 5))
        with pytest.raises(gp.InvalidArgumentError, match="none for dimension 'p \\+ q', dimension 'p'"):
            model.predict_peak()
    with pytest.raises(gp.InvalidShapeError, match="among the declared shapes: b = 2, q = 3, p = 6, p \\+ q = 8"):
        gp.onnx.load(file, engine=engine, shapes={"b": 2, "q": 3, "p": (5, 6), "p + q": 8})
    with gp.onnx.load(file, engine=engine, shapes={"b": 2, "q": 3, "p": 5, "p + q": 8}) as model:
        assert model.run(decoder_arrays(rng, 2, 3, 5))["y"].shape == (2, 3, 24)


@pytest.mark.parametrize("text", ["p + z", "z", "p - q", "t + 1", "+", "8"])
def test_sums_that_are_none(engine, text):
    message = (
        f"shapes: 't'; accepted: a range, or a sum of numbers and of dimensions that have one: p, q; got: {text!r}"
    )
    with pytest.raises(gp.InvalidArgumentError, match=re.escape(message)):
        DECODER.load(engine, shapes={"p": (0, 9), "q": (1, 4), "t": text})
    with pytest.raises(gp.InvalidArgumentError, match="shapes: 't'; accepted: a range, or a sum"):
        DECODER.load(engine, shapes={"p": (0, 9), "q": 1, "mask": (None, (1, 9)), "t": "p + q"})
    assert engine.budget.in_use == 0


def test_a_number_is_fixed(engine):
    with MODELS["mlp"].load(engine, shapes={"n": np.int64(7)}) as model:
        assert model.stats().compilations == 1
        assert model.predict_peak() == model.predict_peak({"x": (7, 24)})
        assert model.predict_peak().is_exact
        assert model.run({"x": np.zeros((7, 24), np.float32)})["y"].shape == (7, 10)
        with pytest.raises(gp.InvalidShapeError, match="'n', is 8; accepted: 7, as declared"):
            model.run({"x": np.zeros((8, 24), np.float32)})


def test_an_empty_range_of_rows(engine):
    with MODELS["mlp"].load(engine, shapes={"n": (0, 40)}) as model:
        assert model.predict_peak().is_complete
        assert model.run({"x": np.zeros((0, 24), np.float32)})["y"].shape == (0, 10)


def test_sizes_of_which_nothing_is_declared_stay_free(engine):
    case, rng = MODELS["attention"], np.random.default_rng(0)
    with case.load(engine, shapes={"b": (1, 2)}) as model:
        with pytest.raises(gp.InvalidArgumentError, match="got: none for dimension 'l', dimension 'p'"):
            model.predict_peak()
        model.run(case.arrays({"b": 2, "l": 50, "p": 3}, rng))
        with pytest.raises(gp.InvalidShapeError, match="'b', is 3; accepted: 1 to 2"):
            model.run(case.arrays({"b": 3, "l": 5, "p": 3}, rng))


def test_inputs_that_decide_leave_the_plan_to_the_run(engine):
    with MODELS["deciding"].load(engine, shapes={"n": (4, 40)}) as model:
        with pytest.raises(gp.InvalidArgumentError, match="none for the content of input 'shape'"):
            model.predict_peak()
        x = np.zeros((8, 12), np.float32)
        model.run({"x": x, "shape": np.array([-1, 6], np.int64)})
        with pytest.raises(gp.InvalidShapeError, match="is 41"):
            model.run({"x": np.zeros((41, 12), np.float32), "shape": np.array([-1, 6], np.int64)})


# ---- other models


def specialise(shapes, contents):
    """relu(x W) of rows by columns that are both unknown."""
    rows, columns = shapes["x"]
    x, y = (gp.LogicalTensor(k, "f32", (rows, columns)) for k in (0, 1))
    graph = gp.Graph("cpu")
    graph.add_op(gp.Op(0, "ReLU", [x], [y]))
    graph.finalize()
    return ModelForm(graph, {}, {"x": 0}, {"y": 1}, {})


def varying(shapes, contents):
    return specialise(shapes, contents)


varying.takes_sizes = True


def make(function, engine, dims, shapes):
    ports = [ModelPort(name, DataType.F32, dims) for name in ("x", "y")]
    return Model(ports[:1], ports[1:], function, engine, shapes=shapes)


@pytest.mark.parametrize("dims", [("a", "b"), (None, None), None])
@pytest.mark.parametrize("function", [specialise, varying])
def test_a_name_makes_dimensions_equal(engine, dims, function):
    with make(function, engine, dims, {"size": (2, 7), "x": ("size", "size")}) as model:
        peak = model.predict_peak()
        assert (peak.sizes, peak.shapes, peak.is_complete) == ({"size": 7}, {"x": (7, 7)}, True)
        model.run({"x": np.zeros((3, 3), np.float32)})
        with pytest.raises(gp.InvalidShapeError, match="dimension 'size' is 3 in input 'x' and 4 in input 'x'"):
            model.run({"x": np.zeros((3, 4), np.float32)})
    with pytest.raises(
        gp.InvalidArgumentError, match="dimension 1 of input 'x'; accepted: 'p', as elsewhere; got: 'q'"
    ):
        make(lambda shapes, contents: None, engine, ("a", "a"), {"x": ("p", "q")})


@pytest.mark.parametrize("dims", [(None, None), None])
@pytest.mark.parametrize("function", [specialise, varying])
def test_unnamed_dimensions_go_by_input_and_axis(engine, dims, function):
    with make(function, engine, dims, {"x": ((1, 4), (5, 7))}) as model:
        peak = model.predict_peak()
        assert (peak.sizes, peak.shapes) == ({"x[0]": 4, "x[1]": 7}, {"x": (4, 7)})
        assert peak.is_exact
        assert model.stats().compilations == (12 if function is specialise else 2)
        for shape in ((1, 5), (4, 7), (2, 6)):
            np.testing.assert_array_equal(model.run({"x": -np.ones(shape, np.float32)})["y"], np.zeros(shape))
        with pytest.raises(gp.InvalidShapeError, match="dimension 1 of input 'x' is 8; accepted: 5 to 7, as declared"):
            model.run({"x": np.zeros((4, 8), np.float32)})
        with pytest.raises(gp.InvalidShapeError, match="input 'x'"):
            model.run({"x": np.zeros((4, 6, 1), np.float32)})


def test_models_compiled_for_each_shape_look_at_the_corners(engine):
    with make(specialise, engine, ("rows", "columns"), {"rows": (1, 64), "columns": (8, 64)}) as model:
        peak = model.predict_peak()
        assert peak.sizes == {"rows": 64, "columns": 64}
        assert not peak.is_complete
        assert not peak.is_exact
        assert model.stats().compilations == 4


def test_names_of_inputs_and_dimensions():
    ports = [ModelPort("a", DataType.F32, ("b", 3)), ModelPort("b", DataType.F32, (None, "n"))]
    ranges = ShapeRanges({"b": (1, 8), "n": 4}, ports)
    assert ranges.dims == {"a": ("b", 3), "b": (None, 4)}
    assert ranges.missing == ("dimension 0 of input 'b'",)
    assert ranges.box == {"b": (1, 8)}


# ---- a maximum that is not at a corner


def hump():
    """Of k numbers, k rows by 20 - k columns: most in the middle."""
    nodes = (
        onnx.helper.make_node("Shape", ["k"], ["m"]), onnx.helper.make_node("Constant", [], ["one"], value_ints=[20]),
        onnx.helper.make_node("Sub", ["one", "m"], ["rest"]),
        onnx.helper.make_node("Concat", ["m", "rest"], ["shape"], axis=0),
        onnx.helper.make_node("Expand", ["v", "shape"], ["y"]),
    )  # fmt: skip
    return DynamicModel(nodes, {"k": ("f", "n"), "v": ("f", 1, 1)}, {"y": 2}, {}, {"n": (1, 19)})


def test_a_maximum_between_the_ends_is_found(engine):
    with hump().load(engine, shapes={"n": (2, 18)}) as model:
        peak = model.predict_peak()
        peaks = {n: model.predict_peak({"k": (n,), "v": (1, 1)}) for n in range(2, 19)}
        assert (max(peaks.values()), peaks[10]) == (peak, peak)
        assert peak.sizes == {"n": 10}
        assert peak.is_exact


# ---- life


def test_respecialised_and_pickled_models_keep_their_ranges():
    case, rng = MODELS["mlp"], np.random.default_rng(0)
    with gp.Engine("cpu", threads=1) as engine, case.load(engine, shapes={"n": (1, 40)}) as model:
        worst = model.predict_peak()
        model.respecialise()
        assert not model._forms.variable
        model.run(case.arrays({"n": 17}, rng))
        assert model.predict_peak() == worst
        model.respecialise()
        assert model.predict_peak() == worst
        copied = pickle.loads(pickle.dumps(model))
        with copied, copied.engine:
            assert copied.predict_peak() == worst
            with pytest.raises(gp.InvalidShapeError):
                copied.run(case.arrays({"n": 41}, rng))
        found = pickle.loads(pickle.dumps(worst))
        assert (found, found.sizes, found.shapes) == (worst, worst.sizes, worst.shapes)
    assert engine.budget.in_use == 0


def test_trimming_gives_programs_of_other_shapes_back(engine):
    case, rng = MODELS["mlp"], np.random.default_rng(0)
    with case.load(engine) as model:
        for rows in range(20, 30):
            model.run(case.arrays({"n": rows}, rng))
        before = model.stats()
        holdings = engine.budget.holdings()
        assert holdings["compiled entries"] > 9 * 1000
        freed = model.trim()
        after = model.stats()
        assert freed == before.programs_nbytes - after.programs_nbytes + before.arena_nbytes
        assert after.forms == 0
        assert after.constants_nbytes == before.constants_nbytes > 0
        assert after.cached_nbytes == before.cached_nbytes > 0
        assert after.arena_nbytes == 0
        model.run(case.arrays({"n": 25}, rng))
        assert model.stats().compilations == before.compilations


def test_pressure_takes_programs_of_other_shapes(engine):
    case, rng = MODELS["mlp"], np.random.default_rng(0)
    with case.load(engine) as model:
        for rows in range(20, 30):
            model.run(case.arrays({"n": rows}, rng))
        before = engine.budget.in_use
        engine.budget.resize(before - engine.budget.reclaimable)
        assert model.stats().forms == 0
        engine.budget.resize(None)
        model.run(case.arrays({"n": 29}, rng))


CHILD = """
import gc
import numpy as np
import graphpool as gp
from tests.cases.unknown_sizes import MODELS

def resident():
    gc.collect()
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS:"))

case, rng = MODELS[{name!r}], np.random.default_rng(0)
shapes = [case.draw(rng) | {{key: int(size) for key, size in zip(case.sizes, row)}} for row in {sizes!r}]
with gp.Engine("cpu", threads=1) as engine, case.load(engine, shapes={ranges!r}) as model:
    for sizes in shapes[:2]:
        model.run(case.arrays(sizes, rng))
    model.trim()
    before = resident()
    for sizes in shapes:
        model.run(case.arrays(sizes, rng))
    growth = resident() - before
    arenas = []
    for sizes in shapes:
        model.trim()
        arenas.append(model.specialise(case.arrays(sizes, rng)).arena_nbytes)
    print(growth, max(arenas), len({{tuple(sizes.values()) for sizes in shapes}}))
"""


@pytest.mark.native
@pytest.mark.parametrize(
    ("name", "sizes", "ranges"),
    [
        ("mlp", [(5000 + 37 * k,) for k in range(200)], None),
        ("mlp", [(5000 + 37 * k,) for k in range(200)], {"n": (5000, 20000)}),
        ("attention", [(1 + k % 4, 3 + k % 50, 1 + 5 * k) for k in range(200)], None),
    ],
)
def test_200_shapes_take_the_memory_of_the_largest(name, sizes, ranges):
    order = np.random.default_rng(1).permutation(len(sizes))
    code = CHILD.format(name=name, sizes=[sizes[k] for k in order], ranges=ranges)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    growth, arena, count = map(int, done.stdout.split())
    assert count == 200
    assert growth <= arena + 8 * 2**20
