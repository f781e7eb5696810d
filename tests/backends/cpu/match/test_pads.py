"""Zeros that a Pad puts around an image become pads of the convolutions that read it, and nothing else does."""

import numpy as np
import pytest

from graphpool.backends.cpu.match.pads import join_pads
from graphpool.graph.completion import complete_shapes
from tests.cases.graphs import GraphBuilder
from tests.helpers.partitions import run_reference

IMAGE = {"NCX": (2, 3, 7, 8), "NXC": (2, 7, 8, 3)}
SIDES = {"NCX": ([0, 0, 1, 2], [0, 0, 3, 0]), "NXC": ([0, 1, 2, 0], [0, 3, 0, 0])}
WINDOW = {"strides": [2, 1], "dilations": [1, 1], "pads_begin": [1, 0], "pads_end": [0, 1], "weights_format": "OIX"}


def padded(g, x, **changes):
    data_format = changes.pop("data_format", "NCX")
    begin, end = SIDES[data_format]
    attrs = {"pads_begin": begin, "pads_end": end, "mode": "constant", "value": 0.0}
    return g.op("Pad", x, **{**attrs, **changes})


def convolution(g, x, data_format="NCX", **changes):
    return g.op("Convolution", x, g.input((4, 3, 3, 3)), **{**WINDOW, **changes}, data_format=data_format)


def joined(g, outputs):
    """The ops behind the pass, which have the same results."""
    g.graph.finalize()
    ops = [op for op in g.graph.ops if op.kind != "End"]
    wanted = [lt.id for lt in outputs]
    made = join_pads(ops, complete_shapes(ops), wanted)
    rng = np.random.default_rng(0)
    values = {lt.id: rng.standard_normal(lt.shape, np.float32) for lt in g.inputs}
    expected, got = run_reference(ops, values), run_reference(made, values)
    for number in wanted:
        np.testing.assert_array_equal(got[number], expected[number])
    return made


@pytest.mark.parametrize("data_format", IMAGE)
def test_zeros_around_an_image_are_pads_of_the_convolution(data_format):
    g = GraphBuilder()
    x = padded(g, g.input(IMAGE[data_format]), data_format=data_format)
    [op] = joined(g, [convolution(g, x, data_format)])
    assert op.kind == "Convolution"
    assert (op.attrs["pads_begin"], op.attrs["pads_end"]) == ((2, 2), (3, 1))


def test_another_reader_keeps_the_pad():
    g = GraphBuilder()
    x = padded(g, g.input(IMAGE["NCX"]))
    made = joined(g, [convolution(g, x), g.op("ReLU", x)])
    assert [op.kind for op in made] == ["Pad", "Convolution", "ReLU"]
    assert made[1].inputs[0] == made[0].inputs[0]


@pytest.mark.parametrize(
    ("pad", "window"),
    [
        ({"value": 1.0}, {}),
        ({"mode": "edge"}, {}),
        ({"pads_begin": [0, 1, 0, 0], "pads_end": [0, 0, 0, 0]}, {}),
        ({"pads_begin": [0, 0, -1, 0]}, {}),
        ({}, {"auto_pad": "SAME_UPPER"}),
    ],
    ids=["ones", "an edge", "channels", "a cut", "pads that follow from sizes"],
)
def test_what_is_no_zero_around_an_image_stays(pad, window):
    g = GraphBuilder()
    channels = 4 if "pads_begin" in pad and pad["pads_begin"][1] else 3
    x = padded(g, g.input(IMAGE["NCX"]), **pad)
    y = g.op("Convolution", x, g.input((4, channels, 3, 3)), **{**WINDOW, **window}, data_format="NCX")
    assert [op.kind for op in joined(g, [y])] == ["Pad", "Convolution"]
