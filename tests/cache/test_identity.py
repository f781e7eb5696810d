import hashlib

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from graphpool.cache import FingerprintMemo, fingerprint
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


def test_content_type_and_shape_tell_apart():
    base = np.zeros((2, 6), np.float32)
    changed = base.copy()
    changed[1, 5] = 1
    others = [changed, base.view(np.int32), base.reshape(3, 4), base.ravel(), base[:1]]
    assert len({fingerprint(array) for array in [base, *others]}) == 6
    assert fingerprint(np.array([0.0])) != fingerprint(np.array([-0.0]))


def test_types_that_numpy_does_not_know():
    packed = np.zeros(4, np.uint8)
    assert fingerprint(packed, dtype="s4") != fingerprint(packed)
    assert fingerprint(np.zeros(4, ml_dtypes.bfloat16)).dtype == "bf16"


@pytest.mark.parametrize("bad", [None, [1, 2], np.array([object()]), np.array(["text"])])
def test_what_is_no_array_of_numbers_is_refused(bad):
    with pytest.raises(InvalidArgumentError):
        fingerprint(bad)


def test_the_memo_reads_each_version_once():
    memo, weight = FingerprintMemo(), np.ones(4, np.float32)
    first = memo.get((1, 1), weight)
    weight[:] = 2
    assert memo.get((1, 1), weight) == first
    assert memo.get((1, 2), weight) == fingerprint(weight) != first
    assert memo.forget((1, 1))
    assert not memo.forget((1, 1))
    assert memo.get((1, 1), weight) == fingerprint(weight)
    memo.clear()
    assert not memo.forget((1, 1))


def test_the_memo_is_bounded():
    memo = FingerprintMemo(2)
    for version in range(3):
        memo.get(version, np.ones(1))
    assert not memo.forget(0)
