"""Constant weights, option 2: the user asks which layout is best, reorders once, and may drop the plain array."""

import numpy as np

import graphpool as gp

x = gp.LogicalTensor(0, "f32", (16, 256))
plain = gp.LogicalTensor(1, "f32", (256, 512), property="constant")
w = gp.LogicalTensor(2, "f32", (256, 512), layout="any", property="constant")
y = gp.LogicalTensor(3, "f32", (16, 512))
product = gp.Partition.from_op(gp.Op(0, "MatMul", [x, w], [y]))

rng = np.random.default_rng(0)
batch, weights = rng.standard_normal((16, 256), np.float32), rng.standard_normal((256, 512), np.float32)
expected = batch @ weights

with gp.Engine("cpu") as engine, product.compile([x, w], [y], engine) as compiled:
    stream = gp.Stream(engine)
    best = compiled.query_logical_tensor(2)
    reorder = gp.Partition.from_op(gp.Op(1, "Reorder", [plain], [best]))
    with reorder.compile([plain], [best], engine) as compiled_reorder:
        [packed] = compiled_reorder.execute(stream, [gp.Tensor(plain, engine, weights)])
    del weights  # from here on the packed form is the only one

    [result] = compiled.execute(stream, [gp.Tensor(x, engine, batch), packed])
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-4, atol=1e-4)
    cached = gp.cache.constant_tensor_cache("cpu").nbytes
    print(f"the user holds {packed.nbytes} bytes as {best.layout.value}, the cache {cached}")
    assert cached == 0
