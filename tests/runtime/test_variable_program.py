"""Programs for other sizes have, byte for byte, the parameter blocks that the kernels' builders would pack."""

import numpy as np
import pytest

import graphpool as gp
from graphpool._kernels.core.call import KernelCall
from graphpool._kernels.core.records import Record
from graphpool._kernels.norm.softmax import softmax
from graphpool._size_program import Numbers, SizeProgram
from graphpool._sizes import Trace
from graphpool.runtime._program import Program
from graphpool.runtime._variable import VariableProgram

RECORD = Record("int32_t i; uint32_t j; int64_t q; uint64_t u; float f, g; double d, e;")


def numbers(size):
    return {
        "i": size - 8, "j": size + 1, "q": -size * size, "u": size * size, "f": size, "g": 1 / size, "d": size / 3,
        "e": size * 3,
    }  # fmt: skip


def block_of(fields, value):
    """The block of a program that was made for another size."""
    trace = Trace()
    packed = RECORD.pack(fields(trace.symbol(7)))
    assert packed.data == RECORD.pack(fields(7))
    call = KernelCall(softmax((2, 3), 1).kernel, np.frombuffer(packed.data, np.uint8), 1, patches=packed.patches)
    variable = VariableProgram(Program([(call, ())], 0, 0), [(1, 0, None, call.patches)], [])
    values = SizeProgram(trace).compute([value])
    return variable.instance(values, Numbers(()), 0).describe()[0][2]


@pytest.mark.parametrize("value", [7, 1, 3, 2**24 + 1, 2**31 - 2, 2**31 + 7])
def test_numbers_of_all_types(value):
    assert block_of(numbers, value) == RECORD.pack(numbers(value))


@pytest.mark.parametrize("value", [2**31 - 1, 2**31, 3 * 2**30, 2**32 - 2])
def test_an_unsigned_number_uses_all_its_bits(value):
    def field(size):
        return {"j": size + 1}

    assert block_of(field, value) == RECORD.pack(field(value))


@pytest.mark.parametrize(("field", "value"), [("i", 2**31), ("j", 2**32), ("j", -1), ("u", -1)])
def test_a_number_that_its_type_has_not(field, value):
    with pytest.raises(gp.StateError, match="parameters"):
        block_of(lambda size: {field: size}, value)
