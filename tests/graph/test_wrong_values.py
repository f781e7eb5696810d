"""Whatever is given for an argument of the graph's interface is taken, or refused with one of graphpool's errors."""

import contextlib

import numpy as np
import pytest

import graphpool as gp
from graphpool.graph.dumps.knobs import KNOBS, parse_knobs
from graphpool.graph.schema import SCHEMAS
from graphpool.memory import BufferInfo, plan

JUNK = [
    None, True, False, -1, 0, 1, 5, 2**31, 2**63, 2**64, -(2**63) - 1, 10**5000, 1.5, float("nan"), float("inf"), "",
    "x", "\ud800", "\0", b"x", [], {}, (), [1], [-1], ["x"], [None], [[1]], [[1], [2, 3]], [True], [10**5000], [2**62],
    [1.5], {"a": 1}, object(), np.int64(3), np.float32(1), np.zeros(3), np.zeros((2, 2), np.int32), len, int, range(3),
    set(),
]  # fmt: skip
X, Y = gp.LogicalTensor(0, "f32", (2, 3)), gp.LogicalTensor(1, "f32", (2, 3))
RELU = gp.Op(0, "ReLU", [X], [Y])


@pytest.fixture(scope="module")
def engine():
    with gp.Engine(threads=1, memory_limit=1 << 20) as engine:
        yield engine


def each(call):
    """Call with everything."""
    for junk in JUNK:
        with contextlib.suppress(gp.GraphpoolError), np.errstate(all="ignore"):
            call(junk)


def test_logical_tensors():
    each(lambda junk: gp.LogicalTensor(junk, "f32", (2,)))
    each(lambda junk: gp.LogicalTensor(0, junk, (2,)))
    each(lambda junk: gp.LogicalTensor(0, "f32", junk))
    each(lambda junk: gp.LogicalTensor(0, "f32", junk, property="host_scalar"))
    each(lambda junk: gp.LogicalTensor(0, "f32", (2,), strides=junk))
    each(lambda junk: gp.LogicalTensor(0, "f32", (2,), layout=junk))
    each(lambda junk: gp.LogicalTensor(0, "f32", (2, 3), layout="opaque", layout_id=junk).nbytes)
    each(lambda junk: gp.LogicalTensor(0, "f32", (2,), property=junk))
    each(lambda junk: X.is_equal(junk))


def test_ops_and_graphs():
    each(lambda junk: gp.Op(junk, "ReLU", [X], [Y]))
    each(lambda junk: gp.Graph().add_op(gp.Op(0, junk, [X], [Y])))
    each(lambda junk: gp.Graph().add_op(gp.Op(0, "ReLU", junk, [Y])))
    each(lambda junk: gp.Graph().add_op(gp.Op(0, "ReLU", [X], junk)))
    each(lambda junk: gp.Graph().add_op(gp.Op(0, "ReLU", [X], [Y], junk)))
    each(lambda junk: gp.Graph().add_op(junk))
    each(gp.Graph)
    each(lambda junk: gp.Graph(fpmath=junk))
    each(lambda junk: gp.Graph(prefer=junk))
    graph = gp.Graph()
    graph.add_op(RELU)
    graph.finalize()
    each(graph.get_partitions)
    each(graph.merge_partitions)
    each(gp.Partition.from_op)
    each(lambda junk: gp.Partition.from_op(RELU, junk))


@pytest.mark.parametrize("kind", SCHEMAS)
def test_attributes(kind):
    for name in SCHEMAS[kind].attributes:
        each(lambda junk, name=name: SCHEMAS[kind].complete("op", {name: junk}))


def test_compilation(engine):
    partition = gp.Partition.from_op(RELU)
    each(lambda junk: partition.compile(junk, [Y], engine))
    each(lambda junk: partition.compile([junk], [Y], engine))
    each(lambda junk: partition.compile([X], [junk], engine))
    each(lambda junk: partition.compile([X], [Y], junk))
    for name in ("scratch", "weights", "schedule", "streams"):
        each(lambda junk, name=name: partition.compile([X], [Y], engine, **{name: junk}))


def test_tensors_and_execution(engine):
    each(lambda junk: gp.Tensor(junk, engine))
    each(lambda junk: gp.Tensor(X, junk))
    for lt in (X, gp.LogicalTensor(4, "s4", (3,)), gp.LogicalTensor(4, "f32", (3, 3), layout="opaque", layout_id=17),
               gp.LogicalTensor(4, "s32", (), property="host_scalar"), gp.LogicalTensor(4, "f32", None)):  # fmt: skip
        each(lambda junk, lt=lt: gp.Tensor(lt, engine, junk))
        if lt.layout == "strided" and lt.shape is not None:
            each(lambda junk, lt=lt: gp.Tensor(lt, engine).fill(junk))
    x, y, stream = gp.Tensor(X, engine), gp.Tensor(Y, engine), gp.Stream(engine)
    with gp.Partition.from_op(RELU).compile([X], [Y], engine) as compiled:
        each(lambda junk: compiled.execute(stream, junk, [y]))
        each(lambda junk: compiled.execute(stream, [junk], [y]))
        each(lambda junk: compiled.execute(stream, [x], junk))
        each(lambda junk: compiled.execute(stream, [x], [junk]))
        for junk in JUNK:
            if not isinstance(junk, np.ndarray):
                with pytest.raises(gp.InvalidArgumentError) if junk not in (0, 1) else contextlib.nullcontext():
                    compiled.query_logical_tensor(junk)


@pytest.mark.parametrize("name", KNOBS)
def test_knobs(name):
    each(lambda junk: parse_knobs({name: junk}))


def test_buffers():
    good = {"id": "a", "lower": 0, "upper": 4, "size": 10}
    for name in ("lower", "upper", "size", "alignment", "offset"):
        each(lambda junk, name=name: plan([BufferInfo(**(good | {name: junk}))]))
    each(lambda junk: plan([BufferInfo(**good)], alignment=junk))
    each(lambda junk: plan([BufferInfo(**good)], method=junk))
