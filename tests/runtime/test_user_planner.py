"""A planner of the user's: what it is asked, what is refused, and that results are the same."""

import pickle

import numpy as np
import pytest

import graphpool as gp
from graphpool import demo
from graphpool.demo import MODELS, model_path
from graphpool.memory import BufferInfo, check_plan, plan, read_csv, write_csv
from graphpool.memory.user_planner import plan_with

IMAGES, _ = demo.test_images()
BUFFERS = [BufferInfo("a", 0, 2, 100), BufferInfo("b", 1, 3, 50), BufferInfo("c", 2, 4, 100)]


def end_to_end(buffers, alignment):
    """Shares nothing."""
    offsets, end = {}, 0
    for buffer in buffers:
        offsets[buffer.id] = end
        end += -(-buffer.size // alignment) * alignment
    return offsets


def overlapping(buffers, alignment):
    return {buffer.id: 0 for buffer in buffers}


def failing(buffers, alignment):
    raise ZeroDivisionError("no luck")


class Named:
    name = "my planner"

    def __call__(self, buffers, alignment):
        return {}


WRONG = {
    "overlapping": overlapping,
    "failing": failing,
    "my planner": Named(),
    "floats": lambda buffers, alignment: {buffer.id: 0.0 for buffer in buffers},
    "nothing": lambda buffers, alignment: None,
    "unaligned": lambda buffers, alignment: {k: v + 1 for k, v in end_to_end(buffers, alignment).items()},
    "negative": lambda buffers, alignment: {k: v - alignment for k, v in end_to_end(buffers, alignment).items()},
    "one too many": lambda buffers, alignment: end_to_end(buffers, alignment) | {"else": 0},
    "one too few": lambda buffers, alignment: dict(list(end_to_end(buffers, alignment).items())[1:]),
    "a list": lambda buffers, alignment: list(end_to_end(buffers, alignment).values()),
    "pairs": lambda buffers, alignment: list(end_to_end(buffers, alignment).items()),
    "beyond": lambda buffers, alignment: {k: v + 2**70 for k, v in end_to_end(buffers, alignment).items()},
    "a plan of other buffers": lambda buffers, alignment: plan(buffers[1:], alignment),
}


def test_a_plan_has_the_end_of_the_last_buffer():
    made = plan_with(end_to_end, BUFFERS)
    assert (made.nbytes, made.lower_bound, made.method, made.is_optimal) == (292, 150, "end_to_end", False)
    check_plan(made, BUFFERS, 64)


def test_a_memory_plan_stands_for_its_offsets():
    found = plan_with(plan, BUFFERS)
    built_in = plan(BUFFERS, 64)
    assert (dict(found.offsets), found.nbytes) == (dict(built_in.offsets), built_in.nbytes)
    with gp.Engine(threads=1, planner=plan) as engine, gp.onnx.load(model_path("digits_cnn"), engine=engine) as model:
        with gp.onnx.load(model_path("digits_cnn"), threads=1) as ours:
            found, expected = (m.run({"image": IMAGES[:5]}) for m in (model, ours))
        np.testing.assert_array_equal(found["probabilities"], expected["probabilities"])


@pytest.mark.parametrize(("wrong", "words"), [
    ("nothing", "a mapping of each buffer's id"), ("a list", "a mapping of each buffer's id"),
    ("floats", "no integer for buffer"), ("negative", "impossible offset for buffer"),
    ("unaligned", "is not aligned"), ("overlapping", "share bytes"), ("one too few", "none for 'a'"),
    ("one too many", "'else'"), ("beyond", "impossible offset"), ("a plan of other buffers", "none for 'a'"),
])  # fmt: skip
def test_errors_say_what_is_wrong_with_the_plan(wrong, words):
    with pytest.raises(gp.BackendError, match=words):
        plan_with(WRONG[wrong], BUFFERS)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_plan_that_does_not_hold_is_the_planners_error(wrong):
    with pytest.raises(gp.BackendError, match="planner") as caught:
        plan_with(WRONG[wrong], BUFFERS)
    name = wrong if wrong in ("overlapping", "failing", "my planner") else "<lambda>"
    assert caught.value.backend == name
    assert name in str(caught.value)


@pytest.mark.parametrize("planner", [3, "greedy", [end_to_end]])
def test_what_is_no_planner(planner):
    with pytest.raises(gp.InvalidArgumentError, match="planner"):
        gp.Engine(planner=planner)


@pytest.mark.parametrize("name", MODELS)
def test_models_run_in_arenas_of_the_users_plan(name):
    with gp.onnx.load(model_path(name), threads=1) as ours:
        expected = ours.run({"image": IMAGES[:5]})
        own_nbytes = ours.specialise({"image": IMAGES[:5]}).arena_nbytes
    with gp.Engine(threads=1, planner=end_to_end) as engine, gp.onnx.load(model_path(name), engine=engine) as model:
        for rows in (5, 3, 5):
            found = model.run({"image": IMAGES[:rows]})
            np.testing.assert_array_equal(found["probabilities"], expected["probabilities"][:rows])
        assert model.specialise({"image": IMAGES[:5]}).arena_nbytes > own_nbytes
        assert engine.budget.peak >= model.predict_peak({"image": IMAGES[:5]})


def test_a_planner_that_fails_leaves_the_engine_as_it_was():
    with (
        gp.Engine(threads=1, planner=failing) as engine,
        gp.onnx.load(model_path("digits_cnn"), engine=engine) as model,
    ):
        loaded = engine.budget.in_use
        for _ in range(2):
            with pytest.raises(gp.BackendError, match="planner failing failed"):
                model.run({"image": IMAGES[:2]})
        assert engine.budget.in_use == loaded


@pytest.mark.parametrize("shapes", [None, {"batch": (1, 8)}], ids=["open", "declared"])
def test_a_planner_that_fails_once_is_not_passed_over(shapes):
    failures = [ValueError("not now")]

    def fails_once(buffers, alignment):
        if failures:
            raise failures.pop()
        return plan(buffers, alignment)

    def run(engine):
        with gp.onnx.load(model_path("digits_cnn"), engine=engine, shapes=shapes) as model:
            model.run({"image": IMAGES[:8]})
            return model.stats().respecialisations

    with gp.Engine(planner=fails_once, threads=1) as engine:
        with pytest.raises(gp.BackendError, match="fails_once failed"):
            run(engine)
        assert run(engine) == ()


def test_programs_of_one_planner_are_not_those_of_another():
    x = gp.LogicalTensor(0, "f32", (64, 100))
    y = gp.LogicalTensor(1, "f32", (64, 100))
    partition = gp.Partition.from_op(gp.Op(0, "LogSoftmax", [x], [y], axis=1))
    with gp.Engine(threads=1) as engine, gp.Engine(threads=1, planner=Named()) as other:
        partition.compile([x], [y], engine).close()
        with pytest.raises(gp.BackendError, match="my planner"):
            partition.compile([x], [y], other)


def test_an_engine_pickles_with_its_planner():
    with gp.Engine(planner=end_to_end) as engine, pickle.loads(pickle.dumps(engine)) as copy:
        assert copy.planner is end_to_end


# ---- the problem itself


@pytest.mark.parametrize("name", MODELS)
def test_the_buffers_of_a_model_are_what_its_arena_is_planned_for(name, tmp_path):
    with gp.onnx.load(model_path(name), threads=1) as model:
        for rows in (1, 5):
            buffers = model.buffers({"image": IMAGES[:rows]})
            write_csv(tmp_path / "buffers.csv", buffers)
            assert read_csv(tmp_path / "buffers.csv") == buffers
            assert plan(buffers).nbytes == model.specialise({"image": IMAGES[:rows]}).arena_nbytes


def test_buffers_between_compiled_parts_and_host_functions():
    onnx = pytest.importorskip("onnx")
    node = onnx.helper.make_node
    nodes = [node("Relu", ["x"], ["a"]), node("Softmax", ["a"], ["b"]), node("Unique", ["b"], ["c"], axis=0),
             node("Softmax", ["b"], ["d"]), node("Neg", ["d"], ["y"])]  # fmt: skip
    ports = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, (30, 40)) for n in "xy"]
    ports.append(onnx.helper.make_tensor_value_info("c", onnx.TensorProto.FLOAT, ("n", 40)))
    graph = onnx.helper.make_graph(nodes, "mixed", ports[:1], ports[1:])
    opsets = [onnx.helper.make_opsetid("", 17)]
    with gp.onnx.load(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), threads=1) as model:
        buffers = model.buffers()
        between = [buffer for buffer in buffers if buffer.id.startswith("tensor")]
        assert [buffer.size for buffer in between] == [30 * 40 * 4]
        assert plan(buffers).nbytes == model.specialise().arena_nbytes
