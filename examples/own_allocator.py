"""graphpool takes its memory from two functions of yours, and gives all of it back."""

import numpy as np

import graphpool as gp

live: dict[int, np.ndarray] = {}
peak_nbytes = 0


def allocate(nbytes: int, alignment: int) -> int:
    """Memory from NumPy, for want of a device; returns an aligned address."""
    global peak_nbytes
    block = np.empty(nbytes + alignment, np.uint8)
    address = block.ctypes.data + -block.ctypes.data % alignment
    live[address] = block
    peak_nbytes = max(peak_nbytes, sum(owned.nbytes for owned in live.values()))
    return address


def release(address: int) -> None:
    """Drop what `allocate` returned."""
    del live[address]


x, y = gp.LogicalTensor(0, "f32", (64, 1000)), gp.LogicalTensor(1, "f32", (64, 1000))
partition = gp.Partition.from_op(gp.Op(0, "SoftMax", [x], [y], axis=1))
data = np.random.default_rng(0).standard_normal((64, 1000), np.float32)

with gp.Engine("cpu", allocator=gp.Allocator(allocate, release)) as engine:
    with partition.compile([x], [y], engine) as compiled:
        [result] = compiled.execute(gp.Stream(engine), [gp.Tensor(x, engine, data)])
        exact = np.exp(data.astype(np.float64))
        np.testing.assert_allclose(result.numpy(), exact / exact.sum(1, keepdims=True), rtol=1e-4)
        print(f"{len(live)} blocks in use, {engine.stats().current_nbytes} bytes by graphpool's own count")
    del result

assert peak_nbytes >= data.nbytes
assert not live
print(f"at most {peak_nbytes} bytes, and nothing is left")
