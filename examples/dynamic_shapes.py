"""A graph with an unknown batch size: partition it once, compile it for each batch size that turns up."""

import numpy as np

import graphpool as gp

x = gp.LogicalTensor(0, "f32", (gp.UNKNOWN_DIM, 64))
w = gp.LogicalTensor(1, "f32", (64, 10), property="constant")
y, z = gp.LogicalTensor(2, "f32"), gp.LogicalTensor(3, "f32")

graph = gp.Graph("cpu")
graph.add_op(gp.Op(0, "MatMul", [x, w], [y]))
graph.add_op(gp.Op(1, "SoftMax", [y], [z], axis=-1))
graph.finalize()
print("inferred before any batch is known:", ["?" if dim == gp.UNKNOWN_DIM else dim for dim in graph.shape(3) or ()])
partitions = graph.get_partitions()

rng = np.random.default_rng(0)
weights = rng.standard_normal((64, 10), np.float32)


def run(engine: gp.Engine, batch: np.ndarray) -> np.ndarray:
    """Compile for the shape of `batch` and execute, partition by partition."""
    values = {0: batch, 1: weights}
    for partition in partitions:
        inputs = [port.replace(shape=values[port.id].shape) for port in partition.input_ports]
        with partition.compile(inputs, partition.output_ports, engine) as compiled:
            results = compiled.execute(gp.Stream(engine), [gp.Tensor(lt, engine, values[lt.id]) for lt in inputs])
            values.update((tensor.lt.id, tensor.numpy()) for tensor in results)
    return values[3]


with gp.Engine("cpu") as engine:
    for batch_size in (1, 7, 32):
        batch = rng.standard_normal((batch_size, 64), np.float32)
        probabilities = run(engine, batch)
        scores = np.exp((batch @ weights).astype(np.float64))
        np.testing.assert_allclose(probabilities, scores / scores.sum(-1, keepdims=True), rtol=1e-4, atol=1e-6)
        print(f"batch of {batch_size}: result {probabilities.shape}")
