"""Products with a constant weight, to see what the constant tensor cache does with it."""

import numpy as np

import graphpool as gp

M, K, N = 4, 24, 40


def compile_product(engine, first_id=0, m=M, **modes):
    x = gp.LogicalTensor(first_id, "f32", (m, K))
    w = gp.LogicalTensor(first_id + 1, "f32", (K, N), property="constant")
    y = gp.LogicalTensor(first_id + 2, "f32", (m, N))
    graph = gp.Graph("cpu")
    graph.add_op(gp.Op(first_id, "MatMul", [x, w], [y]))
    graph.finalize()
    [partition] = graph.get_partitions()
    return partition.compile([x, w], [y], engine, **modes)


class Job:
    """A compiled product with tensors of its own for everything but the weights."""

    def __init__(self, engine, *, seed=0, **options):
        self.compiled = compile_product(engine, **options)
        self.stream = gp.Stream(engine)
        lt = self.compiled.inputs[0]
        self.x = np.random.default_rng(seed).standard_normal(lt.shape).astype(np.float32)
        self.source = gp.Tensor(lt, engine, self.x)

    def tensor(self, weights, **options):
        return gp.Tensor(self.compiled.inputs[1], self.compiled.engine, weights, **options)

    def run(self, tensor, **options):
        [y] = self.compiled.execute(self.stream, [self.source, tensor], **options)
        return y.numpy()

    def check(self, tensor, weights, **options):
        np.testing.assert_allclose(self.run(tensor, **options), self.x @ weights, rtol=1e-4, atol=1e-4)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.compiled.close()


def weights(seed=1):
    return np.random.default_rng(seed).standard_normal((K, N)).astype(np.float32)
