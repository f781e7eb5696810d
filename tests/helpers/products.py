"""Matrix products asked by name, as tests of kernels write them."""

from dataclasses import fields

from graphpool._kernels.gemm import matmul as plain
from graphpool._kernels.gemm.packed import PackedFormat
from graphpool._kernels.gemm.post_ops import PostOps
from graphpool._kernels.gemm.problem import MatmulProblem

__all__ = ["matmul", "packed_matmul", "post_ops_of"]


def post_ops_of(options):
    """The post-ops among `options`, which keeps the others."""
    return PostOps(**{f.name: options.pop(f.name) for f in fields(PostOps) if f.name in options})


def matmul(batch_shape, m, n, k, a_strides, b_strides, c_strides, *, dtype="f32", **options):
    """The call of a product of operands as they lie."""
    problem = MatmulProblem(batch_shape, m, n, k, a_strides, c_strides, dtype)
    return plain.matmul(problem, b_strides, post_ops_of(options), **options)


def packed_matmul(
    batch_shape, m, n, k, a_strides, c_strides, *, dtype="f32", a_dtype=None, zero_point=0, isa=None, **options
):
    """The call of a product with packed weights."""
    a_dtype = a_dtype or ("u8" if dtype == "s8" else "f32")
    problem = MatmulProblem(batch_shape, m, n, k, a_strides, c_strides, a_dtype, zero_point)
    return PackedFormat(k, n, dtype, isa=isa).matmul(problem, post_ops_of(options), **options)
