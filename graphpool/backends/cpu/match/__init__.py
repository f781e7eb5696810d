"""What belongs into one kernel call, read off the graph alone; nothing is lowered here.

groups.py              ops of a partition grouped into anchors with their post-ops
segments.py            regions too wide for one program
attention.py           two products with a SoftMax between them
attention_gradient.py  the five products of its gradient, as training spells them out
integers.py            products of quantised operands
compressed.py          constant weights of 8 or 4 bits, read as they are
swaps.py               ops that change places: moves of bytes, reshapes, quantisation in front of concatenation
pads.py                zeros around images that become pads of convolutions
undone.py              quantisation that undoes what is in front of it
rows.py                which ops compute rows that do not see one another
"""
