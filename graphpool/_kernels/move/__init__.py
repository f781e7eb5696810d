"""Kernels that move elements.

move.py         strided copies, blocks of constants
index.py        rows found by index: index.c; the best elements of lines: top_k.c; gp_ranking.h: their order
gp_rows.h       copies of rows, which moves and gathers share
search.py       what is not zero, the best boxes
"""
