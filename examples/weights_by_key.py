"""Constant weights, option 3: one compiled partition for all layers, each execution names its weights by a key."""

import numpy as np

import graphpool as gp

x = gp.LogicalTensor(0, "f32", (16, 256))
w = gp.LogicalTensor(1, "f32", (256, 256), property="constant")
y = gp.LogicalTensor(2, "f32", (16, 256))
product = gp.Partition.from_op(gp.Op(0, "MatMul", [x, w], [y]))

rng = np.random.default_rng(0)
batch = rng.standard_normal((16, 256), np.float32)
layers = [rng.standard_normal((256, 256), np.float32) / 16 for _ in range(3)]

with gp.Engine("cpu") as engine, product.compile([x, w], [y], engine) as compiled:
    stream = gp.Stream(engine)

    def run(hidden: np.ndarray) -> np.ndarray:
        """All layers; tensors are made anew each time, as a framework that keeps none would."""
        for number, weights in enumerate(layers):
            tensors = [gp.Tensor(x, engine, hidden), gp.Tensor(w, engine, weights)]
            [result] = compiled.execute(stream, tensors, options=gp.ExecuteOptions(key=("my model", number)))
            hidden = result.numpy()
        return hidden

    for _ in range(3):
        np.testing.assert_allclose(run(batch), batch @ layers[0] @ layers[1] @ layers[2], rtol=1e-3, atol=1e-3)
    cache = gp.cache.constant_tensor_cache("cpu")
    print(f"{len(layers)} layers, {len(cache)} forms cached, each made once: {cache.stats().misses} misses")
    assert len(cache) == cache.stats().misses == len(layers)
