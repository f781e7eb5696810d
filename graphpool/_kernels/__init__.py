"""Arithmetic only: C tile loops, the table in which they are found, and the doors to BLAS.

    include/gp_kernel.h    the calling convention: fn(params, args, begin, end, scratch)
    include/gp_tables.h    one list of tables per instruction set, probe of the processor
    src/<family>.c         the kernels of a family, compiled once per instruction set
    src/tables.c           every family's table
    _dispatch.pyx          lookup(name) -> Kernel; call() for tests
    call.py                KernelCall: a kernel with its parameter block, task count and scratch
    records.py             C structs such as parameter blocks, written by Python
    <family>.py            describes the family: parameter block, and builders that return a KernelCall
        attention compressed conv conv_bf16 conv_depthwise conv_depthwise_s8 conv_packed conv_s8 eltwise fold index
        lookup matmul move norm packed pool quantize random reduce resample softmax winograd
    post_ops.py requant.py what kernels do to accumulators in registers; int8 accumulators back to 8 bits
    conv_problem.py matmul_problem.py  what every kernel of these families is asked; formats of packed weights
    conv_weights.py conv_blocks.py     weights of convolutions in panels, and their blocks, whatever the type
    spaces.py window.py    index spaces and windows, as families share them
    _blas.pyx  blas.py     SciPy's BLAS for kernels that call it; loads it when one does for the first time
    include/gp_team.h      the protocol by which threads share work, spin and sleep
    _team.pyx              Team: threads that help the one that runs kernels

Kernels know pointers, sizes and strides; they never see a graph, a tensor or an engine.
"""
