"""Elementwise programs, which run by themselves and as epilogues of other kernels.

eltwise.py      programs of registers and instructions; gp_eltwise.h: their format
gp_interpreter.h  runs them; eltwise.c: on f32 registers, eltwise_wide.c: on f64 and integers
gp_sink.h gp_tile.h    results of other kernels handed to a program, by rows and by tiles of accumulators
lookup.py       functions of bytes as tables
random.py       the counter-based random generator
"""
