"""What every test starts from."""

import pytest

from graphpool.cache import constant_tensor_cache


@pytest.fixture(autouse=True)
def no_constants_of_other_tests():
    """Constants are shared within the process: a test that counts memory must not find those of another."""
    constant_tensor_cache("cpu").clear()
