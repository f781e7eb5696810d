"""Constant weights, option 4: each weight tensor has an id, and says when its content changes."""

import numpy as np

import graphpool as gp

w = gp.LogicalTensor(1, "f32", (256, 512), property="constant")


def make_product(rows: int) -> tuple[gp.Partition, gp.LogicalTensor, gp.LogicalTensor]:
    """A product of so many rows with weights of one shape."""
    x, y = gp.LogicalTensor(0, "f32", (rows, 256)), gp.LogicalTensor(2, "f32", (rows, 512))
    return gp.Partition.from_op(gp.Op(0, "MatMul", [x, w], [y])), x, y


rng = np.random.default_rng(0)
weights = rng.standard_normal((256, 512), np.float32)
cache = gp.cache.constant_tensor_cache("cpu")

with gp.Engine("cpu") as engine:
    stream = gp.Stream(engine)
    tensor = gp.Tensor(w, engine, weights, id=42)  # nothing else may have this id
    for rows in (1, 16, 64):  # three compiled partitions, one cached form
        partition, x, y = make_product(rows)
        batch = rng.standard_normal((rows, 256), np.float32)
        with partition.compile([x, w], [y], engine) as compiled:
            [result] = compiled.execute(stream, [gp.Tensor(x, engine, batch), tensor])
        np.testing.assert_allclose(result.numpy(), batch @ weights, rtol=1e-4, atol=1e-4)
    print(f"{len(cache)} form cached for three shapes")
    assert len(cache) == 1

    weights *= 2  # as after a step of training
    tensor.invalidate()
    with partition.compile([x, w], [y], engine) as compiled:
        [result] = compiled.execute(stream, [gp.Tensor(x, engine, batch), tensor])
    np.testing.assert_allclose(result.numpy(), batch @ weights, rtol=1e-4, atol=1e-4)
    print("the changed content was packed anew")
