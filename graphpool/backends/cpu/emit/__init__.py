"""How each kind of op becomes kernel calls.

rules.py           the rule of each kind
elementwise.py     elementwise ops alone
windows.py         pooling, resampling
norm.py            norms, SoftMax
reduce.py          reductions; scan.py: walks along an axis
recurrent.py       recurrent layers
movement.py        reshapes, transposes, concatenation; parts.py: slices, pads; indexing.py: gather, scatter
quantization.py    quantisation by the range of a tensor, groups of scales
tree.py            decision trees
gradients.py       gradients that add up: of norms, SoftMax, biases; weight_gradients.py: those of convolution weights
inplace_concat.py  which results are written straight into the result of a Concat
"""
