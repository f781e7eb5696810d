"""What every op kind means, in plain NumPy: a second opinion that shares no code with graphpool.

    numbers.py        data types: exact content of arrays, rounding to a type
    table.py          the table kind -> function; `compute` and `evaluate` call it; what rounding does to kinds
    elementwise.py    one input, one output
    gradients.py      gradients of elementwise kinds
    pairs.py          several inputs, element by element: arithmetic, comparisons, logic, bits, biases
    products.py       matrix products, convolutions and their gradients
    windows.py        pooling, interpolation and their gradients
    normalisation.py  batch, layer, group and RMS normalisation, softmax
    reductions.py     reductions, scans and searches along an axis
    movement.py       copies, parts, layouts, conversions
    indexing.py       access by index
    quantisation.py   integers for reals and back
    recurrence.py     recurrent layers
    detection.py      searches whose results a count tells, regions of images
    trees.py          decision trees
    randomness.py     what holds of random results

Written from the definitions (oneDNN Graph's and ONNX's documentation) with the simplest loops that say them; sizes are
small. Floats are computed in float64, integers as Python's, both without rounding; the caller rounds.
"""

from .table import DISCONTINUOUS, EXACT, KINDS, compute, evaluate

__all__ = ["DISCONTINUOUS", "EXACT", "KINDS", "compute", "evaluate"]
