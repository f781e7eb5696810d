"""The state of a lowering, and elementwise programs: what all emitters share.

values.py          where tensors lie
steps.py           Emitter: kernel calls on values, and packed constants
lowering.py        Lowering: an emitter that knows where tensors lie
region.py          elementwise ops as one program of the elementwise engine; instructions.py: each kind;
                   gradients.py: those of training
epilogue.py        the region behind an anchor, run on its tile
post_ops.py        post-ops that kernels do on accumulators in registers
integers.py        operands and sums of quantised products
"""
