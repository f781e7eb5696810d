"""Models of which sizes are unknown: one compilation serves many shapes, within the memory that the engine may take."""

import gc
import os
import pickle
import threading

import numpy as np
import pytest

import graphpool as gp
from tests.cases.unknown_sizes import MODELS, DynamicModel
from tests.helpers.memory import run_threads
from tests.helpers.variable_programs import Comparison

onnx = pytest.importorskip("onnx")


@pytest.fixture
def engine():
    with gp.Engine("cpu", threads=2) as engine:
        yield engine


def jobs(case, count, engine, seed=0):
    """Sizes, inputs and what a model compiled for them gives, `count` of them."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        sizes = case.draw(rng)
        arrays = case.arrays(sizes, rng)
        with case.load(engine, sizes) as fixed:
            found.append((arrays, fixed.run(arrays)))
    return found


def check(model, job):
    arrays, wanted = job
    found = model.run(arrays)
    assert found.keys() == wanted.keys()
    for name in wanted:
        np.testing.assert_array_equal(found[name], wanted[name], err_msg=name)


@pytest.mark.parametrize("name", MODELS)
def test_results_equal_those_of_models_for_fixed_shapes(engine, name):
    case = MODELS[name]
    with case.load(engine) as model:
        for job in jobs(case, 30, engine):
            check(model, job)
            check(model, job)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("capacity", [2, 16])
def test_shapes_take_turns_in_eight_threads(engine, name, capacity):
    """With a capacity of 2, forms are evicted while they run."""
    case = MODELS[name]
    wanted = jobs(case, 12, engine)
    with case.load(engine) as model:
        model._forms.cache.capacity = capacity

        def work(number):
            order = np.random.default_rng(number).permutation(len(wanted))
            for k in (*order, *order):
                check(model, wanted[k])

        run_threads(8, work)
        stats = model.stats()
        assert stats.runs == 8 * 24
        assert stats.forms <= capacity


@pytest.mark.parametrize("weights", ["scoped", "cached", "packed"])
@pytest.mark.parametrize("name", ["mlp", "cnn", "attention"])
def test_all_modes_of_weights(name, weights):
    case = MODELS[name]
    with gp.Engine("cpu", threads=2) as engine:
        wanted = jobs(case, 8, engine)
        before = engine.budget.in_use
        with case.load(engine, weights=weights) as model:
            for job in wanted:
                check(model, job)
            for key in case.constants:
                try:
                    content = model.read_weight(key)
                except gp.InvalidArgumentError:
                    continue  # folded away
                np.testing.assert_array_equal(content, case.constants[key])
                del content  # charged while it lives
        if weights != "cached":
            assert engine.budget.in_use == before


@pytest.mark.parametrize("name", MODELS)
def test_one_compilation_serves_what_its_conditions_allow(engine, name):
    case = MODELS[name]
    with case.load(engine) as model:
        made = []
        specialise = model._forms.specialise
        model._forms.specialise = lambda shapes, deciding: made.append(1) or specialise(shapes, deciding)
        for job in jobs(case, 30, engine):
            check(model, job)
        assert len(made) < model.stats().misses or name in ("cnn", "host")


@pytest.mark.parametrize("name", ["positions", "resized"])
def test_what_is_made_of_sizes_does_not_fix_them(engine, name):
    case, rng = MODELS[name], np.random.default_rng(2)
    with case.load(engine) as model:
        for _ in range(12):
            model.run(case.arrays(case.draw(rng), rng))
        assert model.stats().compilations <= 3


@pytest.mark.parametrize("name", MODELS)
def test_closing_gives_all_memory_back(name):
    case = MODELS[name]
    with gp.Engine("cpu", threads=2) as engine:
        wanted = jobs(case, 10, engine)
        before = engine.budget.in_use, engine.stats().current_nbytes
        with case.load(engine) as model:
            for job in wanted:
                check(model, job)
            assert engine.budget.in_use > before[0]
        assert (engine.budget.in_use, engine.stats().current_nbytes) == before


def test_a_model_is_closed_while_its_forms_run(engine):
    case = MODELS["attention"]
    wanted = jobs(case, 6, engine)
    before = engine.budget.in_use
    for attempt in range(6):
        model = case.load(engine)
        is_closing = threading.Event()

        def work(number, model=model, is_closing=is_closing):
            try:
                for k in range(40):
                    check(model, wanted[(number + k) % len(wanted)])
                    if k == 5:
                        is_closing.set()
            except gp.StateError:
                assert model.is_closed

        def close(number, model=model, is_closing=is_closing):
            is_closing.wait(60)
            model.close()

        run_threads(5, lambda number, work=work, close=close: close(number) if number == 4 else work(number))
        gc.collect()
        assert engine.budget.in_use == before, attempt


def test_one_pool_of_arenas_serves_all_shapes():
    """What a shape needs is what a model takes that is compiled for it alone."""
    case = MODELS["mlp"]
    with gp.Engine("cpu", threads=2) as engine, case.load(engine) as model:
        rng, largest = np.random.default_rng(0), 0
        for rows in (20, 3000, 40, 1, 2900, 3050, 21, 9000, 100, 9500, 30):
            model.run(case.arrays({"n": rows}, rng))
            with case.load(engine, {"n": rows}) as fixed:
                largest = max(largest, fixed.stats().largest_arena_nbytes)
            assert 0 < model.stats().arena_nbytes <= largest + largest // 8
        assert model.stats().compilations > 1


def test_programs_are_kept_for_as_many_shapes_as_told():
    case, rng = MODELS["mlp"], np.random.default_rng(0)
    arrays = [case.arrays({"n": rows}, rng) for rows in range(2, 22)]
    with gp.Engine("cpu", threads=1) as engine:
        for capacity, misses in ((3, 40), (20, 20)):
            with case.load(engine, capacity=capacity) as model:
                for given in arrays * 2:
                    model.run(given)
                stats = model.stats()
                assert (stats.forms, stats.misses) == (capacity, misses)
        with pytest.raises(gp.InvalidArgumentError, match="capacity"):
            case.load(engine, capacity=0)


def least_limit(case, sizes):
    """What one run of these sizes takes."""
    with gp.Engine("cpu", threads=1) as engine, case.load(engine, sizes) as model:
        return model.predict_peak()


def test_the_limit_is_never_passed_and_what_is_refused_leaves_nothing():
    case, rng = MODELS["mlp"], np.random.default_rng(3)
    limit = least_limit(case, {"n": 400}) + 2**15  # beside the programs of other sizes
    with gp.Engine("cpu", threads=1, memory_limit=limit) as engine:
        before = engine.budget.in_use
        with case.load(engine) as model:
            refused = 0
            for rows in (10, 100, 40_000, 20, 30_000, 390, 41_000, 395, 11, 10):
                arrays = case.arrays({"n": rows}, rng)
                if rows > 1000:
                    held = engine.budget.in_use
                    with pytest.raises(gp.OutOfMemoryError):
                        model.run(arrays)
                    refused += 1
                    assert engine.budget.in_use <= held
                else:
                    assert model.run(arrays)["y"].shape == (rows, 10)
                assert engine.budget.in_use <= limit
                assert engine.budget.peak <= limit if hasattr(engine.budget, "peak") else True
        assert refused == 3
        assert engine.budget.in_use == before


def test_the_peak_that_is_predicted_is_exact_within_a_limit():
    case = MODELS["attention"]
    rng = np.random.default_rng(5)
    with gp.Engine("cpu", threads=1, memory_limit="64MiB") as engine, case.load(engine) as model:
        for _ in range(12):
            sizes = case.draw(rng)
            arrays = case.arrays(sizes, rng)
            with case.load(engine, sizes) as fixed:
                wanted = fixed.stats().largest_arena_nbytes
            assert model.specialise(arrays).arena_nbytes == wanted


def outer_product():
    """Of a column of any length with itself: a small input, an arena as large as its square."""
    nodes = (
        onnx.helper.make_node("Transpose", ["x"], ["t"]), onnx.helper.make_node("MatMul", ["x", "t"], ["m"]),
        onnx.helper.make_node("CumSum", ["m", "axis"], ["s"]), onnx.helper.make_node("MatMul", ["s", "x"], ["y"]),
    )  # fmt: skip
    return DynamicModel(nodes, {"x": ("f", "n", 1)}, {"y": 2}, {"axis": np.int64(0)}, {"n": (1, 100)})


@pytest.mark.parametrize("limit", [None, "64MiB"])
def test_a_shape_for_which_there_is_no_memory_leaves_others_theirs(limit):
    case, rng = outer_product(), np.random.default_rng(0)
    with gp.Engine("cpu", threads=1, memory_limit=limit) as engine, case.load(engine) as model:
        for rows in (300, 2**24, 310, 2**24 + 1, 290):
            arrays = case.arrays({"n": rows}, rng)
            if rows > 1000:
                with pytest.raises(gp.OutOfMemoryError):
                    model.run(arrays)
            else:
                assert model.run(arrays)["y"].shape == (rows, 1)
                assert model.stats().arena_nbytes < 2**20 * 8


def test_forms_that_are_given_up_are_forgotten(engine):
    """The first of a family, too, once the others are gone; of contents that decide, each has a family."""
    case, rng = MODELS["deciding"], np.random.default_rng(0)
    with case.load(engine) as model:
        model._forms.cache.capacity = model._forms.variable._capacity = 3
        for rows in range(4, 40):
            x = rng.standard_normal((rows, 12)).astype(np.float32)
            model.run({"x": x, "shape": np.array([rows * 2, 6], np.int64)})
        assert len(model._forms.variable) <= 4
        model.respecialise()
        assert not model._forms.variable
        model.run({"x": x, "shape": np.array([-1, 6], np.int64)})
    assert not model._forms.variable


def test_a_family_outlives_its_first_form(engine):
    case, rng = MODELS["mlp"], np.random.default_rng(0)
    with case.load(engine) as model:
        made, specialise = [], model._forms.specialise
        model._forms.specialise = lambda shapes, deciding: made.append(1) or specialise(shapes, deciding)
        model._forms.cache.capacity = 2
        for rows in range(20, 40):
            model.run(case.arrays({"n": rows}, rng))
        assert len(made) == 1
        assert model.stats().evictions == 18


def test_a_forked_child_runs_known_and_new_shapes(engine):
    case = MODELS["attention"]
    wanted = jobs(case, 6, engine)
    with case.load(engine) as model:
        for job in wanted[:3]:
            check(model, job)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for job in wanted:
                    check(model, job)
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        for job in wanted:
            check(model, job)


def test_errors_name_plain_numbers(engine):
    case = MODELS["cnn"]
    rng = np.random.default_rng(0)
    with case.load(engine) as model:
        model.run(case.arrays({"n": 2, "h": 16, "w": 16}, rng))
        with pytest.raises(gp.InvalidShapeError, match=r"dimension 1 is 4"):
            model.run({"x": np.zeros((2, 4, 16, 16), np.float32)})


def test_a_symbol_of_two_inputs_is_one_size(engine):
    case = MODELS["shared"]
    rng = np.random.default_rng(0)
    with case.load(engine) as model:
        for rows in (8, 1, 12):
            check(model, (arrays := case.arrays({"n": rows}, rng), model.run(arrays)))
        arrays = case.arrays({"n": 9}, rng) | {"c": rng.standard_normal((7, 12)).astype(np.float32)}
        with pytest.raises(gp.InvalidShapeError) as raised:
            model.run(arrays)
        assert "s0" not in str(raised.value)
        for rows in (9, 1):  # of one row, an operand broadcasts, whatever the names say
            a = case.arrays({"n": rows}, rng)
            check(model, (a, model.run(a)))


def test_inputs_that_decide_have_compilations_of_their_own(engine):
    case = MODELS["deciding"]
    rng = np.random.default_rng(0)
    with case.load(engine) as model:
        for shape in ([-1, 6], [4, -1], [-1, 6], [-1, 3], [0, 12], [4, -1]):
            for rows in (4, 8, 20):
                x = rng.standard_normal((rows, 12)).astype(np.float32)
                y = model.run({"x": x, "shape": np.array(shape, np.int64)})["y"]
                wanted = [size or rows for size in shape]
                np.testing.assert_allclose(
                    y, 2 * np.maximum(x @ case.constants["w"], 0).reshape(wanted), rtol=1e-4, atol=1e-5
                )


def test_numbers_that_decide_are_sizes(engine):
    """Of positions that begin at an input, and end at another, no number is fixed."""
    Node = onnx.helper.make_node
    nodes = (
        Node("Shape", ["x"], ["s"], start=0, end=1), Node("Squeeze", ["s"], ["rows"]),
        Node("Add", ["n", "rows"], ["e"]), Node("Range", ["n", "e", "one"], ["places"]),
        Node("Gather", ["table", "places"], ["row"]), Node("Add", ["x", "row"], ["sum"]),
        Node("Slice", ["sum", "zero", "k"], ["cut"]), Node("Relu", ["cut"], ["y"]),
    )  # fmt: skip
    table = np.arange(240, dtype=np.float32).reshape(60, 4)
    constants = {"table": table, "one": np.int64(1), "zero": np.array([0])}
    case = DynamicModel(nodes, {"x": ("f", "r", 4), "n": ("i",), "k": ("i", 1)}, {"y": 2}, constants, {"r": (4, 9)})
    rng = np.random.default_rng(0)
    with case.load(engine) as model:
        for first, end, rows in ((3, 2, 5), (40, 3, 7), (17, 4, 8), (3, 30, 9), (9, -2, 6), (11, -3, 9)):
            x = rng.standard_normal((rows, 4)).astype(np.float32)
            y = model.run({"x": x, "n": np.array(first), "k": np.array([end])})["y"]
            np.testing.assert_array_equal(y, np.maximum((x + table[first : first + rows])[:end], 0))
        assert model.stats().compilations == 2  # a negative end counts from behind
        assert "content of k[0]=-2: content of k[0] >= 0 no longer holds" in model.stats().respecialisations[-1]


@pytest.mark.parametrize("dtype", [np.float32, np.bool_])
def test_places_in_a_table_are_sizes(engine, dtype):
    """One row of a table, as the position of one new word."""
    Node = onnx.helper.make_node
    nodes = (
        Node("Shape", ["x"], ["past"], start=0, end=1), Node("Gather", ["table", "past"], ["row"]),
        Node("Cast", ["row"], ["y"], to=onnx.TensorProto.FLOAT),
    )  # fmt: skip
    table = (np.arange(240).reshape(60, 4) % 7 - 3).astype(dtype)
    case = DynamicModel(nodes, {"x": ("f", "past", 4)}, {"y": 2}, {"table": table}, {"past": (1, 59)})
    with case.load(engine, shapes={"past": (1, 59)}) as model:
        for past in (7, 1, 40, 59, 2):
            y = model.run({"x": np.zeros((past, 4), np.float32)})["y"]
            np.testing.assert_array_equal(y, table[past : past + 1].astype(np.float32))
        assert model.predict_peak().is_complete
        assert model.stats().compilations == 1


def test_a_target_below_and_above_a_size_shares_a_compilation(engine):
    node = onnx.helper.make_node("CenterCropPad", ["x", "target"], ["y"], axes=[0])
    case = DynamicModel((node,), {"x": ("f", "n", 3), "target": ("i", 1)}, {"y": 2}, {}, {"n": (3, 15)})
    rng = np.random.default_rng(0)
    with case.load(engine) as model:
        for rows, target in ((8, 5), (8, 4), (5, 8), (4, 9), (6, 6), (15, 3)):
            x = rng.standard_normal((rows, 3)).astype(np.float32)
            wanted, most = np.zeros((target, 3), np.float32), min(rows, target)
            begin, first = (target - most) // 2, (rows - most) // 2
            wanted[begin : begin + most] = x[first : first + most]
            np.testing.assert_array_equal(model.run({"x": x, "target": np.array([target])})["y"], wanted)
        assert model.stats().compilations == 1


def test_fixed_shapes_do_not_fix_numbers_that_decide(engine):
    node = onnx.helper.make_node("Slice", ["x", "zero", "k"], ["y"])
    case = DynamicModel((node,), {"x": ("f", 9, 4), "k": ("i", 1)}, {"y": 2}, {"zero": np.array([0])}, {})
    x = np.arange(36, dtype=np.float32).reshape(9, 4)
    with case.load(engine) as model:
        for end in range(2, 9):
            np.testing.assert_array_equal(model.run({"x": x, "k": np.array([end])})["y"], x[:end])
        assert model.stats().compilations == 1


@pytest.mark.parametrize(
    "node",
    [
        onnx.helper.make_node("InstanceNormalization", ["x", "ones", "ones"], ["y"]),
        onnx.helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
        onnx.helper.make_node(
            "AveragePool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2], pads=[1, 1, 0, 0], ceil_mode=1
        ),
    ],
    ids=lambda node: node.op_type,
)
def test_images_of_any_size_share_a_compilation(engine, node):
    sizes = {"n": (2, 4), "h": (5, 30), "w": (5, 30)}
    case = DynamicModel((node,), {"x": ("f", "n", 4, "h", "w")}, {"y": 4}, {"ones": np.ones(4, np.float32)}, sizes)
    with case.load(engine) as model:
        for job in jobs(case, 12, engine):
            check(model, job)
        assert model.stats().compilations == 1


@pytest.mark.parametrize("op_type", ["Squeeze", "Unsqueeze"])
def test_axes_that_there_are_not_are_refused(engine, op_type):
    node = onnx.helper.make_node(op_type, ["x", "axes"], ["y"])
    case = DynamicModel((node,), {"x": ("f", 1, "a"), "axes": ("i", 1)}, {"y": 0}, {}, {})
    proto = case.proto()
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    with gp.onnx.load(proto.SerializeToString(), engine=engine) as model:
        x = np.ones((1, 5), np.float32)
        assert model.run({"x": x, "axes": np.array([0])})["y"].size == 5
        for axis in (-5, 4):
            with pytest.raises(gp.InvalidShapeError, match=op_type):
                model.run({"x": x, "axes": np.array([axis])})


def test_broadcast_sizes_stay_variable(engine):
    Node = onnx.helper.make_node
    nodes = (
        Node("MatMul", ["x", "w"], ["m"]), Node("Shape", ["m"], ["s"]), Node("Expand", ["v", "s"], ["e"]),
        Node("Greater", ["m", "e"], ["is_larger"]), Node("Where", ["is_larger", "zero", "v"], ["y"]),
    )  # fmt: skip
    constants = {"w": np.ones((9, 4), np.float32), "zero": np.float32(0)}
    inputs = {"x": ("f", "b", "n", 9), "v": ("f", 4)}
    case = DynamicModel(nodes, inputs, {"y": 3}, constants, {"b": (5, 7), "n": (36, 40)})
    with case.load(engine) as model:
        for sizes in ({"b": 5, "n": 40}, {"b": 6, "n": 36}, {"b": 7, "n": 37}):
            assert model.run(case.arrays(sizes, np.random.default_rng(0)))["y"].shape == (*sizes.values(), 4)
        assert model.stats().compilations == 1


def test_sizes_that_are_equal_by_chance_stay_variable(engine):
    """Of a bias, of what another tensor takes, and of a slice that goes to the end."""
    Node = onnx.helper.make_node
    nodes = (
        Node("MatMul", ["x", "w"], ["m"]), Node("Add", ["m", "b"], ["a"]), Node("Softmax", ["a"], ["s"]),
        Node("Slice", ["s", "start", "end"], ["c"]), Node("Concat", ["c", "x", "c"], ["j"], axis=1),
        Node("Relu", ["j"], ["y"]),
    )  # fmt: skip
    constants = {
        "w": np.ones((6, 7), np.float32), "b": np.ones(7, np.float32), "start": np.zeros(2, np.int64),
        "end": np.array([2**31 - 1, 7]),
    }  # fmt: skip
    case = DynamicModel(nodes, {"x": ("f", "n", 6)}, {"y": 2}, constants, {"n": (2, 40)})
    with case.load(engine) as model:
        for rows in (7, 6, 8, 20, 40):
            assert model.run(case.arrays({"n": rows}, np.random.default_rng(0)))["y"].shape == (rows, 20)
        assert model.stats().compilations == 1


def test_a_model_says_why_it_was_compiled_anew(engine):
    case = MODELS["mlp"]
    rng = np.random.default_rng(3)
    with case.load(engine) as model:
        for size in (40, 41, 0, 42):
            model.run(case.arrays(dict.fromkeys(case.sizes, size), rng))
        stats = model.stats()
        assert stats.compilations == 2
        [reason] = stats.respecialisations
        name = next(iter(case.sizes))
        assert reason.startswith(f"{name}=0")
        assert reason.endswith("no longer holds")
        first, empty = (
            model.specialise(case.arrays(dict.fromkeys(case.sizes, size), rng)).conditions for size in (41, 0)
        )
        assert reason.split(": ")[1].removesuffix(" no longer holds") in first
        assert set(first) != set(empty)
    fixed = case.load(engine, dict.fromkeys(case.sizes, 5))
    with fixed:
        assert fixed.specialise().conditions == ()


def test_an_error_that_only_unknown_sizes_cause_is_told(engine, monkeypatch):
    def refuse(self, *args):
        raise NotImplementedError("no sizes here")

    monkeypatch.setattr("graphpool.runtime.variable_form.VariableForm.add", refuse)
    case, rng = MODELS["mlp"], np.random.default_rng(4)
    with case.load(engine) as model:
        for size in (4, 5):
            model.run(case.arrays(dict.fromkeys(case.sizes, size), rng))
        assert model.stats().respecialisations == ("compiled for one set of shapes: no sizes here",) * 2


@pytest.mark.parametrize("name", ["mlp", "cnn", "attention"])
def test_partitions_have_the_sizes_of_their_form(engine, name):
    """They are compiled, kept in sets and pickled like those of any graph, whatever the form was made of."""
    case = MODELS[name]
    with case.load(engine) as model:
        for arrays, _ in jobs(case, 3, engine):
            model.run(arrays)
            for partition in filter(lambda found: found.is_supported, model.partitions):
                copied = pickle.loads(pickle.dumps(partition))
                assert copied.structure.content == partition.structure.content
                assert not any(port.varies for port in (*partition.input_ports, *partition.output_ports))
                with copied.compile(partition.input_ports, partition.output_ports, engine):
                    pass


def test_scratch_that_some_sizes_do_without_asks_for_no_compilation(engine):
    """Few rows of a long product have their sums in registers, more rows those of a part of it in scratch memory."""
    weights = np.random.default_rng(0).standard_normal((2048, 64)).astype(np.float32)
    product = (onnx.helper.make_node("MatMul", ["x", "w"], ["y"]),)
    case = DynamicModel(product, {"x": ("f", "n", 2048)}, {"y": 2}, {"w": weights}, {"n": (2, 12)})
    with case.load(engine) as model:
        for n in (2, 7, 12, 3, 6, 8):
            x = np.random.default_rng(n).standard_normal((n, 2048)).astype(np.float32)
            np.testing.assert_allclose(model.run({"x": x})["y"], x @ weights, rtol=1e-4, atol=1e-3)
        assert model.stats().compilations == 1
        with Comparison.of(model, {"x": x}) as comparison:
            comparison.compare([{"x": (n, 2048)} for n in range(2, 13)])
            assert comparison.counts["alike"] + comparison.counts["alike but for sizes"] >= 8
