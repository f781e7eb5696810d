import hashlib
import itertools
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from graphpool.cache import fingerprint
from graphpool.cache._packed_file import checksum
from graphpool.cache._quick import quick_digest
from graphpool.cache.identity import quick_fingerprint
from graphpool.errors import InvalidArgumentError


@given(
    hnp.arrays(st.sampled_from([np.float32, np.int8, np.bool_, np.float64]), hnp.array_shapes(min_dims=0, min_side=0))
)
def test_it_is_the_digest_of_the_elements_in_row_major_order(array):
    name = fingerprint(array)
    assert name.digest == hashlib.sha256(array.tobytes()).digest()[:16]
    assert name.shape == array.shape
    strided = array.copy(order="F")
    assert fingerprint(strided) == name
    assert fingerprint(array.copy()) == name


@pytest.mark.parametrize("take", [fingerprint, quick_fingerprint])
def test_content_type_and_shape_tell_apart(take):
    base = np.zeros((2, 6), np.float32)
    changed = base.copy()
    changed[1, 5] = 1
    others = [changed, base.view(np.int32), base.reshape(3, 4), base.ravel(), base[:1]]
    assert len({take(array) for array in [base, *others]}) == 6
    assert take(np.array([0.0])) != take(np.array([-0.0]))
    assert take(base) == take(base.copy(order="F"))


@pytest.mark.parametrize("take", [fingerprint, quick_fingerprint])
def test_types_that_numpy_does_not_know(take):
    packed = np.zeros(4, np.uint8)
    assert take(packed, dtype="s4") != take(packed)
    assert take(np.zeros(4, ml_dtypes.bfloat16)).dtype == "bf16"


@pytest.mark.parametrize("take", [fingerprint, quick_fingerprint])
@pytest.mark.parametrize("bad", [None, [1, 2], np.array([object()]), np.array(["text"])])
def test_what_is_no_array_of_numbers_is_refused(bad, take):
    with pytest.raises(InvalidArgumentError):
        take(bad)


QUICK = pytest.mark.parametrize("quick", [quick_digest, checksum])


@QUICK
@given(data=st.binary(max_size=5000))
def test_vector_instructions_change_nothing(data, quick):
    assert quick(data) == quick(data, is_scalar=True)
    assert len(quick(data)) == 16


@QUICK
def test_every_bit_and_every_place_counts(quick):
    content = bytearray(4101)  # two blocks and a part of one
    names = {quick(content)}
    for place in range(len(content)):
        content[place] = 1 << place % 8
        names.add(quick(content))
        content[place] = 0
    assert len(names) == 1 + len(content)


@QUICK
def test_blocks_cannot_change_places(quick):
    blocks = [bytes([number]) * 2048 for number in range(4)]
    orders = [b"".join(blocks[k] for k in order) for order in itertools.permutations(range(4))]
    assert len({quick(order) for order in orders}) == 24


@pytest.mark.native
def test_a_process_has_quick_names_of_its_own_but_the_checksums_of_all():
    code = "from graphpool.cache._packed_file import checksum\n"
    code += "from graphpool.cache._quick import quick_digest\n"
    code += "print(quick_digest(bytes(9)).hex(), checksum(bytes(9)).hex())"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    name, found = done.stdout.split()
    assert name != quick_digest(bytes(9)).hex()
    assert found == checksum(bytes(9)).hex()
