"""What belongs into one kernel call, read off the graph alone; nothing is lowered here.

groups.py            ops of a partition grouped into anchors with their post-ops
segments.py          regions too wide for one program
attention.py         two products with a SoftMax between them
integers.py          products of quantised operands
compressed.py        constant weights of 8 or 4 bits, read as they are
reshapes.py          reshapes moved behind elementwise ops, which then join what comes in front
byte_moves.py        moves of quantised tensors move bytes
quantized_concat.py  quantisation moved in front of concatenation
"""
