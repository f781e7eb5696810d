"""Kernels that move elements.

move.py         strided copies, blocks of constants
index.py        rows found by index: index.c; the best elements of lines: top_k.c
"""
