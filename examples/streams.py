"""Branches of a graph on two streams: the same bytes as on one, more memory, and a trace that shows what ran where."""

import numpy as np

import graphpool as gp

x = gp.LogicalTensor(0, "f32", (256, 256))
towers = [gp.LogicalTensor(k, "f32", (256, 256)) for k in range(1, 9)]
y = gp.LogicalTensor(9, "f32", (256, 1024))
graph = gp.Graph("cpu")
for k in range(4):
    graph.add_op(gp.Op(2 * k, "SoftMax", [x], [towers[2 * k]], axis=-1))
    graph.add_op(gp.Op(2 * k + 1, "SoftMax", [towers[2 * k]], [towers[2 * k + 1]], axis=0))
graph.add_op(gp.Op(8, "Concat", towers[1::2], [y], axis=1))
graph.finalize()
whole = graph.merge_partitions(graph.get_partitions())

data = np.random.default_rng(0).standard_normal((256, 256), np.float32)
results = {}
with gp.Engine("cpu", threads=2) as engine, gp.Stream(engine) as stream:
    for schedule in ("sequential", "list"):
        with whole.compile([x], [y], engine, schedule=schedule, streams=2) as compiled:
            with gp.profile.trace() as trace:
                [result] = compiled.execute(stream, [gp.Tensor(x, engine, data)])
            results[schedule] = result.numpy()
            streams = {step.stream for step in trace.steps}
            print(f"{schedule}: {len(streams)} streams, {compiled.scratchpad_nbytes} bytes of scratch memory")
np.testing.assert_array_equal(results["sequential"], results["list"])
