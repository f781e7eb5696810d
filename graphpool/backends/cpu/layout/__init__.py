"""How tensors lie: chosen for ports and for whole regions of a partition.

opaque.py    layouts that the compiler chooses for ports
packed.py    those of constant weights
channels.py  which regions of images lie channels last
widths.py    which tensors of f16 lie as f32
images.py    the axes of images, whatever their format
slices.py    which groups take some rows of a batch at a time
"""
