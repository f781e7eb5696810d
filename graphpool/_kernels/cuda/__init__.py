"""Kernels for CUDA devices: CUDA C++ that is put together for a structure, compiled when it is first used, and kept.

    gp_*.cuh, *.cu    what kernels share; one kernel a file, in which names of `source.py` stand for what varies
    source.py         KernelSource: a kernel's text, its parameters and index spaces; CudaCall, what it builds
    program.py        elementwise programs as C++: those that CPU kernels interpret
    rows.py           softmax, norms, reductions: a block for each row
    image.py          pooling, convolution
    attention.py      attention, with all that scores go through
    index.py          elements by index
    products.py       matrix products, elementwise programs by themselves
    nvrtc.py          text to cubin, kept in a folder

A text depends on the structure of a call alone: operations, element types, ranks. Sizes, strides and numbers are
parameters, so that layers share kernels. The same text compiles for the host, where tests run it.
"""
