"""Eight threads execute one compiled partition at once; arenas are made for those that meet, and then reused."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

import graphpool as gp

THREADS, REPEATS = 8, 25
x = gp.LogicalTensor(0, "f32", (32, 128))
w = gp.LogicalTensor(1, "f32", (128, 128), property="constant")
y, z = gp.LogicalTensor(2, "f32", (32, 128)), gp.LogicalTensor(3, "f32", (32, 128))
graph = gp.Graph("cpu")
graph.add_op(gp.Op(0, "MatMul", [x, w], [y]))
graph.add_op(gp.Op(1, "Tanh", [y], [z]))
graph.finalize()
[partition] = graph.get_partitions()
weights = np.random.default_rng(0).standard_normal((128, 128), np.float32)


def work(seed: int) -> None:
    """Compute on data of the thread's own, with a stream of its own."""
    stream = gp.Stream(engine)
    rng = np.random.default_rng(seed)
    for _ in range(REPEATS):
        batch = rng.standard_normal((32, 128), np.float32)
        [result] = compiled.execute(stream, [gp.Tensor(x, engine, batch), constant])
        np.testing.assert_allclose(result.numpy(), np.tanh(batch @ weights), rtol=1e-3, atol=1e-4)


with gp.Engine("cpu") as engine, partition.compile([x, w], [z], engine) as compiled:
    constant = gp.Tensor(w, engine, weights)
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))
    statistics = compiled.stats()
    print(f"{THREADS * REPEATS} executions, {statistics.created} arenas of {compiled.scratchpad_nbytes} bytes")
    assert statistics.leased == 0
    assert statistics.created <= THREADS
