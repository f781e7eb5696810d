"""Ways to run a KernelCall that catch what a plain run hides: writes beyond dst, reads of scratch, shared tasks."""

import numpy as np

from graphpool._kernels.core._dispatch import call

GUARD = 32


def guard_of(dtype):
    """What guards hold."""
    return 77 if np.dtype(dtype) in (np.uint8, np.int8) else -12345.0


def guarded(nelements, dtype=np.float32, fill=np.nan):
    """A flat buffer of `nelements` unset elements between two guards: (whole buffer, part to hand out)."""
    fill = 78 if guard_of(dtype) == 77 and np.isnan(fill) else fill
    whole = np.full(nelements + 2 * GUARD, guard_of(dtype) if np.isnan(fill) or fill == 78 else fill, dtype)
    part = whole[GUARD : GUARD + nelements]
    part[:] = fill
    return whole, part


def assert_guards(whole, part):
    """Nothing was written outside `part`."""
    n = len(part)
    assert (whole[:GUARD] == guard_of(whole.dtype)).all()
    assert (whole[GUARD + n :] == guard_of(whole.dtype)).all()


def run_all(kernel_call, *args):
    """All tasks at once on poisoned scratch."""
    call(kernel_call.kernel, kernel_call.params, args, 0, kernel_call.ntasks, kernel_call.scratch_nbytes, True)


def run_in_steps(kernel_call, step, *args):
    """Tasks in pieces of `step`, the last piece first, each on its own poisoned scratch."""
    for begin in reversed(range(0, kernel_call.ntasks, step)):
        end = min(begin + step, kernel_call.ntasks)
        call(kernel_call.kernel, kernel_call.params, args, begin, end, kernel_call.scratch_nbytes, True)


def run_checked(kernel_call, dst_nelements, *args, dst_index, dtype=np.float32):
    """The flat dst after a run on guarded memory; one-by-one and odd splits must give the same bits.

    `args` are the arguments without dst, which is inserted at `dst_index`.
    """
    results = []
    for step in (max(kernel_call.ntasks, 1), 1, 3):
        whole, part = guarded(dst_nelements, dtype)
        run_in_steps(kernel_call, step, *args[:dst_index], part, *args[dst_index:])
        assert_guards(whole, part)
        results.append(part.copy())
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)
    return results[0]
