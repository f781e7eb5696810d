"""Products and convolutions: sizes around tiles, small and large ones, operands turned, post-ops, tensor cores."""

import numpy as np
import pytest

import graphpool as gp
from graphpool._kernels.cuda import image, products
from tests.cases.graphs import GraphBuilder
from tests.cases.inputs import random_inputs
from tests.helpers.cuda_engine import kernels_of, run_partitions
from tests.helpers.partitions import assert_close, run_reference


def compare(driver, gpu, g, y, *texts, has_parts=False):
    """Run a graph of one partition, whose kernel has some texts, and hold the result against the reference.

    A kernel that `has_parts` leaves it to another one to add them.
    """
    [partition] = g.finish()
    values = random_inputs(g, np.random.default_rng(len(texts[0])))
    expected = run_reference(g.graph.ops, values)
    kernel, *sums = kernels_of([partition], {number: value.shape for number, value in expected.items()})
    assert [text in kernel.text for text in texts] == [True] * len(texts)
    assert [other.family for other in sums] == ["eltwise"] * has_parts
    driver.seed(len(values))
    assert_close(run_partitions([partition], values, gpu)[y.id], expected[y.id], y.dtype)


@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True)], ids=str)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (64, 64, 16), (65, 70, 33), (17, 130, 31), (3, 5, 0)], ids=str)
def test_products_of_bf16(driver, gpu, sizes, turned):
    rows, cols, depth = sizes
    g = GraphBuilder(graph=gp.Graph("gpu"))
    a = g.input((2, depth, rows) if turned[0] else (2, rows, depth), "bf16")
    b = g.input((cols, depth) if turned[1] else (depth, cols), "bf16")
    product = g.op("MatMul", a, b, g.input((cols,), "bf16"), transpose_a=turned[0], transpose_b=turned[1])
    compare(driver, gpu, g, g.op("ReLU", product), "mma.sync")


@pytest.fixture(params=products._TILES, ids=str)
def tile(request, monkeypatch):
    """Sums of a thread down and across: any tile, whatever the sizes."""
    down, across = request.param
    monkeypatch.setattr(products, "_TILES", (request.param,))
    return f"#define GP_DOWN {down}\n#define GP_ACROSS {across}\n"


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_products_in_small_and_large_tiles(driver, gpu, dtype, tile):
    g = GraphBuilder(graph=gp.Graph("gpu"))
    product = g.op("MatMul", g.input((2, 19, 37), dtype), g.input((37, 35), dtype))
    compare(driver, gpu, g, g.op("ReLU", product), tile)


def convolved(kind, outer, dtype, inner=4):
    """More terms than a stage has, windows that leave the image, gaps and steps; channels in each group."""
    g = GraphBuilder(graph=gp.Graph("gpu"))
    windows = {"strides": [2, 1], "dilations": [1, 2], "pads_begin": [1, 0], "pads_end": [0, 2]}
    weights, layout = ((2 * outer, inner, 3, 2), "OIX") if kind == "Convolution" else ((2 * inner, outer, 3, 2), "IOX")
    operands = g.input((2, 2 * inner, 7, 6), dtype), g.input(weights, dtype)
    y = g.op(kind, *operands, groups=2, data_format="NCX", weights_format=layout, **windows)
    return g, g.op("ReLU", y)


@pytest.mark.parametrize("kind", ["Convolution", "ConvTranspose"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("tile", [(4, 4), (2, 2)], ids=str, indirect=True)
def test_convolutions_in_tiles(driver, gpu, kind, dtype, tile):
    compare(driver, gpu, *convolved(kind, 21, dtype), tile, "#define GP_INDEX int\n")


@pytest.mark.parametrize("kind", ["Convolution", "ConvTranspose"])
@pytest.mark.parametrize(("dtype", "inner"), [("f32", 13), ("bf16", 61)])
def test_convolutions_of_many_channels(driver, gpu, kind, dtype, inner, tile):
    compare(driver, gpu, *convolved(kind, 21, dtype, inner), tile, "gp_conv_deep")


@pytest.mark.parametrize("kind", ["Convolution", "ConvTranspose"])
@pytest.mark.parametrize("most", [2, 4, 16])
def test_convolutions_in_parts(driver, gpu, monkeypatch, kind, most):
    """Of 18 stages: 9 each, parts of 5 and one of 3, parts of 2 and seven without any."""
    monkeypatch.setattr(image, "_MOST_PARTS", most)
    monkeypatch.setattr(image, "_PART_STAGES", 1)
    g, y = convolved(kind, 21, "f32", 48)
    compare(driver, gpu, g, g.op("Add", y, g.input((2, 42, 1, 1))), "gp_conv_deep", has_parts=True)


@pytest.mark.parametrize("kind", ["Convolution", "ConvTranspose"])
def test_direct_convolutions(driver, gpu, kind):
    compare(driver, gpu, *convolved(kind, 3, "f32"), "gp_conv_direct")


@pytest.mark.parametrize("kind", ["Convolution", "ConvTranspose"])
@pytest.mark.parametrize("outer", [3, 21])
def test_convolutions_whose_offsets_are_wide(driver, gpu, monkeypatch, kind, outer):
    monkeypatch.setattr(image, "index_type", lambda *_: "long long")
    compare(driver, gpu, *convolved(kind, outer, "f32"), "#define GP_INDEX long long\n")
