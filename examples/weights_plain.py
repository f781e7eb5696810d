"""Constant weights, option 1: as they are. With the cache off nothing is kept beside the user's own array."""

import numpy as np

import graphpool as gp

x = gp.LogicalTensor(0, "f32", (16, 256))
w = gp.LogicalTensor(1, "f32", (256, 512), property="constant")
y = gp.LogicalTensor(2, "f32", (16, 512))
product = gp.Partition.from_op(gp.Op(0, "MatMul", [x, w], [y]))

rng = np.random.default_rng(0)
batch, weights = rng.standard_normal((16, 256), np.float32), rng.standard_normal((256, 512), np.float32)

gp.set_constant_tensor_cache_capacity("cpu", 0)  # or GRAPHPOOL_CONSTANT_TENSOR_CACHE_CAPACITY=cpu:0
with gp.Engine("cpu") as engine, product.compile([x, w], [y], engine) as compiled:
    [result] = compiled.execute(gp.Stream(engine), [gp.Tensor(x, engine, batch), gp.Tensor(w, engine, weights)])
    np.testing.assert_allclose(result.numpy(), batch @ weights, rtol=1e-4, atol=1e-4)
    cached = gp.cache.constant_tensor_cache("cpu").nbytes
    print(f"weights of {weights.nbytes} bytes, {cached} bytes of them cached in another form")
    assert cached == 0
