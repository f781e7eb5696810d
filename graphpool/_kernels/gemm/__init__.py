"""Matrix products: with BLAS or loops of our own, packed weights, compressed weights, int8, attention.

problem.py      MatmulProblem: what every kernel of the family is asked
matmul.py       both operands variable: matmul.c (BLAS), gemm.c (register-blocked loops)
packed.py       packed weights of f32, bf16 and s8: packed_weights.c packs, packed.c multiplies
compressed.py   weights of 8 and 4 bits, read as they are: compressed_weights.c, compressed.c
attention.py    two products with a softmax between them (attention.c), and their gradient (attention_backward.c)
post_ops.py     PostOps: what kernels do to accumulators in registers; requant.py: back to 8 bits
quantize.py     ranges and quantisation decided at run time
"""
