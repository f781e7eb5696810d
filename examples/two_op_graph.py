"""Two ops become one partition; compile it once, execute it on your own arrays."""

import numpy as np

import graphpool as gp

x = gp.LogicalTensor(0, "f32", (8, 256))
w = gp.LogicalTensor(1, "f32", (256, 512), property="constant")
y = gp.LogicalTensor(2, "f32", (8, 512))
z = gp.LogicalTensor(3, "f32", (8, 512))

graph = gp.Graph("cpu")
graph.add_op(gp.Op(0, "MatMul", [x, w], [y]))
graph.add_op(gp.Op(1, "ReLU", [y], [z]))
graph.finalize()
[partition] = graph.get_partitions()

rng = np.random.default_rng(0)
a, b = rng.standard_normal((8, 256), np.float32), rng.standard_normal((256, 512), np.float32)
out = np.empty((8, 512), np.float32)

with gp.Engine("cpu", memory_limit="64MiB") as engine, partition.compile([x, w], [z], engine) as compiled:
    stream = gp.Stream(engine)
    compiled.execute(stream, [gp.Tensor(x, engine, a), gp.Tensor(w, engine, b)], [gp.Tensor(z, engine, out)])
    print(f"{partition}: scratch memory {compiled.predict_peak()} bytes")

np.testing.assert_allclose(out, np.maximum(a @ b, 0), rtol=1e-4, atol=1e-4)
