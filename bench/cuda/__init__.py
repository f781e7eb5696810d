"""Benchmarks on a GPU. They were never run on one: no figure of theirs is published.

common.py          times of what is given to a device
bench_layers.py    layers, beside PyTorch
bench_models.py    models, beside onnxruntime
"""
