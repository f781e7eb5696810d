"""The CPU backend: from a partition to a Program of kernel calls.

    patterns.py    what is fused into one partition, as data
    support.py     which ops it runs, and with which types
    backend.py     CpuBackend: compile = look up the primitive, or lower, plan and link it
    choices.py     which implementation an op takes: forced ones, float modes
    key.py         under which structure a primitive is known
    lowering.py    Lowering: values, temporaries and steps of one partition
    groups.py      ops of a partition grouped into anchors with their post-ops
    region.py      elementwise ops as one program of the elementwise engine; instructions.py: each kind
    segments.py    regions too wide for one program
    tables.py      functions of bytes as tables
    concats.py     quantisation moved in front of concatenation
    reshapes.py    reshapes moved behind elementwise ops, which then join what comes in front
    attention.py   two products with a SoftMax between them as one kernel
    integers.py    products of quantised operands, summed exactly
    quantized.py   the same with constant weights as products of bytes; quantized_filters.py: convolutions
    requantize.py  post-ops of products of bytes, down to the bytes of the result
    compressed.py  products with constant weights of 8 or 4 bits, read as they are
    epilogue.py    the region behind an anchor, run on its tile
    emit_*.py      how each kind of op becomes kernel calls
    weights.py     constant weights in panels, kept by the constant tensor cache, and the products that read them
    filters.py     constant weights of convolutions, likewise
    transposed.py  constant weights of transposed convolutions, phase by phase
    siblings.py    convolutions of one image as one call; joint_filters.py: their weights; merging.py: where it pays
    tail.py        post-ops that packed kernels do on registers
    images.py      images as kernels over windows see them
    layouts.py     opaque layouts
    joins.py       which results are written straight into the tensor that a Concat joins them to
    channels.py    which regions of images lie channels last
    streams.py     steps as a graph to schedule: edges, units and costs
    stages.py      some steps by themselves, to see what they take
    link.py        steps to Programs: of the partition, and of what is made of its constants once
    placement.py   which bytes the values take

    ops -> groups -> emit -> steps on values -> schedule -> plan (offsets) -> link -> Program

A new kind of op is a line in support.py, an emitter, and, if it anchors a fusion, an entry in patterns.py.
"""

from .backend import CpuBackend

__all__ = ["CpuBackend"]
