"""A partition chooses the layout of its output; the next one reads it as it is, and Reorder makes it plain again."""

import numpy as np

import graphpool as gp

x = gp.LogicalTensor(0, "f32", (16, 64))
w1 = gp.LogicalTensor(1, "f32", (64, 100), property="constant")
hidden = gp.LogicalTensor(2, "f32", (16, 100), layout="any")
plain = gp.LogicalTensor(3, "f32", (16, 100))

first = gp.Partition.from_op(gp.Op(0, "MatMul", [x, w1], [hidden]))
rng = np.random.default_rng(0)
a, b = rng.standard_normal((16, 64), np.float32), rng.standard_normal((64, 100), np.float32)

with gp.Engine("cpu") as engine, first.compile([x, w1], [hidden], engine) as compiled:
    stream = gp.Stream(engine)
    chosen = compiled.query_logical_tensor(2)
    print(f"chosen: {chosen}, {chosen.nbytes} bytes")
    [result] = compiled.execute(stream, [gp.Tensor(x, engine, a), gp.Tensor(w1, engine, b)])

    reorder = gp.Partition.from_op(gp.Op(1, "Reorder", [hidden], [plain]))
    with reorder.compile([chosen], [plain], engine) as compiled_reorder:
        [back] = compiled_reorder.execute(stream, [result])
    np.testing.assert_allclose(back.numpy(), a @ b, rtol=1e-4, atol=1e-4)
