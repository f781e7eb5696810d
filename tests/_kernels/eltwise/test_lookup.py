import numpy as np
import pytest

from graphpool._kernels.core import _dispatch
from graphpool._kernels.eltwise.lookup import byte_lookup
from graphpool.errors import InvalidShapeError
from tests.helpers.kernel_runs import run_checked

ISAS = _dispatch.isas()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("n", [0, 1, 255, 40_000])
def test_every_byte_is_looked_up(isa, n):
    rng = np.random.default_rng(0)
    src, table = rng.integers(0, 256, n).astype(np.uint8), rng.integers(0, 256, 256).astype(np.uint8)
    out = run_checked(byte_lookup(n, isa), n, src, table, dst_index=2, dtype=np.uint8)
    np.testing.assert_array_equal(out, table[src])


def test_signed_bytes_are_looked_up_by_their_bits():
    src, table = np.array([-128, -1, 0, 127], np.int8), np.arange(256, dtype=np.uint8)
    assert run_checked(byte_lookup(4), 4, src, table, dst_index=2, dtype=np.uint8).tolist() == [128, 255, 0, 127]


def test_a_negative_size_raises():
    with pytest.raises(InvalidShapeError):
        byte_lookup(-1)
