"""One test a family: which ops become one partition, and which do not."""

import pytest

import graphpool as gp
from tests.cases.graphs import GraphBuilder

CONV = {"strides": [1, 1], "pads_begin": [0, 0], "pads_end": [0, 0], "dilations": [1, 1], "data_format": "NCX",
        "weights_format": "OIX"}  # fmt: skip


def kinds(build):
    """The op kinds of each partition of what `build` adds to a graph."""
    builder = GraphBuilder()
    build(builder)
    return [[op.kind for op in partition.ops] for partition in builder.finish()]


def counts(build):
    return [len(partition) for partition in kinds(build)]


def dequantized(g, shape, dtype="s8", cast=None):
    x = g.op("Dequantize", g.input(shape, dtype), dtype="f32", scales=[0.5], zps=[0])
    return x if cast is None else g.op("TypeCast", x, dtype=cast)


@pytest.mark.parametrize("cast", [None, "bf16"])
def test_int8_product_with_an_int8_sum(cast):
    def build(g):
        x = g.op("MatMul", dequantized(g, (4, 8), "u8", cast), dequantized(g, (8, 8), cast=cast))
        y = g.op("ReLU", g.op("Add", x, dequantized(g, (4, 8), cast=cast)))
        g.op("Quantize", y if cast is None else g.op("TypeCast", y, dtype="f32"), dtype="s8", scales=[0.5], zps=[1])

    assert len(kinds(build)) == 1


def test_dequantised_operand_with_another_reader_stays_outside():
    def build(g):
        w = dequantized(g, (8, 8))
        g.op("Exp", w)
        g.op("MatMul", g.input((4, 8)), w)

    assert sorted(counts(build)) == [1, 1, 1]


def test_quantisation_of_the_result_that_is_read_twice():
    def build(g):
        y = g.op("MatMul", g.input((4, 8)), g.input((8, 8)))
        g.op("Quantize", y, dtype="s8", scales=[0.5])
        g.op("MatMul", y, g.input((8, 8)))

    assert counts(build)[0] == 1


@pytest.mark.parametrize("groups", ["per_tensor", "per_group"])
def test_product_with_compressed_weights(groups):
    def build(g):
        shape, own = ((4, 8), {"group_shape": [2, 1]}) if groups == "per_group" else ((1,), {})
        w = g.op("DynamicDequantize", g.input((8, 8), "u4"), g.input(shape), dtype="f32", qtype=groups, **own)
        g.op("ReLU", g.op("MatMul", g.input((3, 8)), w))

    assert kinds(build) == [["DynamicDequantize", "MatMul", "ReLU"]]


def test_moves_behind_a_product():
    def build(g):
        y = g.op("MatMul", g.input((2, 4, 8)), g.input((2, 8, 6)))
        z = g.op("StaticTranspose", y, order=[1, 0, 2])
        g.op("Quantize", g.op("StaticReshape", z, shape=[4, 12], special_zero=False), dtype="u8", scales=[1.0])

    assert len(kinds(build)) == 1


def test_binary_ops_on_both_sides_of_a_product():
    def build(g):
        a = g.op("Multiply", g.op("Add", g.input((4, 4)), g.input((4, 4))), g.input((4,)))
        g.op("Subtract", g.op("MatMul", a, g.input((4, 4))), g.input((4, 4)))

    assert kinds(build) == [["Add", "Multiply", "MatMul", "Subtract"]]


def test_post_ops_belong_to_the_op_before_them():
    def build(g):
        x = g.op("Add", g.op("LayerNorm", g.input((4, 8)), keep_stats=False, use_affine=False), g.input((4, 8)))
        g.op("MatMul", x, g.input((8, 8)))

    assert kinds(build) == [["LayerNorm", "Add"], ["MatMul"]]


def test_depthwise_convolution_behind_a_pointwise_one():
    def build(g, kernel=(1, 1), groups=8):
        x = g.op("Convolution", g.input((1, 4, 6, 6)), g.input((8, 4, *kernel)), **CONV)
        y = g.op("Convolution", g.op("ReLU", x), g.input((8, 8 // groups, 3, 3)), groups=groups, **CONV)
        g.op("Clamp", y, min=0.0, max=6.0)

    assert counts(build) == [4]
    assert counts(lambda g: build(g, kernel=(2, 2))) == [2, 2]
    assert counts(lambda g: build(g, groups=1)) == [2, 2]


def test_weights_that_are_reshaped_and_requantised():
    def build(g):
        w = g.op("StaticReshape", g.input((8, 4, 9)), shape=[8, 4, 3, 3], special_zero=False)
        w = g.op("Dequantize", g.op("Quantize", w, dtype="s8", scales=[0.25]), dtype="f32", scales=[0.25])
        g.op("Convolution", dequantized(g, (1, 4, 6, 6), "u8"), w, **CONV)

    assert len(kinds(build)) == 1


def test_int8_concat_pool_and_reorder():
    def concat(g):
        g.op("Quantize", g.op("Concat", *(dequantized(g, (2, 3)) for _ in range(3)), axis=0), dtype="s8", scales=[0.5])

    def pool(g):
        own = {"kernel": [2, 2], "strides": [2, 2], "pads_begin": [0, 0], "pads_end": [0, 0], "data_format": "NCX"}
        y = g.op("AvgPool", dequantized(g, (1, 2, 4, 4)), exclude_pad=True, **own)
        g.op("Quantize", g.op("StaticReshape", y, shape=[-1], special_zero=False), dtype="s8", scales=[0.5])

    def reorder(g):
        y = g.op("Add", g.op("Reorder", dequantized(g, (2, 3))), dequantized(g, (2, 3)))
        g.op("Quantize", y, dtype="s8", scales=[0.5])

    for build in (concat, pool, reorder):
        assert len(kinds(build)) == 1


def test_shuffle():
    def build(g, order=(0, 2, 1, 3)):
        x = g.op("StaticReshape", g.input((2, 6, 4)), shape=[2, 2, 3, 4], special_zero=False)
        g.op("StaticReshape", g.op("StaticTranspose", x, order=order), shape=[2, 6, 4], special_zero=False)

    assert counts(build) == [3]


def attention(g, *, cap=False, causal=False, stats=False, between=None, reader=False):
    """Attention in one of its forms."""
    q, k, v = (g.input((2, 3, 8, 4)) for _ in range(3))
    s = g.op("Multiply", g.op("MatMul", q, k, transpose_b=True), g.input((1,)))
    if cap:
        s = g.op("Multiply", g.op("Tanh", g.op("Divide", s, g.input((1,)))), g.input((1,)))
    if causal:
        rows, columns = (g.op("GenIndex", s, dtype="s32", axis=axis) for axis in (-2, -1))
        s = g.op("Select", g.op("GreaterEqual", rows, columns, dtype="boolean"), s, g.input(()), dtype="f32")
    p = g.op("SoftMax", g.op("Add", s, g.input((2, 1, 8, 8))), axis=-1, n=1 + stats, dtype=["f32"] * (1 + stats))
    p = p[0] if stats else p
    if reader:
        g.op("Concat", p, p, axis=0)
    p = p if between is None else between(g, p)
    y = g.op("MatMul", p, v)
    g.op("StaticReshape", g.op("StaticTranspose", y, order=[0, 2, 1, 3]), shape=[2, 8, 12], special_zero=False)


@pytest.mark.parametrize("form", [{}, {"cap": True}, {"causal": True}, {"stats": True}, {"reader": True}])
def test_attention(form):
    found = kinds(lambda g: attention(g, **form))
    assert next(partition for partition in found if "SoftMax" in partition).count("MatMul") == 2
    assert len(found) == 1 + bool(form.get("reader"))


def test_attention_with_quantised_probabilities():
    def between(g, p):
        return g.op("Dequantize", g.op("Quantize", p, dtype="u8", scales=[1 / 256]), dtype="f32", scales=[1 / 256])

    assert len(kinds(lambda g: attention(g, between=between))) == 1


def test_no_attention_where_something_else_lies_between():
    found = kinds(lambda g: attention(g, between=lambda g, p: g.op("Concat", p, axis=0)))
    assert all(partition.count("MatMul") < 2 for partition in found)


def attention_backward(g, *, group=False):
    """Gradients of q, k and v, from the statistics of the forward pass."""
    q, k, v, o, do = (g.input((2, 3, 8, 4)) for _ in range(5))
    s = g.op("Multiply", g.op("MatMul", q, k, transpose_b=True), g.input((1,)))
    p = g.op("Exp", g.op("Subtract", s, g.input((2, 3, 8, 1))))
    dv = g.op("MatMul", p, do, transpose_a=True)
    dp = g.op("MatMul", do, v, transpose_b=True)
    d = g.op("ReduceSum", g.op("Multiply", o, do), axes=[-1], keep_dims=True)
    ds = g.op("Multiply", g.op("Multiply", p, g.op("Subtract", dp, d)), g.input((1,)))
    g.op("MatMul", ds, k)
    dk = g.op("MatMul", ds, q, transpose_a=True)
    if group:
        for x in (dv, dk):
            g.op("ReduceSum", x, axes=[1], keep_dims=True)


@pytest.mark.parametrize("group", [False, True])
def test_attention_backward(group):
    assert len(kinds(lambda g: attention_backward(g, group=group))) == 1


def gated_mlp(g, *, swish=True, shared=True):
    x = g.input((2, 8))
    gate = g.op("MatMul", x, g.input((8, 16)))
    gate = g.op("Multiply", gate, g.op("Sigmoid", gate)) if swish else g.op("GELU", gate)
    up = g.op("MatMul", x if shared else g.input((2, 8)), g.input((8, 16)))
    g.op("MatMul", g.op("Multiply", gate, up), g.input((16, 8)))


def test_gated_mlp():
    assert counts(gated_mlp) == [6]
    assert counts(lambda g: gated_mlp(g, swish=False)) == [5]
    assert len(kinds(lambda g: gated_mlp(g, shared=False))) > 1


def residual_block(g, x, *, length=2, kind="Add", reader=False):
    """Convolutions behind one another, and a shortcut from their input to a sum."""
    y = x
    for _ in range(length):
        y = g.op("ReLU", g.op("Convolution", y, g.input((4, 4, 1, 1)), **CONV))
    if reader:
        g.op("Exp", y)
    return g.op("ReLU", g.op(kind, y, x))


def residual_stage(g, blocks=1, **own):
    x = g.input((1, 4, 5, 5))
    for _ in range(blocks):
        x = residual_block(g, x, **own)
    return x


@pytest.mark.parametrize("blocks", [1, 2, 5])
@pytest.mark.parametrize("length", [2, 3])
def test_residual_blocks(blocks, length):
    assert counts(lambda g: residual_stage(g, blocks, length=length)) == [blocks * (2 * length + 2)]


@pytest.mark.parametrize("own", [{"length": 1}, {"length": 4}, {"kind": "Multiply"}, {"reader": True}])
def test_what_is_no_residual_block(own):
    assert len(kinds(lambda g: residual_stage(g, 2, **own))) > 1


def test_a_stage_ends_where_its_result_is_read_by_others():
    def build(g):
        x = residual_stage(g)
        g.op("AvgPool", x, kernel=[5, 5], strides=[1, 1], pads_begin=[0, 0], pads_end=[0, 0], exclude_pad=True,
             data_format="NCX")  # fmt: skip
        residual_block(g, x)

    assert sorted(counts(build)) == [1, 12]


def test_dropout_ends_a_product():
    def build(g):
        x = g.op("ReLU", g.op("MatMul", g.input((4, 8)), g.input((8, 8))))
        g.op("Dropout", x, g.input((), "s64"), g.input((), "s64"), g.input(()), n=2, dtype=["f32", "u8"])

    assert kinds(build) == [["MatMul", "ReLU", "Dropout"]]


def test_relu_behind_batch_norm_in_training():
    def build(g):
        x, *_ = g.op("BatchNormForwardTraining", g.input((2, 4, 3, 3)), g.input((4,)), g.input((4,)), n=5,
                     dtype=["f32"] * 5, epsilon=0.1, data_format="NCX")  # fmt: skip
        g.op("ReLU", x)

    assert kinds(build) == [["BatchNormForwardTraining", "ReLU"]]


def test_batch_norm_backward_behind_relu_backward_is_one_partition():
    g = GraphBuilder()
    d = g.op("ReLUBackward", g.input((1, 4, 5, 5)), g.input((1, 4, 5, 5)), use_dst=False)
    params = [g.input((4,)) for _ in range(3)]
    g.op(
        "BatchNormTrainingBackward",
        g.input((1, 4, 5, 5)),
        d,
        *params,
        n=3,
        dtype=["f32"] * 3,
        epsilon=0.1,
        data_format="NCX",
    )
    [partition] = g.finish()
    assert partition.backend_name == "cpu"


def test_end_keeps_its_tensor_an_output():
    g = GraphBuilder()
    q, k, v = (g.input((2, 8, 4)) for _ in range(3))
    p = g.op("SoftMax", g.op("MatMul", q, k, transpose_b=True), axis=-1)
    g.graph.add_op(gp.Op(90, "End", [p], []))
    y = g.op("MatMul", p, v)
    [partition] = g.finish()
    assert [port.id for port in partition.output_ports] == [p.id, y.id]
