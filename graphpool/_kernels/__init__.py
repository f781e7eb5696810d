"""Arithmetic only: C tile loops, the table in which they are found, and the doors to BLAS.

    core      calling convention, SIMD loops, dispatch, threads, BLAS
    eltwise   elementwise programs, which other kernels run as epilogues
    norm      normalisations, softmax, reductions
    move      copies, gathers, scatters
    gemm      matrix products, packed and compressed weights, attention
    image     windows, pooling, resizing
    conv      convolutions
    rnn       recurrent layers
    tree      ensembles of decision trees
    cuda      kernels for GPUs, in CUDA C++, put together and compiled when they are first used

A family's description (``.py``: parameter block, and builders that return a KernelCall) lies beside its kernels
(``.c``) and what those share (``gp_*.h``). Kernels know pointers, sizes and strides; they never see a graph, a tensor
or an engine.

What builders have in common, so that each says only what is its own:

    shape           of src (and dst); an axis counts from the end where it is negative
    x_strides       one for each axis of x, in elements; dense by default
    epilogue        block of an elementwise program, run on the results instead of a plain write: strides of dst are
                    then those of its linear index, and what it reads beyond dst follows as arguments
    isa             instruction set; the best one by default
    errors          InvalidShapeError where shapes, axes and strides do not fit each other
    arguments       of the kernel: in brackets those that options ask for; f32 unless another type is named
    tasks           of the KernelCall write disjoint parts of the results, which do not depend on how they are divided
"""
