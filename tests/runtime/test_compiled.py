"""CompiledPartition.execute: matching, errors before anything runs, memory, many threads."""

import gc
import warnings

import numpy as np
import pytest

import graphpool as gp
from tests.cases.graphs import GraphBuilder
from tests.helpers.memory import run_threads

FOREIGN = gp.Engine()


def lt(tensor_id, shape=(4, 16), dtype="f32", **fields):
    return gp.LogicalTensor(tensor_id, dtype, shape, **fields)


@pytest.fixture
def stream(engine):
    return gp.Stream(engine)


@pytest.fixture
def matmul(engine):
    """relu(x @ w): inputs 0 (4, 16) and 1 (16, 8), output 3 (4, 8)."""
    graph = gp.Graph()
    graph.add_op(gp.Op(0, "MatMul", [lt(0), lt(1, (16, 8))], [lt(2, (4, 8))]))
    graph.add_op(gp.Op(1, "ReLU", [lt(2, (4, 8))], [lt(3, (4, 8))]))
    graph.finalize()
    [partition] = graph.get_partitions()
    with partition.compile([lt(0), lt(1, (16, 8))], [lt(3, (4, 8))], engine) as compiled:
        yield compiled


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return rng.standard_normal((4, 16), np.float32), rng.standard_normal((16, 8), np.float32)


def bind(compiled, engine, arrays):
    return [gp.Tensor(t, engine, a) for t, a in zip(compiled.inputs, arrays, strict=True)]


def test_writes_into_the_users_buffer(matmul, engine, stream, arrays):
    out = np.full((4, 8), np.nan, np.float32)
    result = matmul.execute(stream, bind(matmul, engine, arrays), [gp.Tensor(lt(3, (4, 8)), engine, out)])
    np.testing.assert_allclose(out, np.maximum(arrays[0] @ arrays[1], 0), rtol=1e-5, atol=1e-6)
    assert result[0].data_ptr == out.ctypes.data


def test_allocates_outputs_with_the_engines_allocator(arrays):
    log = []
    source = gp.memory.HostResource()

    def malloc(nbytes, alignment):
        log.append(nbytes)
        return source.allocate(nbytes, alignment)

    sizes = {}

    def free(address):
        source.deallocate(address, sizes.get(address, 1), 64)

    def sized_malloc(nbytes, alignment):
        address = malloc(nbytes, alignment)
        sizes[address] = nbytes
        return address

    with gp.Engine(threads=1, allocator=gp.Allocator(sized_malloc, free)) as engine:
        partition = gp.Partition.from_op(gp.Op(0, "ReLU", [lt(0)], [lt(1)]))
        with partition.compile([lt(0)], [lt(1)], engine) as compiled:
            [result] = compiled.execute(gp.Stream(engine), [gp.Tensor(lt(0), engine, arrays[0])])
            np.testing.assert_array_equal(result.numpy(), np.maximum(arrays[0], 0))
            assert any(nbytes >= 256 for nbytes in log)
        del result
        gc.collect()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda ins, outs, e: (ins[:1], outs), gp.InvalidArgumentError, "no input tensor with id 1; accepted: ids"),
        (lambda ins, outs, e: (ins, []), gp.InvalidArgumentError, "no output tensor with id 3"),
        (lambda ins, outs, e: ([1, 2], outs), gp.InvalidArgumentError, "not a tensor; accepted: graphpool.Tensor"),
        (
            lambda ins, outs, e: ([gp.Tensor(lt(0, (5, 16)), e), ins[1]], outs),
            gp.InvalidShapeError, "tensor 0 is not what was compiled; accepted: LogicalTensor(0, 'f32', (4, 16))",
        ),
        (
            lambda ins, outs, e: ([gp.Tensor(lt(0, dtype="s32"), e), ins[1]], outs),
            gp.InvalidShapeError, "got: LogicalTensor(0, 's32', (4, 16))",
        ),
        (
            lambda ins, outs, e: ([gp.Tensor(lt(0), FOREIGN, np.zeros((4, 16), np.float32)), ins[1]], outs),
            gp.StateError, "make the tensor with the engine that the partition was compiled for",
        ),
        (
            lambda ins, outs, e: (ins, [gp.Tensor(lt(3, (4, 8)), e, _readonly())]),
            gp.InvalidArgumentError, "output tensor 3 is read-only",
        ),
    ],
)  # fmt: skip
def test_refuses_before_anything_runs(matmul, engine, stream, arrays, change, error, message):
    out = np.full((4, 8), 9, np.float32)
    good = bind(matmul, engine, arrays), [gp.Tensor(lt(3, (4, 8)), engine, out)]
    inputs, outputs = change(*good, engine)
    with pytest.raises(error) as caught:
        matmul.execute(stream, inputs, outputs)
    assert message in str(caught.value)
    assert (out == 9).all()


def _readonly():
    array = np.zeros((4, 8), np.float32)
    array.flags.writeable = False
    return array


def test_stream_must_be_open_and_of_the_engine(matmul, engine, arrays):
    inputs = bind(matmul, engine, arrays)
    with gp.Engine() as other, pytest.raises(gp.StateError, match="create the stream from the engine that"):
        matmul.execute(gp.Stream(other), inputs)
    closed = gp.Stream(engine)
    closed.close()
    with pytest.raises(gp.StateError, match="the stream is closed"):
        matmul.execute(closed, inputs)


def test_use_after_close(matmul, engine, stream, arrays):
    inputs = bind(matmul, engine, arrays)
    matmul.execute(stream, inputs)
    matmul.close()
    matmul.close()
    with pytest.raises(gp.StateError, match="the compiled partition is closed; compile the partition again"):
        matmul.execute(stream, inputs)


def test_closing_the_engine_closes_and_frees(matmul, engine, stream, arrays):
    [result] = matmul.execute(stream, bind(matmul, engine, arrays))
    assert engine.stats().current_nbytes >= matmul.scratchpad_nbytes > 0
    del result
    engine.close()
    gc.collect()
    assert matmul.is_closed
    assert engine.stats().current_nbytes == 0


@pytest.mark.parametrize(("shape", "strides"), [((4, 4), (0, 1)), ((4, 4), (3, 1)), ((4, 4), (3, 2)), ((2, 2), (1, 1))])
def test_outputs_whose_elements_share_memory_are_refused(engine, shape, strides):
    partition = gp.Partition.from_op(gp.Op(0, "ReLU", [lt(0, shape)], [lt(1, shape)]))
    with pytest.raises(gp.InvalidShapeError, match="output tensor 1: strides; accepted: elements apart"):
        partition.compile([lt(0, shape)], [lt(1, shape).replace(strides=strides)], engine)


def test_strides_of_unknown_dimensions_are_refused(engine):
    partition = gp.Partition.from_op(gp.Op(0, "ReLU", [lt(0, (gp.UNKNOWN_DIM, 4))], [lt(1, None)]))
    strided = [lt(i, (gp.UNKNOWN_DIM, 4), strides=(8, 1)) for i in range(2)]
    for x in (lt(0, (gp.UNKNOWN_DIM, 4)), lt(0, (3, 4))):
        with pytest.raises(gp.InvalidShapeError, match="output tensor 1: strides; accepted: none while"):
            partition.compile([x], [strided[1]], engine)
    with pytest.raises(gp.InvalidShapeError, match="input tensor 0: strides; accepted: none while"):
        partition.compile([strided[0]], [lt(1, (gp.UNKNOWN_DIM, 4))], engine)


@pytest.mark.parametrize(("shape", "strides"), [((4, 1), (1, 0)), ((0, 4), (0, 0)), ((4, 3), (1, 5)), ((2, 3), (1, 2))])
def test_outputs_whose_elements_are_apart(engine, stream, shape, strides):
    partition = gp.Partition.from_op(gp.Op(0, "ReLU", [lt(0, shape)], [lt(1, shape)]))
    with partition.compile([lt(0, shape)], [lt(1, shape).replace(strides=strides)], engine) as compiled:
        x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        [y] = compiled.execute(stream, [gp.Tensor(lt(0, shape), engine, x)])
        assert np.array_equal(y.numpy(), x)


def test_overlapping_outputs_are_refused(engine, stream):
    partition = gp.Partition.from_op(gp.Op(0, "StaticTranspose", [lt(0, (4, 4))], [lt(1, (4, 4))], order=[1, 0]))
    with partition.compile([lt(0, (4, 4))], [lt(1, (4, 4))], engine) as compiled:
        assert compiled.inplace_ports == ()
        x = gp.Tensor(lt(0, (4, 4)), engine, data := np.arange(16, dtype=np.float32).reshape(4, 4))
        with pytest.raises(gp.InvalidArgumentError, match="output tensor 1 shares memory with tensor 0"):
            compiled.execute(stream, [x], [gp.Tensor(lt(1, (4, 4)), engine, data)])
        np.testing.assert_array_equal(data, np.arange(16).reshape(4, 4))


def test_inplace_pair(engine, stream, arrays):
    builder = GraphBuilder()
    builder.op("Add", builder.op("ReLU", builder.input((4, 16))), builder.input((16,)))
    [partition] = builder.finish()
    row = np.arange(16, dtype=np.float32)
    with partition.compile(partition.input_ports, partition.output_ports, engine) as compiled:
        big, vector = (port.id for port in partition.input_ports)
        assert compiled.inplace_ports == ((big, compiled.outputs[0].id),)
        data = arrays[0].copy()
        added = gp.Tensor(compiled.query_logical_tensor(vector), engine, row)
        source = gp.Tensor(compiled.query_logical_tensor(big), engine, data)
        compiled.execute(stream, [source, added], [gp.Tensor(compiled.outputs[0], engine, data)])
        np.testing.assert_array_equal(data, np.maximum(arrays[0], 0) + row)
        room = np.zeros(80, np.float32)
        source = gp.Tensor(compiled.query_logical_tensor(big), engine, room[:64].reshape(4, 16))
        overlap = gp.Tensor(compiled.outputs[0], engine, room[4:68].reshape(4, 16))
        with pytest.raises(gp.InvalidArgumentError, match="shares memory"):
            compiled.execute(stream, [source, added], [overlap])


def test_constants_are_never_inplace(engine):
    x, y = lt(0, property="constant"), lt(1)
    partition = gp.Partition.from_op(gp.Op(0, "ReLU", [x], [y]))
    with partition.compile([x], [y], engine) as compiled:
        assert compiled.inplace_ports == ()


def test_scratchpad_of_the_user(matmul, engine, stream, arrays):
    inputs = bind(matmul, engine, arrays)
    raw = np.zeros(matmul.scratchpad_nbytes + 128, np.uint8)
    start = -raw.ctypes.data % 64
    before = engine.stats().total_nbytes
    out = gp.Tensor(lt(3, (4, 8)), engine, np.empty((4, 8), np.float32))
    matmul.execute(stream, inputs, [out], scratchpad=raw[start : start + matmul.scratchpad_nbytes])
    assert engine.stats().total_nbytes == before
    np.testing.assert_allclose(out.numpy(), np.maximum(arrays[0] @ arrays[1], 0), rtol=1e-5, atol=1e-6)
    with pytest.raises(gp.InvalidArgumentError, match=r"scratchpad; accepted: at least \d+ writable bytes"):
        matmul.execute(stream, inputs, [out], scratchpad=raw[start : start + 8])
    with pytest.raises(gp.InvalidArgumentError, match="aligned to 64"):
        matmul.execute(stream, inputs, [out], scratchpad=raw[start + 1 :])


def test_memory_that_is_no_scratchpad(matmul, engine, stream, arrays):
    inputs = bind(matmul, engine, arrays)
    out = gp.Tensor(lt(3, (4, 8)), engine)
    raw = gp.Tensor(gp.LogicalTensor(9, "u8", (matmul.scratchpad_nbytes,)), engine)
    fixed = raw.numpy()
    fixed.flags.writeable = False
    for refused in (fixed, bytes(2 * matmul.scratchpad_nbytes), gp.Tensor(raw.lt, engine, fixed)):
        with pytest.raises(gp.InvalidArgumentError, match=r"scratchpad; accepted: .* writable"):
            matmul.execute(stream, inputs, [out], scratchpad=refused)
    for refused in (np.zeros((2, 1 << 16), np.uint8)[:, ::2], 5, object()):
        with pytest.raises(gp.InvalidArgumentError, match="scratchpad; accepted: a Tensor or a contiguous"):
            matmul.execute(stream, inputs, [out], scratchpad=refused)
    empty = gp.Tensor.at(raw.lt, engine)
    with pytest.raises(gp.StateError, match="tensor 9 has no data"):
        matmul.execute(stream, inputs, [out], scratchpad=empty)


def test_a_scratchpad_overlaps_no_tensor(matmul, engine, stream, arrays):
    whole = gp.Tensor(gp.LogicalTensor(9, "u8", (matmul.scratchpad_nbytes + 4 * 8 * 4,)), engine)
    inputs = bind(matmul, engine, arrays)
    for start in (0, matmul.scratchpad_nbytes - 4):
        out = gp.Tensor.at(lt(3, (4, 8)), engine, whole.data_ptr + start, whole)
        with pytest.raises(gp.InvalidArgumentError, match="the scratchpad shares memory with tensor 3"):
            matmul.execute(stream, inputs, [out], scratchpad=whole)
    out = gp.Tensor.at(lt(3, (4, 8)), engine, whole.data_ptr + matmul.scratchpad_nbytes, whole)
    matmul.execute(stream, inputs, [out], scratchpad=whole)
    np.testing.assert_allclose(out.numpy(), np.maximum(arrays[0] @ arrays[1], 0), rtol=1e-5, atol=1e-6)


def test_predicted_peak_is_what_the_counters_say(matmul, engine, stream, arrays):
    """Compilation reserves the pool, executions take no more, closing leaves it for the next user of the primitive."""
    inputs = bind(matmul, engine, arrays)
    out = gp.Tensor(lt(3, (4, 8)), engine, np.empty((4, 8), np.float32))
    assert engine.stats().current_nbytes == matmul.predict_peak() == matmul.scratchpad_nbytes > 0
    for _ in range(3):
        matmul.execute(stream, inputs, [out])
    assert engine.stats().peak_nbytes == matmul.scratchpad_nbytes
    assert matmul.trim() == 0
    matmul.close()
    assert engine.stats().current_nbytes == matmul.scratchpad_nbytes
    assert engine.trim() == matmul.scratchpad_nbytes
    assert engine.stats().current_nbytes == 0


@pytest.mark.parametrize("scratch", ["primitive", "shared", "none"])
def test_the_smallest_limit_that_is_named_will_do_and_no_smaller_one(scratch, arrays):
    """A partition that cannot fit is refused before it runs, and nothing is kept of it."""
    partition = gp.Partition.from_op(gp.Op(0, "MatMul", [lt(0), lt(1, (16, 8))], [lt(2, (4, 8))]))
    ports = [lt(0), lt(1, (16, 8))], [lt(2, (4, 8))]
    with gp.Engine(threads=1, memory_limit=1024) as engine:
        with pytest.raises(gp.OutOfMemoryError) as caught:
            partition.compile(*ports, engine, scratch=scratch)
        assert (caught.value.limit, caught.value.in_use) == (1024, 0)
        assert engine.budget.in_use == engine.stats().current_nbytes == 0
    enough = caught.value.smallest_limit
    with gp.Engine(threads=1, memory_limit=enough) as engine, partition.compile(*ports, engine, scratch=scratch) as c:
        out = gp.Tensor(lt(2, (4, 8)), engine, np.empty((4, 8), np.float32))
        c.execute(gp.Stream(engine), bind(c, engine, arrays), [out])
        np.testing.assert_allclose(out.numpy(), arrays[0] @ arrays[1], rtol=1e-5, atol=1e-5)
        assert engine.budget.peak == enough == c.scratchpad_nbytes + c.primitive.nbytes
    with gp.Engine(threads=1, memory_limit=enough - 1) as engine, pytest.raises(gp.OutOfMemoryError):
        partition.compile(*ports, engine, scratch=scratch)


def test_whoever_brings_the_memory_is_not_charged(arrays):
    partition = gp.Partition.from_op(gp.Op(0, "MatMul", [lt(0), lt(1, (16, 8))], [lt(2, (4, 8))]))
    with (
        gp.Engine(threads=1, memory_limit=0) as engine,
        partition.compile([lt(0), lt(1, (16, 8))], [lt(2, (4, 8))], engine, scratch="caller") as compiled,
    ):
        out = gp.Tensor(lt(2, (4, 8)), engine, np.full((4, 8), 5, np.float32))
        tensors = bind(compiled, engine, arrays)
        with pytest.raises(gp.InvalidArgumentError, match=r"scratchpad; accepted: .* aligned to 64; it was compiled"):
            compiled.execute(gp.Stream(engine), tensors, [out])
        assert (out.numpy() == 5).all()
        raw = np.zeros(compiled.scratchpad_nbytes + 64, np.uint8)
        start = -raw.ctypes.data % 64
        compiled.execute(gp.Stream(engine), tensors, [out], scratchpad=raw[start:])
        np.testing.assert_allclose(out.numpy(), arrays[0] @ arrays[1], rtol=1e-5, atol=1e-5)
        assert engine.budget.peak == 0


def test_eight_threads_on_one_compiled_partition(matmul, engine, arrays):
    """Every thread has its own data; nobody sees anybody else's."""
    w = arrays[1]

    def work(seed):
        rng = np.random.default_rng(seed)
        stream = gp.Stream(engine)
        weights = gp.Tensor(lt(1, (16, 8)), engine, w)
        for _ in range(200):
            x = rng.standard_normal((4, 16), np.float32)
            [result] = matmul.execute(stream, [gp.Tensor(lt(0), engine, x), weights])
            np.testing.assert_allclose(result.numpy(), np.maximum(x @ w, 0), rtol=1e-4, atol=1e-5)

    run_threads(8, work)
    assert matmul.stats().leased == 0


def test_warm_execution_allocates_nothing(matmul, engine, stream, arrays):
    inputs = bind(matmul, engine, arrays)
    outputs = [gp.Tensor(lt(3, (4, 8)), engine, np.empty((4, 8), np.float32))]
    matmul.execute(stream, inputs, outputs)
    before = engine.stats()
    for _ in range(100):
        matmul.execute(stream, inputs, outputs)
    assert engine.stats() == before


def test_inputs_are_never_written(matmul, engine, stream, arrays):
    copies = [a.copy() for a in arrays]
    for a in arrays:
        a.flags.writeable = False
    matmul.execute(stream, bind(matmul, engine, arrays))
    for a, copy in zip(arrays, copies, strict=True):
        np.testing.assert_array_equal(a, copy)


def test_left_open_warns_with_its_name(engine, stream, arrays):
    partition = gp.Partition.from_op(gp.Op(0, "MatMul", [lt(0), lt(1, (16, 8))], [lt(2, (4, 8))]))
    compiled = partition.compile([lt(0), lt(1, (16, 8))], [lt(2, (4, 8))], engine)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del compiled
        gc.collect()
    assert [w.category for w in caught] == [ResourceWarning]
    assert "CompiledPartition" in str(caught[0].message)
    engine.trim()
    assert engine.stats().current_nbytes == 0


def test_query_of_a_foreign_id(matmul):
    assert matmul.query_logical_tensor(3) == lt(3, (4, 8))
    with pytest.raises(gp.InvalidArgumentError, match=r"no port with id 2; accepted: \[0, 1, 3\]"):
        matmul.query_logical_tensor(2)
