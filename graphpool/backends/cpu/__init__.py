"""The CPU backend: from a partition to a Program of kernel calls.

    patterns.py    what is fused into one op or one partition, as data
    support.py     which ops it runs, and with which types
    backend.py     CpuBackend: compile = look up the primitive, or lower, plan and link it
    choices.py     which implementation an op takes: forced ones, float modes
    key.py         under which structure a primitive is known
    lowering.py    Lowering: values, temporaries and steps of one partition
    groups.py      ops of a partition grouped into anchors with their post-ops
    region.py      elementwise ops as one program of the elementwise engine; instructions.py: each kind
    segments.py    regions too wide for one program
    tables.py      functions of bytes as tables
    rewrites.py    the passes over a partition's ops before they are grouped
    byte_moves.py  moves of quantised tensors move bytes, not the numbers that they stand for
    quantized_concat.py  quantisation moved in front of concatenation
    reshapes.py    reshapes moved behind elementwise ops, which then join what comes in front
    attention.py   two products with a SoftMax between them as one kernel
    integers.py    products of quantised operands, summed exactly
    int8_matmul.py int8 GEMM with constant weights; int8_conv.py: int8 convolutions
    requantize.py  post-ops of int8 kernels, down to the 8 bits of the result
    compressed.py  products with constant weights of 8 or 4 bits, read as they are
    epilogue.py    the region behind an anchor, run on its tile
    emit_*.py      how each kind of op becomes kernel calls
    weights.py     constant weights in panels, kept by the constant tensor cache, and the products that read them
    conv_weights.py  constant weights of convolutions, likewise
    transposed.py  constant weights of transposed convolutions, phase by phase
    horizontal_fusion.py  convolutions of one image as one call; joint_weights.py merging.py
    fused_post_ops.py     post-ops that kernels do on accumulators in registers
    images.py      images as kernels over windows see them
    layouts.py     opaque layouts
    inplace_concat.py  which results are written straight into the result of a Concat
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
