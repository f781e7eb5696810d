"""What every kernel stands on: the calling convention, SIMD loops and conversions in C, dispatch, threads, BLAS.

gp_kernel.h     the calling convention: fn(params, args, begin, end, scratch)
gp_tables.h     one list of tables per instruction set, probe of the processor; tables.c: every family's table
gp_vec.h        vectors of the instruction set that a file is compiled for; gp_quad.h: words in squares of four;
                gp_lanes.h: sums and maxima across lanes, as many at once as there are lanes
gp_math.h gp_vmath.h   functions of floats, one by one and in vectors
gp_convert.h    elements of every type from and to floats; convert.c: rows of them
gp_team.h       the protocol by which threads share work, spin and sleep
_dispatch.pyx   lookup(name) -> Kernel; call() for tests
_team.pyx       Team: threads that help the one that runs kernels
_blas.pyx blas.py  SciPy's BLAS for kernels that call it; loads it when one does for the first time
call.py         KernelCall: a kernel with its parameter block, task count and scratch
records.py      what the C sources say to Python: GP_ENUM, GP_NUMBER; _records.pyx: structs of GP_RECORD as bytes
spaces.py       index spaces, as families share them
"""
