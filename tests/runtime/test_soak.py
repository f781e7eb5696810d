import pytest

from tests.helpers.soak import soak


@pytest.mark.slow
def test_everything_at_once_for_ten_seconds():
    """`make soak` does so for ten minutes, and forks meanwhile; `test_interleavings` forks at every point."""
    wrong, counts = soak(10.0, seed=1, threads=8, forks=False)
    assert not wrong
    assert {"product", "model", "named", "own_engine"} <= {name.split(",")[0] for name in counts}
