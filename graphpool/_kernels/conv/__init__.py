"""Convolutions.

problem.py      ConvProblem: what every kernel of the family is asked; ConvFormat: packed weights of one kind
direct.py       weights as they are, by BLAS or loops over a window
weights.py      weights in panels, whatever the type; weights.c packs
packed.py       f32; bf16.py int8.py: runs of words, in the blocks of blocks.py
winograd.py     F(2x2, 3x3) and F(4x4, 3x3)
depthwise.py    one channel a group, f32 and bytes
overlap.py      transposed convolutions to few channels, behind a product
"""
