"""Matrix products, convolutions and attention as kernel calls.

matmul.py             MatMul; convolution.py: Convolution and ConvTranspose
weights.py            constant weights in panels, kept by the constant tensor cache, and the products that read them
conv_weights.py       constant weights of convolutions, likewise
transposed.py         constant weights of transposed convolutions, phase by phase
int8_matmul.py        int8 GEMM with constant weights; int8_conv.py: int8 convolutions
compressed.py         products with constant weights of 8 or 4 bits
horizontal_fusion.py  convolutions of one image as one call; joint_weights.py: their weights
attention.py          two products with a SoftMax between them as one kernel
"""
