"""Where a compiled partition allows it, an output may take the place of an input: one buffer instead of two."""

import numpy as np

import graphpool as gp

SHAPE = (256, 256)
a, b, c, d = (gp.LogicalTensor(i, "f32", SHAPE) for i in range(4))
graph = gp.Graph("cpu")
graph.add_op(gp.Op(0, "Add", [a, b], [c]))
graph.add_op(gp.Op(1, "GELU", [c], [d]))
graph.finalize()
[partition] = graph.get_partitions()

rng = np.random.default_rng(0)
left, right = rng.standard_normal(SHAPE, np.float32), rng.standard_normal(SHAPE, np.float32)

with gp.Engine("cpu") as engine, partition.compile([a, b], [d], engine) as compiled:
    stream = gp.Stream(engine)
    [separate] = compiled.execute(stream, [gp.Tensor(a, engine, left), gp.Tensor(b, engine, right)])
    [(input_id, output_id)] = compiled.inplace_ports
    print(f"tensor {output_id} may be written over tensor {input_id}")

    shared = (left if input_id == 0 else right).copy()
    tensors = {0: gp.Tensor(a, engine, left), 1: gp.Tensor(b, engine, right)}
    tensors[input_id] = gp.Tensor(tensors[input_id].lt, engine, shared)
    compiled.execute(stream, list(tensors.values()), [gp.Tensor(d, engine, shared)])
    np.testing.assert_array_equal(shared, separate.numpy())

    try:
        other = right if input_id == 0 else left
        compiled.execute(stream, list(tensors.values()), [gp.Tensor(d, engine, other)])
    except gp.InvalidArgumentError as error:
        print("any other overlap is refused:", error)
    else:
        raise AssertionError("an overlap that is no in-place pair went through")
