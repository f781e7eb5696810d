"""Environment variables: parsed once, refused with what is accepted."""

import pytest

from graphpool import config
from graphpool.errors import InvalidArgumentError


@pytest.fixture
def impl(monkeypatch):
    """GRAPHPOOL_IMPL as it is read from a text."""

    def read(text):
        monkeypatch.setenv("GRAPHPOOL_IMPL", text)
        monkeypatch.delitem(config._values, "impl", raising=False)
        return config.get("impl")

    yield read
    config._values.pop("impl", None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("auto", {"": "auto"}),
        ("simd", {"": "simd"}),
        ("blas", {"": "blas"}),
        ("ref", {"": "ref"}),
        ("reference", {"": "ref"}),
        ("MatMul=blas", {"MatMul": "blas"}),
        (" simd , MatMul = blas,Convolution=ref ", {"": "simd", "MatMul": "blas", "Convolution": "ref"}),
    ],
)
def test_forced_implementations_of_all_ops_and_of_some(impl, text, expected):
    assert impl(text) == expected


@pytest.mark.parametrize("text", ["fast", "BLAS", "=blas", "MatMul", "MatMul=", "MatMul:blas", "a=b=simd", "simd,blas",
                                  "MatMul=simd,MatMul=blas", "simd,", "auto simd"])  # fmt: skip
def test_malformed_implementations_are_refused_with_the_right_form(impl, text):
    with pytest.raises(InvalidArgumentError, match=r"GRAPHPOOL_IMPL is malformed.*simd,MatMul=blas") as caught:
        impl(text)
    assert text in str(caught.value)


def test_unset_or_empty_is_the_default(impl):
    assert impl("") == config.VARIABLES["impl"].default
