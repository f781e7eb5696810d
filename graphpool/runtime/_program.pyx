"""The step loop: kernels called one after another on raw pointers, without the interpreter."""

from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from graphpool._kernels._dispatch cimport GP_MAX_ARGS, Kernel

from graphpool.errors import InvalidArgumentError, explain


cdef extern from "<stdlib.h>" nogil:
    void *aligned_alloc(size_t alignment, size_t size)

ARENA = 0
LITERALS = 1
FIRST_EXTERNAL = 2


cdef class Program:
    """A fixed list of kernel calls with the places of their arguments.

    An argument is a base pointer and an offset. Base 0 is the arena that the caller leases for one run, base 1 the
    literals of the program, bases from 2 on are the external tensors in the caller's order.

    Parameters
    ----------
    steps : sequence of (KernelCall, sequence of (int, int))
        Each call with the (base, offset in bytes) of its arguments.
    arena_nbytes : int
        Bytes of the arena that the steps use for temporaries; the program adds the scratch of its kernels behind them.
    nexternals : int
        Number of external tensors.
    literals : bytes-like, default=b""
        Numbers that were known at compilation; the program keeps a copy.

    Attributes
    ----------
    arena_nbytes : int
        Bytes that one run needs, scratch included.
    calls : tuple of KernelCall
    uses_blas : bool
        Whether a step calls BLAS, whose own threads must then be kept out.

    Notes
    -----
    Ownership: owns the parameter blocks. Threads: immutable; `run` may be going on in any number of threads, each with
    an arena of its own. Cost of a step beyond its kernel: a few nanoseconds; a run allocates nothing and takes no lock.
    """

    def __cinit__(self, steps, int64_t arena_nbytes, int64_t nexternals, literals=b""):
        cdef int64_t total = sum(len(args) for _, args in steps)
        self.nsteps = len(steps)
        self.nbases = FIRST_EXTERNAL + nexternals
        self.steps = <Step *>calloc(max(self.nsteps, 1), sizeof(Step))
        self.args = <ArgRef *>calloc(max(total, 1), sizeof(ArgRef))
        if self.steps == NULL or self.args == NULL:
            raise MemoryError()
        cdef bytes data = bytes(literals)
        self.literals = <char *>aligned_alloc(64, (len(data) // 64 + 1) * 64)
        if self.literals == NULL:
            raise MemoryError()
        memcpy(self.literals, <const char *>data, len(data))
        self.calls = tuple([call for call, _ in steps])
        self.uses_blas = any(["blas" in call.kernel.name for call in self.calls])
        scratch = max([call.scratch_nbytes for call in self.calls], default=0)
        self.scratch_offset = (arena_nbytes + 63) // 64 * 64
        self.arena_nbytes = self.scratch_offset + scratch if scratch else arena_nbytes
        self._fill(steps)

    def _fill(self, steps):
        cdef int64_t first = 0, k, base, offset
        cdef Step *step
        cdef Kernel kernel
        cdef const unsigned char[::1] block
        for k in range(self.nsteps):
            call, args = steps[k]
            if len(args) > GP_MAX_ARGS:
                raise InvalidArgumentError(
                    explain(f"{call.kernel.name}: arguments", accepted=f"at most {GP_MAX_ARGS}", got=len(args))
                )
            kernel = call.kernel
            block = call.params
            step = &self.steps[k]
            step.fn = kernel.fn
            step.params = &block[0]
            step.first_arg = first
            step.nargs = len(args)
            step.ntasks = call.ntasks
            for base, offset in args:
                if not 0 <= base < self.nbases:
                    raise InvalidArgumentError(explain("base", accepted=f"0 .. {self.nbases - 1}", got=base))
                self.args[first].base = base
                self.args[first].offset = offset
                first += 1

    def __dealloc__(self):
        free(self.steps)
        free(self.literals)
        free(self.args)

    cdef void run(self, char **bases) noexcept nogil:
        cdef void *pointers[80]
        cdef int64_t k, j
        cdef Step *step
        cdef ArgRef *arg
        cdef void *scratch = bases[0] + self.scratch_offset
        bases[1] = self.literals
        for k in range(self.nsteps):
            step = &self.steps[k]
            arg = &self.args[step.first_arg]
            for j in range(step.nargs):
                pointers[j] = bases[arg[j].base] + arg[j].offset
            step.fn(step.params, pointers, 0, step.ntasks, scratch)

    def __len__(self):
        return self.nsteps

    def __repr__(self):
        kernels = ", ".join([f"{call.kernel.name}__{call.kernel.isa}" for call in self.calls[:8]])
        more = ", ..." if self.nsteps > 8 else ""
        return f"Program({self.nsteps} steps, arena {self.arena_nbytes} bytes: {kernels}{more})"
