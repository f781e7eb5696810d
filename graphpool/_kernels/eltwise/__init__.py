"""Elementwise programs, which run by themselves and as epilogues of other kernels.

eltwise.py      programs of registers and instructions; gp_eltwise.h: their format
eltwise.c       for f32 registers; eltwise_wide.c gp_wide.h: for f64 and integers
gp_sink.h gp_tile.h    results of other kernels handed to a program, by rows and by tiles of accumulators
lookup.py       functions of bytes as tables
random.py       the counter-based random generator
"""
