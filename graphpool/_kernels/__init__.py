"""Arithmetic only: C tile loops, the table in which they are found, and the doors to BLAS.

    core      calling convention, SIMD loops, dispatch, threads, BLAS
    eltwise   elementwise programs, which other kernels run as epilogues
    norm      normalisations, softmax, reductions
    move      copies, gathers, scatters
    gemm      matrix products, packed and compressed weights, attention
    image     windows, pooling, resizing
    conv      convolutions

A family's description (``.py``: parameter block, and builders that return a KernelCall) lies beside its kernels
(``.c``) and what those share (``gp_*.h``). Kernels know pointers, sizes and strides; they never see a graph, a tensor
or an engine.
"""
