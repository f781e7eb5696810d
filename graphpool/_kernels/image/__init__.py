"""Windows over images, and the kernels that need nothing but one.

window.py       windows and rows of results; gp_window.h is the C side
pool.py         pooling
resample.py     resizing
regions.py      samples of regions
"""
