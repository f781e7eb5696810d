"""Convolution, batch normalisation and ReLU run as one partition: the normalisation and the ReLU cost no extra pass."""

import numpy as np

import graphpool as gp

NCHW = {"data_format": "NCX", "strides": [1, 1], "pads_begin": [1, 1], "pads_end": [1, 1], "dilations": [1, 1]}


def build() -> gp.Graph:
    """The graph: tensors 0 to 5 are its inputs, tensor 8 is its output."""
    image = gp.LogicalTensor(0, "f32", (1, 16, 28, 28))
    weights = gp.LogicalTensor(1, "f32", (32, 16, 3, 3), property="constant")
    statistics = [gp.LogicalTensor(i, "f32", (32,), property="constant") for i in range(2, 6)]
    convolved, normalised, activated = (gp.LogicalTensor(i, "f32", (1, 32, 28, 28)) for i in (6, 7, 8))
    graph = gp.Graph("cpu")
    graph.add_op(gp.Op(0, "Convolution", [image, weights], [convolved], weights_format="OIX", **NCHW))
    graph.add_op(
        gp.Op(1, "BatchNormInference", [convolved, *statistics], [normalised], epsilon=1e-5, data_format="NCX")
    )
    graph.add_op(gp.Op(2, "ReLU", [normalised], [activated]))
    graph.finalize()
    return graph


def expected(x: np.ndarray, w: np.ndarray, statistics: list[np.ndarray]) -> np.ndarray:
    """The same with NumPy, in float64."""
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    convolved = np.einsum("nchwij,ocij->nohw", windows, w)
    gamma, beta, mean, variance = (part[:, None, None] for part in statistics)
    return np.maximum((convolved - mean) / np.sqrt(variance + 1e-5) * gamma + beta, 0)


[partition] = build().get_partitions()
rng = np.random.default_rng(0)
arrays = [rng.uniform(0.5, 1.5, port.shape).astype(np.float32) for port in partition.input_ports]

with gp.Engine("cpu") as engine, partition.compile(partition.input_ports, partition.output_ports, engine) as compiled:
    tensors = [gp.Tensor(port, engine, array) for port, array in zip(partition.input_ports, arrays, strict=True)]
    [result] = compiled.execute(gp.Stream(engine), tensors)
    print(f"{len(partition.ops)} ops in one partition, kernels: {', '.join(compiled.implementations)}")
    by_id = {port.id: array for port, array in zip(partition.input_ports, arrays, strict=True)}
    wanted = expected(by_id[0], by_id[1], [by_id[i] for i in range(2, 6)])
    np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-4, atol=1e-4)
