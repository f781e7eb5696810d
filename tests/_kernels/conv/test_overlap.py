"""Sums of a transposed convolution where its windows overlap, behind the product."""

import numpy as np
import pytest

from graphpool._kernels.conv.overlap import overlap
from graphpool._kernels.core import _dispatch
from tests.cases.inputs import normal
from tests.helpers.convolutions import convolve, expected_transpose, relu_plus_one
from tests.helpers.kernel_runs import run_checked
from tests.helpers.layouts import LAYOUTS, read_back, strides_of


@pytest.mark.parametrize("isa", _dispatch.isas())
@pytest.mark.parametrize(
    ("layout", "epilogue"), [*((layout, None) for layout in LAYOUTS), ("NCX", relu_plus_one), ("NXC", relu_plus_one)]
)
@pytest.mark.parametrize(
    ("x", "w", "geometry"),
    [
        ((2, 5, 9), (3, 4), {"strides": (2,), "begin": (1,), "end": (1,)}),
        ((1, 3, 40), (1, 16), {"strides": (8,), "begin": (4,), "end": (4,), "extra": (3,)}),
        ((1, 3, 7), (2, 3), {"strides": (5,), "extra": (4,)}),
        ((1, 4, 11), (2, 3), {"dilations": (3,), "strides": (2,), "begin": (2,), "end": (1,)}),
        ((2, 3, 5, 6), (3, 4, 4), {"strides": (2, 2), "begin": (1, 1), "end": (1, 1)}),
        ((1, 2, 4, 5), (1, 3, 2), {"strides": (1, 2), "dilations": (2, 1), "begin": (5, 0), "end": (0, 3)}),
        ((1, 2, 3, 1, 1), (2, 2, 3, 3), {"strides": (2, 1, 4)}),
        ((1, 2, 3, 4), (4, 1, 1), {}),
        ((0, 2, 3, 4), (4, 2, 2), {}),
    ],
    ids=str,
)
def test_sums_are_those_of_the_definition(x, w, geometry, epilogue, layout, isa):
    x, w = normal(x), normal((1, w[0], x[1], *w[1:]), 1)
    ndim = x.ndim - 2
    given = {key: geometry.get(key, (key in ("strides", "dilations"),) * ndim)
             for key in ("strides", "begin", "end", "dilations", "extra")}  # fmt: skip
    given = {key: tuple(map(int, values)) for key, values in given.items()}
    expected = expected_transpose(x, w, 1, *given.values())
    products = np.einsum("ni...,oik->nok...", x, w[0].reshape(*w.shape[1:3], -1))
    call = convolve(
        lambda problem, post: overlap(problem, post, isa=isa),
        x.shape[0], x.shape[1], w.shape[1], x.shape[2:], w.shape[3:], dilations=given["dilations"],
        src_strides=strides_of(x.shape, "NCX"), dst_strides=strides_of(expected.shape, layout),
        strides=given["strides"], pads_begin=given["begin"], pads_end=given["end"], output_padding=given["extra"],
        transposed=True, epilogue=epilogue(expected.shape, layout) if epilogue else b"",
    )  # fmt: skip
    size = expected.size * (2 if layout.endswith("gap") else 1)
    out = read_back(run_checked(call, size, products, dst_index=1), expected.shape, layout)
    wanted = np.maximum(expected, 0) + 1 if epilogue else expected
    np.testing.assert_allclose(out, wanted, 1e-4, 1e-5)
