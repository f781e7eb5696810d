"""Matrix products, convolutions and attention as kernel calls.

choice.py             the first implementation of a table that can compute an anchor, and what stands in for it
weights.py            constant weights as kernels read them, kept by the constant tensor cache
matmul.py             MatMul: its table, plain products; matmul_problem.py: its operands as matrices
matmul_packed.py      products with weights in panels
convolution.py        Convolution and ConvTranspose: their tables, plain kernels; conv_problem.py: their geometry
conv_packed.py        convolutions with weights in panels
transposed.py         transposed convolutions, phase by phase
int8_matmul.py        int8 GEMM; int8_conv.py: int8 convolutions
compressed.py         products with weights of 8 or 4 bits
horizontal_fusion.py  convolutions of one image as one call
attention.py          two products with a SoftMax between them as one kernel
"""
