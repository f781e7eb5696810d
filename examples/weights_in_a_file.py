"""Weights of a convolution, packed once, kept in a file, and read by the kernel from memory that the user owns."""

import pathlib
import tempfile

import numpy as np

import graphpool as gp

x, y = gp.LogicalTensor(0, "f32", (8, 32, 16, 16)), gp.LogicalTensor(2, "f32", (8, 64, 16, 16))
plain = gp.LogicalTensor(1, "f32", (64, 32, 3, 3), property="constant")
geometry = {"strides": [1, 1], "dilations": [1, 1], "pads_begin": [1, 1], "pads_end": [1, 1]}
op = gp.Op(0, "Convolution", [x, plain], [y], data_format="NCX", weights_format="OIX", **geometry)
convolution = gp.Partition.from_op(op)

rng = np.random.default_rng(0)
image, weights = rng.standard_normal(x.shape, np.float32), rng.standard_normal(plain.shape, np.float32)

with gp.Engine("cpu") as engine, tempfile.TemporaryDirectory() as folder:
    stream, path = gp.Stream(engine), pathlib.Path(folder) / "conv1.weights"
    source = gp.Tensor(x, engine, image)

    with convolution.compile([x, plain.replace(layout="any")], [y], engine) as compiled:
        best = compiled.query_logical_tensor(1)
    pack = gp.Partition.from_op(gp.Op(1, "Reorder", [plain.replace(id=3)], [best]))
    with pack.compile([plain.replace(id=3)], [best], engine) as compiled:
        [packed] = compiled.execute(stream, [gp.Tensor(plain.replace(id=3), engine, weights)])
    gp.save_tensor(path, packed)

    # another process, on a processor of the same instruction set
    loaded = gp.load_tensor(path, engine, id=1)
    with convolution.compile([x, loaded.lt], [y], engine) as compiled:
        [result] = compiled.execute(stream, [source, loaded])
    print(f"{loaded.nbytes} bytes for {plain.nbytes} of plain weights")
    assert gp.cache.constant_tensor_cache("cpu").nbytes == 0

    with convolution.compile([x, plain], [y], engine) as compiled:
        [expected] = compiled.execute(stream, [source, gp.Tensor(plain, engine, weights)])
    np.testing.assert_array_equal(result.numpy(), expected.numpy())

    unpack = gp.Partition.from_op(gp.Op(2, "Reorder", [loaded.lt], [plain.replace(id=4)]))
    with unpack.compile([loaded.lt], [plain.replace(id=4)], engine) as compiled:
        [back] = compiled.execute(stream, [loaded])
    np.testing.assert_array_equal(back.numpy(), weights)
