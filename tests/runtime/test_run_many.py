"""Many requests to one model: in order, side by side, or filled up where a mask allows it."""

import numpy as np
import pytest

import graphpool as gp
from tests.cases.unknown_sizes import MODELS, DynamicModel
from tests.helpers.memory import run_threads

onnx = pytest.importorskip("onnx")
Node = onnx.helper.make_node

HIDING = DynamicModel(
    (
        Node("Cast", ["mask"], ["on"], to=1), Node("Unsqueeze", ["on", "last"], ["onto"]),
        Node("Mul", ["x", "onto"], ["seen"]), Node("MatMul", ["seen", "w"], ["y"]),
        Node("ReduceSum", ["y", "axis"], ["sum"], keepdims=0),
    ),
    {"x": ("f", "b", "n", 6), "mask": ("i", "b", "n")}, {"y": 3, "sum": 2},
    {
        "w": np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32), "last": np.array([2]),
        "axis": np.array([1]),
    },
    {"b": (1, 3), "n": (1, 20)},
)  # fmt: skip
"""A model that adds up the positions which its mask does not hide."""


@pytest.fixture
def engine():
    with gp.Engine("cpu", threads=2) as engine:
        yield engine


def named(model, *outputs):
    """The model with named dimensions in its outputs, which `DynamicModel` leaves open."""
    proto = model.proto()
    for info, dims in zip(proto.graph.output, outputs or (["b", "n", 5], ["b", 5]), strict=True):
        del info.type.tensor_type.shape.dim[:]
        for dim in dims:
            place = info.type.tensor_type.shape.dim.add()
            if isinstance(dim, str):
                place.dim_param = dim
            else:
                place.dim_value = dim
    return proto


def request(rng, rows, length, hidden=0):
    mask = np.ones((rows, length), np.int64)
    mask[:, length - hidden :] = 0
    return {"x": rng.standard_normal((rows, length, 6)).astype(np.float32), "mask": mask}


def check(found, wanted, exact=True):
    assert len(found) == len(wanted)
    for own, other in zip(found, wanted, strict=True):
        assert own.keys() == other.keys()
        for name in own:
            if exact:
                np.testing.assert_array_equal(own[name], other[name])
            else:
                assert own[name].shape == other[name].shape
                np.testing.assert_allclose(own[name], other[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_requests_of_all_shapes_come_back_in_order(threads):
    case, rng = MODELS["cnn"], np.random.default_rng(0)
    requests = [case.arrays(case.draw(rng), rng) for _ in range(24)]
    with gp.Engine("cpu", threads=threads) as engine, case.load(engine) as model:
        wanted = [model.run(request) for request in requests]
        check(model.run_many(requests), wanted)
        check(model.run_many(iter(requests[:1])), wanted[:1])
        assert model.run_many([]) == []
        with pytest.raises(gp.InvalidArgumentError, match=r"requests: each of them.* got: int"):
            model.run_many(3)


def test_lengths_are_filled_up_where_a_mask_hides_it(engine):
    rng = np.random.default_rng(1)
    requests = [request(rng, int(rng.integers(1, 4)), int(rng.integers(1, 30)), hidden) for hidden in [0, 0, 0, 1] * 8]
    with gp.onnx.load(named(HIDING), engine=engine) as model:
        wanted = [model.run(one) for one in requests]
        before = model.stats().runs
        check(model.run_many(requests, mask="mask"), wanted, exact=False)
        assert model.stats().runs - before < len(requests) / 2
        before = model.stats().runs
        check(model.run_many(requests, mask="mask", most_rows=1), wanted, exact=False)
        assert model.stats().runs - before == len(requests)


@pytest.mark.parametrize(
    ("rows", "most_rows", "nruns"), [([1] * 8, 4, 2), ([1] * 9, 4, 3), ([2, 2, 1, 3], 4, 2), ([2, 3], 4, 2)]
)
def test_batches_have_as_many_rows_as_was_said_and_no_more(engine, rows, most_rows, nruns):
    rng = np.random.default_rng(7)
    requests = [request(rng, count, 5) for count in rows]
    with gp.onnx.load(named(HIDING), engine=engine) as model:
        wanted = [model.run(one) for one in requests]
        before = model.stats().runs
        check(model.run_many(requests, mask="mask", most_rows=most_rows), wanted, exact=False)
        assert model.stats().runs - before == nruns


def test_results_of_a_batch_are_arrays_of_their_own(engine):
    rng = np.random.default_rng(2)
    with gp.onnx.load(named(HIDING), engine=engine) as model:
        first, second = model.run_many([request(rng, 1, 4), request(rng, 1, 5)], mask="mask")
        assert first["y"].base is None
        assert not np.shares_memory(first["y"], second["y"])


def test_what_a_batch_is_joined_in_and_its_results_are_counted(engine):
    rng = np.random.default_rng(6)
    requests = [request(rng, 2, 4000), request(rng, 2, 4100)]
    with gp.onnx.load(named(HIDING), engine=engine) as model:
        alone = model.predict_peak({"x": (4, 4100, 6), "mask": (4, 4100)})
        engine.budget.reset_peak()
        found = model.run_many(requests, mask="mask")
        joined_nbytes, results_nbytes = 4 * 4100 * (6 * 4 + 8), sum(a.nbytes for one in found for a in one.values())
        assert alone + joined_nbytes <= engine.budget.peak <= alone + joined_nbytes + results_nbytes
        kept = engine.budget.in_use
        del found
        assert engine.budget.in_use == kept - results_nbytes
    with (
        gp.Engine("cpu", memory_limit=alone + joined_nbytes // 2) as small,
        gp.onnx.load(named(HIDING), engine=small) as model,
    ):
        with pytest.raises(gp.OutOfMemoryError):
            model.run_many(requests, mask="mask")
        check(model.run_many(requests[:1], mask="mask"), [model.run(requests[0])])


@pytest.mark.parametrize(
    ("mask", "message"),
    [("none", "mask 'none'; accepted: an input of two dimensions that have names"), ("x", r"got: f32 \[b, n, 6\]")],
)
def test_a_mask_that_is_none_is_refused(engine, mask, message):
    with gp.onnx.load(named(HIDING), engine=engine) as model, pytest.raises(gp.InvalidArgumentError, match=message):
        model.run_many([], mask=mask)


@pytest.mark.parametrize("outputs", [(), (["b", "MatMuly_dim_1", 5], ["Sum_dim_0", 5]), (["n", "b", 5], ["b", 5])])
def test_how_outputs_are_cut_follows_from_the_model_not_from_their_names(engine, outputs):
    """Exporters call dimensions of outputs by names of their own, and nobody keeps a file from wrong ones."""
    rng = np.random.default_rng(6)
    requests = [request(rng, rows, length) for rows, length in ((2, 9), (1, 8), (2, 8), (1, 0), (0, 9))]
    proto = named(HIDING, *outputs) if outputs else HIDING.proto()
    with gp.onnx.load(proto, engine=engine) as model:
        wanted = [model.run(one) for one in requests]
        before = model.stats().runs
        check(model.run_many(requests, mask="mask"), wanted, exact=False)
        assert model.stats().runs - before == 3  # those without positions or rows run alone


def test_rows_of_inputs_may_have_names_of_their_own(engine):
    """As in files of exporters which name apart what nothing says to be equal."""
    rng = np.random.default_rng(7)
    requests = [request(rng, rows, 8 - rows) for rows in (1, 2, 1)]
    proto = named(HIDING)
    proto.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "c"
    with gp.onnx.load(proto, engine=engine) as model:
        wanted = [model.run(one) for one in requests]
        before = model.stats().runs
        check(model.run_many(requests, mask="mask"), wanted, exact=False)
        assert model.stats().runs - before == 1
        with pytest.raises(gp.InvalidArgumentError, match=r"input 'x': c; accepted: that of 'mask': \(1, 7\)"):
            model.run_many([requests[0] | {"x": requests[1]["x"][:, :7].repeat(2, 1)[:, :7]}], mask="mask")


def test_dimensions_of_inputs_may_be_declared_to_be_one(engine):
    """Where rows are neither the first dimension nor named as those of the mask."""
    rng = np.random.default_rng(7)
    requests = [request(rng, rows, 8 - rows) for rows in (1, 2, 1)]
    for one in requests:
        one["x"] = one["x"].swapaxes(0, 1).copy()
    turned = Node("Transpose", ["turned"], ["x"], perm=[1, 0, 2])
    inputs = {"turned": ("f", "n", "b", 6), "mask": ("i", "b", "n")}
    case = DynamicModel((turned, *HIDING.nodes), inputs, HIDING.outputs, HIDING.constants, HIDING.sizes)
    requests = [{"turned": one["x"], "mask": one["mask"]} for one in requests]
    proto = named(case)
    proto.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "c"
    with (
        gp.onnx.load(proto, engine=engine) as model,
        pytest.raises(
            gp.InvalidArgumentError, match=r"'turned' of a model whose .* with one dimension 'c'.* got: f32 \[n, b"
        ),
    ):
        model.run_many(requests, mask="mask")
    with gp.onnx.load(proto, engine=engine, shapes={"b": (1, 8), "mask": ("b", "n")}) as model:
        check(model.run_many(requests, mask="mask"), [model.run(one) for one in requests], exact=False)


@pytest.mark.parametrize(("axis", "is_scalar"), [(0, False), (1, False), (0, True)])
def test_outputs_that_cannot_be_cut_are_refused(engine, axis, is_scalar):
    nodes = (Node("Concat", ["y", "y"], ["two"], axis=axis), Node("ReduceSum", ["y"], ["all"], keepdims=0))
    outputs = {"y": 3} | ({"all": 0} if is_scalar else {"two": 3})
    case = DynamicModel((*HIDING.nodes[:4], *nodes), HIDING.inputs, outputs, HIDING.constants, HIDING.sizes)
    rng = np.random.default_rng(8)
    requests = [request(rng, 1, 4), request(rng, 1, 5)]
    with case.load(engine) as model:
        model.run_many(requests[:1], mask="mask")
        before = model.stats().runs
        with pytest.raises(gp.InvalidArgumentError, match=r"'(two|all)' of a model whose requests are padded"):
            model.run_many(requests, mask="mask")
        assert model.stats().runs == before


def test_requests_that_contradict_their_mask_are_refused_before_anything_runs(engine):
    rng = np.random.default_rng(3)
    wrong = request(rng, 2, 5) | {"mask": np.ones((2, 4), np.int64)}
    with gp.onnx.load(named(HIDING), engine=engine) as model:
        with pytest.raises(gp.InvalidArgumentError, match=r"input 'x': n; accepted: that of 'mask': \(2, 4\)"):
            model.run_many([request(rng, 1, 3), wrong], mask="mask")
        with pytest.raises(gp.InvalidArgumentError, match="most_rows"):
            model.run_many([], mask="mask", most_rows=0)
        assert model.stats().runs == 0


@pytest.mark.parametrize("threads", [1, 3])
def test_the_first_request_that_fails_is_named(threads):
    rng = np.random.default_rng(4)
    requests = [request(rng, 1, 3) for _ in range(6)]
    requests[2] = {"x": requests[2]["x"]}
    requests[4] = {}
    with gp.Engine("cpu", threads=threads) as engine, gp.onnx.load(named(HIDING), engine=engine) as model:
        with pytest.raises(gp.InvalidArgumentError, match="mask") as caught:
            model.run_many(requests)
        assert caught.value.__notes__ == ["job 2 of run_many"]
        check(model.run_many(requests[:2]), [model.run(one) for one in requests[:2]])


def test_many_threads_ask_for_many_within_a_limit():
    case, rng = MODELS["cnn"], np.random.default_rng(5)
    requests = [case.arrays({"n": 2, "h": 20 + k, "w": 33 - k}, rng) for k in range(8)]
    with gp.Engine("cpu", threads=2) as engine, case.load(engine) as model:
        wanted = [model.run(one) for one in requests]
    with gp.Engine("cpu", threads=2) as engine, case.load(engine) as model:
        most = max(model.predict_peak(one) for one in requests)
        limit = most + engine.budget.in_use
    with gp.Engine("cpu", threads=2, memory_limit=2 * limit) as engine, case.load(engine) as model:
        results = run_threads(3, lambda _: model.run_many(requests))
        assert engine.budget.peak <= 2 * limit
    for found in results:
        check(found, wanted)
