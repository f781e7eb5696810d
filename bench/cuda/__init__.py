"""Benchmarks on a GPU. docs/gpu.md has figures.

common.py          times of what is given to a device
bench_layers.py    layers, beside PyTorch
bench_models.py    models, beside onnxruntime
"""
